"""What the weights hold of each sample, measured with the sample known. The auditor's side of power.

An attack that finds nothing proves little by itself: it may be too weak. This check knows the samples, so it needs
no search. It asks how strongly the weights react to the part of a sample that no other sample explains, and asks
it for private and unseen samples alike. If the model never saw the private ones, both react equally.

Whether the model *knows* them is another question: it does if its outputs are more right about private samples
than about unseen ones. That gives membership away, and nobody's values.

Weights can be disguised. So the function is asked too: its gradients with respect to the inputs are mixtures of
the same samples, and stay what they are however the weights are written. Layers in front of the attacked one can
stretch what enters it until little of a sample is left to weigh, so the samples themselves are asked about too.
Gradients can be falsified, by code or by steep steps that are too small to matter, so only those count that the
outputs follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from unfit.attacker.attacked_layer import AttackedLayer
from unfit.auditor.calibration import calibrate, chance
from unfit.auditor.match import compare, compare_as_papers
from unfit.auditor.probability import mann_whitney
from unfit.auditor.samples import Samples
from unfit.base.device import device
from unfit.base.nets import margin, outputs
from unfit.base.target import Target

if TYPE_CHECKING:
    from unfit.auditor.case import Case

Net = Callable[[Tensor], Tensor]

RIDGE = 1e-4  # of the largest squared singular value of the samples: copies among them must not divide by zero
MOST_SAMPLES = 1000  # of each set that are weighed against each other: that takes seconds
GRADIENT_VALUES = 2**26  # in the gradients of one set: 256 MB, so of large inputs fewer samples are asked about
GRADIENTS_AT_ONCE = 256  # samples whose gradients are computed together …
WHOLE_AT_ONCE = 16  # … and through layers in front, which keep up to 100 MB of each
MOST_WHOLE = 100  # samples of each set that are asked about through layers in front, at up to a second each
STEP = 0.01  # of the samples' length: as far as the outputs are followed along their gradients …
MISSED = 0.5  # … and the share of the change promised by these that may be missing, since gates switch on the way
MOST_UNFOLLOWED = 0.5  # share of gradients that the outputs do not follow, from which on none of them is believed
ROUNDING = 1e-5  # of the outputs: smaller changes cannot be seen in float32
AT_ONCE = 8192  # inputs that are taken to float64 together
SHOWN_AT_ONCE = 2**24  # values of samples that are projected together: 64 MB, a few times over


@dataclass(frozen=True, eq=False)
class Reactions:
    """To private and to unseen samples: at most MOST_SAMPLES of each."""

    own: Tensor
    unseen: Tensor

    def num_held(self, fpr: float) -> int:
        """How many private samples cause more than all but a share `fpr` of the unseen ones."""
        return int((self.own > calibrate(self.unseen, fpr)).sum())

    def p_value(self, fpr: float) -> float:
        """How often chance alone would make the reactions to the private samples so much stronger.

        Twice the smaller of two: all of them are a little stronger (Mann–Whitney), or some of them much.
        """
        some = chance(self.num_held(fpr), len(self.own), len(self.unseen), fpr)
        return min(1.0, 2 * min(p_more(self.own, self.unseen), some))


@dataclass(frozen=True, eq=False)
class SignalCheck:
    """The answers of the weights, the function and its change since the base; and the best that the span shows."""

    answers: tuple[Reactions, ...]
    knows: Reactions | None  # how right the outputs are about each sample; None without labels
    asked_function: bool  # whether its gradients with respect to the samples could be asked
    similarity: Tensor  # (n,): of each sample with its projection on the attacked span
    unseen_similarity: Tensor
    by_papers: tuple[Tensor, Tensor]  # the same of both sets by what the papers call *good* by

    def clearest(self, fpr: float) -> Reactions:
        return min(self.answers, key=lambda each: each.p_value(fpr))

    @property
    def num_checks(self) -> int:
        """Of the weights and, with labels, of the outputs: if both are made, each may err half as often."""
        return 1 + (self.knows is not None)

    def p_value(self, fpr: float) -> float:
        """Of the clearest answer of the weights, times the number of questions."""
        return min(1.0, self.num_checks * len(self.answers) * self.clearest(fpr).p_value(fpr))

    @property
    def knows_p_value(self) -> float | None:
        """Of the outputs being more right about private samples than about unseen ones; None without labels."""
        if self.knows is None:
            return None
        return min(1.0, self.num_checks * p_more(self.knows.own, self.knows.unseen))


def p_more(reaction: Tensor, unseen_reaction: Tensor) -> float:
    """How often chance alone would make these numbers so much larger for the private samples (Mann–Whitney)."""
    return mann_whitney(reaction.numpy(), unseen_reaction.numpy())


def check_signal(case: Case, layer: AttackedLayer, window: int) -> SignalCheck:
    """Ask about every sample of a case, and what these mixtures hold of it."""
    maps = maps_of(case, layer)
    shown = [
        span_similarity(samples, each, layer, case.mean, window)
        for samples, each in zip((case.private, case.unseen), maps, strict=True)
    ]
    of_layer = ask_function(maps, layer, case.target)
    has_front = layer.conv is not None or (case.target.has_prefix and not case.is_evened)
    of_samples = ask_samples(case) if has_front else []
    asked = bool(of_samples if has_front else of_layer)
    (own, own_good), (unseen, unseen_good) = shown
    answers = (react(maps, layer), *of_layer, *of_samples)
    return SignalCheck(answers, ask_outputs(case), asked, own, unseen, (own_good, unseen_good))


def ask_outputs(case: Case) -> Reactions | None:
    """How right the outputs are about each sample: its margin, or minus its squared error."""
    case = case.as_a_whole
    truth, sets = case.private.truth, (case.private, case.unseen)
    if truth == "nothing":
        return None
    net = case.target.net()
    phi = torch.cat([outputs(net, samples.centred(case.mean).x).cpu() for samples in sets])
    if truth == "classes":
        right = margin(phi, torch.cat([samples.y for samples in sets]))
    else:
        targets = torch.cat([samples.targets for samples in sets if samples.targets is not None])
        right = (phi * (2 * targets - 1)).sum(1) if truth == "labels" else -squared_errors(phi, targets)
    own, unseen = right.split([len(samples) for samples in sets])
    return Reactions(own, unseen)


def squared_errors(phi: Tensor, targets: Tensor) -> Tensor:
    """Of each sample, after the best line from outputs to targets, both (n, k).

    y may have been scaled in training. The line is fitted to all samples alike, so it favours neither set.
    """
    phi, targets = phi - phi.mean(0), targets - targets.mean(0)
    slope = (phi * targets).mean(0) / phi.square().mean(0).clamp_min(1e-30)
    spread = targets.square().mean(0).clamp_min(1e-30)
    return ((targets - slope.clamp_min(0) * phi).square() / spread).mean(1)


def maps_of(case: Case, layer: AttackedLayer) -> list[Tensor]:
    """What enters the attacked layer for the private and for the unseen samples."""
    sets = (samples.centred(case.mean) for samples in (case.private, case.unseen))
    return [as_maps(samples.x, layer) for samples in sets]


def react(maps: list[Tensor], layer: AttackedLayer) -> Reactions:
    """The reactions of the weights to both sets."""
    return _of_both([each[:MOST_SAMPLES] for each in maps], layer.weight)


def ask_function(maps: list[Tensor], layer: AttackedLayer, target: Target) -> list[Reactions]:
    """The reactions of the model's gradients and, with a base, of their change since that; of both sets alike.

    A model may give no gradients, or the same as its base: then there is nothing to ask. Nor is there where only
    the attacked layer of a base is sure to be known.
    """
    num, base = max(2, min(MOST_SAMPLES, GRADIENT_VALUES // maps[0].shape[1])), layer.base
    sets = [each[:num].cpu() for each in maps]
    found = [gradients(_after(target, layer), torch.cat(sets))]
    if base is not None and base.architecture.tail is None:
        found.append(found[0] - gradients(_after(base, layer), torch.cat(sets)))
    return [_of_both(sets, each) for each in found if each.any()]


def ask_samples(case: Case) -> list[Reactions]:
    """The reactions of the gradients with respect to the samples, through all layers in front."""
    target, (private, unseen) = case.target, case.given
    num = max(2, min(MOST_WHOLE, GRADIENT_VALUES // private.x[0].numel()))
    sets = [each.centred(private.mean).x[:num].flatten(1) for each in (private, unseen)]
    call = target.net() if target.whole is None else target.split.on(device()).call
    found = gradients(lambda x: call(x.view(len(x), *private.shape)), torch.cat(sets), WHOLE_AT_ONCE)
    return [_of_both(sets, found)] if found.any() else []


def _after(target: Target, layer: AttackedLayer) -> nn.Module:
    """From what enters the attacked layer, as a vector, to the outputs."""
    net = target.net()
    if layer.conv is None:
        return nn.Sequential(nn.Unflatten(1, target.architecture.input_shape), net)
    layers = list(net.children())
    first = next(i for i, layer in enumerate(layers) if isinstance(layer, nn.Linear))
    return nn.Sequential(*layers[first:])


def gradients(net: Net, x: Tensor, at_once: int = GRADIENTS_AT_ONCE) -> Tensor:
    """Of the outputs in random proportions with respect to inputs (n, d), and as many; zero where there are none.

    ∂Φ/∂x = Σ_j ∂Φ/∂s_j · w_j: mixtures of the rows of the first layer, of those alone that the outputs depend on.
    """
    random, found, true = torch.Generator().manual_seed(0), [], []
    for part in (each.to(device()) for each in x.split(at_once)):
        inputs = part.clone().requires_grad_()
        with torch.enable_grad():
            phi = net(inputs)
        if not phi.requires_grad:  # a model may compute without them
            return torch.zeros_like(x)
        share = proportions(phi.shape, random).to(phi)
        gradient = torch.autograd.grad((phi * share).sum(), inputs, materialize_grads=True)[0]
        true.append(follows(net, part, share, gradient).cpu())
        found.append(gradient.cpu())
    followed = torch.cat(true)[:, None]
    return torch.cat(found) * followed * (followed.float().mean() > 1 - MOST_UNFOLLOWED)


def proportions(shape: torch.Size, random: torch.Generator) -> Tensor:
    """Of k outputs for each sample: (n, k). They sum to zero: what is added to all logits changes no class."""
    share = torch.randn(shape, generator=random)
    return F.normalize(share - share.mean(1, keepdim=True) if shape[1] > 1 else share)  # ±1 of a single output


def follows(net: Net, x: Tensor, share: Tensor, gradient: Tensor) -> Tensor:
    """Whether Φ changes along each of its gradients about as much as that promises: (n,)."""
    size = gradient.norm(dim=1)
    length = STEP * x.norm(dim=1).mean()
    step = length * gradient / size.clamp_min(1e-30)[:, None]
    with torch.no_grad():
        up, down = net(x + step), net(x - step)
    promised, change = 2 * length * size, ((up - down) * share).sum(1)
    return (change - promised).abs() <= MISSED * promised + ROUNDING * up.abs().amax(1)


def _of_both(maps: list[Tensor], weight: Tensor) -> Reactions:
    found = reactions(torch.cat(maps).to(device()), weight.to(device())).cpu()
    return Reactions(*found.split([len(each) for each in maps]))


def as_maps(x: Tensor, layer: AttackedLayer) -> Tensor:
    """What enters the attacked layer: (n, d)."""
    x = x.to(layer.weight)
    if layer.conv is not None:
        with torch.no_grad():
            x = torch.cat([F.relu(layer.conv(part)) for part in x.split(MOST_SAMPLES)])
    return x.flatten(1)


def reactions(maps: Tensor, weight: Tensor) -> Tensor:
    """‖W e_i‖² / ‖e_i‖² for each row of `maps`, where e_i is what the other rows leave unexplained of it: (n,).

    By ridge regression e_i is, up to its length, row i of K A with A the rows and K = (A Aᵀ + ρ)⁻¹. So it takes
    only the products of all rows with each other and with the weights. All rows are treated alike, so for samples
    that the weights never saw the order of these numbers is pure chance. That is why their common mean goes:
    private samples less their own mean would add up to zero, others would not.
    """
    gram = torch.zeros(len(maps), len(maps), dtype=torch.float64, device=maps.device)
    product = torch.zeros(len(weight), len(maps), dtype=torch.float64, device=maps.device)
    for some, of_weight in zip(maps.split(AT_ONCE, 1), weight.split(AT_ONCE, 1), strict=True):
        a = some.double() - some.double().mean(0)
        gram.addmm_(a, a.T)
        product.addmm_(of_weight.double(), a.T)
    squares, vectors = torch.linalg.eigh(gram)
    ridge = squares.clamp_min(0) + RIDGE * squares[-1]
    energy = (product @ (vectors / ridge) @ vectors.T).square().sum(0)
    length = (vectors.square() * squares.clamp_min(0) / ridge.square()).sum(1)
    return energy / length.clamp_min(1e-300)


def span_similarity(
    samples: Samples, maps: Tensor, layer: AttackedLayer, mean: Tensor, window: int
) -> tuple[Tensor, Tensor]:
    """The similarity of each sample with its part in the attacked span; the second one is what *good* means.

    Its scale is fitted, since the way back through a convolution has none.
    """
    basis = layer.span.right[: layer.span.rank]
    size, found = max(1, SHOWN_AT_ONCE // maps.shape[1]), []
    for start in range(0, len(maps), size):
        rows = slice(start, start + size)
        shown, seen = layer.inputs(maps[rows] @ basis.T @ basis).cpu(), samples.x[rows] - mean
        fit = (shown * seen).flatten(1).sum(1) / shown.flatten(1).square().sum(1).clamp_min(1e-30)
        fitted = shown * fit.view(-1, *[1] * (seen.ndim - 1))
        papers = compare_as_papers(fitted, samples, rows, mean, window)
        found.append(torch.stack([compare(fitted, samples, rows, mean), papers]))
    similarity, by_papers = torch.cat(found, 1)
    return similarity, by_papers
