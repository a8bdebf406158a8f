"""Compare candidates with samples: the papers' protocol (H22 App. B.3, B23 App. A) and one-to-one assignment.

100,000 candidates can take more than a gigabyte, so candidates and pairs are processed in blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import min_weight_full_bipartite_matching
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from unfit.auditor.policy import WINDOW, WINDOWS
from unfit.auditor.samples import Samples
from unfit.base.device import device
from unfit.base.images import stretch
from unfit.base.memory import rows_at_once
from unfit.base.nets import Architecture
from unfit.base.progress import Report, quiet

GOOD = 0.4  # SSIM: the papers' threshold for a good reconstruction
HIGH = 0.6  # SSIM: a stricter threshold, which audits report too
VOTE = 1.1  # candidates within this factor of the nearest distance are averaged
CONV_VOTE = 1.5  # the same for convolutional models (B23)
PAIRS_AT_ONCE = 20_000_000  # distances in memory
SAMPLES_AT_ONCE = 500  # images compared in one batch, fewer if they are large
CANDIDATES_AT_ONCE = 10_000  # in one block, if they are in memory already
SPARSE = 1 / 16  # share of chosen pairs below which adding them one by one beats a matrix product
PAIRS_ADDED = 1_000  # chosen pairs added in one batch
NEIGHBOURS = 32  # nearest candidates that a sample can be assigned
MIN_ERROR = 1e-10  # mean square error: equal images have 100 dB, not infinity


def vote_factor(architecture: Architecture) -> float:
    return CONV_VOTE if architecture.conv else VOTE


@dataclass(frozen=True, eq=False)
class Blocks:
    """Candidates in non-empty blocks, each read when it is needed, so that only one has to be in memory."""

    sizes: tuple[int, ...]
    shape: tuple[int, ...]  # shape of one candidate
    read: Callable[[int], Tensor]  # block number -> (size, *shape)

    def __len__(self) -> int:
        return sum(self.sizes)

    @cached_property
    def parts(self) -> list[slice]:
        """The positions that each block covers."""
        ends = np.cumsum(self.sizes).tolist()
        return [slice(end - size, end) for size, end in zip(self.sizes, ends, strict=True)]

    def on(self, where: torch.device) -> Blocks:
        """The same, each block on this device when it is read."""
        return replace(self, read=lambda i: self.read(i).to(where))

    def flat(self, i: int) -> Tensor:
        return self.read(i).flatten(1)

    def take(self, positions: Tensor) -> Tensor:
        """The candidates at these positions; zeros for −1."""
        found = torch.zeros(len(positions), *self.shape, device=positions.device)
        for i, part in enumerate(self.parts):
            here = (positions >= part.start) & (positions < part.stop)
            if here.any():
                found[here] = self.read(i)[positions[here] - part.start].to(found)
        return found


def in_blocks(x: Tensor) -> Blocks:
    """Blocks of candidates (m, *shape) that are already in memory."""
    parts = x.split(CANDIDATES_AT_ONCE)
    return Blocks(tuple(map(len, parts)), tuple(x.shape[1:]), parts.__getitem__)


@dataclass(frozen=True, eq=False)
class Matches:
    """The best reconstruction of each sample, as the model sees it and as an image."""

    centred: Tensor  # (n, *shape): with the mean subtracted
    shown: Tensor  # (n, *shape): in [0, 1] for images
    similarity: Tensor  # (n,): what samples are graded by
    ssim: Tensor | None  # (n,): what the papers call *good* by; None for vectors
    nearest: Tensor  # (n,): position of the nearest candidate that is not a copy, −1 if there is none
    assigned: Tensor  # (n,): similarity if each candidate may stand for only one sample
    over_time: Tensor  # (stages, n): similarity after each stage of the attack

    def on(self, where: torch.device) -> Matches:
        """The same on this device."""
        tensors = {name: value.to(where) for name, value in vars(self).items() if value is not None}
        return replace(self, **tensors)

    @property
    def by_papers(self) -> Tensor:
        """What *good* is judged by: SSIM, which vectors do not have."""
        return self.similarity if self.ssim is None else self.ssim


def match(
    candidates: Tensor | Blocks,
    samples: Samples,
    mean: Tensor,
    window: int = WINDOW,
    vote: float = VOTE,
    stage: Tensor | None = None,
    copies: Tensor | None = None,
    progress: Report = quiet,
) -> Matches:
    """Find the nearest candidates, average them by vote, add the training set's mean, stretch, and compare.

    `stage` (m,) is the stage of the attack that each candidate came from: 0, 1, … without gaps. `copies` (m,)
    marks candidates that vote but are not assigned to a sample, because they copy another candidate. `compare`
    is what samples are graded by; the stretched images are for SSIM and for people.
    """
    blocks = in_blocks(candidates) if isinstance(candidates, Tensor) else candidates
    if not len(blocks):
        nothing, zero = torch.zeros_like(samples.x), torch.zeros(len(samples))
        ssims = zero.clone() if samples.is_image else None  # a file holds no tensor twice
        return Matches(nothing, nothing, zero, ssims, torch.full((len(samples),), -1), zero, zero.expand(0, -1))
    where = device()
    blocks, samples, mean = blocks.on(where), replace(samples, x=samples.x.to(where)), mean.to(where)
    stage, copies = (None if each is None else each.to(where) for each in (stage, copies))
    num_near = min(NEIGHBOURS, len(blocks) - (0 if copies is None else int(copies.sum())))
    distances = _distances_to(blocks, samples.measure != "relative error")
    images, near, over_time = [], [], []
    num_stages = 1 if stage is None else int(stage.max()) + 1
    for rows in _chunks(len(samples), len(blocks), num_stages * math.prod(blocks.shape)):
        progress(rows.start / len(samples), "comparing")
        x = samples.x[rows]
        distance = distances((x - mean).flatten(1))
        voted = [image.view_as(x) for image in _vote(distance, blocks, stage, vote)]
        if copies is not None:
            distance.masked_fill_(copies, torch.inf)
        near.append(distance.topk(num_near, largest=False))
        images.append(voted[-1])
        over_time.append(torch.stack([compare(image, samples, rows, mean) for image in voted]))
    centred, similarity = torch.cat(images), torch.cat(over_time, 1)
    distance, candidate = (torch.cat(found) for found in zip(*near, strict=True))
    taken = assign(distance, candidate)
    assigned = _assigned_similarity(blocks.take(taken), taken, samples, mean)
    shown = show(centred, mean)
    ssims = _ssims(shown, samples.x, window) if samples.is_image else None
    found = Matches(centred, shown, similarity[-1], ssims, candidate[:, 0], assigned, similarity)
    return found.on(torch.device("cpu"))


def _chunks(n: int, m: int, d: int) -> list[slice]:
    """Split n samples so that distances to m candidates, and d values for each sample, fit into memory."""
    size = min(max(1, PAIRS_AT_ONCE // m), rows_at_once(d, SAMPLES_AT_ONCE))
    return [slice(start, start + size) for start in range(0, n, size)]


def _by_stage(distance: Tensor, stage: Tensor | None) -> Iterator[Tensor]:
    """The distances after each stage; candidates from later stages are infinitely far away."""
    if stage is not None:
        for now in range(int(stage.max())):
            yield distance.masked_fill(stage.gt(now), torch.inf)
    yield distance


def _vote(distance: Tensor, blocks: Blocks, stage: Tensor | None, vote: float) -> Tensor:
    """Average the candidates within `vote` × the nearest distance, after each stage: (stages, n, d)."""
    limits = [vote * reached.amin(1, keepdim=True) for reached in _by_stage(distance, stage)]
    total = distance.new_zeros(len(limits), len(distance), math.prod(blocks.shape))
    count = distance.new_zeros(len(limits), len(distance), 1)
    for i, part in enumerate(blocks.parts):
        votes = torch.stack([distance[:, part] <= limit for limit in limits])  # (stages, n, block)
        if stage is not None:
            votes &= stage[part] <= torch.arange(len(limits), device=stage.device)[:, None, None]
        if not votes.any():
            continue
        values = blocks.flat(i)
        for s, chosen in enumerate(votes):
            _add_chosen(total[s], chosen, values)
        count += votes.sum(2, keepdim=True)
    return total.div_(count)


def _add_chosen(total: Tensor, chosen: Tensor, values: Tensor) -> None:
    """total (n, d) += chosen (n, m) @ values (m, d)."""
    pairs = chosen.nonzero()
    if len(pairs) > SPARSE * chosen.numel():
        total.addmm_(chosen.to(values), values)
        return
    for sample, candidate in (piece.T for piece in pairs.split(PAIRS_ADDED)):
        total.index_add_(0, sample, values[candidate])


def _distances_to(blocks: Blocks, normalised: bool) -> Callable[[Tensor], Tensor]:
    """A function from rows (c, d) to their squared distances to all candidates, optionally both normalised.

    A normalised row sums to zero, so its product with a raw candidate only has to be divided by the candidate's σ.
    Candidates that are constant up to rounding correlate with nothing.
    """
    constants = [_constants(blocks.flat(i), normalised) for i in range(len(blocks.sizes))]
    squares = 2 * (math.prod(blocks.shape) - 1)  # ‖a‖² + ‖b‖² of normalised rows

    def distances(rows: Tensor) -> Tensor:
        ours = normalise(rows) if normalised else -2 * rows
        found = rows.new_empty(len(rows), len(blocks))
        for i, part in enumerate(blocks.parts):
            product = ours @ blocks.flat(i).T
            found[:, part] = product.mul_(constants[i]).add_(squares) if normalised else product.add_(constants[i])
        return (found if normalised else found.add_(rows.square().sum(1)[:, None])).clamp_min_(0)

    return distances


def _constants(values: Tensor, normalised: bool) -> Tensor:
    """What each candidate adds to its distances: ‖x‖², or the factor −2/σ (0 if it is constant)."""
    norms = torch.linalg.vector_norm(values, dim=1)
    if not normalised:
        return norms.square()
    std = values.std(1)
    return torch.where(std > 1e-6 * norms, -2 / std, 0)


def normalise(x: Tensor) -> Tensor:
    """(x − μ_x) / σ_x for each row; squared distances are then 2(d − 1)(1 − NCC)."""
    x = x - x.mean(1, keepdim=True)
    return x / x.std(1, keepdim=True).clamp_min(1e-12)


def nearest(queries: Tensor, among: Tensor) -> Tensor:
    """The position of the row nearest to each query in normalised distance."""
    distances = _distances_to(in_blocks(among), normalised=True)
    return torch.cat(
        [
            distances(queries[rows].flatten(1)).argmin(1)
            for rows in _chunks(len(queries), len(among), queries[0].numel())
        ]
    )


def nearest_other(samples: Samples, i: int) -> int:
    """The position of the sample nearest to sample i in normalised distance, itself apart."""
    distance = _distances_to(in_blocks(samples.x), normalised=True)(samples.x[i : i + 1].flatten(1))[0]
    distance[i] = torch.inf
    return int(distance.argmin())


def assign(distance: Tensor, candidate: Tensor) -> Tensor:
    """Assign each sample one of its k nearest candidates, none twice, with the least sum of distances; −1: none.

    Exact if k reaches the number of samples or of candidates. Otherwise a sample gets none if its k nearest all
    serve other samples better, even if a more distant one is free.
    """
    where, (n, k) = candidate.device, distance.shape
    distance, candidate = distance.cpu(), candidate.cpu()  # SciPy solves it there
    used, column = candidate.unique(return_inverse=True)
    spare = len(used) + torch.arange(n)[:, None]  # a spare column per sample guarantees a full matching
    cost = torch.cat([distance, (2 * distance.max() + 1).expand(n, 1)], 1).double() + 1  # 0 would mean no edge
    columns = torch.cat([column, spare], 1)
    edges = (np.repeat(np.arange(n), k + 1), columns.flatten().numpy())
    graph = csr_array((cost.flatten().numpy(), edges), shape=(n, len(used) + n))
    taken = torch.from_numpy(min_weight_full_bipartite_matching(graph)[1].astype(np.int64))
    return torch.where(taken < len(used), used[taken.clamp_max(len(used) - 1)], -1).to(where)


def _assigned_similarity(found: Tensor, taken: Tensor, samples: Samples, mean: Tensor) -> Tensor:
    """The similarity of each sample to its assigned candidate, 0 if it has none."""
    chunks = _chunks(len(samples), 1, math.prod(samples.shape))
    parts = [compare(found[rows], samples, rows, mean) for rows in chunks]
    return torch.where(taken < 0, 0, torch.cat(parts))


def _ssims(shown: Tensor, x: Tensor, window: int) -> Tensor:
    chunks = _chunks(len(x), 1, x[0].numel())
    return torch.cat([ssim(shown[rows], x[rows], window) for rows in chunks])


def show(centred: Tensor, mean: Tensor) -> Tensor:
    """Add the mean; images are stretched to [0, 1]."""
    return stretch(centred + mean) if centred.ndim == 4 else centred + mean


def compare(centred: Tensor, samples: Samples, rows: slice, mean: Tensor) -> Tensor:
    """The similarity of reconstructions to these of the stored samples, which they are graded by.

    Images are compared as the model sees them. So it does not matter whether they were given as stored or minus
    their mean, which changes SSIM a lot.
    """
    x = samples.x[rows]
    if samples.measure == "edge correlation":
        return edge_correlation(centred, x - mean)
    if samples.measure == "explained variance":
        return explained(centred, x - mean, samples.x.mean(0) - mean)
    return vector_similarity(centred, x - mean)


def compare_as_papers(centred: Tensor, samples: Samples, rows: slice, mean: Tensor, window: int) -> Tensor:
    """The similarity that *good* is judged by: SSIM of the stretched images, which vectors do not have."""
    if samples.is_image:
        return ssim(show(centred, mean), samples.x[rows], window)
    return compare(centred, samples, rows, mean)


def edge_correlation(a: Tensor, b: Tensor) -> Tensor:
    """Σ ∇a·∇b / (‖∇a‖ ‖∇b‖) of image pairs, at least 0; ∇ are the differences of neighbouring pixels.

    SSIM averages over windows that all count the same, so faint noise on a flat background outweighs a legible
    digit. Here each place counts by the strength of its edges. Brightness and contrast play no part, and neither
    does smooth shading, which even unrelated images share.
    """

    def inner(p: Tensor, q: Tensor) -> Tensor:
        down, across = ((p.diff(dim=dim) * q.diff(dim=dim)).flatten(1).sum(1) for dim in (2, 3))
        return down + across

    lengths = inner(a, a).sqrt() * inner(b, b).sqrt()
    return (inner(a, b) / lengths.clamp_min(1e-30)).clamp_min(0)


def ssim(a: Tensor, b: Tensor, window: int = WINDOW) -> Tensor:
    """Mean structural similarity of image pairs in [0, 1]: Gaussian window with σ = 1.5, reflected borders."""
    return ssim_map(a, b, window).flatten(1).mean(1)


def ssim_map(a: Tensor, b: Tensor, window: int) -> Tensor:
    """SSIM at each pixel of each channel (Wang et al. 2004)."""
    assert window in WINDOWS
    down, across = (blur_matrix(side, window).to(a) for side in a.shape[2:])

    def blur(t: Tensor) -> Tensor:
        return down.T @ t @ across

    mean_a, mean_b = blur(a), blur(b)
    var_a, var_b = blur(a * a) - mean_a**2, blur(b * b) - mean_b**2
    cov = blur(a * b) - mean_a * mean_b
    c1, c2 = 0.01**2, 0.03**2
    numerator = (2 * mean_a * mean_b + c1) * (2 * cov + c2)
    return numerator / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))


@cache
def blur_matrix(side: int, window: int) -> Tensor:
    """The (side, side) matrix that blurs lines of pixels; for small images far faster than a convolution."""
    offsets = torch.arange(window, dtype=torch.float64) - window // 2
    weights = torch.exp(-(offsets**2) / (2 * 1.5**2))
    lines = F.pad(torch.eye(side, dtype=torch.float64), (window // 2,) * 2, mode="reflect")
    return lines.unfold(1, window, 1) @ (weights / weights.sum())


def vector_similarity(a: Tensor, b: Tensor) -> Tensor:
    """max(0, 1 − ‖a − b‖ / ‖b‖)."""
    return (1 - (a - b).norm(dim=1) / b.norm(dim=1).clamp_min(1e-12)).clamp_min(0)


def explained(a: Tensor, b: Tensor, common: Tensor) -> Tensor:
    """1 − ‖s a − b‖² / ‖b − common‖², at least 0: how much of what sets b apart is recovered, at the best scale s.

    Features of a deep model are alike; by their plain correlation all samples would resemble each other.
    """
    left = (rescaled(a, b) - b).square().sum(1)
    return (1 - left / (b - common).square().sum(1).clamp_min(1e-30)).clamp_min(0)


def rescaled(a: Tensor, b: Tensor) -> Tensor:
    """s a, with the scale s of each row that brings it nearest to b."""
    scale = (a * b).sum(1) / a.square().sum(1).clamp_min(1e-30)
    return scale[:, None] * a


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of image pairs in [0, 1], in dB; 100 for equal images."""
    return -10 * (a - b).flatten(1).square().mean(1).clamp_min(MIN_ERROR).log10()


def l2(a: Tensor, b: Tensor) -> Tensor:
    """‖a − b‖ of each pair."""
    return (a - b).flatten(1).norm(dim=1)
