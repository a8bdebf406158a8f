"""Memory is bounded: what would take more is refused before it is allocated, with numbers and what to do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unfit import Auto, UnfitError, attack, audit
from unfit.attacker.attacked_layer import read_layer
from unfit.attacker.attacks.fast import FastKKT
from unfit.attacker.attacks.unmix import Unmix
from unfit.attacker.costs import check_size, layer_bytes
from unfit.attacker.span import column_space
from unfit.base.errors import UsageError
from unfit.base.memory import FLOAT, VARIABLE, check_memory, most_bytes
from unfit.base.modules import as_target


def test_too_much_is_refused_with_what_takes_it_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    check_memory({"samples": 1e9, "candidates": 2e9}, "Take less")
    with pytest.raises(
        UnfitError, match=r"about 9\.6 GB of memory \(samples 1\.0 GB, candidates 8\.0 GB\)"
    ) as told:
        check_memory({"samples": 1e9, "candidates": 8e9}, "Take less")
    assert "the limit is 6.0 GB. Take less, or set UNFIT_MEMORY=10" in str(told.value)
    monkeypatch.setenv(VARIABLE, "10")
    check_memory({"samples": 1e9, "candidates": 8e9}, "Take less")
    monkeypatch.setenv(VARIABLE, "0.5")
    with pytest.raises(UnfitError, match=r"about 0\.6 GB of memory \(nearly all of it for the program itself\)"):
        check_memory({"samples": 1e6}, "Take less")


@pytest.mark.parametrize("text", ["much", "0", "-1", "nan", "inf"])
def test_a_limit_is_a_number_of_gigabytes(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(UsageError, match="not a number of GB"):
        most_bytes()


def net_of(d: int, width: int) -> nn.Sequential:
    """Ten samples on hardly any noise."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(d, width), nn.ReLU(), nn.Linear(width, 1))
    net[1].weight.data = 1e-6 * torch.randn(width, d) + torch.randn(width, 10) @ torch.randn(10, d)
    return net


def test_attack_and_audit_refuse_before_they_work(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = net_of(3 * 32 * 32, 100), torch.rand(20, 3, 32, 32)
    monkeypatch.setenv(VARIABLE, "0.601")
    with pytest.raises(UnfitError, match="too large: this needs about"):
        attack(net, Unmix())
    with pytest.raises(UnfitError, match="too large: this needs about"):
        audit(net, x[:10], x[10:], attack=Auto(seeds=0))


def test_bytes_grow_with_what_is_found() -> None:
    small, large = (
        read_layer(as_target(net_of(d, 100), shape)) for d, shape in ((768, (3, 16, 16)), (3072, (3, 32, 32)))
    )
    assert Unmix().held(large) > 3 * Unmix().held(small)
    assert FastKKT().held(large) > FastKKT(runs=1).held(large)
    assert layer_bytes(large) > 4 * FLOAT * large.weight.numel()
    check_size(large, 1e9)
    with pytest.raises(UnfitError, match="candidates 9"):
        check_size(large, 9e9)


@pytest.mark.parametrize("shape", [(40, 300), (300, 40)])
def test_the_column_space_is_that_of_an_svd(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    factors = torch.randn(shape[0], 12).double(), torch.randn(12, shape[1]).double()
    matrix = factors[0] * torch.logspace(0, -4, 12).double() @ factors[1]
    basis, left = column_space(matrix, 12), torch.linalg.svd(matrix)[0][:, :12]
    assert torch.allclose(basis.T @ basis, torch.eye(12).double())
    assert torch.linalg.svdvals(basis.T @ left).min() > 1 - 1e-9
