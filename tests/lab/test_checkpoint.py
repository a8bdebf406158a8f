"""Training that is killed, interrupted or stopped goes on to the weights it would have had, bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unfit.auditor.samples import draw
from unfit.auditor.sources import read_source
from unfit.base.errors import UnfitError
from unfit.base.nets import parse_architecture
from unfit.base.progress import Report, quiet
from unfit.lab import checkpoint
from unfit.lab.checkpoint import FILE, Interrupted, TrainingCheckpoint, checkpoint_folder
from unfit.lab.fit import Fit, fit
from unfit.lab.runs import RUN_FILES, fit_folder
from unfit.lab.settings import FitSettings
from unfit.lab.trainee import InMaps
from unfit.lab.training import TIME_LIMIT

SGD = FitSettings("sgd", init=None, epochs=110, batch=7, weight_decay=1e-3)
SCHEDULES = [
    (FitSettings(max_steps=60), "30-20"),
    (FitSettings(loss="l2.5", init=1.0, max_steps=60), "30"),  # where steps are halved
    (FitSettings(weight_decay=0.01, init=None, max_steps=180), "30-20"),
    (FitSettings(weight_decay=1e-3, init=None), "conv(3,4)-10"),  # 8 turns of many steps
    (FitSettings("gd", lr=0.1, epochs=60), "20"),
    (SGD, "30-20"),
]


@pytest.fixture(autouse=True, scope="module")
def as_in_a_terminal() -> Iterator[None]:
    """One thread, and Ctrl-C as Python has it: a job in the background ignores it."""
    threads, handler = torch.get_num_threads(), signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, handler)


def trained(
    settings: FitSettings, arch: str, progress: Report = quiet, kept: TrainingCheckpoint | None = None
) -> Fit:
    members = draw(read_source("faces"), 20, 0)
    samples = members.centred(members.mean)
    architecture = parse_architecture(arch, members.shape, 1)
    return fit(architecture, (samples.x, samples.y), (samples.x, samples.y), settings, progress, kept)


def ctrl_c(after: int) -> Report:
    """Press it in the middle of that step."""
    calls = iter(range(1, 10**6))
    return lambda *_: signal.raise_signal(signal.SIGINT) if next(calls) == after else None


def assert_same(found: Fit, expected: Fit) -> None:
    assert {name: found.record[name] for name in found.record if name != "seconds"} == {
        name: expected.record[name] for name in expected.record if name != "seconds"
    }
    assert_equal(found.weights, expected.weights)


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize(("settings", "arch"), SCHEDULES)
def test_interrupted_twice_it_ends_at_the_same_weights(settings: FitSettings, arch: str, tmp_path: Path) -> None:
    whole, folder, steps = trained(settings, arch), tmp_path / "checkpoint", 0
    for after in (2, 3) if arch.startswith("conv") else (9, 24):
        with pytest.raises(
            Interrupted, match=r"\d+ steps are kept in .*; run the same command to go on"
        ) as stopped:
            trained(settings, arch, ctrl_c(after), TrainingCheckpoint(folder))
        steps, before = int(str(stopped.value).split()[0]), steps
        assert before + after <= steps < whole.record["steps"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    found = trained(settings, arch, kept=TrainingCheckpoint(folder))
    assert found.resumed_at == steps
    assert_same(found, whole)


def test_a_long_turn_behind_a_convolution_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, arch = next(each for each in SCHEDULES if each[1].startswith("conv"))
    whole, folder, loss = trained(settings, arch), tmp_path / "checkpoint", InMaps.loss
    late = trained(settings, arch, kept=TrainingCheckpoint(folder, 1e-9)).record
    assert (late["status"], late["steps"]) == (TIME_LIMIT, 0)
    calls = iter(range(1, 10**6))

    def pressed(self: InMaps, *args: Any) -> Tensor:
        if next(calls) == 30:  # in the middle of the second turn of the kernels
            signal.raise_signal(signal.SIGINT)
        return loss(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(InMaps, "loss", pressed)
        with pytest.raises(Interrupted, match="35 steps are kept"):
            trained(settings, arch, kept=TrainingCheckpoint(folder))
    assert next(calls) == 31  # nothing was computed after it
    found = trained(settings, arch, kept=TrainingCheckpoint(folder))
    assert found.resumed_at == 35
    assert_same(found, whole)


def test_a_second_ctrl_c_does_not_wait_for_the_step(tmp_path: Path) -> None:
    def twice(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as stopped:
        trained(SGD, "10", twice, TrainingCheckpoint(tmp_path / "checkpoint"))
    assert not isinstance(stopped.value, Interrupted)
    assert list(tmp_path.iterdir()) == []  # nothing was kept


def test_a_checkpoint_of_another_training_is_refused_with_what_differs(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    with pytest.raises(Interrupted):
        trained(SGD, "10", ctrl_c(3), TrainingCheckpoint(folder))
    other = FitSettings("sgd", init=None, epochs=110, batch=7, weight_decay=1e-3, lr=0.02)
    for settings, arch, words in (
        (other, "10", r"lr \(0.01 there, 0.02 here\)"),
        (SGD, "11", r"net \(.*-10-.*-11-"),
    ):
        with pytest.raises(UnfitError, match=f"holds another training, which differs in {words}"):
            trained(settings, arch, kept=TrainingCheckpoint(folder))
    members = draw(read_source("faces"), 20, 1)
    pair, architecture = (members.x, members.y), parse_architecture("10", members.shape, 1)
    with pytest.raises(UnfitError, match="differs in data"):
        fit(architecture, pair, pair, SGD, checkpoint=TrainingCheckpoint(folder))
    assert (
        trained(SGD, "10", kept=TrainingCheckpoint(folder)).resumed_at == 3 * 3
    )  # of three batches: it is still there
    assert_same(trained(other, "10", kept=TrainingCheckpoint(folder, force=True)), trained(other, "10"))


@pytest.mark.parametrize("content", [b"", b"no checkpoint", None])
def test_a_checkpoint_that_cannot_be_read_is_refused(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "checkpoint" / FILE
    with pytest.raises(Interrupted):
        trained(SGD, "10", ctrl_c(3), TrainingCheckpoint(file.parent))
    file.write_bytes(file.read_bytes()[:-100] if content is None else content)  # cut short
    with pytest.raises(UnfitError, match=r"is damaged: .*`force`"):
        trained(SGD, "10", kept=TrainingCheckpoint(file.parent))
    assert trained(SGD, "10", kept=TrainingCheckpoint(file.parent, force=True)).resumed_at == 0


def test_one_process_at_a_time(tmp_path: Path) -> None:
    first = TrainingCheckpoint(tmp_path / "checkpoint")
    with first.training({}), pytest.raises(UnfitError, match=r"process \d+ on .* is writing"):
        trained(SGD, "10", kept=TrainingCheckpoint(tmp_path / "checkpoint"))
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_that_take_long_to_write_are_rarer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "INTERVAL", 0.0)
    monkeypatch.setattr(checkpoint, "WRITING_SHARE", 1e-9)
    seen, file = [], tmp_path / "checkpoint" / FILE

    def look(*_: object) -> None:
        seen.append(file.stat().st_mtime_ns if file.exists() else 0)

    trained(SGD, "10", look, TrainingCheckpoint(file.parent))
    assert len(set(seen)) == 2  # none, then the first


# The command ----------------------------------------------------------------------------------------------------

LONG = ("--data", "faces", "--n", "40", "--arch", "60-30", "--init", "standard", "--flow-time", "1e20")
COMMAND = (  # with checkpoints so often that a kill meets one
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from unfit.lab import checkpoint; checkpoint.INTERVAL, checkpoint.WRITING_SHARE = 0.05, 1.0\n"
    "from unfit.cli import main; main()"
)
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}
Run = Callable[..., tuple[int, str, str]]


def command(out: Path, *more: str) -> list[str]:
    return [sys.executable, "-c", COMMAND, "fit", *LONG, *more, "--out", str(out)]


def wait_for_a_new(file: Path, old: int = 0) -> None:
    deadline = time.monotonic() + 300
    while not (file.exists() and file.stat().st_mtime_ns > old) and time.monotonic() < deadline:
        time.sleep(0.005)


def test_kill_ctrl_c_and_a_time_limit_end_at_the_same_weights(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One training stopped in all three ways, each time going on by the same command.

    Only the kill needs a process of its own, which takes longer to load PyTorch than all else here.
    """
    out = tmp_path / "run"
    hidden = checkpoint_folder(out)
    process = subprocess.Popen(command(out), stderr=subprocess.PIPE, text=True, env=ONE_THREAD)
    wait_for_a_new(hidden / FILE)
    process.send_signal(signal.SIGKILL)
    assert (process.communicate(timeout=120)[1], out.exists()) == ("", False)
    assert process.returncode == -signal.SIGKILL
    assert (hidden.stat().st_mode & 0o777, (hidden / FILE).stat().st_mode & 0o777) == (0o700, 0o600)

    def ctrl_c() -> None:
        wait_for_a_new(hidden / FILE, killed)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(checkpoint, "INTERVAL", 0.02)
    monkeypatch.setattr(checkpoint, "WRITING_SHARE", 1.0)
    killed = (hidden / FILE).stat().st_mtime_ns
    stopping = threading.Thread(target=ctrl_c)
    stopping.start()
    code, _, error = run(*command(out)[3:])
    stopping.join()
    assert code == 130
    assert error.startswith("unfit: interrupted; ")
    assert error.endswith("run the same command to go on\n")
    assert (error.count("\n"), out.exists()) == (1, False)

    assert run(*command(out, "--max-time", "0.02s")[3:])[0] == 0
    partial = facts(out)
    assert partial["status"] == TIME_LIMIT
    assert partial["steps"] > int(error.split()[2])
    assert sorted(path.name for path in out.iterdir()) == sorted(RUN_FILES)

    code, printed, _ = run(*command(out)[3:])
    assert code == 0
    assert f" steps ({partial['steps']} of them before this call)" in printed
    assert not hidden.exists()
    settings = FitSettings(init=None, flow_time=1e20)
    expected = fit_folder(read_source("faces"), 40, tmp_path / "whole", settings, "60-30")
    assert partial["steps"] < expected.record["steps"]
    assert (out / "target.safetensors").read_bytes() == (tmp_path / "whole/target.safetensors").read_bytes()
    assert [facts(out)[name] for name in ("status", "steps", "curve")] == [
        json.loads(json.dumps(expected.record[name])) for name in ("status", "steps", "curve")
    ]
    assert run(*command(out)[3:])[0] == 2  # done: refused as ever


def facts(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "fit.json").read_text()))
