"""What an audit searches: the candidates of one attack, or of all trials of a sweep, read one trial at a time."""

from __future__ import annotations

import hashlib
from bisect import bisect
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from unfit.attacker.candidates import Candidates, load_candidates
from unfit.attacker.method import Parameter, Value
from unfit.auditor.match import Blocks, in_blocks, normalise
from unfit.auditor.record import Bin, Sweep, Trial, TrialState
from unfit.base.errors import UnfitError, listed
from unfit.base.files import read_as
from unfit.base.target import Target

FACTS = {"target", "spectrum", "noise_edge", "rank", "estimated_num_samples", "status", "seconds", "finished"}
SAME = 0.999  # correlation from which a candidate is a copy of an earlier one
DIRECTIONS = 64  # random ones, in which candidates are compared
AT_ONCE = 1_000  # candidates compared with one another
NUM_BINS = 4  # parts of a parameter's range


class _Weights(BaseModel):
    sha256: str


class SweepFile(BaseModel):
    """`sweep.json`, as far as an audit needs it."""

    schema_version: Literal[1]
    target: _Weights
    seed: int
    parameters: dict[str, Parameter]


class Ended(BaseModel):
    """A line of `trials.jsonl`, likewise."""

    model_config = ConfigDict(allow_inf_nan=False)
    number: int
    state: TrialState
    settings: dict[str, Value]
    objective: float | None
    num_candidates: int


@dataclass(frozen=True, eq=False)
class Pool:
    """m candidates in blocks. Of a sweep each trial with candidates is a block, `numbers` says which."""

    blocks: Blocks
    finished: Tensor  # (m,): after how many seconds of attack each was there
    proven: Tensor  # (m,), bool
    copies: Tensor  # (m,), bool: nearly the same as an earlier one
    attack: dict[str, Any]
    facts: dict[str, Any]
    parameters: dict[str, Parameter] | None = None  # None: no sweep
    trials: tuple[Ended, ...] = ()  # all that ended
    numbers: tuple[int, ...] = ()
    given: bool = False  # made before, not by this audit

    def __len__(self) -> int:
        return len(self.blocks)

    def num_blocks(self, chosen: Tensor) -> int:
        """How many of them have one of the chosen candidates."""
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
    return Pool(blocks, finished, candidates.proven, copies, candidates.attack, candidates.facts)


def given_pool(given: Candidates | str | Path, target: Target) -> Pool:
    """Candidates of this target that were made before: in memory, in a file, or in the folder of a sweep."""
    if not isinstance(given, Candidates) and Path(given).is_dir():
        return _read_sweep(Path(given), target)
    candidates = given if isinstance(given, Candidates) else load_candidates(Path(given))
    if problems := _problems(candidates, target):
        raise UnfitError(f"{'the candidates' if isinstance(given, Candidates) else given}: {'; '.join(problems)}")
    return replace(attack_pool(candidates), given=True)


def _problems(candidates: Candidates, target: Target) -> list[str]:
    """Why these cannot be candidates of that target."""
    facts, shape = candidates.facts, target.architecture.input_shape
    if missing := sorted(FACTS - facts.keys()):
        return [f"made by an older unfit, which did not store {listed(missing)}: make the candidates again"]
    problems = []
    if facts["target"] != target.sha256:
        problems.append(f"made from other weights than this target's (sha256 {str(facts['target'])[:12]}…)")
    if tuple(candidates.x.shape[1:]) != shape:
        problems.append(f"candidates of shape {tuple(candidates.x.shape[1:])}, the net takes {shape}")
    if len(facts["finished"]) != len(candidates.origins):
        problems.append("its facts do not fit its candidates")
    return problems


# A sweep's folder ------------------------------------------------------------------------------------------


def _read_sweep(folder: Path, target: Target) -> Pool:
    """All its trials, each looked at once, and read again whenever it is needed."""
    about = read_as(SweepFile, folder / "sweep.json")
    if about.target.sha256 != target.sha256:
        raise UnfitError(f"{folder}: a sweep of other weights than this target's: their sha256 differ")
    paths = {int(path.stem): path for path in folder.glob("trials/*.safetensors") if path.stem.isdecimal()}
    if not paths:
        raise UnfitError(f"{folder}: none of its trials has candidates yet; `unfit sweep {folder} --status`")
    heads, sketches = _scan(sorted(paths.items()), target, about.parameters)
    full = tuple(number for number, head in heads.items() if head.size)
    proven = torch.cat([head.proven for head in heads.values()])
    copies = find_copies(sketches)
    copies[proven] = find_copies([torch.cat(sketches)[proven]])  # a proof is not given up for a look-alike
    seconds = torch.tensor([head.facts["seconds"] for head in heads.values()], dtype=torch.float64)
    status = min((head.facts["status"] for head in heads.values()), key=lambda each: each != "finished")
    first = next(iter(heads.values()))
    trials = {number: head.ended for number, head in heads.items()} | _listed(folder / "trials.jsonl")
    return Pool(
        Blocks(
            tuple(heads[number].size for number in full),
            target.architecture.input_shape,
            lambda i: _read_x(paths[full[i]]),
        ),
        torch.repeat_interleave(seconds.cumsum(0), torch.tensor([len(each) for each in sketches])),
        proven,
        copies,
        first.attack | {"settings": {}, "seed": about.seed},
        first.facts | {"seconds": float(seconds.sum()), "status": status},
        about.parameters,
        tuple(trials[number] for number in sorted(trials)),
        full,
        given=True,
    )


@dataclass(frozen=True, eq=False)
class _Head:
    """A trial without its candidates."""

    ended: Ended
    size: int
    proven: Tensor
    attack: dict[str, Any]
    facts: dict[str, Any]


def _scan(
    files: Sequence[tuple[int, Path]], target: Target, names: Collection[str]
) -> tuple[dict[int, _Head], list[Tensor]]:
    """What is known of each trial, and its sketches; all files that cannot be used in one error."""
    heads, sketches, problems = {}, [], []
    for number, path in files:
        try:
            found = load_candidates(path)
            if wrong := _problems(found, target):
                raise UnfitError(f"{path}: {'; '.join(wrong)}")
            ended = _described(number, found, names)
        except UnfitError as error:
            problems.append(str(error))
        except ValidationError as error:
            problems.append(f"{path}: it does not say which trial it is: {error.errors()[0]['msg']}")
        else:
            proven = found.proven.clone()  # the tensor itself would hold on to the whole file
            heads[number] = _Head(ended, len(found), proven, found.attack, found.facts)
            sketches.append(sketch(found.x, target.is_image))
    if problems:
        raise UnfitError(f"{listed(problems)}. Delete what is damaged: the same `unfit sweep` makes it again")
    return heads, sketches


def _described(number: int, found: Candidates, names: Collection[str]) -> Ended:
    """What its file says of a trial, which was perhaps killed before it was listed."""
    settings = {name: value for name, value in found.attack["settings"].items() if name in names}
    told = {"number": number, "state": "complete", "settings": settings, "num_candidates": len(found)}
    return Ended.model_validate(found.facts.get("trial", told | {"objective": found.facts.get("loss")}))


def _read_x(path: Path) -> Tensor:
    """Read, not mapped into memory: a file that is read many times is faster so."""
    try:
        return load(path.read_bytes())["x"].float()
    except (SafetensorError, OSError) as error:
        raise UnfitError(f"{path} can no longer be read: {error}") from error


def _listed(path: Path) -> dict[int, Ended]:
    """The trials that `trials.jsonl` tells of, by number."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    found, lines = {}, text.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            ended = Ended.model_validate_json(line)
        except ValidationError as error:
            if number == len(lines) and not line.endswith("\n"):
                break  # the sweep was killed while it wrote this, or is writing it
            raise UnfitError(f"{path}, line {number}: {error.errors()[0]['msg']}") from error
        found[ended.number] = ended
    return found


# Copies ----------------------------------------------------------------------------------------------------


def sketch(x: Tensor, normalised: bool) -> Tensor:
    """Each candidate in random directions (m, 64): distances are kept but for 18% (Johnson–Lindenstrauss)."""
    if not len(x):
        return torch.zeros(0, DIRECTIONS)
    values = normalise(x.flatten(1)) if normalised else x.flatten(1)
    random = torch.Generator().manual_seed(0)
    return values @ torch.randn(values.shape[1], DIRECTIONS, generator=random).to(values)


def find_copies(sketches: Sequence[Tensor]) -> Tensor:
    """(m,): is there an earlier one, itself no copy, within the distance that a correlation of 0.999 makes?

    Copies take part in the vote, as in the papers, whose pool has them all: without them other candidates would
    have more weight, which moved the SSIM of single faces by 0.06. But a find made a hundred times is one find.
    """
    kept: list[Tensor] = []
    marks = []
    for block in (part for each in sketches for part in each.split(AT_ONCE)):
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
    """‖a − b‖² ≤ 2(1 − SAME)‖b‖² for all pairs, which for normalised rows is a correlation above SAME."""
    return torch.addmm(-a.square().sum(1) / 2, b, a.T) >= (SAME - 0.5) * b.square().sum(1, keepdim=True)


# Which settings worked -------------------------------------------------------------------------------------


def sweep_record(pool: Pool, recovered: Tensor, nearest: Tensor, alone: Sequence[int]) -> Sweep:
    """recovered (n,), nearest (n,): of the samples; alone: how many of them each block has by itself."""
    assert pool.parameters is not None
    ends = torch.tensor([part.stop for part in pool.blocks.parts])
    best = torch.bincount(torch.searchsorted(ends, nearest[recovered], right=True), minlength=len(ends)).tolist()
    gave = dict(zip(pool.numbers, zip(alone, best, strict=True), strict=True))
    trials = []
    for ended in pool.trials:
        num_recovered, num_best = gave.get(ended.number, (0, 0))
        trials.append(Trial(**ended.model_dump(), num_recovered=num_recovered, num_best=num_best))
    states = [trial.state for trial in trials]
    return Sweep(
        num_trials={state: states.count(state) for state in states},
        num_copies=int(pool.copies.sum()),
        parameters=pool.parameters,
        trials=trials,
        shares={name: _bins(name, parameter, trials) for name, parameter in pool.parameters.items()},
    )


def _bins(name: str, parameter: Parameter, trials: Sequence[Trial]) -> list[Bin]:
    """The trials by this setting: each choice, or equal parts of the range."""
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
    """Trials that gave no candidates count too."""
    num_recovered = sum(trial.num_recovered for trial in trials)
    return Bin(
        low=low,
        high=high,
        choice=choice,
        num_trials=len(trials),
        mean_recovered=num_recovered / max(1, len(trials)),
        num_best=sum(trial.num_best for trial in trials),
    )
