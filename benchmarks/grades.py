"""Is the line for "recognisable" in the right place? python benchmarks/grades.py DATA

Trains small nets, attacks them, and compares the candidates with the training images and with 4,000 images that the nets
never saw (160 faces: there are no more). Prints, by the correlation of edges that images are graded by and by SSIM, how many
training images leave a trace and are recognisable in audits with 40, 100 and 500 unseen samples, and what share of the other
unseen images exceeds the line; writes docs/images/grades.png: pairs around the line.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from unfit import attack
from unfit.auditor.calibration import calibrate
from unfit.auditor.case import case_of
from unfit.auditor.grading import rare_similarity, recognisable_line
from unfit.auditor.match import HIGH, Matches, match
from zoo import mlp, parts, samples, seen, train

SETS = (("cifar10", 100, 4000), ("mnist", 50, 4000), ("faces", 40, 160))
BANDS = ((0.4, 0.5), (0.5, 0.6), (0.6, 0.7), (0.7, 1.0))  # of similarity
SIZES = (40, 100, 500)  # unseen samples of an audit
PAIRS = 10  # of training images in a row of the picture; half as many unseen ones
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "grades.png"


def main(data: Path) -> None:
    torch.set_num_threads(1)
    print(
        "| net | similarity | unseen: number, mean ± std | audit with | line | trace | recognisable | unseen above the line |"
    )
    print("|---|---|---|---|---|---|---|---|")
    strips: list[Image.Image] = []
    for name, n, num_unseen in SETS:
        private, unseen = parts(samples(name, n + num_unseen, data), n, num_unseen)
        mean = private[0].mean(0, keepdim=True)
        private, unseen = seen(private, mean), seen(unseen, mean)
        d = private[0][0].numel()
        nets = {
            "small initial weights": train(mlp(d, 500, 200, 1, first=1e-4), private, 600, 0.05),
            "weight decay": train(mlp(d, 300, 300, 1), private, 1000, 0.1, 0.01),
        }
        for kind, net in nets.items():
            case, found = case_of(net, private, unseen), attack(net)
            own, others = (match(found.x, each, case.mean) for each in (case.private, case.unseen))
            assert own.ssim is not None
            assert others.ssim is not None
            for measure, pair in (
                ("edges", (own.similarity, others.similarity)),
                ("SSIM", (own.ssim, others.ssim)),
            ):
                for size in SIZES:
                    if 2 * size <= len(pair[1]):
                        print(f"| {name} n={n}, {kind} | {measure} | {row(*pair, size, measure)} |", flush=True)
            if kind == "small initial weights":
                strips.append(strip(own, case.private.x, others, case.unseen.x))
    whole = Image.new("RGB", (max(s.width for s in strips), sum(s.height for s in strips)), "white")
    for i, each in enumerate(strips):
        whole.paste(each, (0, sum(s.height for s in strips[:i])))
    whole.save(PICTURE, optimize=True)


def row(own: Tensor, unseen: Tensor, size: int, measure: str) -> str:
    """Means over disjoint draws of the unseen samples; the line is judged by those that did not draw it."""
    order = torch.randperm(len(unseen), generator=torch.Generator().manual_seed(0))
    drawn = [each for each in order.split(size) if len(each) == size]
    found = []
    for each in drawn:
        control, others = unseen[each], unseen[~torch.isin(torch.arange(len(unseen)), each)]
        threshold = calibrate(control, 0.01)
        line = line_of(control, threshold, measure)
        found.append(
            [
                line,
                *(float(count) for count in ((own > threshold).sum(), (own > line).sum())),
                float((others > line).float().mean()),
            ]
        )
    line, traces, recognisable, false = torch.tensor(found).mean(0).tolist()
    about = f"{len(unseen)}, {unseen.mean():.2f} ± {unseen.std():.2f}"
    return f"{about} | {size} | {line:.2f} | {traces:.0f} of {len(own)} | {recognisable:.0f} | {false:.2%}"


def line_of(control: Tensor, threshold: float, measure: str) -> float:
    if measure == "edges":
        return recognisable_line(control, threshold, "edge correlation")
    return max(HIGH, rare_similarity(control), threshold)  # the same rule by SSIM


def strip(own: Matches, private: Tensor, others: Matches, unseen: Tensor) -> Image.Image:
    """A row for each band: reconstructions above, training images below; on the right the same of unseen ones."""
    rows = [
        (
            pairs(own, private, low, high, PAIRS),
            pairs(others, unseen, low, high, PAIRS // 2),
            f"{low:g} to {high:g}",
        )
        for low, high in BANDS
    ]
    side = 2 * private.shape[3] + 4
    image = Image.new("RGB", (90 + side * (PAIRS + 1 + PAIRS // 2), len(rows) * 2 * side), "white")
    pen = ImageDraw.Draw(image)
    for i, (left, right, words) in enumerate(rows):
        pen.text((6, i * 2 * side + side - 6), words, fill="black")
        for j, tile in [*enumerate(left), *((PAIRS + 1 + j, tile) for j, tile in enumerate(right))]:
            image.paste(tile, (90 + j * side, i * 2 * side + 2))
    return image


def pairs(matches: Matches, x: Tensor, low: float, high: float, most: int) -> list[Image.Image]:
    inside = ((matches.similarity > low) & (matches.similarity <= high)).nonzero()[:most, 0].tolist()
    return [tile(torch.cat([matches.shown[i], x[i]], 1)) for i in inside]


def tile(image: Tensor) -> Image.Image:
    values = (255 * image.clamp(0, 1).expand(3, -1, -1)).byte().permute(1, 2, 0).numpy()
    return Image.fromarray(values).resize((2 * values.shape[1], 2 * values.shape[0]), Image.Resampling.NEAREST)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
