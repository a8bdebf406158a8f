"""Models of other kinds, split at a dense layer: what feeds it, what follows it, and what comes back."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations, prune

from unfit import Unmix, as_target, attack, audit, draw, draw_unseen, preflight, read_source
from unfit.attacker.attacked_layer import read_layer
from unfit.attacker.stationarity import Opaque, candidate_signals
from unfit.base.errors import NotApplicableError, UnfitError, UsageError
from unfit.base.images import ncc
from unfit.base.modules import as_base
from unfit.base.nets import outputs

D = 64


def moved(norm: nn.BatchNorm1d | nn.BatchNorm2d) -> nn.Module:
    """As training leaves it; a fresh one does nothing."""
    nn.init.uniform_(norm.running_mean, -1, 1)  # type: ignore[arg-type]
    nn.init.uniform_(norm.running_var, 0.5, 2)  # type: ignore[arg-type]
    return norm


class Skip(nn.Module):
    """A connection leads around its first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(D, D), nn.Linear(D, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.last(x + F.relu(self.first(x)))


class Normalised(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.5) / 0.25


def dense(*middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(D, 30), *middle, nn.Linear(30, 3))


def stack() -> nn.Sequential:
    """Convolution, normalisation, pooling, and two dense layers."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, stride=1, groups=1),
        moved(nn.BatchNorm2d(4)),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 30),
        nn.ReLU(),
        nn.Linear(30, 3),
    )


# name: model, words for its tail, whether a ReLU follows the attacked layer, whether it has a prefix
KINDS: dict[str, tuple[nn.Module, str | None, bool, bool]] = {
    "GELU": (dense(nn.GELU()), "GELU", False, False),
    "leaky ReLU": (dense(nn.LeakyReLU()), "LeakyReLU", False, False),
    "LayerNorm": (dense(nn.LayerNorm(30), nn.ReLU()), "LayerNorm", False, False),
    "BatchNorm": (dense(moved(nn.BatchNorm1d(30)), nn.ReLU(), nn.Dropout(0.5)), "BatchNorm1d", False, False),
    "tanh after a ReLU": (dense(nn.ReLU(), nn.Linear(30, 30), nn.Tanh()), "Tanh", True, False),
    "two linear layers": (dense(nn.Linear(30, 30), nn.ReLU()), "its own connections", False, False),
    "skip": (Skip(), "its own connections", True, False),
    "normalised inputs": (nn.Sequential(Normalised(), *dense(nn.ReLU())), None, True, True),
    "convolutions": (stack(), None, True, True),
}


@pytest.mark.parametrize("name", KINDS)
def test_any_model_is_split_at_its_first_dense_layer(name: str) -> None:
    module, tail, relu, has_prefix = KINDS[name]
    target = as_target(module, (1, 8, 8))
    assert (target.architecture.tail, target.split.relu, target.has_prefix) == (tail, relu, has_prefix)
    x = torch.randn(9, 1, 8, 8)
    seen = target.split.features(x) if has_prefix else x
    assert seen.shape[1:] == target.architecture.input_shape
    with torch.no_grad():
        assert torch.allclose(outputs(target.net(), seen), module.eval()(x), atol=1e-5)


def test_inputs_that_are_normalised_inside_are_pictures_still() -> None:
    target = as_target(KINDS["normalised inputs"][0], (1, 8, 8))
    assert target.architecture.input_shape == (1, 8, 8)
    assert read_layer(target).shape == (1, 8, 8)


def test_maps_keep_their_edges() -> None:
    target = as_target(stack(), (1, 8, 8))
    layer = read_layer(target)
    assert target.architecture.input_shape == (64,)
    assert layer.shape == (4, 4, 4)
    assert layer.limits == (0.0, torch.inf)


@pytest.mark.parametrize("final", [nn.Softmax(1), nn.LogSoftmax(1), nn.Sigmoid()])
def test_a_final_softmax_is_passed_over(final: nn.Module) -> None:
    inner = dense(nn.ReLU())
    target = as_target(nn.Sequential(*inner, final))
    x = torch.randn(5, 1, 8, 8)
    assert target.whole is None
    with torch.no_grad():
        assert torch.allclose(outputs(target.net(), x), inner(x), atol=1e-6)


def test_a_padded_convolution_is_rebuilt() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 6), nn.ReLU(), nn.Linear(6, 2)
    )
    target = as_target(module)
    assert target.whole is None
    assert (target.architecture.conv, target.architecture.padding) == ((3, 4), 1)
    x = torch.randn(5, 3, 8, 8)
    with torch.no_grad():
        assert torch.allclose(outputs(target.net(), x), module(x), atol=1e-6)
    assert read_layer(target).inputs(torch.rand(2, 256)).shape == (2, 3, 8, 8)


class Branches(nn.Module):
    """Two stacks side by side: only the first layer of one is attacked."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Sequential(nn.Flatten(), nn.Linear(D, 30), nn.ReLU(), nn.Linear(30, 3)) for _ in "ab")

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + 0.3 * self.b(x)


def test_a_way_around_the_attacked_layer_is_seen() -> None:
    for net, around in ((Skip(), True), (Branches(), True), (stack(), False), (dense(nn.BatchNorm1d(30)), False)):
        target = as_target(moved_all(net), (1, 8, 8))
        assert (target.whole is not None and target.whole.has_bypass) == around


def test_a_model_with_two_branches_is_attacked_in_both() -> None:
    """`b` may have been trained on these samples, though `a` is called first."""
    torch.manual_seed(0)
    net, x = Branches(), torch.rand(200, 1, 8, 8)
    y = net(x).argmax(1)
    done = audit(net, (x[:100], y[:100]), (x[100:], y[100:]), attack=Unmix())
    assert done.verdict == "inconclusive"
    assert {surface.layer for surface in done.record.surfaces} == {"a.1", "b.1"}


def moved_all(net: nn.Module) -> nn.Module:
    for part in net.modules():
        if isinstance(part, nn.BatchNorm1d):
            moved(part)
    return net


def test_a_layer_is_chosen_by_its_name() -> None:
    module = stack()
    assert as_target(module, (1, 8, 8), layer="7").weights["layer1.weight"].shape == (3, 30)
    with pytest.raises(UsageError, match="no dense layer named 'head'; `layer` is one of: 5, 7"):
        as_target(module, (1, 8, 8), layer="head")


def test_the_signal_goes_through_whatever_follows() -> None:
    """∂Φ_y/∂z¹ less that of the rivals, by hand."""
    module = dense(nn.GELU())
    layer = read_layer(as_target(module, (1, 8, 8)))
    assert isinstance(layer.stack, Opaque)
    x, label = torch.randn(4, D), torch.tensor([0, 1, 2, 0])
    found = candidate_signals(layer.stack, x, label, "multiclass", 50.0)[:, 0]
    z = module[1](x).detach().requires_grad_()
    phi = module[3](F.gelu(z))
    own = F.one_hot(label, 3).bool()
    soft = phi.detach().masked_fill(own, -torch.inf).softmax(1)
    (expected,) = torch.autograd.grad(phi, z, own.float() - soft)
    assert torch.allclose(found, expected, atol=1e-6)


def test_the_base_of_a_split_model_is_split_alike() -> None:
    target = as_target(stack(), (1, 8, 8))
    base = as_base(stack(), target)
    assert base is not None
    assert base.architecture == target.architecture
    assert base.sha256 != target.sha256


def test_the_hash_is_of_the_whole_model() -> None:
    module = stack()
    before = as_target(module, (1, 8, 8)).sha256
    nn.init.zeros_(module[0].weight)
    assert as_target(module, (1, 8, 8)).sha256 != before


def test_what_an_attack_needs_and_does_not_find_is_said() -> None:
    target = as_target(dense(nn.GELU()), (1, 8, 8))
    found = {
        applicability.attack: applicability
        for applicability in preflight(target, as_target(dense(nn.GELU()))).attacks
    }
    assert "no ReLU follows the first dense layer (GELU)" in found["peel"].why
    assert "not GELU" in found["kkt"].why
    with pytest.raises(NotApplicableError, match="not GELU"):
        attack(target, "kkt")


class ByHand(nn.Module):
    """A dense layer that is no nn.Linear, before one that is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(30, D) / D**0.5)
        self.middle, self.last = nn.Linear(30, 20), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle((x.flatten(1) @ self.weight.T).relu()).relu())


class Normed(ByHand):
    """What it multiplies with is made of a parameter."""

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(F.linear(x.flatten(1), 2 * F.normalize(self.weight)).relu()).relu())


class Masked(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.tril(), self.bias)


class Answer(nn.Module):
    """Returns its outputs as many libraries do."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.net, self.form = dense(nn.ReLU()), form

    def forward(self, x: Tensor) -> object:
        logits = self.net(x)
        return {"dict": {"loss": None, "logits": logits}, "tuple": (logits, x), "other": {"answer": logits}}[
            self.form
        ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "change", [parametrizations.weight_norm, parametrizations.spectral_norm, nn.utils.weight_norm, prune.identity]
)
def test_weights_that_are_computed_are_attacked_as_computed(change: Callable[..., nn.Module]) -> None:
    net = dense(nn.ReLU())
    change(net[1], "weight")
    net(torch.zeros(1, 1, 8, 8))  # old norms keep what they computed, which is not copied easily
    target = as_target(net.eval())
    assert target.architecture.hidden == (30,)
    assert torch.equal(target.weights["layer1.weight"], net[1].weight)


@pytest.mark.parametrize("form", ["dict", "tuple"])
def test_outputs_are_found_in_what_a_model_returns(form: str) -> None:
    net = Answer(form)
    x = torch.randn(5, 1, 8, 8)
    assert torch.allclose(outputs(as_target(net).net(), x), net.net(x), atol=1e-5)


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (ByHand(), "multiplies samples with weight in its own code"),
        (Normed(), "multiplies samples with weight in its own code"),
        (
            nn.Sequential(nn.Flatten(), Masked(D, 30), nn.Tanh(), nn.Linear(30, 3)),
            r"1 \(Masked\) does not multiply",
        ),
        (Answer("other"), "returns a dict: wrap it"),
        (dense(nn.ReLU()).to("meta"), "1.weight, 1.bias, 3.weight, 3.bias: no values"),
        (nn.Bilinear(D, D, 3), "missing 1 required positional argument: 'input2': wrap the model"),
    ],
)
def test_what_would_be_missed_is_refused(net: nn.Module, words: str) -> None:
    with pytest.raises(UnfitError, match=words):
        as_target(net, (1, 8, 8))


@pytest.mark.filterwarnings("ignore")
def test_a_quantised_model_is_refused_by_name() -> None:
    net = torch.ao.quantization.quantize_dynamic(dense(nn.ReLU()), {nn.Linear})
    with pytest.raises(UnfitError, match="quantised; give the model as it was before"):
        as_target(net)


def test_a_product_by_hand_can_be_the_prefix_of_a_layer_that_is_named() -> None:
    assert as_target(ByHand(), (1, 8, 8), layer="middle").has_prefix


def trained(net: nn.Module, x: Tensor, y: Tensor, steps: int) -> nn.Module:
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(steps):
        loss = F.binary_cross_entropy_with_logits(net(x)[:, 0], y.float())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return net.eval()


@pytest.mark.parametrize("middle", [nn.LayerNorm(300), nn.GELU()], ids=["LayerNorm", "GELU"])
def test_faces_come_back_whatever_follows_the_first_layer(middle: nn.Module) -> None:
    source = read_source("faces")
    members = draw(source, 20, 0)
    unseen = draw_unseen(source, members, 20, 0)
    x, others = members.x - members.mean, unseen.x - members.mean
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 300), middle, nn.ReLU(), nn.Linear(300, 1))
    nn.init.normal_(net[1].weight, std=1e-4)  # type: ignore[arg-type]
    net = trained(net, x, members.y, 300)
    result = audit(net, (x, members.y), (others, unseen.y), attack=Unmix(ranks=(1.0,)))
    assert result.verdict == "leak"
    assert result.record.num_good >= 10 > result.record.num_good_unseen


def test_features_come_back_from_behind_convolutions_and_are_compared_as_features() -> None:
    source = read_source("faces")
    members = draw(source, 16, 0)
    unseen = draw_unseen(source, members, 16, 0)
    x, others = members.x - members.mean, unseen.x - members.mean
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8, momentum=1.0), nn.ReLU(), nn.Flatten())
    d = body(others).shape[1]  # which sets the norm, on other pictures
    body.eval().requires_grad_(False)
    net = nn.Sequential(body, nn.Linear(d, 300), nn.ReLU(), nn.Linear(300, 1))
    base = copy.deepcopy(net)
    trained(net[1:], body(x), members.y, 300)
    result = audit(net, (x, members.y), (others, unseen.y), base=base)
    assert result.record.similarity.name == "explained variance"
    assert result.arrays["original"].shape == (16, 1, *x.shape[2:])  # the page shows pictures
    assert result.verdict == "leak"
    assert result.record.num_exact >= 8  # of 16; some gates turned late, and some columns have rivals
    assert ncc(result.arrays["reconstruction"], result.arrays["original"]).mean() > 0.7
    features = result.arrays["features"]  # … beside the features, which came back at their scale
    assert torch.allclose(features, body(x), atol=1e-5)
    proven = torch.tensor([sample.exact for sample in result.record.samples])
    error = (result.arrays["reconstructed_features"] - features)[proven].norm(dim=1)
    assert (error < 0.02 * features[proven].norm(dim=1)).all()
