"""From candidates to evidence: the papers' protocol (H22 App. B.3, B23 App. A), and one-to-one assignment.

Nothing here holds all pairs, or all candidates, of which 100,000 may be more than a gigabyte: they come in blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import min_weight_full_bipartite_matching
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from unfit.auditor.samples import Samples
from unfit.base.nets import Architecture
from unfit.base.pictures import stretch
from unfit.base.progress import Report, quiet

GOOD = 0.4  # the papers' threshold
HIGH = 0.6
WINDOW = 11  # of SSIM, unless another is asked for
WINDOWS = (3, 7, WINDOW)  # 11: the usual Gaussian window; 3: that of the papers' own code
VOTE = 1.1  # all candidates within this factor of the nearest distance are averaged
CONV_VOTE = 1.5  # B23, for convolutional nets
PAIRS_AT_ONCE = 20_000_000  # distances in memory
SAMPLES_AT_ONCE = 500  # pictures compared in one go
CANDIDATES_AT_ONCE = 10_000  # in one block, where they are in memory anyway
FEW = 16  # where less than one pair in so many is chosen, adding these up is faster than a product with all …
PAIRS_ADDED = 1_000  # … so many at a time
NEIGHBOURS = 32  # candidates that a sample may be assigned to: its nearest ones
MIN_ERROR = 1e-10  # mean square; equal pictures have 100 dB, not infinitely many


def vote_factor(architecture: Architecture) -> float:
    return CONV_VOTE if architecture.conv else VOTE


@dataclass(frozen=True, eq=False)
class Blocks:
    """Candidates in parts, none empty, each read whenever it is needed: only one of them has to be in memory."""

    sizes: tuple[int, ...]
    shape: tuple[int, ...]  # of one candidate
    read: Callable[[int], Tensor]  # block number -> (size, *shape)

    def __len__(self) -> int:
        return sum(self.sizes)

    @cached_property
    def parts(self) -> list[slice]:
        """The positions of each block's candidates among all."""
        ends = np.cumsum(self.sizes).tolist()
        return [slice(end - size, end) for size, end in zip(self.sizes, ends, strict=True)]

    def flat(self, i: int) -> Tensor:
        return self.read(i).flatten(1)

    def take(self, positions: Tensor) -> Tensor:
        """The candidates at these positions; zeros for −1."""
        found = torch.zeros(len(positions), *self.shape)
        for i, part in enumerate(self.parts):
            here = (positions >= part.start) & (positions < part.stop)
            if here.any():
                found[here] = self.read(i)[positions[here] - part.start].to(found)
        return found


def in_blocks(x: Tensor) -> Blocks:
    """Candidates (m, *shape) that are in memory."""
    parts = x.split(CANDIDATES_AT_ONCE)
    return Blocks(tuple(map(len, parts)), tuple(x.shape[1:]), parts.__getitem__)


@dataclass(frozen=True, eq=False)
class Matches:
    """For each sample the reconstruction that comes nearest, as the net sees it and as a picture."""

    centred: Tensor  # (n, *shape): mean subtracted
    shown: Tensor  # (n, *shape): in [0, 1] for images
    similarity: Tensor  # (n,)
    nearest: Tensor  # (n,): position of the nearest candidate that is no copy, −1 if there is none
    assigned: Tensor  # (n,): similarity where each candidate may stand for one sample only
    over_time: Tensor  # (stages, n): similarity after each stage of the attack


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
    """Nearest candidates, vote, add the mean, stretch, compare. `mean`: that of the training set.

    `stage` (m,) numbers the part of the attack that each candidate came from, 0, 1, …, none left out. `copies`
    (m,) marks candidates that vote, but stand for no sample themselves: another one does. Vectors are not
    stretched; they are compared by their relative error instead of SSIM.
    """
    blocks = in_blocks(candidates) if isinstance(candidates, Tensor) else candidates
    if not len(blocks):
        nothing, zero = torch.zeros_like(samples.x), torch.zeros(len(samples))
        return Matches(nothing, nothing, zero, torch.full((len(samples),), -1), zero, zero.expand(0, -1))
    num_near = min(NEIGHBOURS, len(blocks) - (0 if copies is None else int(copies.sum())))
    distances = _distances_to(blocks, samples.is_image)
    pictures, near, over_time = [], [], []
    for rows in _chunks(len(samples), len(blocks)):
        progress(rows.start / len(samples), "comparing")
        x = samples.x[rows]
        distance = distances((x - mean).flatten(1))
        voted = [picture.view_as(x) for picture in _vote(distance, blocks, stage, vote)]
        if copies is not None:
            distance.masked_fill_(copies, torch.inf)
        near.append(distance.topk(num_near, largest=False))
        pictures.append(voted[-1])
        over_time.append(torch.stack([_compare(picture, x, mean, window) for picture in voted]))
    centred, similarity = torch.cat(pictures), torch.cat(over_time, 1)
    distance, candidate = (torch.cat(found) for found in zip(*near, strict=True))
    taken = assign(distance, candidate)
    assigned = _assigned_similarity(blocks.take(taken), taken, samples, mean, window)
    return Matches(centred, show(centred, mean), similarity[-1], candidate[:, 0], assigned, similarity)


def _chunks(n: int, m: int) -> list[slice]:
    """Rows of samples so few that their distances to m candidates fit into memory."""
    size = min(max(1, PAIRS_AT_ONCE // m), SAMPLES_AT_ONCE)
    return [slice(start, start + size) for start in range(0, n, size)]


def _by_stage(distance: Tensor, stage: Tensor | None) -> Iterator[Tensor]:
    """The distances after each stage: candidates that are not there yet are out of reach."""
    if stage is not None:
        for now in range(int(stage.max())):
            yield distance.masked_fill(stage.gt(now), torch.inf)
    yield distance


def _vote(distance: Tensor, blocks: Blocks, stage: Tensor | None, vote: float) -> Tensor:
    """After each stage, for each sample, the mean of all within `vote` × the nearest distance: (stages, n, d)."""
    limits = [vote * reached.amin(1, keepdim=True) for reached in _by_stage(distance, stage)]
    total = distance.new_zeros(len(limits), len(distance), math.prod(blocks.shape))
    count = distance.new_zeros(len(limits), len(distance), 1)
    for i, part in enumerate(blocks.parts):
        votes = torch.stack([distance[:, part] <= limit for limit in limits])  # (stages, n, block)
        if stage is not None:
            votes &= stage[part] <= torch.arange(len(limits))[:, None, None]
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
    if FEW * len(pairs) > chosen.numel():
        total.addmm_(chosen.to(values), values)
        return
    for sample, candidate in (piece.T for piece in pairs.split(PAIRS_ADDED)):
        total.index_add_(0, sample, values[candidate])


def _distances_to(blocks: Blocks, normalised: bool) -> Callable[[Tensor], Tensor]:
    """The function that gives the squared distances of rows (c, d) to all candidates: plain, or both normalised.

    A normalised row sums to zero, so its product with a row that is not normalised lacks only that one's σ. Rows
    that are constant but for rounding correlate with nothing.
    """
    known = [_known(blocks.flat(i), normalised) for i in range(len(blocks.sizes))]
    most = 2 * (math.prod(blocks.shape) - 1)

    def distances(rows: Tensor) -> Tensor:
        ours = normalise(rows) if normalised else -2 * rows
        found = rows.new_empty(len(rows), len(blocks))
        for i, part in enumerate(blocks.parts):
            product = ours @ blocks.flat(i).T
            found[:, part] = product.mul_(known[i]).add_(most) if normalised else product.add_(known[i])
        return (found if normalised else found.add_(rows.square().sum(1)[:, None])).clamp_min_(0)

    return distances


def _known(values: Tensor, normalised: bool) -> Tensor:
    """What is computed once for each candidate: ‖x‖², or −2/σ, which is 0 for constants."""
    norms = torch.linalg.vector_norm(values, dim=1)
    if not normalised:
        return norms.square()
    std = values.std(1)
    return torch.where(std > 1e-6 * norms, -2 / std, 0)


def normalise(x: Tensor) -> Tensor:
    """(x − μ_x) / σ_x of each row, so that a squared distance is 2(d − 1)(1 − NCC)."""
    x = x - x.mean(1, keepdim=True)
    return x / x.std(1, keepdim=True).clamp_min(1e-12)


def nearest(queries: Tensor, among: Tensor) -> Tensor:
    """For each query the position of the row nearest in normalised distance."""
    distances = _distances_to(in_blocks(among), normalised=True)
    return torch.cat([distances(queries[rows].flatten(1)).argmin(1) for rows in _chunks(len(queries), len(among))])


def assign(distance: Tensor, candidate: Tensor) -> Tensor:
    """For each sample one of its nearest candidates (n, k), none twice, with the least sum of distances; −1: none.

    Exact where k is the number of samples, or of candidates, if that is less. Otherwise a sample whose k nearest
    are all better used for others gets none, though one farther away might be free.
    """
    n, k = distance.shape
    used, column = candidate.unique(return_inverse=True)
    spare = len(used) + torch.arange(n)[:, None]  # so that there always is a full matching
    cost = torch.cat([distance, (2 * distance.max() + 1).expand(n, 1)], 1).double() + 1  # 0 would mean no edge
    columns = torch.cat([column, spare], 1)
    edges = (np.repeat(np.arange(n), k + 1), columns.flatten().numpy())
    graph = csr_array((cost.flatten().numpy(), edges), shape=(n, len(used) + n))
    taken = torch.from_numpy(min_weight_full_bipartite_matching(graph)[1].astype(np.int64))
    return torch.where(taken < len(used), used[taken.clamp_max(len(used) - 1)], -1)


def _assigned_similarity(found: Tensor, taken: Tensor, samples: Samples, mean: Tensor, window: int) -> Tensor:
    """Of each sample with the candidate it was assigned, 0 where there is none."""
    parts = [_compare(found[rows], samples.x[rows], mean, window) for rows in _chunks(len(samples), 1)]
    return torch.where(taken < 0, 0, torch.cat(parts))


def show(centred: Tensor, mean: Tensor) -> Tensor:
    """As a picture in [0, 1]; vectors as they are."""
    return stretch(centred + mean) if centred.ndim == 4 else centred + mean


def _compare(centred: Tensor, x: Tensor, mean: Tensor, window: int) -> Tensor:
    """The similarity of reconstructions with samples as stored: SSIM, or of vectors by their relative error."""
    if x.ndim == 4:
        return ssim(show(centred, mean), x, window)
    return vector_similarity(centred, x - mean)


def ssim(a: Tensor, b: Tensor, window: int = WINDOW) -> Tensor:
    """Mean structural similarity of pairs of images in [0, 1]: Gaussian window, σ = 1.5, reflected borders."""
    return ssim_map(a, b, window).flatten(1).mean(1)


def ssim_map(a: Tensor, b: Tensor, window: int) -> Tensor:
    """SSIM at every pixel of every channel (Wang et al. 2004)."""
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
    """Lines of so many pixels times this (side, side) are blurred; far faster than to convolve small pictures."""
    offsets = torch.arange(window, dtype=torch.float64) - window // 2
    weights = torch.exp(-(offsets**2) / (2 * 1.5**2))
    lines = F.pad(torch.eye(side, dtype=torch.float64), (window // 2,) * 2, mode="reflect")
    return lines.unfold(1, window, 1) @ (weights / weights.sum())


def vector_similarity(a: Tensor, b: Tensor) -> Tensor:
    """1 − ‖a − b‖ / ‖b‖, not below 0."""
    return (1 - (a - b).norm(dim=1) / b.norm(dim=1).clamp_min(1e-12)).clamp_min(0)


def ncc(a: Tensor, b: Tensor) -> Tensor:
    """Correlation of pairs; 0 where one of them is constant."""
    a, b = (x.flatten(1) - x.flatten(1).mean(1, keepdim=True) for x in (a, b))
    return F.cosine_similarity(a, b)


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """Peak signal to noise of pairs of images in [0, 1], in dB; 100 for equal ones."""
    return -10 * (a - b).flatten(1).square().mean(1).clamp_min(MIN_ERROR).log10()


def l2(a: Tensor, b: Tensor) -> Tensor:
    """‖a − b‖ of pairs."""
    return (a - b).flatten(1).norm(dim=1)
