"""What several runs agree on is probably true: one candidate for each, with a confidence, a sign and a label.

Nothing here sees data: the evidence is how many runs found a candidate, and how the network responds to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from unfit.attacker.attacked_layer import CANDIDATE_STD, TYPICAL_STD, AttackedLayer, rescale
from unfit.attacker.candidates import Part
from unfit.attacker.edges import edge_groups, tellable
from unfit.attacker.stationarity import Stack, candidate_signals, choose_score, outputs_of, predicted

SAME_SOURCE = 0.7  # |correlation| of two candidates that are the same thing
MOST_COMPARED = 8000  # candidates compared with each other: their correlations take 256 MB …
MOST_VALUES = 2**28  # … and copies of the candidates themselves up to 1 GB
# see `reliability`; docs/research/confidence.md has the measurements
AT_ZERO, OF_SHARE, OF_COHESION, OF_FLATNESS, OF_ROUGHNESS, OF_CROWDING = -10.84, 3.25, 15.43, -6.92, -1.8, -8.0
ROOMY = 0.5  # of the sources that edges can tell apart: with fewer, KKT runs find nothing that unmixing does not
SMOOTHEST = 0.01  # of the KKT candidates in a crowd; 0.05 takes away more look-alikes, and more samples
CROWDED = 0.3  # of these sources: from here on agreement and looks are worth less
CONFIDENT = 0.9  # of the clusters above it 98% were true
COLUMNS_RIDGE = 1e-2  # of the columns' least squares, times its mean diagonal: clusters may be alike
SMOOTH = 50.0  # slope of the gates, as in the KKT attack
LARGEST_COSINE = 0.999  # so that its atanh is finite
LOUDEST = 2.0  # standard deviations, so that one kind of evidence cannot outvote the other; 4 give the same signs
BIAS_WEIGHT = 0.5  # it is the weaker evidence: alone the bias finds 69% of the signs, the KKT direction 76%


@dataclass(frozen=True, eq=False)
class Cluster:
    """Candidates that are the same thing up to sign: who is in it, with which sign, and how many runs found it."""

    members: Tensor
    signs: Tensor
    num_runs: int


@dataclass(frozen=True, eq=False)
class Agreed:
    """What at least two runs found: unit maps (k, d), and the evidence for each (k,): see `reliability`."""

    maps: Tensor
    share: Tensor
    cohesion: Tensor
    flatness: Tensor
    roughness: Tensor


def consensus(runs: list[Tensor], layer: AttackedLayer) -> Part | None:
    """One oriented candidate for each cluster that at least two runs found, most confident first.

    runs: for each run its maps (m, d), in either sign.
    """
    found = agreed(runs, layer)
    if found is None:
        return None
    maps, label = orient(rescale(found.maps, TYPICAL_STD), layer)
    crowding = layer.span.rank / tellable(layer.shape)
    confidence = reliability(found.share, found.cohesion, found.flatness, found.roughness, crowding)
    order = confidence.argsort(descending=True, stable=True)
    x = rescale(layer.inputs(maps[order]), CANDIDATE_STD)
    return Part("consensus", x, label[order], confidence=confidence[order], kind="agreed")


def agreed(runs: list[Tensor], layer: AttackedLayer) -> Agreed | None:
    """The clusters that at least two runs found, with what speaks for each."""
    most = min(MOST_COMPARED, MOST_VALUES // runs[0].shape[1])
    maps = _first(runs, most).to(layer.weight)
    origin = torch.cat([torch.full((len(run),), i) for i, run in enumerate(runs)])[:most].to(maps.device)
    unit = maps.div_(maps.norm(dim=1, keepdim=True).clamp_min(1e-12))  # in place: they may take a gigabyte
    clusters = [cluster for cluster in find_clusters(unit, origin) if cluster.num_runs > 1]
    if not clusters:
        return None
    found = torch.stack([representative(unit, cluster) for cluster in clusters])
    share = torch.tensor([cluster.num_runs / len(runs) for cluster in clusters], device=maps.device)
    cohesion = torch.stack([agreement_within(unit, *pair) for pair in zip(clusters, found, strict=True)])
    return Agreed(found, share, cohesion, *edges_of(found, layer.shape))


def _first(runs: list[Tensor], most: int) -> Tensor:
    """A copy of the first maps of all runs together; of the others none is made."""
    ends = torch.tensor([len(run) for run in runs]).cumsum(0).tolist()
    return torch.cat([run[: max(0, most - end + len(run))] for run, end in zip(runs, ends, strict=True)])


def reliability(share: Tensor, cohesion: Tensor, flatness: Tensor, roughness: Tensor, crowding: float) -> Tensor:
    """The probability that a cluster is one sample, by who found it and by how it looks.

    share: Of the runs that found it. cohesion: How alike its members are. flatness, roughness: Of its edges, see
    `edges_of`. crowding: The number of directions, relative to the sources that edges can tell apart.
    """
    seen = OF_SHARE * share + OF_COHESION * cohesion + OF_FLATNESS * flatness + OF_ROUGHNESS * roughness
    return torch.sigmoid(AT_ZERO + seen + OF_CROWDING * max(0.0, crowding - CROWDED))


def edges_of(maps: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Two ratios that tell single images from mixtures, whatever their sign and scale.

    Flatness: the median edge over the root mean square. An image has large flat parts, a mixture has edges
    everywhere. Roughness: the log of the mean squared edge over the variance. Mixtures and noise are rough.
    """
    edges = edge_groups(maps, shape).square().sum(2) / shape[0]  # (m, positions)
    power = edges.mean(1).clamp_min(1e-20)
    flatness = edges.median(1).values.sqrt() / power.sqrt()
    return flatness, (power / maps.var(1).clamp_min(1e-20)).log()


def is_crowded(layer: AttackedLayer) -> bool:
    """Whether there are so many sources that KKT runs find some which unmixing does not."""
    return layer.span.rank > ROOMY * tellable(layer.shape)


def not_too_smooth(parts: list[Part], layer: AttackedLayer) -> list[Part]:
    """In a crowd, without components that are smoother than nearly all KKT candidates: they resemble many images.

    Unmixing gives mixtures there that are as smooth as single images, and it is these that come near to unseen
    samples (docs/research/confidence.md).
    """
    runs = [part for part in parts if part.kind == "kkt"]
    unmixed = [part for part in parts if part.kind in ("unmixed", "agreed")]
    if not runs or not unmixed or not is_crowded(layer):
        return parts
    limit = torch.cat([roughness(part.x) for part in runs]).quantile(SMOOTHEST)
    return [part.of(roughness(part.x) >= limit) if part in unmixed else part for part in parts]


def roughness(x: Tensor) -> Tensor:
    return edges_of(x.flatten(1), tuple(x.shape[1:]))[1]


def agreement_within(unit: Tensor, cluster: Cluster, found: Tensor) -> Tensor:
    """The median cosine of a cluster's members with the one that stands for it."""
    return (unit[cluster.members] * cluster.signs[:, None] @ found).quantile(0.5)


def find_clusters(unit: Tensor, origin: Tensor) -> list[Cluster]:
    """Greedy, beginning with what most runs found; each candidate is in one cluster."""
    cosine = unit @ unit.T
    near = cosine.abs() > SAME_SOURCE
    runs = (near.float() @ F.one_hot(origin).float() > 0).sum(1)
    free = torch.ones(len(unit), dtype=torch.bool, device=unit.device)
    clusters = []
    for i in runs.argsort(descending=True, stable=True).tolist():
        if free[i]:
            members = (near[i] & free).nonzero()[:, 0]
            free[members] = False
            clusters.append(Cluster(members, cosine[i, members].sign(), len(origin[members].unique())))
    return clusters


def representative(unit: Tensor, cluster: Cluster) -> Tensor:
    """The member nearest to the mean. The mean itself is smoother, so it resembles unseen samples more."""
    members = unit[cluster.members] * cluster.signs[:, None]
    return members[(members @ members.mean(0)).argmax()]


def orient(x: Tensor, layer: AttackedLayer) -> tuple[Tensor, Tensor]:
    """Give each candidate the sign that the network finds more plausible, and a label.

    The columns α of all candidates together come from least squares on W1. Evidence for a sign: α is along the KKT
    direction of the candidate's own label, and the bias b1 = Σ α_i has α with a positive weight.
    """
    gram = x @ x.T
    gram.diagonal().add_(COLUMNS_RIDGE * gram.diagonal().mean())
    own = slice(-len(layer.gates[0]), None)  # of several steps the last, which ends at the model itself
    columns = torch.linalg.solve(gram, x @ layer.weight[own].T)  # (c, w)
    unit = F.normalize(columns, dim=1)
    (plus, label), (minus, other) = (_agreement(layer.stack, sign * x, sign * unit) for sign in (1.0, -1.0))
    evidence = _standard(torch.atanh(plus) - torch.atanh(minus))
    if layer.bias is not None:
        weight = torch.linalg.lstsq(columns.T, layer.bias[own, None]).solution[:, 0]
        evidence = evidence + BIAS_WEIGHT * _standard(weight * columns.norm(dim=1))
    right = evidence >= 0
    return torch.where(right[:, None], x, -x), torch.where(right, label, other)


def _agreement(stack: Stack, x: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine of each column with the KKT direction of its candidate, labelled as the network labels it."""
    phi = outputs_of(stack, x, SMOOTH)
    label = predicted(phi)
    signals = candidate_signals(stack, x, label, choose_score("auto", phi.shape[1]), SMOOTH)[:, 0]
    return F.cosine_similarity(signals, columns).clamp(-LARGEST_COSINE, LARGEST_COSINE), label


def _standard(evidence: Tensor) -> Tensor:
    """In standard deviations."""
    return (evidence / evidence.square().mean().sqrt().clamp_min(1e-12)).clamp(-LOUDEST, LOUDEST)
