"""What an audit looks at: a target, its base, and two sets of samples, read from files or given as arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from unfit.attacker.mixtures import Mixtures, read_mixtures
from unfit.auditor.arrays import Arrays, as_samples, sample_shape, value_range
from unfit.auditor.exchange import near_copies
from unfit.auditor.match import vote_factor
from unfit.auditor.request import AuditRequest
from unfit.auditor.samples import Part, Samples, Source, draw_unseen
from unfit.auditor.sources import read_source
from unfit.base.errors import UnfitError, UsageError
from unfit.base.files import read_as
from unfit.base.load import Reading, load_base, load_target
from unfit.base.modules import as_base, as_target
from unfit.base.nets import margin, outputs
from unfit.base.target import Target

MOST_COPIES = 0.1  # share of the unseen samples; more of them are no accident of the data


@dataclass(frozen=True, eq=False)
class Case:
    """`source` is where the samples came from; None where they were given as arrays."""

    target: Target
    base: Target | None
    private: Samples
    unseen: Samples
    source: Source | None = None
    num_copies: int = 0  # unseen samples that were left out, because they nearly equal a private one
    originals: tuple[Samples, Samples] | None = None  # where both sets are features: what they were made of

    @property
    def given(self) -> tuple[Samples, Samples]:
        """Both sets as people know them."""
        return self.originals or (self.private, self.unseen)

    @cached_property
    def mixtures(self) -> Mixtures:
        """What the attacks work on, read once for all of them."""
        return read_mixtures(self.target, self.base)

    @cached_property
    def mean(self) -> Tensor:
        """What is subtracted before the net sees a sample, private or unseen."""
        return self.private.mean

    @property
    def vote(self) -> float:
        return vote_factor(self.target.architecture)

    def outputs(self) -> tuple[Tensor, Tensor]:
        """Φ of the private and of the unseen samples; with several outputs the margin to the runner-up."""
        net = self.target.net()
        own, unseen = (samples.centred(self.mean) for samples in (self.private, self.unseen))
        both = [(outputs(net, samples.x), samples.y) for samples in (own, unseen)]
        first, second = (phi[:, 0] if phi.shape[1] == 1 else margin(phi, y) for phi, y in both)
        return first, second

    def check(self, window: int) -> None:
        """Refuse samples that do not fit the net, or one another; everything that is wrong in one error."""
        shape, classes = self.target.architecture.input_shape, max(self.target.architecture.num_outputs, 2)
        problems = [
            f"the {name} samples have shape {samples.shape}, the net takes {shape}"
            for name, samples in (("private", self.private), ("unseen", self.unseen))
            if samples.shape != shape
        ]
        if (found := self.private.num_classes) != classes:
            problems.append(f"the data have {found} classes, the net tells {classes} apart (see `classes`)")
        if problems:
            raise UnfitError("; ".join(problems))
        if self.private.is_image and min(shape[1:]) <= window // 2:
            raise UsageError(
                f"images of {shape[2]}×{shape[1]} are too small for an SSIM `window` of {window}: use 3"
            )


def without_copies(private: Samples, unseen: Samples) -> tuple[Samples, int]:
    """The unseen samples that are not (nearly) private ones, and how many are: those would hide a leak.

    A data set may hold a few near-copies by nature. Many are a mistake.
    """
    if private.shape != unseen.shape:
        return unseen, 0  # which `Case.check` refuses
    copies = near_copies(private, unseen)
    if len(copies) > MOST_COPIES * len(unseen):
        own, other = copies[0]
        raise UnfitError(
            f"{len(copies)} of {len(unseen)} unseen samples are private ones, or nearly so (unseen {other} is "
            f"private {own}): name others with `unseen`"
        )
    kept = torch.ones(len(unseen), dtype=torch.bool)
    kept[[other for _, other in copies]] = False
    return unseen.at(kept), len(copies)


def case_of(
    model: Target | nn.Module,
    private: Arrays,
    unseen: Arrays,
    base: Target | nn.Module | None = None,
    layer: str | None = None,
) -> Case:
    """From a model and arrays, x exactly as the model sees it; or from `Samples` as stored."""
    target = as_target(model, sample_shape(private), layer=layer)
    own, others = as_samples(private, unseen, target.sample_shape, target.architecture.num_outputs)
    return case_with(target, as_base(base, target), own, others)


def case_with(
    target: Target, base: Target | None, private: Samples, unseen: Samples, source: Source | None = None
) -> Case:
    """Leave out copies, and push both sets through the prefix of a model that has one."""
    unseen, num_copies = without_copies(private, unseen)
    if not target.has_prefix or private.shape != target.sample_shape:  # which `Case.check` refuses
        return Case(target, base, private, unseen, source, num_copies)
    features = as_features(target, private, unseen)
    return Case(target, base, *features, source, num_copies, (private, unseen))


def as_features(target: Target, private: Samples, unseen: Samples) -> tuple[Samples, Samples]:
    """What enters the attacked layer for each sample; where that is a picture still, in [0, 1] as pictures are."""
    x, others = (target.split.features(each.centred(private.mean).x) for each in (private, unseen))
    shift, scale = value_range(torch.cat([x, others])) if target.is_image else (0.0, 1.0)
    first, second = (
        replace(samples, x=each / scale + shift, shift=shift, scale=scale, are_features=True)
        for samples, each in ((private, x), (unseen, others))
    )
    return first, second


class Members(BaseModel):
    """`members.json`. The indices are enough where the source is named elsewhere (`members` with `data`)."""

    model_config = ConfigDict(extra="forbid")
    indices: Annotated[list[int], Field(min_length=2)]
    data: str | None = None
    classes: str | None = None
    sha256: str | None = None


def read_case(request: AuditRequest) -> Case:
    """From the files that a request names."""
    source, private = private_set(request)
    reading = Reading(model=request.model, layer=request.layer, input_shape=private.shape)
    target = load_target(request.target, reading, request.base)
    base = load_base(request.base, target) if request.base else None
    return case_with(target, base, private, unseen_set(request, source, private), source)


def private_set(request: AuditRequest) -> tuple[Source, Samples]:
    """The source and the samples trained on, of a run folder or as named.

    Without a list of members (`members.json` of a run, or one given) all of the source's training part is private.
    """
    members = Path(request.members) if request.members else Path(request.target) / "members.json"
    listed = request.members is not None or Path(request.target).is_dir()
    about = read_as(Members, members) if listed else None
    name = request.data or (about.data if about else None)
    if not name:
        raise UnfitError("which data was it trained on? Name them with `data`, or audit a run folder")
    source = read_source(name, request.classes or (about.classes if about else None))
    if about is None:
        return source, source.train.take((source.train.labels >= 0).nonzero()[0])
    private = source.train.take(about.indices)
    if about.sha256 and private.sha256 != about.sha256:
        raise UnfitError(f"{source.name} has changed since the model was trained: its members' hash differs")
    return source, private


def unseen_set(request: AuditRequest, source: Source, private: Samples) -> Samples:
    """Samples the model never saw, of the same source or of another one; classes as in the private set.

    As many as it was trained on, or `num_unseen`; fewer where there are no more.
    """
    asked, seed, k = request.num_unseen, request.seed, private.num_classes
    if asked is not None and asked < k:
        raise UsageError(f"{asked} unseen samples are fewer than the {k} classes")
    n = asked or len(private)
    counts = private.y.bincount(minlength=k)
    other = (
        None if request.unseen is None else read_source(request.unseen, request.classes or source.classes).train
    )
    if counts.min() < counts.max():
        return _unbalanced(source, other, private, n, seed)
    n -= n % k
    if other is None:
        return draw_unseen(source, private, n, seed)
    return other.take(other.balanced(min(n, other.largest_balanced()), (seed, 1)))


def _unbalanced(source: Source, other: Part | None, private: Samples, n: int, seed: int) -> Samples:
    """Another mix of classes would tell private from unseen samples by itself."""
    y = private.y.numpy()
    places = [(other, None)] if other else [(source.train, private.indices.numpy()), (source.test, None)]
    drawn = [part.take(part.like(y, n, (seed, 1), without)) for part, without in places if part is not None]
    if not (fitting := [each for each in drawn if len(each)]):
        raise UnfitError(
            "nothing is left for unseen samples in at least one class; name another source with `unseen`"
        )
    return max(fitting, key=len)  # the first of those with most
