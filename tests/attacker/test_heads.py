"""Dense heads: the initial weights of a head with dead neurons, and whether a rank is a number of samples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from unfit import Auto, Policy, audit, preflight
from unfit.attacker.attacked_layer import AttackedLayer, is_even, read_layer
from unfit.attacker.span import is_full, num_distinct
from unfit.attacker.stage_cache import NOWHERE
from unfit.attacker.surfaces import surfaces
from unfit.auditor.case import Case, case_of
from unfit.base.load import load_target
from unfit.base.modules import as_base, as_target
from unfit.base.normal import kept_neurons, normal_form
from unfit.base.progress import quiet

SEED, N, SIDE = 7, 10, 8
Optimiser = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
OPTIMISERS: dict[str, Optimiser] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.05),
    "momentum and decay": lambda p: torch.optim.SGD(p, 0.02, momentum=0.9, weight_decay=1e-3),
    "Adam": lambda p: torch.optim.Adam(p, 1e-3),
    "AdamW": lambda p: torch.optim.AdamW(p, 1e-3),
}
PLAIN, ADAPTIVE = list(OPTIMISERS)[:2], list(OPTIMISERS)[2:]


def images(seed: int, n: int = N) -> tuple[Tensor, Tensor]:
    """Positive values: each neuron sees much the same, so that many never fire."""
    x = 0.5 + torch.rand(n, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))
    x[1::2, :, SIDE // 2 :] += 0.5
    return x, torch.arange(n) % 2


def dense() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 100), nn.ReLU(), nn.Linear(100, 2))


def cnn(dropout: float = 0.0) -> nn.Sequential:
    front = [nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(dropout)]
    return nn.Sequential(*front, nn.Linear(96, 80), nn.ReLU(), nn.Dropout(0.2), nn.Linear(80, 2))


def trained(initial: nn.Module, optimiser: str, steps: int, front: bool = True, n: int = N) -> nn.Module:
    """On all samples at once; without the front only dense layers are trained."""
    model, (x, y) = copy.deepcopy(initial).train(), images(0, n)
    parts = model.modules() if front else (part for part in model.modules() if isinstance(part, nn.Linear))
    parameters = [each for part in parts for each in part.parameters(recurse=False)]
    step = OPTIMISERS[optimiser](parameters)
    for _ in range(steps):
        step.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        step.step()
    return model.eval()


def change(model: nn.Module, initial: nn.Module | None) -> AttackedLayer:
    target = as_target(model, (1, SIDE, SIDE))
    return read_layer(target, as_base(initial, target))


# Dead neurons -------------------------------------------------------------------------------------------------


@pytest.fixture(params=[dense, cnn])
def drawn(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(SEED)
    model: nn.Module = request.param()
    return model


def as_forms(initial: nn.Module) -> tuple[Case, Case]:
    target = as_target(trained(initial, "SGD", 20), (1, SIDE, SIDE), input_range=(0.5, 2))
    case = case_of(target, images(0), images(1))
    as_is, form = (case.at(surface) for surface in surfaces(case.target).found)
    assert form.attacked.architecture.hidden[0] < as_is.attacked.architecture.hidden[0]
    return as_is, form


def test_initial_weights_are_found_with_all_neurons_and_used_for_those_that_fire(drawn: nn.Module) -> None:
    as_is, form = as_forms(drawn)
    whole, _, facts = Auto(seeds=50)._from_initial(as_is.layer, quiet, NOWHERE)
    assert facts["initial"]["seed"] == SEED
    known = replace(form.layer, as_is=whole, told=facts["initial"])
    part, _, facts = Auto(seeds=50)._from_initial(known, quiet, NOWHERE)
    assert facts["initial"]["seed"] == SEED
    kept = kept_neurons(form.attacked, as_is.attacked)
    assert kept is not None
    before = as_base(drawn, as_is.target)
    assert before is not None
    assert part.base is not None
    assert torch.equal(part.base.weights["layer1.weight"], before.weights["layer1.weight"][kept])
    assert torch.equal(part.base.weights["layer2.weight"], before.weights["layer2.weight"][:, kept])
    assert torch.allclose(part.weight, whole.weight[kept])


def test_a_head_whose_initial_weights_are_not_found_is_audited_all_the_same(drawn: nn.Module) -> None:
    as_is, form = as_forms(drawn)
    whole, _, facts = Auto(seeds=5)._from_initial(as_is.layer, quiet, NOWHERE)
    assert whole is as_is.layer
    assert not facts["initial"]["found"]
    known = replace(form.layer, as_is=whole, told=facts["initial"])
    part, _, again = Auto(seeds=5)._from_initial(known, quiet, NOWHERE)
    assert part is known
    assert again == facts


def test_a_model_with_dead_neurons_and_no_base_is_audited(drawn: nn.Module) -> None:
    done = audit(trained(drawn, "Adam", 80), images(0), images(1), attack=Auto(seeds=50))
    assert done.record.attacker == "computes the initial weights"


def test_rows_of_a_form_that_did_more_than_leave_neurons_out_are_not_named(drawn: nn.Module) -> None:
    as_is, form = as_forms(drawn)
    scaled = form.attacked.weights | {"layer1.weight": 2 * form.attacked.weights["layer1.weight"]}
    other = form.attacked.weights | {"layer2.weight": 2 * form.attacked.weights["layer2.weight"]}
    for weights in (scaled, other):
        assert kept_neurons(replace(form.attacked, weights=weights), as_is.attacked) is None
    assert kept_neurons(normal_form(as_is.target), as_is.target) is not None


# Ranks that are no number of samples --------------------------------------------------------------------------


@pytest.mark.parametrize(("optimiser", "steps"), [("SGD", 1), *((name, 30) for name in PLAIN)])
def test_samples_are_counted_where_each_enters_as_one_vector(optimiser: str, steps: int) -> None:
    torch.manual_seed(SEED)
    for build, front in ((dense, True), (cnn, False)):
        initial = build()
        assert change(trained(initial, optimiser, steps, front), initial).estimated_num_samples == N


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("steps", [2, 5, 30])
def test_behind_trained_layers_they_are_not(optimiser: str, steps: int) -> None:
    torch.manual_seed(SEED)
    initial = cnn()
    layer = change(trained(initial, optimiser, steps), initial)
    assert layer.estimated_num_samples is layer.facts()["estimated_num_samples"] is None


@pytest.mark.parametrize("optimiser", ADAPTIVE)
@pytest.mark.parametrize("steps", [1, 5, 100])
def test_after_steps_scaled_for_each_weight_they_are_not(optimiser: str, steps: int) -> None:
    torch.manual_seed(SEED)
    for build, front in ((dense, True), (cnn, False)):
        initial = build()
        assert change(trained(initial, optimiser, steps, front), initial).estimated_num_samples is None


def test_without_a_base_layers_in_front_are_taken_to_be_trained() -> None:
    torch.manual_seed(SEED)
    initial = cnn()
    nn.init.zeros_(initial[5].weight)
    nn.init.ones_(initial[5].bias)
    model = trained(initial, "SGD", 30, front=False)
    assert change(model, None).span.ends
    assert change(model, None).estimated_num_samples is None
    assert change(model, initial).estimated_num_samples == N


def test_a_base_of_the_head_alone_says_nothing_about_the_front() -> None:
    torch.manual_seed(SEED)
    initial = cnn()
    target = as_target(trained(initial, "SGD", 30, front=False), (1, SIDE, SIDE))
    base = as_base(initial, target)
    assert base is not None
    assert read_layer(target, base).estimated_num_samples == N
    assert read_layer(target, replace(target, weights=base.weights)).estimated_num_samples is None


def test_dropout_in_front_makes_other_vectors_in_each_step() -> None:
    torch.manual_seed(SEED)
    initial = cnn(dropout=0.2)
    layer = change(trained(initial, "SGD", 2, front=False), initial)
    assert layer.num_samples == 2 * N
    assert layer.estimated_num_samples is None


def test_a_convolution_that_was_trained_makes_other_maps_in_each_step() -> None:
    torch.manual_seed(SEED)
    initial = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 80), nn.ReLU(), nn.Linear(80, 2)
    )
    assert change(trained(initial, "SGD", 30, front=False), initial).estimated_num_samples == N
    assert change(trained(initial, "SGD", 2), initial).estimated_num_samples is None


def test_a_file_with_the_state_of_adam_says_so(tmp_path: Path) -> None:
    torch.manual_seed(SEED)
    initial = dense()
    model = trained(initial, "SGD", 30)
    for name in ("exp_avg_sq", "momentum_buffer"):
        state = {"state": {0: {name: torch.rand(100, SIDE**2)}}}
        torch.save({"model": model.state_dict(), "optimizer": state}, tmp_path / "model.pt")
        target = load_target(tmp_path / "model.pt")
        found = read_layer(replace(target, moments={}), as_base(initial, target)).estimated_num_samples
        assert found == (None if name == "exp_avg_sq" else N)


def test_a_rank_that_fills_the_matrix_says_nothing() -> None:
    random = torch.Generator().manual_seed(0)
    low = torch.randn(40, 6, generator=random) @ torch.randn(6, 30, generator=random)
    assert not is_full(low, 6)
    full = torch.randn(6, 30, generator=random)
    assert is_full(torch.cat([full, torch.zeros(34, 30)]), 6)
    assert is_full(torch.cat([full, -full, full]), 6)
    assert is_full(torch.cat([full, -full, full]).T, 6)
    assert is_full(torch.cat([full, 2 * full]), 6)  # neurons that fire for one sample
    assert not is_full(torch.cat([full, 2 * full, full + full.flip(0)]).T, 6)  # inputs of other sizes
    for scaled in (True, False):
        assert num_distinct(full.repeat(100, 1), 1e-5, 10, scaled) == 6
        assert num_distinct(torch.randn(500, 30, generator=random), 1e-5, 10, scaled) > 10


def test_steps_of_one_size_are_told() -> None:
    random = torch.Generator().manual_seed(0)
    low = torch.randn(40, 3, generator=random) @ torch.randn(3, 30, generator=random)
    assert is_even(low.sign())
    assert not is_even(low)
    assert not is_even(torch.zeros(3, 3))
    equal_inputs = (2 * torch.rand(200, 1, generator=random) - 1).expand(200, 30)
    assert not is_even(equal_inputs)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_nobody_who_gave_all_samples_is_asked_for_more(optimiser: str) -> None:
    torch.manual_seed(SEED)
    initial = cnn()
    model = trained(initial, optimiser, 40)
    record = audit(model, images(0), images(1), base=initial, attack="weights").record
    assert record.estimated_num_samples is None
    assert not any("give all" in reason for reason in record.reasons)
    found = preflight(model, initial, input_shape=(1, SIDE, SIDE))
    assert found.estimated_num_samples is None
    assert not any("plain gradient steps (GD" in note for note in found.notes)


def test_whoever_gave_a_few_of_many_samples_is_asked_for_all() -> None:
    torch.manual_seed(SEED)
    initial = dense()
    x, y = images(0, 30)
    model = trained(initial, "SGD", 2000, n=30)
    done = audit(model, (x[:N], y[:N]), images(1), base=initial, attack="weights", policy=Policy(fail_on="exact"))
    assert done.record.estimated_num_samples == 30
    assert any("changed in 30 directions" in reason for reason in done.record.reasons)
