"""Threads are decided in one place, and whoever called gets theirs back."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from threadpoolctl import threadpool_info

import unfit
from unfit import FastKKT, FitSettings, UnfitError, Unmix, attack, fit_run, load_target, read_source
from unfit.base import threads as module
from unfit.base.budget import is_over, limited
from unfit.base.errors import UsageError
from unfit.base.threads import num_workers, spread, threads, usable


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As a user with two cores has them."""
    monkeypatch.setattr(module, "_cores", lambda: 2)
    monkeypatch.setattr(module, "_quota", lambda: None)
    monkeypatch.delenv(module.VARIABLE, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_products_run_on_one_thread_and_the_callers_threads_come_back() -> None:
    blas = [each["num_threads"] for each in threadpool_info()]
    with threads():
        assert (torch.get_num_threads(), num_workers()) == (1, 2)
        assert all(each["num_threads"] == 1 for each in threadpool_info())
        with threads():
            assert num_workers() == 2  # the outer call decides
    assert torch.get_num_threads() == 2
    assert [each["num_threads"] for each in threadpool_info()] == blas


LATER = """
import sys
from threadpoolctl import threadpool_info
from unfit.base.threads import threads

with threads():
    assert "scipy" not in sys.modules
import scipy.linalg
with threads():
    print(*(each["num_threads"] for each in threadpool_info()))
"""


def test_a_library_that_is_loaded_later_is_bounded_too() -> None:
    """SciPy brings a BLAS of its own, and not every call loads it."""
    environment = os.environ | {"OMP_NUM_THREADS": "2", "PYTHONPATH": str(Path(unfit.__file__).parents[1])}
    told = subprocess.run(
        [sys.executable, "-c", LATER], env=environment, capture_output=True, text=True, check=True
    )
    assert set(told.stdout.split()) == {"1"}


def test_they_come_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), threads():
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2
    with pytest.raises(UnfitError):
        attack(torch.nn.Sequential(torch.nn.Linear(3, 2)), "peel")
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("told", "cores", "quota", "asked", "num"), [
    (64, 2, None, None, 2),
    (1, 8, None, None, 1),
    (8, 8, 3, None, 3),
    (8, 8, 3, "2", 2),
    (2, 8, None, "16", 2),
])  # fmt: skip
def test_the_least_limit_holds(
    monkeypatch: pytest.MonkeyPatch, told: int, cores: int, quota: int | None, asked: str | None, num: int
) -> None:
    monkeypatch.setattr(module, "_cores", lambda: cores)
    monkeypatch.setattr(module, "_quota", lambda: quota)
    if asked:
        monkeypatch.setenv(module.VARIABLE, asked)
    assert usable(told) == num


@pytest.mark.parametrize("text", ["none", "0", "-1", "1.5"])
def test_a_number_of_threads_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(module.VARIABLE, text)
    with pytest.raises(UsageError, match=f"UNFIT_THREADS is '{text}'"), threads():
        pass


@pytest.mark.parametrize(
    ("text", "cores"), [("200000 100000", 2), ("50000 100000", 1), ("max 100000", None), ("", None)]
)
def test_the_quota_of_a_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, cores: int | None
) -> None:
    monkeypatch.undo()
    (tmp_path / "cpu.max").write_text(text)
    monkeypatch.setattr(module, "CGROUP", tmp_path / "cpu.max")
    assert module._quota() == cores
    monkeypatch.setattr(module, "CGROUP", tmp_path / "none")
    assert module._quota() is None


def test_work_is_spread_and_stays_in_order() -> None:
    together = threading.Barrier(2, timeout=10)

    def work(i: int) -> int:
        if i < 2:
            together.wait()  # which only two at once can pass
        time.sleep(0.01 * (5 - i))
        assert torch.get_num_threads() == 1
        return i * i

    with threads():
        assert list(spread(work, range(5))) == [0, 1, 4, 9, 16]


def test_workers_see_the_time_limit_and_stop_with_their_caller() -> None:
    begun = list[int]()

    def work(i: int) -> bool:
        begun.append(i)
        return is_over()

    with threads():
        with limited(-1):
            assert all(spread(work, range(4)))
        begun.clear()
        results = spread(work, range(1000))
        assert next(results) is False
        results.close()  # type: ignore[attr-defined]
        assert len(begun) < 10
        with pytest.raises(ZeroDivisionError):
            list(spread(lambda i: 1 // i, [1, 0, 1]))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("threads")
    fit_run(read_source("faces"), 20, folder, FitSettings(), arch="200-50")
    return folder


@pytest.mark.parametrize("method", [Unmix(iterations=30), FastKKT(runs=3, iterations=30)])
def test_candidates_do_not_depend_on_the_number_of_workers(
    run: Path, method: Unmix | FastKKT, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load_target(run)
    two = attack(target, method)
    monkeypatch.setenv(module.VARIABLE, "1")
    one = attack(target, method)
    assert torch.equal(one.x, two.x)
    assert one.origins == two.origins
