"""Many samples in few weights: the set is safe by its number, and a single sample is not."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from unfit import Policy, Unmix, audit, preflight
from unfit.auditor.audit import Audit
from unfit.auditor.outliers import ALLOWED, _is_clear, _least, reactions_of_all
from unfit.auditor.signal_check import Reactions, reactions
from unfit.auditor.verdict import Attacked, Effort, Found, Sight, judge

Pair = tuple[Tensor, Tensor]
CROWDED = Effort("auto", "finished", 30.0, 500, 60, capacity=60, estimated=None, attacker="has the base")
FAR = Sight(signal_p_value=0.4, num_held=0, ratio=0.03, outlier_p_value=0.5)
NOTHING = Found(40, 0, 0, 4000, 4000, 0.5, num_recovered_unseen=40)


@pytest.mark.parametrize(
    ("found", "effort", "sight", "verdict"),
    [
        ({}, {}, {}, "pass"),
        ({}, {}, {"ratio": 0.2}, "inconclusive"),
        ({}, {}, {"outlier_p_value": 0.01}, "inconclusive"),
        ({}, {}, {"outlier_p_value": 0.0}, "inconclusive"),  # nobody has looked
        ({}, {}, {"signal_p_value": 0.01}, "inconclusive"),
        ({}, {}, {"knows_p_value": 0.01}, "inconclusive"),
        ({}, {"attacker": "blind"}, {}, "inconclusive"),  # noise hides what the weights hold of single samples
        ({}, {"status": "out of budget"}, {}, "inconclusive"),
        ({}, {"num_proven": 1}, {}, "inconclusive"),
        # five of 4,000 are no more traces than chance gives, and recognisable all the same
        ({"num_recognisable": 5}, {}, {}, "inconclusive"),
        ({"num_recognisable": 5, "num_recognisable_unseen": 5}, {}, {}, "inconclusive"),
    ],
)
def test_a_pass_by_number_needs_everything(
    found: dict[str, int], effort: dict[str, object], sight: dict[str, float], verdict: str
) -> None:
    what = replace(NOTHING, **found)
    seen = Attacked(what, replace(CROWDED, **effort), replace(FAR, **sight))  # type: ignore[arg-type]
    decision = judge([seen], what, Policy())
    assert decision.verdict == verdict, decision.reasons
    if verdict == "pass":
        assert any("0.03 parameters for each value of a sample" in reason for reason in decision.reasons)


def test_all_samples_are_weighed_as_the_signal_check_weighs_a_part() -> None:
    random = torch.Generator().manual_seed(0)
    maps = [torch.randn(30, 12, generator=random), torch.randn(40, 12, generator=random) + 1]
    weight = torch.randn(8, 12, generator=random)
    found = reactions_of_all(maps, weight)
    assert found is not None
    torch.testing.assert_close(torch.cat([found.own, found.unseen]), reactions(torch.cat(maps), weight))
    assert reactions_of_all([torch.zeros(2, 5000)] * 2, torch.zeros(3, 5000)) is None


def test_outliers_are_rare_by_chance_and_seen_where_they_are() -> None:
    random = torch.Generator().manual_seed(0)
    low = 0
    for _ in range(300):
        own, unseen = torch.rand(500, generator=random), torch.rand(500, generator=random)
        low += len(ALLOWED) * _least(Reactions(own, unseen)) < 0.05
    assert low <= 25  # 15 expected at most, and the four thresholds overlap
    own, unseen = torch.rand(500, generator=random).exp(), torch.rand(500, generator=random).exp()
    assert not _is_clear(Reactions(own, unseen))
    own[7] = 100.0
    assert _is_clear(Reactions(own, unseen))
    own[7], own[:12] = 1.0, 2.8
    assert _least(Reactions(own, unseen)) < 0.001


def blobs(n: int) -> Pair:
    """Ten classes that a small net tells apart without a look at single samples."""
    random = torch.Generator().manual_seed(n)
    centres = torch.rand(10, 64, generator=torch.Generator().manual_seed(0))
    y = torch.arange(n) % 10
    return (centres[y] + 0.2 * torch.randn(n, 64, generator=random)), y


def trained(net: nn.Module, x: Tensor, y: Tensor, steps: int, batch: int, rate: float) -> None:
    optimiser = torch.optim.SGD(net.parameters(), rate)
    for _ in range(steps):
        chosen = torch.randperm(len(x))[:batch]
        seen = x[chosen] + 0.2 * torch.randn(len(chosen), 64)
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(seen), y[chosen]).backward()
        optimiser.step()


def audited(planted: bool) -> Audit:
    """64-16-10: 1,210 parameters for 890 × 64 values, 0.021 each. Noise is added in training, as augmentation."""
    (x, y), unseen = blobs(890), blobs(900)
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    base = copy.deepcopy(net)
    trained(net, x, y, 150, 50, 0.1)
    if planted:
        y[:5] = (y[:5] + 3) % 10
        trained(net, x[:5], y[:5], 300, 5, 0.1)
    return audit(net, (x, y), unseen, base=base, attack=Unmix(ranks=(0.7,)))


def test_an_ordinary_model_of_many_samples_passes_and_says_why() -> None:
    record = audited(planted=False).record
    assert record.verdict == "pass", record.reasons
    assert any("0.021 parameters for each value" in reason for reason in record.reasons)


def test_five_samples_that_were_trained_on_last_prevent_that() -> None:
    record = audited(planted=True).record
    assert record.verdict == "leak" or "too-many-samples" in record.codes, record.reasons


def test_preflight_says_the_ratio() -> None:
    net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    notes = " ".join(preflight(net, num_samples=890).notes)
    assert "1,210 / (64 × 890) = 0.021; far below, though single samples may still leak" in notes
    assert "here that is 19 / samples" in " ".join(preflight(net).notes)


def test_membership_that_shows_is_not_excused_by_the_number() -> None:
    seen = Attacked(NOTHING, CROWDED, replace(FAR, knows_p_value=0.01))
    assert {doubt.code for doubt in judge([seen], NOTHING, Policy()).doubts} == {
        "holds-samples",
        "too-many-samples",
    }
