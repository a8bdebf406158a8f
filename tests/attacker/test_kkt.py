"""The KKT attack: identities of its objective, both solvers, the circle, bad input."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from unfit import (
    AuditRequest,
    FastKKT,
    FitSettings,
    Inversion,
    PaperKKT,
    UnfitError,
    attack,
    audit_run,
    fit_run,
    load_target,
    read_source,
)
from unfit.attacker.attacked_layer import read_layer
from unfit.attacker.attacks import named_attack
from unfit.attacker.attacks.auto import Auto
from unfit.attacker.attacks.fast import multipliers
from unfit.attacker.attacks.inversion import in_pieces, step_by_step
from unfit.attacker.attacks.paper import paper_iterates
from unfit.attacker.kinks import exact_multipliers, large, meeting_points, thin
from unfit.attacker.stationarity import (
    Score,
    choose_score,
    dense_layers,
    dense_stationarity,
    first_signals,
    forward,
    gate,
    general_stationarity,
    num_candidates,
    stationarity,
    weigh,
)
from unfit.auditor.case import private_set
from unfit.base.errors import DataCheckError, UsageError
from unfit.base.nets import Architecture, build, initialise, parse_architecture
from unfit.base.target import Target

HARD = 1e7  # α of a derivative that is a step for all practical purposes


def perceptron(hidden: tuple[int, ...], k: int, biases: str, d: int = 6, seed: int = 0) -> nn.Sequential:
    architecture = parse_architecture("-".join(map(str, hidden)), (d,), k, biases)
    return initialise(architecture, None, seed).double()


def guesses(score: Score, m: int, k: int, d: int = 6, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(m, d, generator=random, dtype=torch.float64)
    c = torch.rand(*((m, k) if score == "any" else (m,)), generator=random, dtype=torch.float64)
    return x, torch.arange(m) % max(k, 2), c - 0.5 if score == "any" else c


CASES = [
    ("binary", 1, "max"),
    ("multiclass", 4, "max"),
    ("multiclass", 4, "soft"),
    ("any", 1, "max"),
    ("any", 3, "max"),
]


@pytest.mark.parametrize(("score", "k", "runner_up"), CASES)
@pytest.mark.parametrize("hidden", [(9,), (9, 7), (8, 7, 5, 4)])
@pytest.mark.parametrize("biases", ["first", "hidden"])
def test_written_out_gradients_are_autograds(score, k, runner_up, hidden, biases):
    net = perceptron(hidden, k, biases)
    x, label, c = guesses(score, 10, k)
    results = []
    for objective in (
        lambda x, w: dense_stationarity(dense_layers(net), x, w, 5.0),
        lambda x, w: general_stationarity(net, x, w, 5.0),
    ):
        x_, c_ = x.clone().requires_grad_(), c.clone().requires_grad_()
        squares = torch.stack(objective(x_, weigh(score, label, c_, runner_up)))
        results.append((squares.detach(), *torch.autograd.grad(squares.sum(), [x_, c_])))
    assert len(results[0][0]) == len(hidden) + 1
    for dense, general in zip(*results, strict=True):
        torch.testing.assert_close(dense, general, rtol=1e-10, atol=1e-10)


def test_general_objective_of_a_convolutional_net_matches_plain_gradients():
    """With hard gates the sum of per-sample gradients is what autograd gives for the unchanged net."""
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 1)
    ).double()
    x, c = torch.randn(4, 2, 6, 6).double(), torch.rand(4).double()
    gradients = torch.autograd.grad((c * net(x)[:, 0]).sum(), list(net.parameters()))
    squares = [float((p.detach() - g).square().sum()) for p, g in zip(net.parameters(), gradients, strict=True)]
    expected = [weight + bias for weight, bias in zip(squares[::2], squares[1::2], strict=True)]
    found = stationarity(net, x, weigh("binary", torch.ones(4, dtype=torch.long), c), HARD)
    np.testing.assert_allclose([s.item() for s in found], expected, rtol=1e-6)
    assert "forward" not in net[1].__dict__  # the net is left as it was


def planted(n: int = 5, per_sample: int = 3) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A net at an exact KKT point with λ = 1: simplex vertices, each with neurons of its own, W_j = |v_j| x_i."""
    vertices = (torch.eye(n) - 1 / n).double()
    vertices = vertices / vertices.norm(dim=1, keepdim=True)
    y = torch.arange(n) % 2
    net = build(Architecture((n,), (n * per_sample,), 1, (False, False))).double()
    owner = torch.arange(n * per_sample) % n
    size = 0.5 + torch.rand(n * per_sample, generator=torch.Generator().manual_seed(0)).double()
    with torch.no_grad():
        net.layer1.weight.copy_(size[:, None] * vertices[owner])
        net.layer2.weight.copy_((size * (2 * y - 1)[owner])[None])
    return net, vertices, y


def test_a_planted_kkt_point_has_residual_zero():
    net, x, y = planted()
    at = stationarity(net, x, weigh("binary", y, torch.ones(len(x)).double()), HARD)
    assert max(map(float, at)) < 1e-20
    for moved, lam in ((x + 0.1, torch.ones(len(x))), (x, torch.full((len(x),), 0.9))):
        off = stationarity(net, moved, weigh("binary", y, lam.double()), HARD)
        assert max(map(float, off)) > 1e-3
    wrong = stationarity(net, x, weigh("binary", 1 - y, torch.ones(len(x)).double()), HARD)
    assert min(map(float, wrong)) > 0.1


def test_the_same_point_as_two_classes_and_as_any_loss():
    """Φ_1 − Φ_0 with the last layer (−v/2, v/2) is the binary net's Φ; a signed multiplier replaces the label."""
    net, x, y = planted()
    two = build(Architecture((5,), (15,), 2, (False, False))).double()
    with torch.no_grad():
        two.layer1.weight.copy_(net.layer1.weight)
        two.layer2.weight.copy_(torch.cat([-net.layer2.weight, net.layer2.weight]) / 2)
    lam = torch.rand(5).double()
    binary = stationarity(net, x, weigh("binary", y, lam), 3.0)
    for runner_up in ("max", "soft"):
        classes = stationarity(two, x, weigh("multiclass", y, lam, runner_up), 3.0)
        torch.testing.assert_close(classes[0], binary[0])
    signed = stationarity(net, x, weigh("any", y, lam * (2 * y - 1)), 3.0)
    torch.testing.assert_close(torch.stack(signed), torch.stack(binary))


def test_every_layers_gradient_has_the_output_as_its_product_with_the_weights():
    """⟨θ_l, ∂Φ/∂θ_l⟩ = Φ for each layer of a homogeneous net; read off the residual at c = ±1."""
    net = build(Architecture((6,), (8, 7), 1, (False, False, False))).double()
    x = torch.randn(1, 6).double()
    one, minus = (
        stationarity(net, x, weigh("any", torch.zeros(1), torch.full((1, 1), c).double()), HARD)
        for c in (1.0, -1.0)
    )
    for plus_square, minus_square in zip(one, minus, strict=True):
        assert float(minus_square - plus_square) / 4 == pytest.approx(net(x).item(), rel=1e-9)


def test_the_order_of_candidates_does_not_matter():
    net = perceptron((9, 7), 4, "hidden")
    x, label, c = guesses("multiclass", 12, 4)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(3))
    one = stationarity(net, x, weigh("multiclass", label, c), 5.0)
    other = stationarity(net, x[order], weigh("multiclass", label[order], c[order]), 5.0)
    torch.testing.assert_close(torch.stack(one), torch.stack(other), rtol=1e-12, atol=0)


def test_signals_of_the_first_layer_are_its_bias_gradient():
    net = perceptron((9, 7), 3, "hidden")
    layers, x = dense_layers(net), torch.randn(1, 6).double()
    _, sums, _ = forward(layers, x, HARD)
    g = torch.tensor([[0.5, -1.0, 2.0]]).double()
    (expected,) = torch.autograd.grad((g * net(x)).sum(), [net.layer1.bias])
    torch.testing.assert_close(first_signals(layers, sums, g, HARD)[0], expected)


# Solvers ----------------------------------------------------------------------------------------------------


def small_target(k: int = 1, seed: int = 0, d: int = 12) -> Target:
    architecture = parse_architecture("20-10", (d,), k)
    return Target(architecture, dict(initialise(architecture, None, seed).state_dict()), (-1.0, 1.0))


@pytest.mark.parametrize(("score", "k"), [("auto", 1), ("auto", 3), ("any", 1), ("any", 3)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_papers_solver_lowers_its_loss(score, k, dtype):
    settings = PaperKKT(score=score, num_candidates=12, iterations=200, lr=0.05, lr_multiplier=0.05, dtype=dtype)
    losses = [i.loss for i in paper_iterates(small_target(k), settings, 5)]
    assert len(losses) == 201
    assert losses[-1] < losses[0]


def test_the_papers_solver_goes_through_a_convolution():
    architecture = parse_architecture("conv(3,4)-10", (1, 8, 8), 1)
    target = Target(architecture, dict(initialise(architecture, None, 0).state_dict()), (-1.0, 1.0))
    settings = PaperKKT(num_candidates=4, iterations=50, lr=0.05, lr_multiplier=0.05)
    losses = [i.loss for i in paper_iterates(target, settings, 5)]
    assert losses[-1] < losses[0]


def test_the_papers_settings_are_the_published_ones():
    first = next(paper_iterates(small_target(), PaperKKT(num_candidates=200, sigma=0.01), 5))
    assert first.x.dtype == torch.float64
    assert first.x.std().item() == pytest.approx(0.01, rel=0.1)
    assert first.multiplier.min() >= 0
    assert first.multiplier.max() <= 1
    assert first.label.sum() == 100  # half of them +1


def test_multipliers_of_any_sign_start_from_a_normal_distribution():
    drawn = next(paper_iterates(small_target(3), PaperKKT(score="any", num_candidates=300), 5)).multiplier.detach()
    assert drawn.shape == (300, 3)
    assert drawn.mean().item() == pytest.approx(0, abs=0.1)
    assert drawn.std().item() == pytest.approx(1, rel=0.1)
    assert (drawn.abs() > 2).double().mean().item() == pytest.approx(0.0455, abs=0.03)  # a uniform one has none


def by_the_formulas(
    target: Target, score: Score, settings: PaperKKT, x: Tensor, label: Tensor, c: Tensor
) -> Tensor:
    """The loss of the papers' code, one candidate after the other, by differentiating through plain gradients."""
    weights = {name: value.double().requires_grad_() for name, value in target.weights.items()}
    total = {name: torch.zeros_like(value) for name, value in weights.items()}
    for each, own, multiplier in zip(x, label.tolist(), c, strict=True):
        h = each
        for i in (1, 2):
            z = weights[f"layer{i}.weight"] @ h + weights.get(f"layer{i}.bias", 0)
            smooth = nn.functional.softplus(settings.alpha * z, threshold=1e9) / settings.alpha
            h = smooth + (z.relu() - smooth).detach()  # the value of a ReLU, the derivatives of `smooth`
        phi = weights["layer3.weight"] @ h
        if score == "any":
            scalar = (multiplier * phi).sum()
        elif score == "binary":
            scalar = multiplier * (1 if own == 1 else -1) * phi[0]
        else:
            scalar = multiplier * (phi[own] - max(phi[j] for j in range(len(phi)) if j != own))
        gradient = torch.autograd.grad(scalar, list(weights.values()), create_graph=True)
        total = {name: total[name] + part for name, part in zip(weights, gradient, strict=True)}
    loss = sum((weights[name].detach() - total[name] / len(x)).pow(2).sum() for name in weights)
    if score != "any":
        loss = loss + 5 * sum((settings.lambda_min - value).clamp_min(0) ** 2 for value in c)
    return loss + sum((part - 1).clamp_min(0).pow(2).sum() + (-1 - part).clamp_min(0).pow(2).sum() for part in x)


@pytest.mark.parametrize(("score", "k"), [("binary", 1), ("multiclass", 3), ("any", 1), ("any", 3)])
def test_the_papers_solver_takes_the_steps_of_the_reference(score, k):
    """Loss, candidates and multipliers before the first step and after two: momentum counts in the second."""
    settings = PaperKKT(score=score, num_candidates=6, iterations=2, lr=0.05, lr_multiplier=0.02, sigma=1.0)
    target = small_target(k)
    found = [iterate.copy() for iterate in paper_iterates(target, settings, 5)]
    (x, c), label = (found[0].x.clone(), found[0].multiplier.clone()), found[0].label
    assert (x.abs() > 1).any()  # the box is felt
    speed = [torch.zeros_like(x), torch.zeros_like(c)]
    for iterate in found:
        torch.testing.assert_close(iterate.x, x, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(iterate.multiplier, c, rtol=1e-10, atol=1e-12)
        inputs = [x.requires_grad_(), c.requires_grad_()]
        loss = by_the_formulas(target, score, settings, x, label, c)
        assert iterate.loss == pytest.approx(loss.item(), rel=1e-12)
        gradients = torch.autograd.grad(loss, inputs)
        speed = [0.9 * old + new for old, new in zip(speed, gradients, strict=True)]
        x, c = (x - 0.05 * speed[0]).detach(), (c - 0.02 * speed[1]).detach()


def test_a_diverged_run_says_so_and_keeps_its_best_iterate():
    found = attack(small_target(), PaperKKT(num_candidates=4, iterations=300, lr=1e6, sigma=1.0))
    assert found.facts["status"].startswith("diverged after")
    assert found.x.isfinite().all()
    assert len(found) == 4


def test_solvers_depend_on_the_seed_alone(face_run: Path):
    target = load_target(face_run)
    one, again, other = (attack(target, FastKKT(runs=1, iterations=20, seed=seed)) for seed in (4, 4, 5))
    assert torch.equal(one.x, again.x)
    assert not torch.equal(one.x, other.x)
    a, b = (attack(small_target(), PaperKKT(num_candidates=4, iterations=5, seed=2)) for _ in range(2))
    assert torch.equal(a.x, b.x)


def test_multipliers_are_those_of_non_negative_least_squares():
    random = torch.Generator().manual_seed(0)
    signals = torch.randn(8, 1, 60, generator=random)
    u, true = torch.randn(8, 5, generator=random), torch.tensor([0.0, 1, 2, 0, 3, 1, 2, 1])
    weight = torch.einsum("i,iw,ir->wr", true, signals[:, 0], u)
    bias = (true[:, None] * signals[:, 0]).sum(0)
    found = multipliers(signals, u, weight, bias, "binary")[:, 0]
    gradients = torch.cat([signals[:, 0, :, None] * u[:, None], signals[:, 0, :, None]], 2).flatten(1).double()
    exact = nnls(gradients.T.numpy(), torch.cat([weight, bias[:, None]], 1).flatten().double().numpy())[0]
    np.testing.assert_allclose(exact, true, atol=1e-5)
    np.testing.assert_allclose(found, true, atol=0.35)  # the ridge and the floor cost a little
    assert found.min() > 0


def test_default_number_of_candidates_follows_the_spectrum():
    assert num_candidates(None, 10, "binary", 1) == 30
    assert num_candidates(None, 10, "multiclass", 4) == 32
    assert num_candidates(None, 0, "any", 1) == 2
    assert num_candidates(7, 10, "any", 1) == 7


def test_fast_gives_faces_back_and_not_unseen_ones(face_run: Path):
    record = audit_run(AuditRequest(target=face_run, attack=FastKKT())).record
    assert record.num_good >= 20
    assert record.num_good_unseen <= 4
    assert record.verdict == "leak"
    assert record.attack["solver"] == "fast"


def test_ten_classes_leak_through_their_margins(tmp_path: Path):
    """No component of unmixing is involved: the first run alone, from random initial weights."""
    source = read_source("mnist5k", "all")
    (tmp_path / "run").mkdir()
    fit_run(source, 60, tmp_path / "run", FitSettings(loss="ce"), "300")
    found = attack(load_target(tmp_path / "run"), FastKKT(runs=1))
    run = found.x[found.origin == 0]
    _, private = private_set(AuditRequest(target=tmp_path / "run"))
    x = (private.x - private.mean).flatten(1)
    cosine = nn.functional.normalize(x) @ nn.functional.normalize(run.flatten(1)).T
    near = cosine.amax(1) > 0.8
    assert near.sum() >= 5
    agree = found.label[cosine.argmax(1)][near] == private.y[near]
    assert agree.float().mean() > 0.8


def test_an_untrained_net_gives_nothing_away(tmp_path: Path, face_run: Path):
    source = read_source("faces")
    fit_run(source, 40, tmp_path, FitSettings(method="gd", epochs=1, lr=1e-12))
    with pytest.raises(
        DataCheckError, match="guessing gets 50%"
    ):  # it does not know its samples: nothing to audit
        audit_run(AuditRequest(target=tmp_path, attack=FastKKT()))


def test_the_circle_comes_back(tmp_path: Path):
    """H22 sec. 4: all 20 points, and nothing else."""
    fit_run(
        read_source("circle"), 20, tmp_path, FitSettings(flow_time=1e3), "300"
    )  # 1,000 take four times as long
    found = attack(load_target(tmp_path), "kkt")
    _, private = private_set(AuditRequest(target=tmp_path))
    distance = torch.cdist(private.x - private.mean, found.x)
    assert distance.amin(1).max() < 0.1
    assert (distance.amin(0) < 0.1).float().mean() >= 0.8
    assert torch.equal(found.label[distance.argmin(1)], private.y)
    cloud = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    assert (torch.cdist(private.x - private.mean, cloud).amin(1) < 0.1).sum() < 20


def test_kinks_meet_at_planted_points():
    points = torch.tensor([[1.0, 0.2], [-0.4, 0.9], [0.3, -1.1]]).double()
    angles = torch.linspace(0, 3, 12).double()
    normal = torch.stack([angles.cos(), angles.sin()], 1)
    weight = normal.repeat(3, 1)
    bias = -(normal[None] * points[:, None]).sum(2).flatten()
    found = meeting_points(weight, bias, 3, seed=0)
    assert torch.cdist(points, found).amin(1).max() < 1e-2


def test_large_multipliers_and_thinning():
    assert large(torch.tensor([1.0, 0.9, 0.0, 0.5, 0.1])).tolist() == [0, 1, 3]
    kept = thin(np.array([[0.0], [0.01], [1.0], [1.02], [5.0]]), 0.03, 2)
    assert kept.tolist() == [[0.0], [1.0]]
    lam = exact_multipliers(torch.eye(3), torch.zeros(3, 1), torch.zeros(3, 1), torch.tensor([1.0, -1.0, 2.0]))
    np.testing.assert_allclose(lam, [1, 0, 2], atol=1e-12)


# Baselines and convolutions ---------------------------------------------------------------------------------


def test_inversion_drives_outputs_apart(face_run: Path):
    target = load_target(face_run)
    found = attack(target, Inversion(num_candidates=40))
    phi = target.net()(found.x).detach()[:, 0]
    assert phi[found.label == 1].median() > phi[found.label == 0].median() + 1
    driven = phi * (2 * found.label - 1)
    assert torch.equal(driven, driven.sort(descending=True)[0])  # most extreme first


@pytest.mark.parametrize("num_outputs", [1, 3])
def test_inversion_in_pieces_is_the_same_ascent(num_outputs: int):
    architecture = parse_architecture("40-30-20", (12,), num_outputs, "hidden")
    net = initialise(architecture, None, 0).double().requires_grad_(False)
    random = torch.Generator().manual_seed(0)
    x = torch.randn(60, 12, generator=random, dtype=torch.float64)
    lr = torch.logspace(-4, 2, 60, dtype=torch.float64)[:, None]  # from no bend at all to leaving all behind
    label = torch.arange(60) % max(num_outputs, 2)
    given = net, x, lr, label, 50
    plain, pieces = step_by_step(*given), in_pieces(*given)
    assert torch.allclose(plain, pieces, rtol=1e-9, atol=1e-12)
    turned = (net[1](x) > 0) != (net[1](plain) > 0)
    assert 0 < turned.any(1).float().mean() < 1  # some bend, some do not


def test_inversion_of_a_class_raises_its_output():
    target = small_target(3)
    found = attack(target, "inversion")
    assert len(found) == 1002
    phi = target.net()(found.x).detach()
    for label in range(3):
        mine = phi[found.label == label, label].max()
        assert mine > target.net()(torch.zeros(1, 12))[0, label]


def test_weights_are_the_rows_and_their_negatives(face_run: Path):
    target = load_target(face_run)
    found = attack(target, "weights")
    rows = target.weights["layer1.weight"]
    assert len(found) == 2 * len(rows)
    cosine = nn.functional.cosine_similarity(found.x[: len(rows)].flatten(1), rows)
    torch.testing.assert_close(cosine, torch.ones(len(rows)))
    torch.testing.assert_close(found.x[: len(rows)], -found.x[len(rows) :])


@pytest.fixture(scope="module")
def conv_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("conv")
    settings = FitSettings(init=None, weight_decay=1e-3, max_steps=400)
    fit_run(read_source("faces"), 20, folder, settings, "conv(3,8)-100")
    return folder


@pytest.mark.parametrize("method", ["auto", "unmix", "kkt", "weights"])
def test_convolutional_targets_can_be_audited(conv_run: Path, method):
    attack = Auto(budget=20.0) if method == "auto" else named_attack(method)  # all of it takes minutes
    record = audit_run(AuditRequest(target=conv_run, attack=attack)).record
    assert record.num_candidates > 0
    assert record.similarity.vote == 1.5


def test_faces_come_back_through_a_convolution(conv_run: Path):
    record = audit_run(AuditRequest(target=conv_run, attack=named_attack("unmix"))).record
    assert record.num_good >= 5
    assert record.num_good > 2 * record.num_good_unseen


def test_a_kernel_as_large_as_the_inputs_is_a_dense_layer():
    shape = (3, 8, 8)
    whole, dense = (parse_architecture(text, shape, 1, "hidden") for text in ("conv(8,30)-20", "30-20"))
    weights = dict(initialise(whole, None, 0).state_dict())
    flat = weights | {"layer1.weight": weights["layer1.weight"].flatten(1)}
    one, other = (read_layer(Target(*each)) for each in ((whole, weights), (dense, flat)))
    assert one.conv is None
    assert one.shape == other.shape == shape
    torch.testing.assert_close(one.weight, other.weight)
    torch.testing.assert_close(one.later, other.later)
    assert len(attack(Target(whole, weights), "unmix")) == len(attack(Target(dense, flat), "unmix"))


def test_kernels_are_enlarged_to_the_inputs(conv_run: Path):
    found = attack(load_target(conv_run), "weights")
    assert found.x.shape == (16, 1, 25, 25)


# Bad input --------------------------------------------------------------------------------------------------


def test_all_unsupported_layers_are_named():
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    with pytest.raises(UnfitError, match=r"1 is Tanh; 3 is BatchNorm1d.*Supported layers: Linear, Conv2d"):
        stationarity(net, torch.zeros(2, 4), weigh("binary", torch.zeros(2), torch.ones(2)), 10.0)


def test_weights_that_are_not_finite_are_refused():
    target = small_target()
    broken = copy.deepcopy(target.weights)
    broken["layer2.weight"][0, 0] = torch.nan
    with pytest.raises(UnfitError, match=r"layer2\.weight has values that are NaN or infinite"):
        attack(Target(target.architecture, broken), "kkt")


def test_scores_must_fit_the_outputs():
    assert choose_score("auto", 1) == "binary"
    assert choose_score("auto", 2) == "multiclass"
    assert choose_score("any", 1) == choose_score("any", 7) == "any"
    with pytest.raises(UsageError, match=r"binary does not fit a net with 3 output.*multiclass or any"):
        choose_score("binary", 3)
    with pytest.raises(UsageError, match=r"multiclass does not fit a net with 1 output.*binary or any"):
        choose_score("multiclass", 1)
    with pytest.raises(UsageError, match="`score`: Input should be 'auto', 'binary'"):
        named_attack("kkt", score="ternary")


@pytest.mark.parametrize("solver", ["fast", "paper"])
def test_candidates_must_be_shared_out_equally(solver):
    with pytest.raises(UsageError, match="7 candidates cannot be divided equally among 2 classes"):
        attack(small_target(), named_attack("kkt", solver=solver, num_candidates=7))
    with pytest.raises(UsageError, match="`num_candidates`: Input should be greater than 0"):
        named_attack("kkt", solver=solver, num_candidates=0)


def test_options_that_nothing_would_read_are_refused():
    target = small_target()
    with pytest.raises(UsageError, match="weights does not use `solver`, `num_candidates`"):
        named_attack("weights", solver="fast", num_candidates=4)
    with pytest.raises(UsageError, match="inversion does not use `base`"):
        attack(target, "inversion", target)
    with pytest.raises(UsageError, match="kkt with the papers' solver does not use `base`"):
        attack(target, PaperKKT(), target)
    with pytest.raises(UsageError, match="`solver`: Input should be 'fast'"):
        named_attack("kkt", solver="slow")
    with pytest.raises(UsageError, match="unknown attack 'magic'; choose one of: auto, peel, cone, unmix"):
        attack(target, "magic")


def test_without_a_name_the_settings_say_which_attack_is_meant():
    assert named_attack().method == "auto"
    assert named_attack(budget=5.0).method == "auto"
    assert named_attack(score="any") == FastKKT(score="any")
    assert named_attack(solver="paper", seed=3) == PaperKKT(seed=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gate_is_a_sigmoid_without_numbers_that_are_too_small_to_be_normal(dtype):
    z = torch.linspace(-20, 2, 1001, dtype=dtype)
    plain, found = torch.sigmoid(50 * z), gate(z, 50)
    assert torch.equal(found[found > 0], plain[found > 0])
    assert float(plain[found == 0].max()) < 1e-11
    tiny = torch.finfo(dtype).tiny
    assert ((plain > 0) & (plain < tiny)).any()  # as sigmoids have them
    assert float(found[found > 0].min()) ** 3 > tiny
