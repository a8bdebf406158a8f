"""From candidates to evidence: the papers' protocol (H22 App. B.3, B23 App. A), and its control."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.stats import hypergeom
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from unfit.pictures import stretch
from unfit.samples import Samples

GOOD = 0.4  # the papers' threshold
HIGH = 0.6
WINDOWS = (3, 7, 11)  # 11: the usual Gaussian window; 3: that of the papers' own code
VOTE = 1.1  # all candidates within this factor of the nearest distance are averaged
CONV_VOTE = 1.5  # B23, for convolutional nets
PAIRS_AT_ONCE = 20_000_000  # distances in memory


@dataclass(frozen=True, eq=False)
class Matches:
    """For each sample the reconstruction that comes nearest, as the net sees it and as a picture."""

    centred: Tensor  # (n, *shape): mean subtracted
    shown: Tensor  # (n, *shape): in [0, 1] for images
    similarity: Tensor  # (n,)
    nearest: Tensor  # (n,): position of the nearest candidate, −1 if there is none


def match(candidates: Tensor, samples: Samples, mean: Tensor, window: int = 11, vote: float = VOTE) -> Matches:
    """Nearest candidates, vote, add the mean, stretch, compare. `mean`: that of the training set.

    Vectors are not stretched; they are compared by their relative error instead of SSIM.
    """
    if not len(candidates):
        nothing = torch.zeros_like(samples.x)
        return Matches(nothing, nothing, torch.zeros(len(samples)), torch.full((len(samples),), -1))
    near = normalise if samples.is_image else (lambda x: x)
    voted, first = _vote(
        near(candidates.flatten(1)), near((samples.x - mean).flatten(1)), candidates.flatten(1), vote
    )
    centred = voted.view_as(samples.x)
    if not samples.is_image:
        return Matches(centred, centred + mean, vector_similarity(centred, samples.x - mean), first)
    shown = stretch(centred + mean)
    return Matches(centred, shown, ssim(shown, samples.x, window), first)


def normalise(x: Tensor) -> Tensor:
    """(x − μ_x) / σ_x of each row, so that a squared distance is 2d(1 − NCC)."""
    x = x - x.mean(1, keepdim=True)
    return x / x.std(1, keepdim=True).clamp_min(1e-12)


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    return (a.square().sum(1)[:, None] + b.square().sum(1)[None] - 2 * a @ b.T).clamp_min(0)


def nearest(queries: Tensor, among: Tensor) -> Tensor:
    """For each query the position of the row nearest in normalised distance."""
    return squared_distances(normalise(queries.flatten(1)), normalise(among.flatten(1))).argmin(1)


def _vote(candidates: Tensor, samples: Tensor, values: Tensor, vote: float) -> tuple[Tensor, Tensor]:
    """For each sample the mean value of all candidates within `vote` × the nearest distance; which is nearest."""
    rows, first = [], []
    for part in samples.split(max(1, PAIRS_AT_ONCE // len(candidates))):
        distance = squared_distances(part, candidates)
        smallest, position = distance.min(1, keepdim=True)
        chosen = (distance <= vote * smallest).to(values)
        rows.append(chosen @ values / chosen.sum(1, keepdim=True))
        first.append(position[:, 0])
    return torch.cat(rows), torch.cat(first)


def ssim(a: Tensor, b: Tensor, window: int = 11) -> Tensor:
    """Mean structural similarity of pairs of images in [0, 1]: Gaussian window, σ = 1.5, reflected borders."""
    return ssim_map(a, b, window).flatten(1).mean(1)


def ssim_map(a: Tensor, b: Tensor, window: int) -> Tensor:
    """SSIM at every pixel of every channel (Wang et al. 2004)."""
    assert window in WINDOWS
    offsets = torch.arange(window, dtype=a.dtype, device=a.device) - window // 2
    line = torch.exp(-(offsets**2) / (2 * 1.5**2))
    line = line / line.sum()

    def blur(t: Tensor) -> Tensor:
        flat = F.pad(t.flatten(0, 1)[:, None], (window // 2,) * 4, mode="reflect")
        return F.conv2d(F.conv2d(flat, line.view(1, 1, 1, -1)), line.view(1, 1, -1, 1)).view_as(t)

    mean_a, mean_b = blur(a), blur(b)
    var_a, var_b = blur(a * a) - mean_a**2, blur(b * b) - mean_b**2
    cov = blur(a * b) - mean_a * mean_b
    c1, c2 = 0.01**2, 0.03**2
    numerator = (2 * mean_a * mean_b + c1) * (2 * cov + c2)
    return numerator / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))


def vector_similarity(a: Tensor, b: Tensor) -> Tensor:
    """1 − ‖a − b‖ / ‖b‖, not below 0."""
    return (1 - (a - b).norm(dim=1) / b.norm(dim=1).clamp_min(1e-12)).clamp_min(0)


def calibrate(unseen_similarity: Tensor, fpr: float) -> float:
    """The threshold that at most a share `fpr` of the unseen samples exceeds."""
    allowed = int(fpr * len(unseen_similarity))
    return float(unseen_similarity.sort(descending=True)[0][allowed])


def chance(num_recovered: int, num_samples: int, num_unseen: int, fpr: float) -> float:
    """Probability of at least so many above the calibrated threshold if members were like unseen samples.

    The threshold is the (a + 1)-th largest of the unseen similarities, a = fpr · num_unseen. So r members exceed
    it just if at most a of the r + a largest of all similarities are unseen: hypergeometric.
    """
    allowed = int(fpr * num_unseen)
    return float(hypergeom.cdf(allowed, num_samples + num_unseen, num_unseen, num_recovered + allowed))
