"""The initial weights of a network from its trained weights: the right seed or none, and all layers of it."""

from __future__ import annotations

import copy
import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from trained import on_images, without_order
from unfit import Auto, InitialWeights, Target, as_target, attack, find_initial_weights, load_base, preflight
from unfit.attacker.attacked_layer import read_layer
from unfit.attacker.decay import read_decay
from unfit.attacker.initial import Search, search_initial_weights
from unfit.attacker.initial.clues import HARDLY_MOVED, find_clues
from unfit.attacker.initial.found import InitialRecord
from unfit.attacker.initial.philox import gpu_numbers, gpu_recipe, philox
from unfit.attacker.initial.proof import log10_chance
from unfit.attacker.initial.recipes import NUMPY, TORCH, numbers_of, recipes, set_torch
from unfit.attacker.initial.search import (
    Trace,
    _compiled_pairs,
    _plain_pairs,
    compiled,
    seeds_per_second,
    survivors,
)
from unfit.attacker.initial.state import equations, seed_of, solutions, solve_state
from unfit.attacker.initial.twister import first_outputs, following, masks, parity, preceding, seeded
from unfit.base.errors import UsageError
from unfit.base.nets import build, initialise, parse_architecture

Run = Callable[..., tuple[int, str, str]]
Build = Callable[[], nn.Module]
SECRET = 0x5EED_0000_0001_E240  # its low 32 bits, all that PyTorch takes, are 123456
SEED = 123456
AROUND = range(SEED - 300, SEED + 300)
DOCS = Path(__file__).parents[2] / "docs" / "initial-weights.md"


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(300, 80), nn.ReLU(), nn.Linear(80, 40), nn.ReLU(), nn.Linear(40, 3))


def again(draw: Callable[[Tensor], object], names: str = "weight") -> Build:
    """A network whose tensors of these names are drawn again after it was built."""

    def built() -> nn.Sequential:
        model = plain()
        for name, parameter in model.named_parameters():
            if re.search(names, name):
                draw(parameter)
        return model

    return built


def one_by_one() -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in ((300, 80), (80, 40), (40, 3)):
        layer = nn.Linear(a, b)
        nn.init.kaiming_normal_(layer.weight)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def papers() -> nn.Sequential:
    """The first layer again, its bias first, as in the papers' code."""
    model = plain()
    with torch.no_grad():
        model[0].bias.normal_().mul_(1e-4)
        model[0].weight.normal_().mul_(1e-4)
    return model


def conv() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 40), nn.ReLU(), nn.Linear(40, 1)
    )


def drawn(make: Build, seed: int = SECRET) -> Target:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return as_target(make())


def moved(initial: Target, by: float = 0.2, left: float = 1.0) -> Target:
    """Noise instead of training: `by` of each tensor's size, on what is left of the initial weights."""
    weights = {
        name: left * value + by * value.square().mean().sqrt() * random(*value.shape, seed=i)
        for i, (name, value) in enumerate(initial.weights.items())
    }
    return Target(initial.architecture, weights)


def distances(found: InitialWeights, initial: Target) -> list[float]:
    return [
        float((found.target.weights[name] - value).norm() / value.norm())
        for name, value in initial.weights.items()
    ]


# The generator ------------------------------------------------------------------------------------------------


def test_outputs_are_those_of_the_real_generator() -> None:
    places = np.arange(200)
    ours = first_outputs(seeded(np.array([5, SEED], np.uint32)), places)
    assert np.array_equal(ours[:, 1], np.random.RandomState(SEED).randint(0, 2**32, 200, dtype=np.uint64))
    assert np.array_equal((ours[:, 0] & 0xFFFFFF) * 2.0**-24, TORCH.numbers(5, 200))


def test_the_generator_of_gpus_is_philox_as_published() -> None:
    """Known answers of Random123, and what PyTorch prints on any NVIDIA GPU after `manual_seed(0)`."""

    def words(counter: tuple[int, ...], key: int) -> tuple[int, ...]:
        a, b, c, d = (np.array([each], np.uint64) for each in counter)
        return tuple(int(each[0]) for each in philox((a, b, c, d), np.array(key, np.uint64)))

    assert words((0, 0, 0, 0), 0) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    digits = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert words(digits, 0x299F31D0_A4093822) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)
    places = np.arange(4, dtype=np.uint64)
    assert gpu_numbers(0, places, 256).round(4).tolist() == [0.3990, 0.5167, 0.0249, 0.9401]
    assert gpu_numbers(0, places, 256, calls=1).round(4).tolist() == [0.9722, 0.7910, 0.4690, 0.3300]


def test_masks_reach_any_place() -> None:
    places = np.array([0, 226, 227, 623, 624, 5000])
    bits = parity(np.bitwise_xor.reduce(seeded(np.array([SEED], np.uint32))[:, 0] & masks(places, 23), axis=1))
    assert np.array_equal(bits == 1, TORCH.numbers(SEED, 5001)[places] >= 0.5)
    high = parity(np.bitwise_xor.reduce(seeded(np.array([SEED], np.uint32))[:, 0] & masks(2 * places, 31), axis=1))
    assert np.array_equal(high == 1, NUMPY.numbers(SEED, 5001)[places] >= 0.5)


@pytest.mark.parametrize("place", [0, 700])
def test_the_compiled_search_and_the_plain_one_agree(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    values = TORCH.numbers(77, place + 4096)[place:] + 0.15 * random(4096).numpy()
    trace, seeds = Trace(values, place), range(3000)
    fast = list(survivors(trace, seeds))
    monkeypatch.setattr("unfit.attacker.initial.search.compiled", lambda: None)
    assert fast == list(survivors(trace, seeds)) == [77]


@pytest.mark.parametrize("moved", [0.02, 0.1])
@pytest.mark.parametrize("seed", [0, 77, 2**32 - 1])
def test_pairs_lead_from_a_word_in_the_middle_to_the_seed(seed: int, moved: float) -> None:
    values = TORCH.numbers(seed, 4096) + moved * random(4096).numpy()
    near = (1 + 12 * moved**2) ** -0.5
    trace = Trace(values, likeness=near)
    assert trace.pairs is not None
    word = int(seeded(np.array([seed], np.uint32), trace.pairs.place + 1)[-1, 0])
    block = range(max(0, word - 500), min(2**32, word + 500))
    assert _plain_pairs(trace, block) == [seed]
    if (library := compiled()) is not None:
        assert _compiled_pairs(library, trace, block) == [seed]
    other = Trace(NUMPY.numbers(seed, 4096) + moved * random(4096).numpy(), likeness=near)
    assert _plain_pairs(other, block) == []


def test_pairs_are_for_early_numbers_that_hardly_moved() -> None:
    values = TORCH.numbers(77, 4096) + 0.02 * random(4096).numpy()
    assert Trace(values, likeness=0.99).pairs is not None
    without = [Trace(values), Trace(values, likeness=0.3), Trace(values[:200], likeness=0.99)]
    without += [Trace(values, place=5, likeness=0.99), Trace(values, stride=2, shift=8, likeness=0.99)]
    assert all(trace.pairs is None for trace in without)


def test_all_seeds_are_tried_by_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few words, which stand for all: the seed is found by its word, and only within the range asked for."""
    trace = Trace(TORCH.numbers(77, 4096) + 0.02 * random(4096).numpy(), likeness=0.99)
    assert trace.pairs is not None
    word = int(seeded(np.array([77], np.uint32), trace.pairs.place + 1)[-1, 0])
    monkeypatch.setattr("unfit.attacker.initial.search._test", lambda _, by_pairs: (_shifted(trace, word), 64))
    monkeypatch.setattr("unfit.attacker.initial.search.SEEDS", 256)
    assert list(survivors(trace, range(256))) == [77]
    assert list(survivors(trace, range(78, 256))) == []


def _shifted(trace: Trace, word: int) -> Callable[[range], list[int]]:
    return lambda block: _plain_pairs(trace, range(word - 100 + block.start, word - 100 + block.stop))


def test_steps_of_seeding_can_be_undone() -> None:
    words = seeded(np.array([0, 1, SEED, 2**32 - 1], np.uint32))
    assert np.array_equal(following(words[499], 500), words[500])
    assert np.array_equal(preceding(words[500], 500), words[499])


def test_a_machine_without_a_compiler_searches_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    compiled.cache_clear()
    try:
        assert compiled() is None
        assert find_initial_weights(moved(drawn(plain)), seeds=AROUND) is not None
    finally:
        compiled.cache_clear()


def test_a_deadline_is_kept() -> None:
    trace = Trace(random(4096).double().numpy())
    tried: list[int] = []
    assert not list(survivors(trace, range(1 << 32), time.perf_counter() + 0.2, tried.append))
    assert 0 < tried[-1] < 1 << 32
    assert seeds_per_second(trace) > 0


def test_equations_are_the_masks_of_their_places() -> None:
    places = np.array([0, 1, 226, 227, 700, 2000])
    assert np.array_equal(equations(places, 23), masks(places, 23))


def test_a_system_gives_its_solution_or_none_if_it_contradicts_itself() -> None:
    random = np.random.default_rng(0)
    state = random.integers(0, 2**32, 12, dtype=np.uint32)
    state[0] &= np.uint32(1 << 31)
    rows = random.integers(0, 2**32, (400, 12), dtype=np.uint32)
    rows[:, 0] &= np.uint32(1 << 31)
    rows[:, 5] &= np.uint32(0xFFFF_FFFE)  # nothing depends on this bit, so it stays open
    bits = parity(np.bitwise_xor.reduce(rows & state, axis=1)) == 1
    found = solutions(rows, bits)
    assert len(found) == 2
    assert any(np.array_equal(each, state) for each in found)
    bits[7] ^= True
    assert solutions(rows, bits) == []


def test_a_state_says_its_seed_and_draws_the_same() -> None:
    state = seeded(np.array([SEED], np.uint32))[:, 0]
    assert seed_of(state) == SEED
    assert seed_of(state ^ np.uint32(1)) is None
    unused = state.copy()
    unused[0] ^= np.uint32(5)  # low bits of the first word are never used
    assert seed_of(unused) == SEED
    for recipe in recipes(drawn(plain).architecture):
        by_seed, by_state = recipe.draw(SEED, 3), recipe.draw(unused, 3)
        assert all(torch.equal(by_seed[name], value) for name, value in by_state.items())


# From weights to their initial weights -----------------------------------------------------------------------


def test_all_layers_of_a_default_start_come_back_exactly() -> None:
    initial = drawn(plain)
    found = find_initial_weights(moved(initial, 0.8), seeds=AROUND)
    assert found is not None
    assert (found.seed, found.skip, found.rule) == (SEED, 0, "PyTorch's default initial weights")
    assert all(torch.equal(found.target.weights[name], value) for name, value in initial.weights.items())
    assert found.log10_p < -1000
    assert found.correlation == pytest.approx(1 / (1 + 0.8**2) ** 0.5, abs=0.02)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (again(nn.init.xavier_uniform_, r"weight"), "then uniform_ for all weights"),
        (again(lambda p: nn.init.normal_(p, std=0.02), "weight"), "then normal_ for all weights"),
        (again(lambda p: nn.init.trunc_normal_(p, std=0.02), "weight"), "then normal_ for all weights"),
        (again(lambda p: nn.init.normal_(p, std=1e-4), "^0"), "then normal_ for the first layer"),
        (papers, "its bias first"),
        (one_by_one, "normal_ for each layer as it is built"),
        (conv, "PyTorch's default initial weights"),
    ],
)
def test_other_recipes_come_back_up_to_their_scale(make: Build, rule: str) -> None:
    initial = drawn(make)
    found = find_initial_weights(moved(initial), seeds=AROUND)
    assert found is not None
    assert found.seed == SEED
    assert found.rule.endswith(rule)
    assert max(distances(found, initial)) < 0.05  # the scale is fitted to noisy weights


def test_scikit_learn_and_numpy_too() -> None:
    from sklearn.neural_network import MLPClassifier

    x, y = random(60, 300).numpy(), np.arange(60) % 3
    model = MLPClassifier((80, 40), random_state=SEED, max_iter=30)
    with pytest.warns(UserWarning, match="iterations"):
        model.fit(x, y)
    weights = {}
    for i, (coefficients, intercepts) in enumerate(zip(model.coefs_, model.intercepts_, strict=True), 1):
        weights[f"layer{i}.weight"] = torch.from_numpy(coefficients.T.copy())
        weights[f"layer{i}.bias"] = torch.from_numpy(intercepts.copy())
    found = find_initial_weights(Target(drawn(plain).architecture, weights), seeds=AROUND)
    assert found is not None
    assert (found.seed, found.rule, found.generator) == (SEED, "scikit-learn's MLP", NUMPY.name)
    assert found.correlation > 0.9


@pytest.mark.parametrize("blocks", [40, 48, 10_000])
def test_a_start_that_a_gpu_drew_is_found_for_likely_seeds(blocks: int) -> None:
    """GPUs of 5 and 8 processors, and one that fills every tensor in a single turn."""
    architecture = drawn(plain).architecture
    initial = Target(architecture, gpu_recipe(architecture, blocks).draw(1234, 0))
    found = find_initial_weights(moved(initial, 0.5), seeds=2000)
    assert found is not None
    assert (found.seed, found.generator) == (1234, "PyTorch on a GPU (Philox)")
    assert max(distances(found, initial)) == 0


def test_a_start_in_double_precision() -> None:
    def double() -> nn.Module:
        torch.set_default_dtype(torch.float64)
        try:
            return plain()
        finally:
            torch.set_default_dtype(torch.float32)

    initial = drawn(double)
    found = find_initial_weights(moved(initial), seeds=AROUND)
    assert found is not None
    assert max(distances(found, initial)) == 0


def odd() -> nn.Module:
    """Draws before and in between, and layers in another order."""
    torch.rand(100)
    last = nn.Linear(40, 3)
    torch.randperm(50)
    first = nn.Linear(300, 80)
    return nn.Sequential(first, nn.ReLU(), nn.Linear(80, 40), nn.ReLU(), last)


def test_a_function_that_builds_it_makes_any_start_known() -> None:
    initial = drawn(odd)
    assert find_initial_weights(moved(initial), seeds=AROUND) is None
    state = torch.get_rng_state()
    found = find_initial_weights(moved(initial), odd, seeds=AROUND)
    assert found is not None
    assert found.seed == SEED
    assert max(distances(found, initial)) == 0
    assert torch.equal(torch.get_rng_state(), state)  # the caller's generator is left alone


def body_and_head() -> nn.Sequential:
    body = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(8 * 25, 40), nn.ReLU(), nn.Linear(40, 3))


def test_a_head_is_drawn_after_its_body_or_alone() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(42)
        model = body_and_head()
        torch.manual_seed(43)
        alone = nn.Linear(8 * 25, 40)
    initial = as_target(model, (1, 10, 10))
    found = find_initial_weights(replace(moved(initial), whole=initial.whole), seeds=100)
    assert found is not None
    assert found.seed == 42
    assert max(distances(found, initial)) == 0
    model[5] = alone
    assert (found := find_initial_weights(as_target(model, (1, 10, 10)), seeds=100)) is not None
    assert found.seed == 43


class Odd(nn.Sequential):
    def reset_parameters(self, how: str) -> None:
        raise AssertionError(how)


@pytest.mark.parametrize("own", [nn.Sequential, Odd])
def test_a_body_with_batchnorm_behind_its_dense_layer_or_layers_of_its_own(own: type[nn.Sequential]) -> None:
    """Drawn again, BatchNorm does nothing, and the net looks plain: that must not end the search."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(42)
        body = own(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten())
        head = (nn.Linear(8 * 36, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 3))
        model = nn.Sequential(body, *head)
        initial = nn.Sequential(*[copy.deepcopy(each) for each in model])
        model(torch.randn(50, 1, 10, 10))  # moves its averages
    found = find_initial_weights(as_target(model.eval(), (1, 10, 10)), seeds=100)
    assert found is not None
    assert found.seed == 42
    assert torch.equal(found.target.weights["layer1.weight"], initial[1].weight)


def test_the_state_of_the_generator_is_solved_for_whatever_filled_it_and_drew_before() -> None:
    """No seed gives these initial weights: the state is random, and a part of its stream is gone."""
    filled = np.random.default_rng(0).integers(0, 2**32, 624, dtype=np.uint32)
    with torch.random.fork_rng(devices=[]):
        set_torch(filled)
        torch.rand(777)
        initial = as_target(nn.Sequential(nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 1)))
    trained = moved(initial, 0.01)
    clue = find_clues(trained, recipes(trained.architecture))[0]
    trace = Trace(numbers_of(trained.weights["layer1.weight"].flatten(), "uniform"))
    [state] = solve_state(trace)
    weights = clue.recipe.draw(state, 0)
    assert seed_of(state) is None
    assert all(torch.equal(weights[name], value) for name, value in initial.weights.items())


def test_draws_before_the_network_are_found_for_usual_seeds() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(42)
        torch.randperm(1000)
        initial = as_target(plain())
    assert find_initial_weights(moved(initial), seeds=100) is None
    found = find_initial_weights(moved(initial), seeds=100, skip=5000)
    assert found is not None
    assert found.seed == 42
    assert 900 < found.skip < 1100
    assert max(distances(found, initial)) == 0


def test_the_neuron_that_moved_least_is_enough() -> None:
    """All else is nearly gone: the search goes by one neuron in the middle of the second layer."""
    initial = drawn(
        lambda: nn.Sequential(nn.Linear(50, 1000), nn.ReLU(), nn.Linear(1000, 20), nn.ReLU(), nn.Linear(20, 1))
    )
    end = moved(initial, 3.0)
    end.weights["layer2.weight"][7] = 0.05 * initial.weights["layer2.weight"][7]
    clue = find_clues(end, recipes(end.architecture))[0]
    assert (clue.site.tensor, clue.trace.place) == ("layer2.weight", 50 * 1000 + 1000 + 7 * 1000)
    found = find_initial_weights(end, seeds=AROUND)
    assert found is not None
    assert max(distances(found, initial)) == 0


def test_a_first_layer_that_only_looks_like_its_start_hides_no_other() -> None:
    """What is there now is a mixture of samples whose kurtosis is that of initial weights which has moved."""
    initial = drawn(
        lambda: nn.Sequential(nn.Linear(50, 600), nn.ReLU(), nn.Linear(600, 40), nn.ReLU(), nn.Linear(40, 1))
    )
    other = torch.rand(600, 50, generator=torch.Generator().manual_seed(1)) - 0.5
    end = moved(initial, 0.05)
    end.weights["layer1.weight"] = 0.1 * other + 0.03 * random(600, 50) + 0.02 * initial.weights["layer1.weight"]
    first = find_clues(end, recipes(end.architecture))[0]
    assert (first.site.tensor, first.trace.is_early) == ("layer1.weight", True)
    assert HARDLY_MOVED > first.likeness > 0.6
    found = find_initial_weights(end, seeds=AROUND)
    assert found is not None
    assert found.seed == SEED


@pytest.mark.parametrize(
    "saved",
    [
        lambda value: value.half().float(),
        lambda value: value.bfloat16().float(),
        lambda value: (value / (scale := value.abs().max() / 127)).round() * scale,
        lambda value: value * (value.abs() > value.abs().quantile(0.5)),
    ],
    ids=["fp16", "bf16", "int8", "half of the weights pruned"],
)
def test_rounded_and_pruned_weights_still_show_it(saved: Callable[[Tensor], Tensor]) -> None:
    initial = moved(drawn(plain))
    rounded = Target(initial.architecture, {name: saved(value) for name, value in initial.weights.items()})
    found = find_initial_weights(rounded, seeds=AROUND)
    assert found is not None
    assert found.seed == SEED


# No false finds -----------------------------------------------------------------------------------------------


def test_a_wrong_seed_is_never_certain() -> None:
    """Nets whose numbers come from another generator altogether: nothing is found, at any place."""
    architecture = parse_architecture("64-32", (100,), 1)
    for i in range(20):
        generator = np.random.default_rng(i)
        weights = {}
        for name, value in build(architecture).state_dict().items():
            bound = 10 ** -(0.5 if name.startswith("layer1") else 0.45)
            weights[name] = torch.from_numpy(generator.uniform(-bound, bound, value.shape)).float()
        search = search_initial_weights(Target(architecture, weights), seeds=1 << 15)
        assert search.initial is None
        assert "no seed of 32,768 draws these initial weights" in search.why


def test_what_the_search_lets_pass_must_still_be_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    for bar in ("SHORT_BAR", "LONG_BAR"):
        monkeypatch.setattr(f"unfit.attacker.initial.search.{bar}", -99.0)
    target = moved(drawn(plain))
    assert find_initial_weights(target, seeds=range(100)) is None
    found = find_initial_weights(target, seeds=range(SEED - 20, SEED + 20))
    assert found is not None
    assert found.seed == SEED


def test_chance_is_bounded_as_it_is_said() -> None:
    """A bound on the probability: correlations of independent numbers exceed it less often than it says."""
    weight = random(200)
    numbers = (torch.from_numpy(TORCH.numbers(i, 200)).float() for i in range(1000))
    chances = torch.tensor([log10_chance(weight, each) for each in numbers])
    for limit in (-0.5, -1.0, -2.0):
        assert 0 < (chances < limit).double().mean() < 10**limit


def test_a_start_that_is_gone_is_said_to_be() -> None:
    initial = drawn(plain)
    gone = Target(
        initial.architecture, {name: random(*value.shape) ** 3 for name, value in initial.weights.items()}
    )
    search = search_initial_weights(gone, seeds=AROUND)
    assert search.initial is None
    assert "the initial weights are gone" in search.why
    assert search.record.found is False
    assert not {"seed", "decay"} & search.record.facts.keys()


def test_a_search_is_the_same_after_its_record(standard: tuple[Target, Target]) -> None:
    search = search_initial_weights(standard[0], seeds=100)
    assert search.initial is not None
    record = InitialRecord.model_validate_json(json.dumps(search.record.facts))
    again = Search.of(record, search.initial.target.weights, standard[0])
    assert again.record == search.record == record
    assert (record.seed, record.decay) == (0, 1.0)
    assert again.initial is not None
    assert torch.equal(again.initial.change.span.values, search.initial.change.span.values)


def test_a_first_layer_of_another_origin_is_no_start() -> None:
    initial = moved(drawn(plain))
    initial.weights["layer1.weight"].copy_(random(80, 300) ** 3)
    search = search_initial_weights(initial, seeds=AROUND)
    assert search.initial is None
    assert f"drawn with seed {SEED}" in search.why
    assert "but the first layer was not" in search.why


@pytest.mark.parametrize("seeds", [0, -1, 2**32 + 1, range(5, 5), range(0, 10, 2)])
def test_impossible_seeds_are_refused(seeds: int | range) -> None:
    with pytest.raises(UsageError, match="seeds"):
        find_initial_weights(drawn(plain), seeds=seeds)


def test_the_defence_in_the_docs_holds() -> None:
    """With the initial weights shuffled by the system's randomness, the right seed is no use."""
    code = re.search(r"```python\n(.*?def shuffle_initial_weights.*?)```", DOCS.read_text(encoding="utf-8"), re.S)
    assert code
    names: dict[str, Callable[[nn.Module], None]] = {}
    exec(code[1], names)

    def defended() -> nn.Module:
        model = plain()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        names["shuffle_initial_weights"](model)
        for old, new in zip(before, model.parameters(), strict=True):
            assert torch.equal(old.flatten().sort().values, new.detach().flatten().sort().values)
        return model

    assert find_initial_weights(moved(drawn(plain)), seeds=AROUND) is not None
    assert find_initial_weights(moved(drawn(defended)), seeds=AROUND) is None
    assert find_initial_weights(moved(drawn(defended)), defended, seeds=AROUND) is None


# Weight decay -------------------------------------------------------------------------------------------------


def layers(
    left: float, bias_left: float, shape: tuple[int, int] = (120, 200)
) -> tuple[tuple[Tensor, Tensor], ...]:
    """A layer after training on 30 samples with decay, and before it."""
    w, d = shape
    alpha, x = random(w, 30), torch.cat([random(30, d, seed=1), torch.ones(30, 1)], 1)
    base, initial = random(w, d, seed=2), random(w, seed=3)
    added = 0.3 * alpha @ x
    return (left * base + added[:, :d], bias_left * initial + added[:, d]), (base, initial)


@pytest.mark.parametrize("shape", [(120, 200), (200, 120), (2100, 90)])
@pytest.mark.parametrize(("left", "bias_left"), [(0.55, 0.55), (0.55, 1.0), (0.01, 0.01), (0.999, 0.999)])
def test_what_decay_left_is_read_exactly(left: float, bias_left: float, shape: tuple[int, int]) -> None:
    found = read_decay(*layers(left, bias_left, shape))
    assert found == pytest.approx((left, bias_left), abs=1e-6)


def test_without_decay_nothing_changes() -> None:
    end, initial = layers(1.0, 1.0)
    assert read_decay(end, initial) == (1.0, 1.0)
    assert read_decay((end[0].half().float(), end[1]), initial) == (1.0, 1.0)
    assert read_decay((end[0] + 0.05 * random(120, 200, seed=4), end[1]), initial) == (1.0, 1.0)  # as Adam's steps
    assert read_decay(end, (random(120, 200, seed=5), initial[1])) == (1.0, 1.0)  # another base


def test_a_decayed_base_still_shows_every_sample() -> None:
    """Plain SGD with weight decay: the base as it is hides the samples, what decay left of it does not."""
    x, y = random(12, 100), (torch.arange(12) % 2).float()
    initial = drawn(lambda: nn.Sequential(nn.Linear(100, 60), nn.ReLU(), nn.Linear(60, 1)))
    model = initial.net()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-3)
    for _ in range(100):
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y).backward()
        optimiser.step()
    layer = read_layer(as_target(model), initial)
    assert layer.decay == pytest.approx(0.63, abs=0.05)
    assert layer.num_samples == 12
    assert layer.facts()["decay"] == layer.decay


def test_a_decayed_start_is_found_and_its_decay_read() -> None:
    initial = drawn(plain)
    found = find_initial_weights(moved(initial, 0.1, left=0.4), seeds=AROUND)
    assert found is not None
    assert max(distances(found, initial)) == 0
    assert found.decay == pytest.approx(0.4, abs=0.01)


# In use -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def standard() -> tuple[Target, Target]:
    """A face detector on ten faces with standard initial weights, and those initial weights: seed 0."""
    return on_images("faces", "400-100", 10)[:2]


def test_auto_finds_the_start_and_proves_every_sample(standard: tuple[Target, Target]) -> None:
    target, initial = standard
    blind = attack(target, Auto(seeds=0))
    found = attack(target, Auto(seeds=100))
    assert not blind.proven.any()
    assert "initial" not in blind.facts
    assert found.proven.all()
    assert len(found) == 10
    told = found.facts["initial"]
    assert (told["found"], told["seed"], told["decay"]) == (True, 0, 1.0)
    assert torch.equal(found.x, attack(target, base=initial).x)


def test_auto_says_what_it_tried_in_vain() -> None:
    words: list[str] = []
    initial = drawn(lambda: nn.Sequential(nn.Linear(100, 40), nn.ReLU(), nn.Linear(40, 1)))
    end = moved(initial)
    found = attack(end, Auto(seeds=200), progress=lambda fraction, text: words.append(text))
    told = found.facts["initial"]
    assert (told["found"], told["num_tried"], told["complete"]) == (False, 200, True)
    assert any("of 0 million seeds" in text for text in words)
    assert "nor do usual seeds after a shuffle or split of usual numbers of samples" in told["why"]


def test_an_untrained_net_is_its_own_start() -> None:
    """Nothing is left to attack, and nothing breaks."""
    architecture = parse_architecture("100-50", (1, 10, 10), 1)
    weights = {name: value.detach() for name, value in initialise(architecture, None, 3).state_dict().items()}
    found = attack(Target(architecture, weights), Auto(seeds=100))
    assert found.facts["initial"]["seed"] == 3
    assert found.facts["spectrum"][0] > 0.1  # of its weights, not of a change that is zero
    assert not found.proven.any()


@pytest.mark.parametrize("seeds", [-1, 2**32 + 1])
def test_auto_refuses_impossible_numbers_of_seeds(seeds: int) -> None:
    with pytest.raises(ValueError, match="seeds"):
        Auto(seeds=seeds)


def test_preflight_says_what_could_be_found(standard: tuple[Target, Target]) -> None:
    target, initial = standard
    unlikely = preflight(without_order(target))
    note = next(each for each in unlikely.notes if "may be found" in each)
    assert re.search(r"initial weights may be found: layer1.*MT19937.*auto.*[\d,]+ s for all", note)
    assert "the search for the initial weights" in unlikely.attacks[0].why
    assert not any("may be found" in each for each in preflight(target, initial).notes)


def test_the_command_writes_a_base(run: Run, tmp_path: Path, standard: tuple[Target, Target]) -> None:
    target, initial = standard
    torch.save(target.weights, tmp_path / "net.pt")
    code, printed, _ = run(
        "find-init", tmp_path / "net.pt", "--out", tmp_path / "s.safetensors", "--seeds", "0:50"
    )
    assert code == 0
    assert "drawn with seed 0 by PyTorch on the CPU" in printed
    base = load_base(tmp_path / "s.safetensors", target)
    assert all(torch.equal(base.weights[name], value) for name, value in initial.weights.items())
    code, printed, _ = run(
        "find-init", tmp_path / "net.pt", "--out", tmp_path / "t.safetensors", "--seeds", "5:50"
    )
    assert code == 3
    assert "No seed of 45 draws these initial weights" in printed
    assert not (tmp_path / "t.safetensors").exists()
    for wrong in ("x", "1:", "9:3"):
        assert (
            run("find-init", tmp_path / "net.pt", "--out", tmp_path / "u.safetensors", "--seeds", wrong)[0] == 64
        )


def test_a_usual_seed_is_found_though_the_first_numbers_that_it_drew_have_moved():
    """Records use the values of their first columns most, whose weights scikit-learn draws first."""
    from sklearn.neural_network import MLPClassifier

    random, shares = np.random.default_rng(0), [1 / np.arange(1, size + 1) for size in (2, 5, 7, 9, 16, 60, 400)]
    codes = [np.eye(len(p))[random.choice(len(p), size=80, p=p / p.sum())] for p in shares]
    net = MLPClassifier(solver="sgd", learning_rate_init=0.1, max_iter=400, random_state=42)
    net.fit(np.concatenate(codes, 1), random.integers(2, size=80))
    search = search_initial_weights(net, seeds=100)
    assert search.initial is not None
    assert search.initial.seed == 42
    assert search_initial_weights(net, seeds=range(43, 100)).initial is None


def test_the_search_tells_how_much_of_all_seeds_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Likely seeds come first, and are not all: a bar that is full after them would stand still for minutes."""
    torch.manual_seed(1 << 24)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 1))
    monkeypatch.setattr("unfit.attacker.initial.hunt.LIKELY", 1 << 10)
    told = list[tuple[float, str]]()
    target = as_target(net, (1, 8, 8))
    search_initial_weights(target, seeds=1 << 14, far=False, progress=lambda *what: told.append(what))
    assert next(fraction for fraction, words in told if "million seeds" in words) <= 1 / 16
    assert told[-1][0] == 1.0
