"""What an audit searches: the candidates of one attack, or of all trials of a sweep, read one trial at a time."""

from __future__ import annotations

import hashlib
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from unfit.attacker.attacked_layer import AttackedLayer
from unfit.attacker.candidates import Candidates, Facts, load_candidates
from unfit.attacker.initial.found import InitialRecord
from unfit.attacker.method import Parameter, Parameters, Value
from unfit.attacker.sweep.store import AGAIN, read_ended, read_plan
from unfit.attacker.sweep.trials import Ended, file_of
from unfit.auditor.match import Blocks, in_blocks, normalise
from unfit.auditor.record import Bin, Sweep, Trial
from unfit.base.errors import UnfitError, explained, listed
from unfit.base.target import Target

COPY_CORRELATION = 0.999  # a candidate that correlates this well with an earlier one is a copy of it
SKETCH_SIZE = 64  # random directions in which candidates are compared
COMPARED_AT_ONCE = 1_000  # candidates, with all that are kept so far
NUM_BINS = 4  # equal parts of a parameter's range


@dataclass(frozen=True, eq=False)
class Pool:
    """m candidates in blocks. In a sweep, each trial that has candidates is a block; `numbers` says which."""

    blocks: Blocks
    finished: Tensor  # (m,): seconds of attack after which each was there
    proven: Tensor  # (m,), bool
    copies: Tensor  # (m,), bool: nearly the same as an earlier one
    attack: dict[str, Any]
    facts: dict[str, Any]
    parameters: Parameters | None = None  # None: not a sweep
    trials: tuple[Ended, ...] = ()  # all that ended, with candidates or without
    numbers: tuple[int, ...] = ()
    given: bool = False  # made before, not by this audit
    from_file: bool = False  # and not by this process either: anyone can write a file
    layer: AttackedLayer | None = None  # what the attack worked on, if this audit made it

    @property
    def initial(self) -> InitialRecord | None:
        """The search for the initial weights; None: there was none."""
        told = self.facts.get("initial")
        return InitialRecord.model_validate(told) if told else None

    def __len__(self) -> int:
        return len(self.blocks)

    def num_blocks(self, chosen: Tensor) -> int:
        """How many blocks hold one of the chosen candidates."""
        return sum(bool(chosen[part].any()) for part in self.blocks.parts)

    @property
    def sha256(self) -> str:
        digest = hashlib.sha256()
        for i in range(len(self.blocks.sizes)):
            digest.update(self.blocks.read(i).contiguous().numpy())  # type: ignore[arg-type]
        return digest.hexdigest()


def attack_pool(candidates: Candidates) -> Pool:
    """The candidates of one attack, all of them."""
    finished = torch.tensor(candidates.facts["finished"], dtype=torch.float64)[candidates.origin]
    copies = torch.zeros(len(candidates), dtype=torch.bool)
    blocks = in_blocks(candidates.x.float())
    facts, attack = candidates.facts, candidates.attack
    return Pool(blocks, finished, candidates.proven, copies, attack, facts, layer=candidates.layer)


def given_pool(given: Candidates | str | Path, target: Target) -> Pool:
    """Candidates of this target that were made before. They are in memory, in a file, or in a sweep's folder."""
    if not isinstance(given, Candidates) and Path(given).is_dir():
        return replace(_read_sweep(Path(given), target), from_file=True)
    candidates = given if isinstance(given, Candidates) else load_candidates(Path(given))
    if problems := _problems(candidates, target):
        raise UnfitError(f"{'the candidates' if isinstance(given, Candidates) else given}: {'; '.join(problems)}")
    return replace(attack_pool(candidates), given=True, from_file=not isinstance(given, Candidates))


def _problems(candidates: Candidates, target: Target) -> list[str]:
    """Why these candidates cannot be of this target."""
    facts, shape = candidates.facts, target.architecture.input_shape
    try:
        Facts.model_validate(facts)
    except ValidationError as error:  # they were made by hand, or by an older unfit
        return [f"their facts cannot be used: {explained(error)}; make the candidates again"]
    problems = []
    if facts["target"] != target.sha256:
        problems.append(f"made from other weights than this target's (sha256 {str(facts['target'])[:12]}…)")
    if tuple(candidates.x.shape[1:]) != shape:
        problems.append(f"candidates of shape {tuple(candidates.x.shape[1:])}, the model takes {shape}")
    if len(facts["finished"]) != len(candidates.origins):
        problems.append("their facts do not fit them")
    return problems


# A sweep's folder ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Head:
    """What is kept of a trial's file: everything but its candidates."""

    ended: Ended
    proven: Tensor
    sketch: Tensor
    attack: dict[str, Any]
    facts: dict[str, Any]

    def __len__(self) -> int:
        return len(self.proven)


def _read_sweep(folder: Path, target: Target) -> Pool:
    """Each file is looked at once here, and read again whenever its candidates are needed."""
    plan = read_plan(folder)
    if plan.target.sha256 != target.sha256:
        raise UnfitError(f"{folder}: a sweep of other weights than this target's: their sha256 differ")
    heads = _read_heads(folder, target)
    sketches = [head.sketch for head in heads.values()]
    proven = torch.cat([head.proven for head in heads.values()])
    copies = find_copies(sketches)
    copies[proven] = find_copies([torch.cat(sketches)[proven]])  # a proof is not given up for a look-alike
    seconds = torch.tensor([head.facts["seconds"] for head in heads.values()], dtype=torch.float64)
    first = next(iter(heads.values()))
    full = tuple(number for number, head in heads.items() if len(head))
    sizes = tuple(len(heads[number]) for number in full)
    trials = {number: head.ended for number, head in heads.items()}
    trials |= {trial.number: trial for trial in read_ended(folder)}
    return Pool(
        Blocks(sizes, target.architecture.input_shape, lambda i: _read_x(file_of(folder, full[i]))),
        torch.repeat_interleave(seconds.cumsum(0), torch.tensor([len(head) for head in heads.values()])),
        proven,
        copies,
        first.attack | {"settings": {}, "seed": plan.seed},
        first.facts | {"seconds": float(seconds.sum())},
        plan.parameters,
        tuple(trials[number] for number in sorted(trials)),
        full,
        given=True,
    )


def _read_heads(folder: Path, target: Target) -> dict[int, _Head]:
    """By the number of the trial; one error names all files that cannot be used."""
    numbers = sorted(int(path.stem) for path in folder.glob("trials/*.safetensors") if path.stem.isdecimal())
    heads, problems = {}, []
    for number in numbers:
        try:
            heads[number] = _read_head(file_of(folder, number), target)
        except UnfitError as error:
            problems.append(str(error))
    if problems:
        raise UnfitError(f"{listed(problems)}. Delete what is damaged, and {AGAIN}")
    if not heads:
        raise UnfitError(f"{folder}: none of its trials has candidates yet")
    return heads


def _read_head(path: Path, target: Target) -> _Head:
    found = load_candidates(path)
    if problems := _problems(found, target):
        raise UnfitError(f"{path}: {'; '.join(problems)}")
    try:
        ended = Ended.model_validate(found.facts.get("trial"))
    except ValidationError as error:
        raise UnfitError(f"{path}: it does not say which trial it is: {error.errors()[0]['msg']}") from error
    proven = found.proven.clone()  # the tensor itself would hold on to the whole file
    return _Head(ended, proven, sketch(found.x, target.is_image), found.attack, found.facts)


def _read_x(path: Path) -> Tensor:
    """Read, not mapped into memory, which is slower for a file that is read many times."""
    try:
        return load(path.read_bytes())["x"].float()
    except (SafetensorError, OSError, KeyError) as error:
        raise UnfitError(f"{path}: cannot be read: {error}") from error


# Copies ----------------------------------------------------------------------------------------------------


def sketch(x: Tensor, normalised: bool) -> Tensor:
    """Each candidate in 64 random directions: (m, 64).

    A squared distance keeps its value within 18%, one standard deviation (Johnson–Lindenstrauss).
    """
    if not len(x):
        return torch.zeros(0, SKETCH_SIZE)
    values = normalise(x.flatten(1)) if normalised else x.flatten(1)
    random = torch.Generator().manual_seed(0)
    return values @ torch.randn(values.shape[1], SKETCH_SIZE, generator=random).to(values)


def find_copies(sketches: Sequence[Tensor]) -> Tensor:
    """Which candidates are copies (m,): nearly the same as an earlier one that is not itself a copy.

    Copies take part in the vote, as in the papers, whose pool holds them all. Without them the other candidates
    would have more weight, which moved the SSIM of single faces by 0.06. But a find made a hundred times is one.
    """
    kept: list[Tensor] = []
    marks = []
    for block in (part for each in sketches for part in each.split(COMPARED_AT_ONCE)):
        copy = torch.zeros(len(block), dtype=torch.bool)
        for earlier in kept:
            copy |= _near(block, earlier).any(1)
        near = _near(block, block).tril(-1)
        for i in near.any(1).nonzero()[:, 0].tolist():
            copy[i] |= bool((near[i] & ~copy).any())
        kept.append(block[~copy])
        marks.append(copy)
    return torch.cat(marks)


def _near(b: Tensor, a: Tensor) -> Tensor:
    """‖a − b‖² ≤ 2(1 − ρ)‖b‖² for all pairs: for normalised rows, a correlation of at least ρ = 0.999."""
    least = (COPY_CORRELATION - 0.5) * b.square().sum(1, keepdim=True)
    return torch.addmm(-a.square().sum(1) / 2, b, a.T) >= least


# Which settings worked -------------------------------------------------------------------------------------


def sweep_record(pool: Pool, recovered: Tensor, nearest: Tensor, alone: Sequence[int]) -> Sweep:
    """What each trial and each setting gave.

    For each sample, whether it is recovered (n,) and its nearest candidate (n,); `alone` holds the number of
    samples that each block has by itself.
    """
    assert pool.parameters is not None
    ends = torch.tensor([part.stop for part in pool.blocks.parts])
    best = torch.bincount(torch.searchsorted(ends, nearest[recovered], right=True), minlength=len(ends)).tolist()
    gave = dict(zip(pool.numbers, zip(alone, best, strict=True), strict=True))
    trials = []
    for ended in pool.trials:
        num_recovered, num_best = gave.get(ended.number, (0, 0))
        known = ended.model_dump(exclude={"seconds", "node", "message"})
        trials.append(Trial(**known, num_recovered=num_recovered, num_best=num_best))
    states = [trial.state for trial in trials]
    return Sweep(
        num_trials={state: states.count(state) for state in states},
        num_copies=int(pool.copies.sum()),
        parameters=pool.parameters,
        trials=trials,
        shares={name: _bins(name, parameter, trials) for name, parameter in pool.parameters.items()},
    )


def _bins(name: str, parameter: Parameter, trials: Sequence[Trial]) -> list[Bin]:
    """The trials grouped by this setting: by choice, or by equal parts of the range."""
    values = [(trial.settings[name], trial) for trial in trials if name in trial.settings]
    if parameter.choices is not None:
        return [_bin([t for value, t in values if value == choice], choice=choice) for choice in parameter.choices]
    edges = [parameter.at(i / NUM_BINS) for i in range(NUM_BINS + 1)]
    places = [(bisect(edges, value, 1, NUM_BINS), t) for value, t in values if isinstance(value, int | float)]
    bounds = enumerate(pairwise(edges), 1)
    return [_bin([t for place, t in places if place == i], low=low, high=high) for i, (low, high) in bounds]


def _bin(
    trials: Sequence[Trial], low: float | None = None, high: float | None = None, choice: Value = None
) -> Bin:
    """Trials without candidates count too."""
    num_recovered = sum(trial.num_recovered for trial in trials)
    return Bin(
        low=low,
        high=high,
        choice=choice,
        num_trials=len(trials),
        mean_recovered=num_recovered / max(1, len(trials)),
        num_best=sum(trial.num_best for trial in trials),
    )
