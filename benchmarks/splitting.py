"""Does splitting candidates help the KKT attack? python benchmarks/splitting.py DATA --runs RUNS [--seeds 0,1,2]

DATA is a folder with cifar-10-batches-bin in it. Runs of `fast` as they are, and runs whose idle candidates become second
halves of others, for as many processor seconds. The control splits along random directions. docs/research/splitting.md has
the table; only KKT candidates are counted, without the components of unmixing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from cases import Case, run_of, source_of
from unfit import AuditRequest, FastKKT
from unfit.attacker.attacked_layer import AttackedLayer
from unfit.attacker.attacks.fast import multipliers, random_starts
from unfit.attacker.stationarity import (
    Layers,
    Score,
    candidate_signals,
    choose_score,
    forward,
    gate,
    num_candidates,
    weigh,
)
from unfit.auditor.calibration import calibrate
from unfit.auditor.case import read_case
from unfit.auditor.match import GOOD, match

CASES = (
    Case("two classes, n=500", "bin500", 500),
    Case("ten classes, n=500", "c10_500", 500, {"loss": "ce"}, classes="all"),
)
WHOLE_RUNS = {"bin500": 4, "c10_500": 2}  # of `fast` as it is, whose seconds each variant gets
EVERY = 10  # iterations from one splitting to the next, as between snapshots
IDLE = 3  # one in so many candidates is given up: the lightest
APART = 0.25  # of a candidate's length: how far its halves are moved to either side
PRODUCTS = 12  # with S, towards its first eigenvector
SETTINGS = FastKKT()

Direct = Callable[[Layers, Tensor, Tensor, Score, Tensor], tuple[Tensor, Tensor]]
"""From layers, candidates, labels, score and the residual to directions (m, r) and what splitting along them gains (m,)."""


def best_directions(layers: Layers, u: Tensor, label: Tensor, score: Score, rest: Tensor) -> tuple[Tensor, Tensor]:
    """The first eigenvector of S = sym(Jᵀ R) for each candidate, J = ∂δ/∂u through the gates of the first layer.

    Halves u ± εv with half the multiplier each change nothing to first order, and the residual by ε² vᵀSv to second.
    """
    _, sums, phi = forward(layers, u, SETTINGS.alpha)
    delta = weigh(score, label, torch.ones(len(u)), "soft")(phi)
    for i in reversed(range(2, len(layers))):
        delta = delta @ layers[i][0] * gate(sums[i - 1], SETTINGS.alpha)
    on = gate(sums[0], SETTINGS.alpha)
    turn, weight = (delta @ layers[1][0]) * SETTINGS.alpha * on * (1 - on), layers[0][0]  # J = diag(turn) W1

    def product(v: Tensor) -> Tensor:
        return ((turn * (v @ rest.T)) @ weight + (turn * (v @ weight.T)) @ rest) / 2

    v = F.normalize(torch.randn(u.shape, generator=torch.Generator().manual_seed(0)), dim=1)
    shift = torch.zeros(len(u), 1)
    for _ in range(PRODUCTS):
        moved = product(v)
        shift = torch.maximum(shift, moved.norm(dim=1, keepdim=True))  # so that the first, not the last, is found
        v = F.normalize(moved + shift * v, dim=1)
    return v, (v * product(v)).sum(1)


def random_directions(
    layers: Layers, u: Tensor, label: Tensor, score: Score, rest: Tensor
) -> tuple[Tensor, Tensor]:
    """The control: any direction, and the heaviest gain most."""
    return F.normalize(torch.randn_like(u), dim=1), torch.ones(len(u))


def split(u: Tensor, label: Tensor, c: Tensor, directions: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The lightest candidates become second halves of those that gain most."""
    v, gain = directions
    order = c.argsort()
    idle, others = order[: len(u) // IDLE], order[len(u) // IDLE :]
    chosen = others[(c * gain)[others].argsort(descending=True)[: len(idle)]]
    apart = APART * u[chosen].norm(dim=1, keepdim=True) * v[chosen]
    u, label = u.clone(), label.clone()
    u[idle], u[chosen], label[idle] = u[chosen] - apart, u[chosen] + apart, label[chosen]
    return u, label


def snapshots(layer: AttackedLayer, run: int, direct: Direct | None) -> Iterator[Tensor]:
    """As `alternate` in attacks/fast.py, with splitting in between."""
    rank, bias = layer.span.rank, layer.bias
    basis = layer.span.right[:rank]
    fitted, gates = layer.weight @ basis.T, layer.gates[0] @ basis.T
    layers: Layers = [(gates, layer.gates[1]), *layer.later]
    outputs = layer.target.architecture.num_outputs
    score = choose_score("auto", outputs)
    m = num_candidates(None, rank, score, outputs)
    label = torch.arange(m) % max(outputs, 2)
    u = random_starts(layer.span.values[:rank].to(fitted), m, layer.weight.shape[1], run)
    for iteration in range(1, SETTINGS.iterations + 1):
        signals = candidate_signals(layers, u, label, score, SETTINGS.alpha)
        c = multipliers(signals, u, fitted, bias, score)
        a = (c[..., None] * signals).sum(1)
        gram = a @ a.T
        gram.diagonal().add_(SETTINGS.damping * gram.diagonal().mean())
        rest = fitted - a.T @ u
        u = u + SETTINGS.step * torch.linalg.solve(gram, a @ rest)
        if layer.limits and iteration % 5 == 1:
            u = (u @ basis).clamp(*layer.limits) @ basis.T
        if iteration % EVERY == 0:
            if iteration >= 2 * EVERY:
                yield u @ basis
            if direct is not None and iteration < SETTINGS.iterations:
                u, label = split(u, label, c[:, 0], direct(layers, u, label, score, rest))


def gathered(layer: AttackedLayer, direct: Direct | None, seconds: float, most: int) -> tuple[Tensor, float]:
    """The candidates of at most so many runs and seconds, and the seconds."""
    began, found = time.process_time(), list[Tensor]()
    for run in range(most):
        for x in snapshots(layer, run, direct):
            if time.process_time() - began > seconds:
                return torch.cat(found), seconds
            found.append(x)
    return torch.cat(found), time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--seeds", default="0,1,2")
    args = parser.parse_args()
    torch.set_num_threads(1)
    variants = {"as it is": None, "split by gain": best_directions, "split at random": random_directions}
    for seed in map(int, args.seeds.split(",")):
        for case in CASES:
            run = run_of(case, seed, args.data, args.runs)
            audited, seconds = read_case(AuditRequest(target=str(run), data=source_of(run))), float("inf")
            most = WHOLE_RUNS[case.slug]
            for name, direct in variants.items():
                torch.manual_seed(seed)
                x, seconds = gathered(audited.layer, direct, seconds, most if direct is None else 2 * most)
                x = x.view(-1, *audited.target.architecture.input_shape)
                seen, unseen = (match(x, s, audited.mean).similarity for s in (audited.private, audited.unseen))
                good, control = (int((s > GOOD).sum()) for s in (seen, unseen))
                recovered = int((seen > calibrate(unseen, 0.01)).sum())
                print(
                    f"{case.name}, seed {seed}, {name}: {good} ({control}), {recovered} recovered, {seconds:.0f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
