"""Checkpoints of every kind are the same function again; damaged and hostile ones are told by their messages."""

from __future__ import annotations

import json
import os
import re
import resource
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from unfit.base.errors import NoAttackError, UnfitError
from unfit.base.files import write_json
from unfit.base.load import load_base, load_target
from unfit.base.nets import MAX_PARAMETERS, Architecture, initialise, parse_architecture
from unfit.base.shapes import image_shape
from unfit.base.target import NotPlainError, Target, save_target, save_weights

Weights = dict[str, Tensor]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def target(text: str, shape: tuple[int, ...], k: int = 1, biases: str = "hidden", seed: int = 0) -> Target:
    architecture = parse_architecture(text, shape, k, biases)
    return Target(architecture, dict(initialise(architecture, None, seed).state_dict()), (-1.0, 1.0))


def foreign(widths: list[int], names: list[str], biases: bool = True, seed: int = 0) -> nn.Sequential:
    """Another's perceptron: layers of any name."""
    torch.manual_seed(seed)
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    for i, name in enumerate(names):
        modules[name] = nn.Linear(widths[i], widths[i + 1], bias=biases)
        if i < len(names) - 1:
            modules[f"act_{name}"] = nn.ReLU()
    return nn.Sequential(modules)


def stored(path: Path, weights: Weights) -> Path:
    if path.suffix == ".safetensors":
        save_file(weights, path)
    else:
        torch.save(weights, path)
    return path


def plain() -> Weights:
    """Checkpoint of a 7-5-1 net, under another's names."""
    return {"fc1.weight": random(5, 7), "fc1.bias": random(5), "fc2.weight": random(1, 5)}


DESCRIPTION = {"input_shape": [7], "hidden": [5], "num_outputs": 1, "biases": [True, False]}
both = pytest.mark.parametrize("suffix", [".pt", ".safetensors"])


def refused(match: str, path: Path, load: Callable[..., Target] = load_target, *args: object) -> str:
    with pytest.raises(UnfitError, match=match) as caught:
        load(path, *args)
    assert caught.value.exit_code == (3 if isinstance(caught.value, NotPlainError | NoAttackError) else 2)
    assert str(caught.value).startswith(str(path))
    return str(caught.value)


# There and back --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shape", "k", "biases"),
    [
        ("6-5", (7,), 1, "first"),
        ("6-5", (3, 8, 8), 3, "hidden"),
        ("conv(3,4)-5", (2, 5, 6), 2, "hidden"),
        ("4", (2, 6), 1, "first"),
    ],
)
def test_a_saved_target_comes_back(tmp_path, text, shape, k, biases):
    before = target(text, shape, k, biases)
    save_target(before, tmp_path)
    for path in (tmp_path, str(tmp_path), tmp_path / "target.safetensors"):
        after = load_target(path)
        assert after.architecture == before.architecture
        assert after.input_range == (-1.0, 1.0)
        assert after.is_image == (len(shape) == 3)
        assert after.sha256 == before.sha256
        x = random(9, *shape)
        assert torch.equal(after.net()(x), before.net()(x))


def test_an_unknown_input_range_stays_unknown(tmp_path):
    known = target("5", (7,))
    save_target(Target(known.architecture, known.weights), tmp_path)
    assert load_target(tmp_path).input_range is None


@both
@pytest.mark.parametrize(
    ("widths", "names", "biases"),
    [
        ([7, 6, 1], ["encoder", "readout"], True),
        ([7, 2], ["only"], True),
        ([7, *[4] * 12, 1], [str(2 * i) for i in range(13)], True),
        ([7, *range(15, 3, -1), 1], [f"net_{i}_lin" for i in range(13)], False),
        ([4, *[4] * 12, 4], [f"fc{i}" for i in range(1, 14)], True),  # any order would chain
        ([4, *[4] * 11, 1], [f"fc{i}" for i in range(1, 12)] + ["head"], False),
    ],
)
def test_the_checkpoint_of_another_net_is_the_same_function(tmp_path, suffix, widths, names, biases):
    net = foreign(widths, names, biases)
    found = load_target(stored(tmp_path / f"net{suffix}", dict(net.state_dict())))
    assert found.architecture == Architecture(
        (widths[0],), tuple(widths[1:-1]), widths[-1], (biases,) * (len(widths) - 1)
    )
    x = random(9, widths[0], seed=1)
    torch.testing.assert_close(found.net()(x), net(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("dtype", "suffix"),
    [
        (torch.float8_e4m3fn, ".safetensors"),
        (torch.float16, ".pt"),
        (torch.bfloat16, ".safetensors"),
        (torch.float64, ".pt"),
    ],
)
def test_floats_of_other_sizes_are_read(tmp_path, dtype, suffix):
    weights = {name: value.to(dtype) for name, value in plain().items()}
    found = load_target(stored(tmp_path / f"net{suffix}", weights))
    assert all(value.dtype == torch.float32 for value in found.weights.values())
    assert torch.equal(found.weights["layer1.weight"], weights["fc1.weight"].float())


def test_parameters_are_read_as_tensors(tmp_path):
    """`dict(model.named_parameters())` is saved as often as the state dict."""
    found = load_target(stored(tmp_path / "net.pt", dict(foreign([7, 5, 1], ["a", "b"]).named_parameters())))
    assert not any(value.requires_grad for value in found.weights.values())
    assert len(found.sha256) == 64


def test_old_files_of_torch_are_read(tmp_path):
    torch.save(plain(), tmp_path / "net.pth", _use_new_zipfile_serialization=False)
    assert torch.equal(load_target(tmp_path / "net.pth").weights["layer1.weight"], plain()["fc1.weight"])


def test_square_numbers_of_inputs_are_pictures(tmp_path):
    shapes = {3072: (3, 32, 32), 64: (1, 8, 8), 192: (3, 8, 8), 785: (785,)}
    shapes |= {49: (49,), 75: (75,)}  # so few values are more likely a table
    assert {d: image_shape(d) for d in shapes} == shapes
    path = stored(tmp_path / "net.pt", {"a.weight": random(3, 784), "b.weight": random(1, 3)})
    assert load_target(path).architecture.input_shape == (1, 28, 28)


def test_a_description_beside_the_checkpoint_is_believed(tmp_path):
    path = stored(tmp_path / "net.pt", {"a.weight": random(4, 64), "b.weight": random(1, 4)})
    architecture = {"input_shape": [4, 4, 4], "hidden": [4], "num_outputs": 1, "biases": [False, False]}
    write_json(tmp_path / "net.json", {"architecture": architecture, "input_range": [0, 1]})
    found = load_target(path)
    assert (found.architecture.input_shape, found.input_range) == ((4, 4, 4), (0.0, 1.0))


# The hash --------------------------------------------------------------------------------------------------


def test_the_hash_is_of_the_weights_whatever_the_file(tmp_path):
    weights = plain()
    files = [
        stored(tmp_path / "a.pt", weights),
        stored(tmp_path / "b.safetensors", weights),
        stored(tmp_path / "c.pt", {name.replace("fc", "dense_"): value for name, value in weights.items()}),
        stored(tmp_path / "d.pt", {name: value.double() for name, value in weights.items()}),
    ]
    save_target(load_target(files[0]), tmp_path)
    assert len({load_target(path).sha256 for path in [*files, tmp_path]}) == 1


def test_the_hash_sees_every_tensor(tmp_path):
    before = load_target(stored(tmp_path / "net.pt", plain())).sha256
    for name in plain():
        weights = plain()
        weights[name].view(-1)[-1] += 1e-6
        assert load_target(stored(tmp_path / "net.pt", weights)).sha256 != before, name


# Files that are not checkpoints ----------------------------------------------------------------------------


def test_what_is_not_there_is_told(tmp_path):
    for path in (tmp_path / "no.pt", tmp_path / "no"):
        refused("no such checkpoint; pass a run folder, a .safetensors file or a .pt state dict", path)
    with pytest.raises(UnfitError, match=r"no weights in this folder"):
        load_target(tmp_path)


def test_files_of_no_known_kind_are_refused(tmp_path):
    (tmp_path / "net.txt").write_text("fc1.weight: 1 2 3")
    refused("unknown kind of checkpoint; pass a run folder", tmp_path / "net.txt")


def test_a_safetensors_file_cut_short_at_every_length(tmp_path):
    path = stored(tmp_path / "net.safetensors", plain())
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        refused(r"not a complete safetensors file \(.*\); was it cut short\?", path)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pt_file_cut_short_at_any_length(tmp_path, zipped):
    path = tmp_path / "net.pt"
    torch.save(plain(), path, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 13), *range(40), *range(len(whole) - 40, len(whole))]:
        path.write_bytes(whole[:size])
        refused("not a complete PyTorch file|contains more than tensors", path)


@pytest.mark.parametrize("part", [0.3, 0.99])
def test_most_of_a_pt_file_is_told_from_a_hostile_one(tmp_path, part):
    path = stored(tmp_path / "net.pt", {"fc1.weight": random(100, 100)})
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    refused(r"not a complete PyTorch file \(.*\); was it cut short\?", path)


@both
def test_a_file_with_one_byte_changed_is_read_or_refused(tmp_path, suffix):
    path = stored(tmp_path / f"net{suffix}", plain())
    whole, outcomes = path.read_bytes(), set()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            found = load_target(path)
        except UnfitError:
            outcomes.add("refused")
        else:
            assert all(value.isfinite().all() for value in found.weights.values())
            outcomes.add("read")
    assert outcomes == {"read", "refused"}


@pytest.mark.parametrize("content", [b"PK\x03\x04", b"hello", b"\x80\x02}q\x00."])
def test_other_files_called_pt_are_refused(tmp_path, content):
    (tmp_path / "net.pt").write_bytes(content)
    refused("not a complete PyTorch file|no attack applies", tmp_path / "net.pt")


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_checkpoint_that_runs_code_does_not(tmp_path, zipped):
    trace = tmp_path / "owned"
    torch.save({**plain(), "fc3.weight": Evil(trace)}, tmp_path / "net.pt", _use_new_zipfile_serialization=zipped)
    torch.load(tmp_path / "net.pt", weights_only=False)
    assert trace.exists()  # it is a genuine one
    trace.rmdir()
    refused(
        r"contains more than tensors, so it was not loaded \(it could run code, with posix.mkdir\)",
        tmp_path / "net.pt",
    )
    assert not trace.exists()


@pytest.mark.parametrize("content", [nn.Linear(3, 1), {"fc.weight": nn.ReLU()}])
def test_pickled_modules_are_refused(tmp_path, content):
    torch.save(content, tmp_path / "net.pt")
    refused(r"contains more than tensors.* save only model.state_dict\(\)", tmp_path / "net.pt")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ({}, "expected a state dict"),
        ([random(2, 2)], "expected a state dict, found list"),
        ({"epoch": 3, **plain()}, "not a state dict: found non-tensors epoch; save model"),
    ],
)
def test_anything_but_a_dict_of_tensors_is_refused(tmp_path, content, match):
    torch.save(content, tmp_path / "net.pt")
    refused(match, tmp_path / "net.pt")


@pytest.mark.parametrize("sides", [(1, MAX_PARAMETERS + 1), (2**40, 2**20)])
def test_a_small_file_that_claims_a_huge_tensor_is_refused_before_memory_is_used(tmp_path, sides):
    path = stored(tmp_path / "net.pt", {"fc1.weight": torch.zeros(1).expand(*sides)})
    assert path.stat().st_size < 10_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(f"claims {sides[0] * sides[1]:,} parameters; the limit is {MAX_PARAMETERS:,}", path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


def test_a_description_of_too_large_a_net_is_refused(tmp_path):
    path = stored(tmp_path / "net.pt", plain())
    write_json(tmp_path / "net.json", {"architecture": {**DESCRIPTION, "hidden": [MAX_PARAMETERS]}})
    refused(f"parameters; the limit is {MAX_PARAMETERS:,}", path)


@pytest.mark.parametrize(
    ("limit", "match"), [(1000, "has 0.0 GB; the limit is"), (5000, "unpacks to 0.0 GB; the")]
)
def test_a_file_that_is_or_unpacks_too_large_is_refused(tmp_path, monkeypatch, limit, match):
    path = stored(tmp_path / "whole.pt", {"fc1.weight": torch.zeros(100, 100)})
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(tmp_path / "net.pt", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in whole.namelist():
            packed.writestr(name, whole.read(name))
    assert 1000 < (tmp_path / "net.pt").stat().st_size < 5000 < path.stat().st_size
    monkeypatch.setattr("unfit.base.formats.limits.MAX_CHECKPOINT", limit)
    refused(match, tmp_path / "net.pt")


# Weights that cannot be used -------------------------------------------------------------------------------


@pytest.mark.parametrize(("suffix", "bad"), [(".pt", float("nan")), (".safetensors", -float("inf"))])
def test_values_that_are_not_numbers_are_counted(tmp_path, suffix, bad):
    weights = plain()
    weights["fc1.weight"][2, 3:5] = bad
    path = stored(tmp_path / f"net{suffix}", weights)
    refused("the weights cannot be used: layer1.weight has 2 values that are NaN or infinite$", path)


def test_values_too_large_for_single_precision_are_not_numbers_either(tmp_path):
    weights = {name: value.double() for name, value in plain().items()}
    weights["fc2.weight"][0, 0] = 1e300
    refused("layer2.weight has 1 values that are NaN or infinite", stored(tmp_path / "net.pt", weights))


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
def test_anything_but_floats_is_refused(tmp_path, dtype):
    weights = {**plain(), "fc1.weight": random(5, 7).to(dtype)}
    refused(f"layer1.weight has type {dtype}, expected floats", stored(tmp_path / "net.pt", weights))


@pytest.mark.parametrize(
    "strange",
    [
        pytest.param(lambda value: value.to_sparse(), id="sparse"),
        pytest.param(lambda value: value.to("meta"), id="meta"),
    ],
)
def test_tensors_of_a_strange_kind_are_refused(tmp_path, strange):
    weights = plain()
    weights["fc1.weight"] = strange(weights["fc1.weight"])
    refused(r"fc1.weight|layer1.weight", stored(tmp_path / "net.pt", weights))


def test_everything_wrong_is_told_at_once(tmp_path):
    weights = {
        "layer1.weight": random(5, 8),
        "layer1.bias": torch.full((5,), torch.nan),
        "layer2.weight": torch.ones(3, 5, dtype=torch.int64),
        "layer3.scale": random(2),
    }
    path = stored(tmp_path / "net.safetensors", weights)
    architecture = {**DESCRIPTION, "hidden": [5, 3], "biases": [True, True, False]}
    write_json(tmp_path / "net.json", {"architecture": architecture})
    message = refused("the weights cannot be used: ", path)
    assert sorted(message.split(" used: ")[1].split("; ")) == [
        "layer1.bias has 5 values that are NaN or infinite",
        "layer1.weight has shape (5, 8), expected (5, 7)",
        "layer2.bias is missing",
        "layer2.weight has type torch.int64, expected floats",
        "layer3.scale is not part of 7-5-3-1",
        "layer3.weight is missing",
    ]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"fc2.weight": random(1, 6)}, "its weight matrices do not chain"),
        ({"conv.weight": random(2, 3, 3, 3)}, r"conv.weight has shape \(2, 3, 3, 3\)"),
        ({"bn.running_mean": random(5)}, r"bn.running_mean has shape \(5,\)"),
        ({"fc1.bias": random(5, 1)}, r"fc1.bias has shape \(5, 1\)"),
        ({"fc2.weight": random(0, 5)}, r"fc2.weight has shape \(0, 5\)"),
        ({"fc1.weight": torch.tensor(1.0)}, r"fc1.weight has shape \(\)"),
    ],
)
def test_without_a_description_only_plain_perceptrons_are_read(tmp_path, change, match):
    path = stored(tmp_path / "net.pt", plain() | change)
    refused(f"not a plain perceptron: .*{match}.*describe it in net.json in the same folder", path)


@pytest.mark.parametrize(
    ("extra", "described"),
    [("other.bias", False), ("other.bias", True), ("scale", True), ("²", True), ("².weight", False)],
)
def test_tensors_that_belong_to_no_layer_are_named(tmp_path, extra, described):
    path = stored(tmp_path / "net.safetensors", {**plain(), extra: random(5)})
    if described:
        write_json(tmp_path / "net.json", {"architecture": DESCRIPTION})
    refused(re.escape(extra), path)


def test_a_bias_of_the_wrong_length_is_refused(tmp_path):
    path = stored(tmp_path / "net.pt", plain() | {"fc1.bias": random(4)})
    refused(r"layer1.bias has shape \(4,\), expected \(5,\)", path)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"input_shape": [8]}, r"layer1.weight has shape \(5, 7\), expected \(5, 8\)"),
        ({"biases": [False, False]}, "layer1.bias is not part of 7-5-1"),
        ({"biases": [True, True]}, "layer2.bias is missing"),
        ({"hidden": [], "biases": [True]}, "layer2.weight is not part of 7-1"),
        (
            {"conv": [2, 5], "input_shape": [1, 3, 3], "hidden": [], "biases": [True, False]},
            "layer1.weight has shape",
        ),
    ],
)
def test_weights_and_description_must_agree(tmp_path, change, match):
    path = stored(tmp_path / "net.pt", plain())
    write_json(tmp_path / "net.json", {"architecture": {**DESCRIPTION, **change}})
    refused(f"the weights cannot be used: .*{match}", path)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("", "is not JSON"),
        ("{}", "`architecture`: Field required"),
        ({"architecture": DESCRIPTION, "trained_on": "faces"}, "`trained_on`: Extra inputs"),
        ({"architecture": {**DESCRIPTION, "dropout": 0.5}}, "`architecture.dropout`: Extra inputs"),
        (
            {"architecture": {**DESCRIPTION, "hidden": [0]}},
            "`architecture.hidden.0`: Input should be greater than 0",
        ),
        (
            {"architecture": {**DESCRIPTION, "hidden": [2**63]}},
            "`architecture.hidden.0`: Input should be less than",
        ),
        (
            {"architecture": {**DESCRIPTION, "input_shape": []}},
            "`architecture.input_shape`: Tuple should have at least",
        ),
        (
            {"architecture": {**DESCRIPTION, "input_shape": [1] * 4}},
            "`architecture.input_shape`: Tuple should have",
        ),
        (
            {"architecture": {**DESCRIPTION, "biases": [True]}},
            r"architecture.biases: expected 2 values \(one per layer\), found 1",
        ),
        (
            {"architecture": {**DESCRIPTION, "conv": [3, 2], "biases": [True] * 3}},
            "a kernel of size 3 does not fit",
        ),
        (
            {"architecture": {**DESCRIPTION, "conv": [3, 2], "biases": [True] * 3, "input_shape": [1, 2, 9]}},
            "a kernel of size 3 does not fit inputs of shape",
        ),
        ({"architecture": DESCRIPTION, "input_range": [0]}, "`input_range.1`: Field required"),
        ({"architecture": DESCRIPTION, "input_range": [1, 1]}, "input_range: expected low < high, found"),
        ('{"architecture": {}, "input_range": [NaN, 1]}', "NaN|finite"),
    ],
)
def test_a_bad_description_is_refused(tmp_path, content, match):
    save_target(target("5", (7,), biases="first"), tmp_path)
    (tmp_path / "target.json").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UnfitError, match=match) as caught:
        load_target(tmp_path)
    assert str(tmp_path / "target.json") in str(caught.value)


def test_all_problems_of_a_description_are_told_at_once(tmp_path):
    save_target(target("5", (7,)), tmp_path)
    content = {"architecture": {**DESCRIPTION, "hidden": [-1], "num_outputs": "many"}, "input_range": 3}
    (tmp_path / "target.json").write_text(json.dumps(content))
    with pytest.raises(
        UnfitError, match=r"`architecture.hidden.0`: .*; `architecture.num_outputs`: .*; `input_range`: "
    ):
        load_target(tmp_path)


# The base --------------------------------------------------------------------------------------------------


def test_the_base_of_a_run_is_its_start(tmp_path):
    trained, initial = target("6-5", (7,), seed=1), target("6-5", (7,), seed=0)
    save_target(trained, tmp_path)
    save_weights(initial.weights, tmp_path / "initial.safetensors")
    base = load_base(tmp_path, load_target(tmp_path))
    assert (base.sha256, base.architecture, base.input_range) == (
        initial.sha256,
        trained.architecture,
        (-1.0, 1.0),
    )
    assert load_base(tmp_path / "initial.safetensors", trained).sha256 == initial.sha256


@both
def test_a_base_may_have_other_names(tmp_path, suffix):
    net = foreign([7, 6, 1], ["fc1", "fc2"])
    base = load_base(stored(tmp_path / f"base{suffix}", dict(net.state_dict())), load_target_of(net, tmp_path))
    assert torch.equal(base.net()(random(3, 7)), net(random(3, 7)))


def load_target_of(net: nn.Module, folder: Path) -> Target:
    return load_target(stored(folder / "tuned.pt", {name: value + 1 for name, value in net.state_dict().items()}))


@pytest.mark.parametrize(
    ("text", "shape", "biases", "match"),
    [
        ("6-4", (7,), "hidden", r"layer2.weight has shape \(4, 6\), expected \(5, 6\)"),
        ("6-5-5", (7,), "hidden", "layer4.weight is not part of 7-6-5-1"),
        ("6-5", (7,), "first", "layer2.bias is missing"),
    ],
)
def test_a_base_of_another_architecture_is_refused(tmp_path, text, shape, biases, match):
    path = tmp_path / "base.safetensors"
    save_weights(target(text, shape, biases=biases).weights, path)
    refused(f"the weights cannot be used: .*{match}", path, load_base, target("6-5", (7,)))


def test_a_folder_without_a_start_is_told(tmp_path):
    with pytest.raises(UnfitError, match="no weights in this folder"):
        load_base(tmp_path, target("6-5", (7,)))
    save_target(target("6-5", (7,)), tmp_path)  # a run, whose target is not its own base
    with pytest.raises(UnfitError, match=r"initial.safetensors: no such checkpoint"):
        load_base(tmp_path, target("6-5", (7,)))
