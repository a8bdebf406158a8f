"""Disguises: changes that leave a net's outputs as they are must not change its verdict."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path

import h5py
import pytest
import skops.io
import torch
from safetensors.torch import save_file
from sklearn.neural_network import MLPClassifier
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from unfit import Auto, Policy, UnfitError, as_target, attack, audit, draw, draw_unseen, read_source
from unfit.attacker.candidates import save_candidates
from unfit.attacker.surfaces import surfaces
from unfit.auditor.case import Case, case_of
from unfit.auditor.signal_check import check_signal
from unfit.auditor.verdict import NEARLY
from unfit.base.load import load_target
from unfit.base.nets import outputs
from unfit.base.normal import UNEVEN, normal_form, probes
from unfit.base.reading import Reading

WIDTH, NEXT, N = 200, 60, 24


Pair = tuple[nn.Module, nn.Module | None]


def forms_of(case: Case) -> list[Case]:
    return [case.at(surface) for surface in surfaces(case.target, case.base).found]


def source() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    faces = read_source("faces")
    members = draw(faces, N, 0)
    unseen = draw_unseen(faces, members, N, 0)
    return (members.x - members.mean, members.y), (unseen.x - members.mean, unseen.y)


def public() -> Tensor:
    """Pictures that are in neither set."""
    faces = read_source("faces")
    members = draw(faces, N, 0)
    used = draw_unseen(faces, members, N, 0).indices
    others = draw_unseen(faces, members, 3 * N, 0)
    return (others.x - members.mean)[~torch.isin(others.indices, used)][:N]


PRIVATE, UNSEEN = source()
X = torch.cat([PRIVATE[0], UNSEEN[0]])
D = X[0].numel()


def trained(net: nn.Sequential) -> nn.Sequential:
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(500):
        loss = F.binary_cross_entropy_with_logits(net(PRIVATE[0])[:, 0], PRIVATE[1].float())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return net.eval().requires_grad_(False)


def dense(inputs: int, scale: float | None = 1e-4) -> list[nn.Module]:
    layers = [nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, NEXT), nn.ReLU(), nn.Linear(NEXT, 1)]
    for parameter in layers[0].parameters() if scale else ():
        nn.init.normal_(parameter, std=scale)
    return layers


@pytest.fixture(scope="module")
def net() -> nn.Sequential:
    torch.manual_seed(0)
    return trained(nn.Sequential(nn.Flatten(), *dense(D)))


def widened(net: nn.Sequential, rows: Tensor, bias: Tensor, following: Tensor) -> nn.Sequential:
    """With more neurons: their weights, biases, and what the next layer makes of them."""
    first, second = nn.Linear(D, WIDTH + len(rows)), nn.Linear(WIDTH + len(rows), NEXT)
    first.weight.data, first.bias.data = torch.cat([net[1].weight, rows]), torch.cat([net[1].bias, bias])
    second.weight.data, second.bias.data = torch.cat([net[3].weight, following], 1), net[3].bias.data
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, *net[4:]).requires_grad_(False)


def decoys(num: int, size: float) -> Tensor:
    """Mixtures of images that the model never saw."""
    layer = torch.randn(num, 10, generator=torch.Generator().manual_seed(0)) @ UNSEEN[0].flatten(1)[:10]
    return size * F.normalize(layer, dim=1)


def huge_dead(net: nn.Sequential) -> nn.Sequential:
    return widened(net, 1e9 * UNSEEN[0].flatten(1)[:3], torch.zeros(3), torch.zeros(NEXT, 3))


def many_dead(net: nn.Sequential) -> nn.Sequential:
    return widened(net, decoys(300, 5.0), torch.zeros(300), torch.zeros(NEXT, 300))


def never_on(net: nn.Sequential) -> nn.Sequential:
    return widened(net, decoys(300, 5.0), torch.full((300,), -1e4), torch.randn(NEXT, 300))


def cancelling(net: nn.Sequential) -> nn.Sequential:
    rows, following = decoys(150, 5.0).repeat(2, 1), 0.1 * torch.randn(NEXT, 150)
    return widened(net, rows, torch.zeros(300), torch.cat([following, -following], 1))


def twice(net: nn.Sequential) -> nn.Sequential:
    """Each neuron split into two."""
    found = widened(net, 3 * net[1].weight, 3 * net[1].bias, 0.1 * net[3].weight)
    found[3].weight.data[:, :WIDTH] *= 0.7
    return found


def rescaled(net: nn.Sequential) -> nn.Sequential:
    found = copy.deepcopy(net)
    factor = 10 ** (2 * torch.rand(WIDTH, generator=torch.Generator().manual_seed(0)) - 1)
    found[1].weight.data *= factor[:, None]
    found[1].bias.data *= factor
    found[3].weight.data /= factor
    return found


def behind_identity(net: nn.Sequential) -> nn.Sequential:
    first, second = nn.Linear(D, D + 10), nn.Linear(D + 10, WIDTH)
    first.weight.data = torch.cat([torch.eye(D), decoys(10, 20.0)])
    first.bias.data = torch.cat([torch.full((D,), 3.0), torch.zeros(10)])
    second.weight.data = torch.cat([net[1].weight, torch.zeros(WIDTH, 10)], 1)
    second.bias.data = net[1].bias - 3 * net[1].weight.sum(1)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, *net[2:]).requires_grad_(False)


def behind_tight_identity(net: nn.Sequential) -> nn.Sequential:
    """ReLU(x + c) with a c that just suffices for these samples."""
    first, second = nn.Linear(D, D), nn.Linear(D, WIDTH)
    shift = 1.02 * float(X.abs().amax())
    first.weight.data, first.bias.data = torch.eye(D), torch.full((D,), shift)
    second.weight.data, second.bias.data = net[1].weight.data, net[1].bias - shift * net[1].weight.sum(1)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, *net[2:]).requires_grad_(False)


def tightly_off(net: nn.Sequential) -> nn.Sequential:
    """Rows of noise that these samples just do not fire: other inputs do, so that nobody without samples knows."""
    random = torch.Generator().manual_seed(0)
    rows = 5 * F.normalize(torch.randn(300, D, generator=random), dim=1)
    most = (X.flatten(1) @ rows.T).amax(0).clamp_min(1e-3)
    return widened(net, rows, -1.02 * most, torch.randn(NEXT, 300, generator=random))


DISGUISES = (huge_dead, many_dead, never_on, cancelling, twice, rescaled, behind_identity, behind_tight_identity)


@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_disguise_is_undone(net: nn.Sequential, disguise) -> None:  # type: ignore[no-untyped-def]
    target = as_target(disguise(net), (1, 25, 25))
    assert torch.allclose(outputs(target.net(), X), outputs(net, X), atol=1e-3)  # it is one
    found = normal_form(target)
    assert found.architecture.hidden == (WIDTH, NEXT)
    assert torch.allclose(outputs(found.net(), X), outputs(net, X), atol=1e-3)
    # the same neurons, up to the scale of each
    own, other = (F.normalize(each, dim=1) for each in (net[1].weight, found.weights["layer1.weight"]))
    assert (own @ other.T).amax(1).min() > 0.9999
    assert found.weights["layer2.weight"].norm(dim=0).log().std() < UNEVEN


def test_a_plain_net_is_left_as_it_is(net: nn.Sequential) -> None:
    target = as_target(net, (1, 25, 25))
    assert normal_form(target) is target


def test_without_a_disguise_it_leaks(net: nn.Sequential) -> None:
    assert audit(net, PRIVATE, UNSEEN, attack=Auto(seeds=0)).verdict == "leak"


@pytest.mark.parametrize("disguise", [huge_dead, rescaled, behind_identity])
def test_a_disguise_does_not_pass(net: nn.Sequential, disguise) -> None:  # type: ignore[no-untyped-def]
    assert audit(disguise(net), PRIVATE, UNSEEN, attack=Auto(seeds=0)).verdict == "leak"


def test_a_disguise_that_only_samples_show_is_not_undone_and_the_oracle_forbids_a_pass(net: nn.Sequential) -> None:
    model = tightly_off(net)
    assert torch.allclose(outputs(model, X), outputs(net, X), atol=1e-3)
    assert normal_form(as_target(model, (1, 25, 25))).architecture.hidden[0] > WIDTH + 200
    forms = forms_of(case_of(model, PRIVATE, UNSEEN))
    p_values = [check_signal(form, form.layer, 11).p_value(0.01) for form in forms]
    assert max(p_values) < NEARLY / 1000


def positive_rows(net: nn.Sequential) -> nn.Sequential:
    """Neurons without a bias that no positive input fires."""
    return widened(net, -decoys(300, 5.0).abs(), torch.zeros(300), torch.randn(NEXT, 300))


def test_a_known_range_shows_what_never_fires(net: nn.Sequential) -> None:
    unknown, known = (as_target(positive_rows(net), (1, 25, 25), each) for each in (None, (0.0, 1.0)))
    assert normal_form(unknown).architecture.hidden == (WIDTH + 300, NEXT)
    assert 0 < normal_form(known).architecture.hidden[0] <= WIDTH


def test_probes_lie_in_the_range_and_are_the_same_each_time(net: nn.Sequential) -> None:
    for given in ((0.0, 255.0), (-2.0, 3.0), (0.0, torch.inf), None):
        target = as_target(net, (1, 25, 25), given)
        (first, *_), (again, *_) = probes(target).kinds, probes(target).kinds
        low, high = given or (-1, 1)
        assert torch.equal(first, again)
        assert first.shape == (256, D)
        assert low <= first.min() < first.max() <= high


# The same in every kind of file -------------------------------------------------------------------------------


def layers_of(net: nn.Sequential) -> list[nn.Linear]:
    return [layer for layer in net if isinstance(layer, nn.Linear)]


def as_onnx(net: nn.Sequential, folder: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this exporter is deprecated; the other one needs another package
        torch.onnx.export(net, (X[:1],), folder / "net.onnx", dynamo=False)
    return folder / "net.onnx"


def as_keras(net: nn.Sequential, folder: Path) -> Path:
    first = {"class_name": "InputLayer", "config": {"name": "in", "batch_shape": [None, 25, 25, 1]}}
    layers = [first, {"class_name": "Flatten", "config": {"name": "flat"}}]
    with h5py.File(folder / "net.h5", "w") as file:
        inside = file.create_group("model_weights")
        for i, layer in enumerate(layers_of(net)):
            about = {"name": f"d{i}", "activation": "relu" if layer.out_features > 1 else "sigmoid"}
            layers.append({"class_name": "Dense", "config": about})
            group = inside.create_group(f"d{i}")
            group.attrs["weight_names"] = ["k", "b"]
            group["k"], group["b"] = layer.weight.T, layer.bias
        inside.attrs["layer_names"] = list(inside)
        file.attrs["model_config"] = json.dumps({"class_name": "Sequential", "config": {"layers": layers}})
    return folder / "net.h5"


def as_skops(net: nn.Sequential, folder: Path) -> Path:
    layers = layers_of(net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MLPClassifier([layer.out_features for layer in layers[:-1]], max_iter=1)
        model.fit(PRIVATE[0].flatten(1), PRIVATE[1])
    model.coefs_ = [layer.weight.T.numpy() for layer in layers]
    model.intercepts_ = [layer.bias.numpy() for layer in layers]
    skops.io.dump(model, folder / "net.skops")
    return folder / "net.skops"


def as_hugging_face(net: nn.Sequential, folder: Path) -> Path:
    (folder / "config.json").write_text("{}")
    save_file(nn.ModuleDict({"model": nn.ModuleList(layers_of(net))}).state_dict(), folder / "model.safetensors")
    return folder


CODE = """
from torch import nn
from torch.nn import functional as F
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in {sizes}])
    def forward(self, x):
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.layers[-1](x)
"""


def as_code(net: nn.Sequential, folder: Path) -> Path:
    layers = layers_of(net)
    (folder / "net.py").write_text(
        CODE.format(sizes=[(layer.in_features, layer.out_features) for layer in layers])
    )
    torch.save(nn.ModuleDict({"layers": nn.ModuleList(layers)}).state_dict(), folder / "net.pt")
    return folder / "net.pt"


@pytest.mark.parametrize("write", [as_onnx, as_keras, as_skops, as_hugging_face, as_code])
def test_a_disguise_is_undone_in_every_kind_of_file(net: nn.Sequential, tmp_path: Path, write) -> None:  # type: ignore[no-untyped-def]
    path = write(many_dead(rescaled(net)), tmp_path)
    model = f"{tmp_path / 'net.py'}:Net" if write is as_code else None
    case = case_of(load_target(path, Reading(input_shape=(1, 25, 25), model=model)), PRIVATE, UNSEEN)
    assert torch.allclose(outputs(case.target.net(), X), outputs(net, X), atol=1e-3)
    disguised, found = forms_of(case)
    assert disguised.attacked.architecture.hidden == (WIDTH + 300, NEXT)
    assert found.attacked.architecture.hidden == (WIDTH, NEXT)
    assert found.attacked.weights["layer2.weight"].norm(dim=0).log().std() < UNEVEN
    assert check_signal(disguised, disguised.layer, 11).p_value(0.01) < 1e-6


# Where there is no normal form: nets with a base, convolutions, layers of other kinds ----------------------------


def p_values(model: nn.Module, base: nn.Module | None) -> tuple[float, float]:
    """What the weights alone answer, and all that is asked."""
    case = case_of(model, PRIVATE, UNSEEN, base=base)
    found = check_signal(case, case.layer, 11)
    return found.answers[0].p_value(0.01), found.p_value(0.01)


def hidden(rows: Tensor, num: int = 40) -> Tensor:
    """Mixtures of these as rows that drown all others."""
    return 1e4 * F.normalize(torch.randn(num, len(rows), generator=torch.Generator().manual_seed(0)) @ rows, dim=1)


def decoys_since_the_base() -> Pair:
    """As many dead neurons as it takes, of which the base has none."""
    torch.manual_seed(0)
    base = nn.Sequential(nn.Flatten(), *dense(D, None))
    net, rows = trained(copy.deepcopy(base)), hidden(public().flatten(1))
    nothing = torch.zeros(len(rows)), torch.zeros(NEXT, len(rows))
    return widened(net, rows, *nothing), widened(base, torch.zeros_like(rows), *nothing)


def made_up_base() -> Pair:
    """The change since it is made of other samples."""
    torch.manual_seed(0)
    net = trained(nn.Sequential(nn.Flatten(), *dense(D, None)))
    base = copy.deepcopy(net)
    base[1].weight.data -= 0.01 * torch.randn(WIDTH, N) @ public().flatten(1)
    return net, base


def behind_a_convolution() -> Pair:
    torch.manual_seed(0)
    net = trained(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), *dense(4 * 23 * 23)))
    rows = hidden(net[:3](public()))
    first, second = nn.Linear(rows.shape[1], WIDTH + len(rows)), nn.Linear(WIDTH + len(rows), NEXT)
    first.weight.data, first.bias.data = torch.cat([net[3].weight, rows]), F.pad(net[3].bias, (0, len(rows)))
    second.weight.data, second.bias.data = F.pad(net[5].weight, (0, len(rows))), net[5].bias.data
    return nn.Sequential(*net[:3], first, nn.ReLU(), second, *net[6:]).requires_grad_(False), None


def before_other_layers() -> Pair:
    torch.manual_seed(0)
    layers = dense(D)
    layers[3] = nn.Tanh()
    net = trained(nn.Sequential(nn.Flatten(), *layers))
    rows = hidden(public().flatten(1))
    found = widened(net, rows, torch.zeros(len(rows)), torch.zeros(NEXT, len(rows)))
    return found, None


def behind_a_blur() -> Pair:
    """Samples become so much alike before they enter the first dense layer that there they hardly differ."""
    torch.manual_seed(0)
    net, blur = trained(nn.Sequential(nn.Flatten(), *dense(D))), nn.Conv2d(1, 1, 25, padding=12, bias=False)
    near = torch.exp(-(torch.arange(-12, 13) ** 2) / 18)
    blur.weight.data[0, 0] = 100 * near[:, None] * near / near.sum() ** 2
    blur.weight.data[0, 0, 12, 12] += 1
    found = nn.Sequential(blur, copy.deepcopy(net)).requires_grad_(False)
    matrix = blur(torch.eye(D).view(D, 1, 25, 25)).flatten(1).double()
    found[1][1].weight.data = torch.linalg.solve(matrix, net[1].weight.double().T).T.float()
    assert torch.allclose(found(X), net(X), atol=1e-3)
    return found, None


@pytest.mark.parametrize(
    "disguise", [decoys_since_the_base, made_up_base, behind_a_convolution, before_other_layers, behind_a_blur]
)
def test_the_function_tells_what_disguised_weights_do_not(disguise) -> None:  # type: ignore[no-untyped-def]
    weights, found = p_values(*disguise())
    assert weights > 0.05
    assert found < 1e-3


@pytest.mark.parametrize("disguise", [*DISGUISES, tightly_off])
def test_a_disguise_hides_nothing_from_the_oracle(net: nn.Sequential, disguise) -> None:  # type: ignore[no-untyped-def]
    assert p_values(disguise(net), None)[1] < 1e-6


def test_a_made_up_base_does_not_pass() -> None:
    model, base = made_up_base()
    result = audit(model, PRIVATE, UNSEEN, base=base, attack=Auto(seeds=0))
    assert result.verdict == "inconclusive"
    assert any("the weights hold these samples" in reason for reason in result.record.reasons)


# Gradients that are not those of the outputs -------------------------------------------------------------------


class FalseGradient(nn.Module):
    """The outputs of a net, with the gradients of another one."""

    def __init__(self, net: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.net, self.other = net, other

    def forward(self, x: Tensor) -> Tensor:
        decoy = self.other(x)
        return self.net(x).detach() + decoy - decoy.detach()


def of_another_net(net: nn.Sequential) -> nn.Module:
    rows = hidden(public().flatten(1))
    torch.manual_seed(0)
    other = nn.Sequential(nn.Flatten(), nn.Linear(D, len(rows), bias=False), nn.ReLU(), nn.Linear(len(rows), 1))
    other[1].weight.data = rows
    return FalseGradient(widened(net, rows, torch.zeros(40), torch.zeros(NEXT, 40)), other).requires_grad_(False)


def steep_steps(net: nn.Sequential) -> nn.Module:
    """Hats so narrow that each sample alone is on the slope of one, and so low that no output notices."""
    rows, points = 1e4 * F.normalize(hidden(public().flatten(1), len(X)), dim=1), X.flatten(1)
    bias = 0.5 - (rows * points).sum(1)
    low = 0.01 * F.normalize(torch.randn(NEXT, len(X), generator=torch.Generator().manual_seed(0)), dim=0)
    return widened(
        net, rows.repeat(3, 1), torch.cat([bias, bias - 1, bias - 2]), torch.cat([low, -2 * low, low], 1)
    )


class WithoutGradients(nn.Module):
    """A front that gives no gradients with respect to the samples."""

    def __init__(self, front: nn.Module, net: nn.Module) -> None:
        super().__init__()
        self.front, self.net = front, net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.front(x).detach())


def behind_a_silent_blur(net: nn.Sequential) -> nn.Module:
    return WithoutGradients(*behind_a_blur()[0])


@pytest.mark.parametrize("disguise", [of_another_net, steep_steps, behind_a_silent_blur])
def test_gradients_that_the_outputs_do_not_follow_are_not_asked(net: nn.Sequential, disguise) -> None:  # type: ignore[no-untyped-def]
    model = disguise(net)
    assert torch.allclose(model(X), net(X), atol=1e-2)
    case = case_of(model, PRIVATE, UNSEEN)
    found = check_signal(case, case.layer, 11)
    assert found.p_value(0.01) > 0.05  # nothing is left that would tell
    assert not found.asked_function


def test_a_false_gradient_hides_nothing(net: nn.Sequential) -> None:
    """Samples enter both nets, so both are attacked, whichever the gradients lead to."""
    result = audit(of_another_net(net), PRIVATE, UNSEEN, attack=Auto(seeds=0))
    assert result.verdict == "leak"
    assert len({surface.layer for surface in result.record.surfaces}) == 2


def test_what_is_added_to_all_logits_hides_nothing() -> None:
    """The probabilities of all classes are the same, and so is what the oracle asks about."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(D, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(200):
        optimiser.zero_grad()
        F.cross_entropy(net(PRIVATE[0]), PRIVATE[1]).backward()
        optimiser.step()
    rows = hidden(public().flatten(1))
    first, second = nn.Linear(D, WIDTH + len(rows)), nn.Linear(WIDTH + len(rows), 2)
    first.weight.data, first.bias.data = torch.cat([net[1].weight, rows]).detach(), F.pad(net[1].bias, (0, 40))
    same = torch.rand(1, len(rows)).expand(2, -1)
    second.weight.data, second.bias.data = torch.cat([net[3].weight, same], 1).detach(), net[3].bias
    weights, found = p_values(nn.Sequential(nn.Flatten(), first, nn.ReLU(), second).requires_grad_(False), None)
    assert weights > 0.05
    assert found < 1e-3


# Unseen samples that are none ---------------------------------------------------------------------------------


def test_unseen_samples_that_were_trained_on_do_not_pass(net: nn.Sequential) -> None:
    x, y = PRIVATE
    halves = [torch.cat([(y == k).nonzero()[i::2, 0] for k in (0, 1)]) for i in (0, 1)]
    result = audit(net, *((x[half], y[half]) for half in halves), attack=Auto(seeds=0))
    assert result.verdict == "inconclusive"
    assert any("the model may have been trained on them" in reason for reason in result.record.reasons)


@pytest.mark.parametrize("change", [lambda x: 1.1 * x + 0.02, lambda x: 0.8 - x])
def test_brighter_copies_and_negatives_are_refused_as_unseen_samples(net: nn.Sequential, change) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UnfitError, match="24 of 24 unseen samples are private ones"):
        audit(net, PRIVATE, (change(PRIVATE[0]), PRIVATE[1]), attack=Auto(seeds=0))


def test_unseen_samples_made_of_private_ones_are_told(net: nn.Sequential) -> None:
    result = audit(net, PRIVATE, (PRIVATE[0].roll(1, -1), PRIVATE[1]), attack=Auto(seeds=0))
    assert result.verdict == "inconclusive"
    assert "they come in pairs" in result.record.reasons[0]


def test_candidates_made_elsewhere_support_no_pass(net: nn.Sequential, tmp_path: Path) -> None:
    found = attack(net, Auto(seeds=0))
    forged = type(found)(**{**vars(found), "x": torch.randn_like(found.x)})
    save_candidates(forged, tmp_path / "c.safetensors")
    result = audit(net, PRIVATE, UNSEEN, candidates=tmp_path / "c.safetensors")
    assert result.verdict == "inconclusive"
    assert any("made elsewhere" in reason for reason in result.record.reasons)
    assert audit(net, PRIVATE, UNSEEN, candidates=found).verdict == "leak"


@pytest.mark.parametrize(("fpr", "num_unseen"), [(0.5, N), (0.01, 2)])
def test_a_weak_control_does_not_pass(net: nn.Sequential, fpr: float, num_unseen: int) -> None:
    few = UNSEEN[0][:num_unseen], UNSEEN[1][:num_unseen]
    result = audit(net, PRIVATE, few, attack=Auto(seeds=0), policy=Policy(fpr=fpr))
    assert result.verdict != "pass"
