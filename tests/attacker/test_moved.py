"""Which rows of a table moved: those that training used, and no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from unfit.attacker.moved import moved_rows

V, D, USED = 300, 64, 60


def table() -> tuple[Tensor, Tensor]:
    """A base, and which of its rows training uses."""
    generator = torch.Generator().manual_seed(0)
    base = 0.05 * torch.randn(V, D, generator=generator)
    used = torch.zeros(V, dtype=torch.bool)
    used[torch.randperm(V, generator=generator)[:USED]] = True
    return base, used


def trained(size: float, decay: float = 0.0, steps: int = 50) -> Tensor:
    """Each used row moves in one step; all rows shrink in every step."""
    base, used = table()
    generator = torch.Generator().manual_seed(1)
    weight = base.clone()
    for step in range(steps):
        weight.mul_(1 - decay * (1 - step / steps))
        if step == steps // 2:
            weight[used] += size * torch.randn(USED, D, generator=generator)
    return weight


def by_row(weight: Tensor) -> Tensor:
    """As 8-bit types store it, each row with its own scale."""
    step = weight.abs().amax(1, keepdim=True) / 127
    return step * (weight / step).round()


def by_table(weight: Tensor) -> Tensor:
    step = weight.abs().max() / 127
    return step * (weight / step).round()


AS_IS: Callable[[Tensor], Tensor] = lambda weight: weight  # noqa: E731
BF16: Callable[[Tensor], Tensor] = lambda weight: weight.bfloat16().float()  # noqa: E731
FP16: Callable[[Tensor], Tensor] = lambda weight: weight.half().float()  # noqa: E731


@pytest.mark.parametrize("of_base", [AS_IS, BF16, FP16, by_row], ids=["float32", "bf16", "fp16", "int8"])
@pytest.mark.parametrize(
    "stored", [AS_IS, BF16, FP16, by_row, by_table], ids=["float32", "bf16", "fp16", "int8", "int8 per table"]
)
@pytest.mark.parametrize("decay", [0.0, 2e-7, 1e-4, 3e-3])
def test_the_rows_that_training_used_and_no_others(
    decay: float, stored: Callable[[Tensor], Tensor], of_base: Callable[[Tensor], Tensor]
) -> None:
    """Decay, and rounding of the model or of its base, move no row."""
    base, used = table()
    moved = moved_rows(stored(trained(3e-3, decay)), of_base(base))
    assert not (moved.rows & ~used).any()
    exact = stored is AS_IS and of_base is AS_IS
    assert moved.can_tell
    assert float(moved.rows[used].float().mean()) > (0.999 if exact else 0.9 if decay == 0 else 0.1)


@pytest.mark.parametrize("decay", [0.0, 2e-7, 1e-4])
def test_small_steps_are_seen(decay: float) -> None:
    base, used = table()
    assert torch.equal(moved_rows(trained(2e-5, decay), base).rows, used)


def test_no_row_is_told_where_all_moved() -> None:
    """Tied output embeddings, another base, or decay that is no factor: then nothing says which rows were used."""
    base, _ = table()
    noise = torch.randn(V, D, generator=torch.Generator().manual_seed(2))
    for after in (base + 1e-4 * noise, noise, base - 1e-4 * base.sign()):
        moved = moved_rows(after, base)
        assert not moved.can_tell
        assert not moved.rows.any()


def test_decay_alone_moves_no_row() -> None:
    base, _ = table()
    for decay in (2e-7, 1e-4, 3e-3):
        moved = moved_rows(trained(0.0, decay), base)
        assert (moved.can_tell, moved.num) == (True, 0)
        assert moved.factor < 1


def test_few_columns_do_not_tell_decay_from_training() -> None:
    base, used = table()
    after = trained(3e-3, 1e-4)
    assert not moved_rows(after[:, :1], base[:, :1]).can_tell
    without = trained(3e-3)
    assert torch.equal(moved_rows(without[:, :1], base[:, :1]).rows, used)
