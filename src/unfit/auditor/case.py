"""What an audit looks at: a target, its base, and two sets of samples, read from files or given as arrays."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from unfit.attacker.mixtures import Mixtures, read_mixtures, read_moments
from unfit.auditor.arrays import (
    FLAT_PICTURES,
    Arrays,
    Given,
    as_samples,
    in_unit_range,
    is_channels_last,
    opened,
    sample_shape,
)
from unfit.auditor.exchange import near_copies
from unfit.auditor.match import vote_factor
from unfit.auditor.preprocessing import as_seen, words
from unfit.auditor.request import AuditRequest
from unfit.auditor.samples import ONE_CLASS, Part, Samples, Source, draw_unseen
from unfit.auditor.sources import paths_of, read_names, read_source
from unfit.base.errors import UnfitError, UsageError, explained
from unfit.base.files import parse_json
from unfit.base.load import Reading, load_base, load_target
from unfit.base.modules import Estimator, as_base, as_target
from unfit.base.nets import margin, outputs
from unfit.base.normal import normal_form
from unfit.base.target import Target

EQUAL = 1e-3  # relative difference of two numbers that only rounding tells apart
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
    num_repeated: int = 0  # private samples that were left out, because they equal an earlier one
    inputs: str = "as given"  # how the model is taken to have seen the samples
    form: Target | None = None  # what is attacked in place of the target: its normal form
    by_moments: bool = False  # whether the optimiser's moments are attacked in place of the weights
    as_is: Mixtures | None = None  # of a case with a `form`: what is attacked of the target itself, before it
    originals: tuple[Samples, Samples] | None = None  # where both sets are features: what they were made of

    @property
    def given(self) -> tuple[Samples, Samples]:
        """Both sets as people know them."""
        return self.originals or (self.private, self.unseen)

    @property
    def is_evened(self) -> bool:
        """Whether a scaler is all that comes before the attacked layer, and brings the columns to like sizes.

        Samples as given then say no more than what enters the layer: their largest columns hide the others. A
        scaler that makes columns less alike may have been added to hide samples, so it does not count.
        """
        if self.originals is None or self.private.is_image or self.target.split.scaling is None:
            return False
        seen, given = (
            torch.cat([each.x for each in sets]) for sets in ((self.private, self.unseen), self.originals)
        )
        return num_even(seen) >= (1 - EQUAL) * num_even(given)

    @cached_property
    def mixtures(self) -> Mixtures:
        """What the attacks work on, read once for all of them."""
        found = read_moments(self.target) if self.by_moments else read_mixtures(self.attacked, self.base)
        return replace(found, as_is=self.as_is)

    @property
    def attacked(self) -> Target:
        return self.form or self.target

    @property
    def name(self) -> str:
        """Which of its forms this is."""
        return "moments" if self.by_moments else "net" if self.form is None else "normal"

    def forms(self) -> list[Case]:
        """What has to be attacked: the net as it is, and its normal form where neurons may hide others.

        First the moments of the optimiser, if the file holds them: they give away most. With a base only the net
        as it is: a base belongs to these neurons, and one that does not is refused.
        """
        if self.target.moments is not None and not self.by_moments:
            bare = replace(self, target=replace(self.target, moments=None))
            return [replace(self, by_moments=True), *bare.forms()]
        if self.base is not None:
            return [self]
        x = torch.cat([each.centred(self.mean).x for each in (self.private, self.unseen)])
        form = normal_form(self.target, x)
        return [self] if form is self.target else [self, replace(self, form=form, as_is=self.mixtures)]

    @cached_property
    def mean(self) -> Tensor:
        """What is subtracted before the net sees a sample, private or unseen."""
        return self.private.mean

    @property
    def vote(self) -> float:
        return vote_factor(self.target.architecture)

    def outputs(self) -> tuple[Tensor, Tensor]:
        """Φ of the private and of the unseen samples; with several outputs the margin to the runner-up.

        Without classes there is no margin: then it is the largest output.
        """
        net = self.target.net()
        own, unseen = (samples.centred(self.mean) for samples in (self.private, self.unseen))
        both = [(outputs(net, samples.x), samples.y) for samples in (own, unseen)]
        plain = self.target.architecture.num_outputs == 1 or self.private.truth != "classes"
        first, second = (phi.amax(1) if plain else margin(phi, y) for phi, y in both)
        return first, second

    def check(self, window: int) -> None:
        """Refuse samples that do not fit the net, or one another; everything that is wrong in one error."""
        shape, classes = self.target.architecture.input_shape, max(self.target.architecture.num_outputs, 2)
        problems = [
            f"the {name} samples have shape {samples.shape}, the net takes {shape}{_hint(samples, shape)}"
            for name, samples in (("private", self.private), ("unseen", self.unseen))
            if samples.shape != shape
        ]
        if (found := self.private.num_classes) != classes and self.private.truth == "classes":
            problems.append(f"the data have {found} classes, the net tells {classes} apart (see `classes`)")
        for name, samples in (("private", self.private), ("unseen", self.unseen)):
            if samples.targets is not None and samples.targets.shape[1] != self.target.architecture.num_outputs:
                k = self.target.architecture.num_outputs
                problems.append(
                    f"y of the {name} samples has {samples.targets.shape[1]} columns, the net {k} outputs"
                )
        if problems:
            raise UnfitError("; ".join(problems))
        if self.private.is_image and min(shape[1:]) <= window // 2:
            raise UsageError(
                f"images of {shape[2]}×{shape[1]} are too small for an SSIM `window` of {window}: use 3"
            )


def _hint(samples: Samples, shape: tuple[int, ...]) -> str:
    """What to do about another shape. A table with one column too many holds the labels too, as a rule."""
    if samples.is_image and len(shape) == 3:
        return ": see `resize`"
    if samples.shape != (math.prod(shape) + 1,):
        return ""
    names = samples.feature_names or ()
    return f": is one column the label? Name it, as in csv:FILE:{names[-1] if names else 'COLUMN'}"


def num_even(x: Tensor) -> float:
    """How many columns of (n, d) vary about equally: (Σ v)² / Σ v² of their variances v, from 1 to d."""
    variance = x.double().var(0)
    return float(variance.sum().square() / variance.square().sum().clamp_min(1e-300))


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
    model: Target | nn.Module | Estimator,
    private: Arrays,
    unseen: Arrays,
    base: Target | nn.Module | Estimator | None = None,
    layer: str | None = None,
    input_shape: tuple[int, ...] | None = None,
    feature_names: Sequence[str] | None = None,
) -> Case:
    """From a model and arrays, x exactly as the model sees it; or from `Samples` as stored."""
    private, unseen = opened(private), opened(unseen)
    shape = input_shape or _shape_for(model, private)
    target = as_target(model, shape, layer=layer)
    if isinstance(model, Target) and shape and (input_shape or _may_reshape(target, shape)):
        target = with_shape(target, shape)
    own, others = as_samples(private, unseen, target.sample_shape, target.architecture.num_outputs)
    last = isinstance(private, Given) and is_channels_last(np.shape(private.x)[1:])
    inputs = "as given, channels last made first" if last else "as given"
    return named(case_with(target, as_base(base, target), own, others, inputs=inputs), feature_names)


def named(case: Case, names: Sequence[str] | None) -> Case:
    """With these names of the columns, where there are any."""
    return case if names is None else replace(case, private=case.private.with_names(names))


def case_with(
    target: Target,
    base: Target | None,
    private: Samples,
    unseen: Samples,
    source: Source | None = None,
    inputs: str = "as given",
) -> Case:
    """Leave out copies, and push both sets through the prefix of a model that has one."""
    given, private = len(private), private.unique()
    unseen, num_copies = without_copies(private, unseen.unique())
    case = Case(target, base, private, unseen, source, num_copies, given - len(private), inputs)
    if not target.has_prefix or private.shape != target.sample_shape:  # which `Case.check` refuses
        return case
    first, second = as_features(target, private, unseen)
    return replace(case, private=first, unseen=second, originals=(private, unseen))


def as_features(target: Target, private: Samples, unseen: Samples) -> tuple[Samples, Samples]:
    """What enters the attacked layer for each sample; where that is a picture still, in [0, 1] as pictures are.

    Where a scaler is all that comes before the layer, these are the samples themselves, in the model's units: a
    pipeline is compared by the same measure as its last step with scaled samples.
    """
    mean, entering, is_scaled = private.mean, target.split.features, target.split.scaling is not None
    first, second = (
        replace(
            each,
            x=entering(each.centred(mean).x),
            shift=0.0,
            scale=1.0,
            are_features=not is_scaled,
            feature_names=each.feature_names if is_scaled else None,
        )
        for each in (private, unseen)
    )
    return in_unit_range(first, second)


def _shape_for(model: Target | nn.Module | Estimator, private: Arrays) -> tuple[int, ...] | None:
    """What the data say of a sample's shape. A convolution takes pictures, even if they are given flat."""
    shape = sample_shape(private)
    has_conv = isinstance(model, nn.Module) and any(isinstance(each, nn.Conv2d) for each in model.modules())
    return None if has_conv and shape is not None and len(shape) == 1 else shape


Index = Annotated[int, Field(ge=-(2**63), lt=2**63)]  # what an array of positions holds


class Members(BaseModel):
    """`members.json`. The indices are enough where the source is named elsewhere (`members` with `data`)."""

    model_config = ConfigDict(extra="forbid")
    indices: Annotated[list[Index], Field(min_length=2)]
    data: str | None = None
    classes: str | None = None
    sha256: str | None = None


def _members_file(request: AuditRequest) -> Path:
    return Path(request.members or request.described / "members.json")


def read_members(request: AuditRequest) -> Members | None:
    """Which samples were trained on: of a run folder, or as given, also as a plain list of indices."""
    path = _members_file(request)
    if request.members is None and (request.update or not path.is_file()):
        return None  # what the base was trained on is not what its update was
    content = parse_json(path)
    try:
        return Members.model_validate({"indices": content} if isinstance(content, list) else content)
    except ValidationError as error:
        raise UnfitError(f"{path}: {explained(error)}") from error


def named_data(request: AuditRequest, about: Members | None) -> str:
    """The source of the samples: as the request names it or, within the folder of its list, as the members do.

    A run folder may be a stranger's, who must not choose which other files of this machine are read.
    """
    if request.data:
        return request.data
    if about is None or not about.data:
        raise UnfitError("which data was it trained on? Name them with `data`, or audit a run folder")
    path = _members_file(request)
    if any(_leads_out_of(path.parent, place) for place in paths_of(about.data)):
        raise UnfitError(
            f"{path}: it names {about.data}, which lies outside this folder; if you want it read, give it with "
            "`data`"
        )
    return about.data


def _leads_out_of(folder: Path, place: Path) -> bool:
    """Whether a file, or a link within a folder of files, really lies elsewhere; also if that cannot be told."""
    real = folder.resolve()
    try:
        if not place.resolve().is_relative_to(real):
            return True
        inside = (Path(parent, name) for parent, *names in os.walk(place) for name in chain(*names))
        return any(each.is_symlink() and not each.resolve().is_relative_to(real) for each in inside)
    except (ValueError, OSError, RuntimeError):  # no path at all, or links in a circle
        return True


def read_case(request: AuditRequest) -> Case:
    """From the files that a request names."""
    source, private = private_set(request)
    shape = request.input_shape or (None if private.shape[0] in FLAT_PICTURES else private.shape)
    reading = Reading(model=request.model, layer=request.layer, input_shape=shape)
    target = load_target(request.target, reading, request.base, request.update)
    source, private = private_set(request, target.architecture.num_outputs, source)
    unseen = unseen_set(request, source, private)
    about = read_members(request)
    trained_here = about is not None and about.data is not None  # by `fit`, which subtracts the mean
    untold = (request.scale, request.mean, request.std) == (None, None, None) and not request.as_is
    centred = request.center or (trained_here and untold)
    target = shaped_like(target, request, private)
    sets = (_reshaped(each, target.sample_shape) for each in (private, unseen))
    private, unseen = in_unit_range(*(as_seen(each, request, centred) for each in sets))
    base = load_base(request.base, target) if request.base else None
    names = None if request.feature_names is None else read_names(Path(request.feature_names))
    return named(case_with(target, base, private, unseen, source, words(request, centred)), names)


def shaped_like(target: Target, request: AuditRequest, private: Samples) -> Target:
    """The target for samples of this shape: weights alone tell a dense net's number of inputs, not their shape.

    A description beside the weights does tell it, and flat rows of the usual lengths are pictures.
    """
    if target.whole is not None:
        return target  # it was run on such samples
    if request.input_shape:
        return with_shape(target, request.input_shape)
    path, shape = request.described, private.shape
    described = (path / "target.json" if path.is_dir() else path.with_suffix(".json")).is_file()
    if described or shape[0] in FLAT_PICTURES or not _may_reshape(target, shape):
        return target
    return with_shape(target, shape)


def _may_reshape(target: Target, shape: tuple[int, ...]) -> bool:
    """Whether a sample of this shape fits a net that does not mind the shape."""
    architecture = target.architecture
    fits = math.prod(shape) == math.prod(architecture.input_shape)
    return fits and not architecture.conv and target.whole is None


def with_shape(target: Target, shape: tuple[int, ...]) -> Target:
    """The same net for inputs of another shape, which a dense layer does not mind."""
    architecture = target.architecture
    if shape == architecture.input_shape:
        return target
    if architecture.conv or math.prod(shape) != math.prod(architecture.input_shape):
        raise UsageError(f"`input_shape` {shape} does not fit the net, which takes {architecture.input_shape}")
    return replace(target, architecture=replace(architecture, input_shape=shape))


def _reshaped(samples: Samples, shape: tuple[int, ...]) -> Samples:
    """Flat rows as the pictures that they are; whatever else does not fit is refused later."""
    if samples.is_image or math.prod(samples.shape) != math.prod(shape):
        return samples
    return replace(samples, x=samples.x.reshape(-1, *shape))


def private_set(
    request: AuditRequest, num_outputs: int | None = None, source: Source | None = None
) -> tuple[Source, Samples]:
    """The source and the samples trained on, of a run folder or as named, their classes as the outputs have them.

    Without a list of members (`members.json` of a run, or one given) all of the source's training part is private.
    """
    about = read_members(request)
    if source is None:
        source = read_source(
            named_data(request, about), request.classes or (about.classes if about else None), request.resize
        )
    if num_outputs is not None:
        test = source.test and source.test.for_outputs(num_outputs)
        source = replace(source, train=source.train.for_outputs(num_outputs), test=test)
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
    other = None if request.unseen is None else _other(request, source, private)
    if counts.min() < counts.max():
        return _unbalanced(source, other, private, n, seed)
    n -= n % k
    if other is None:
        return draw_unseen(source, private, n, seed)
    return other.take(other.balanced(min(n, other.largest_balanced()), (seed, 1)))


def _other(request: AuditRequest, source: Source, private: Samples) -> Part:
    """Another source's samples, with the classes of the private ones."""
    assert request.unseen is not None
    part = read_source(request.unseen, request.classes or source.classes, request.resize).train
    if private.truth == "classes" and part.class_names != ONE_CLASS:
        return part.named(private.class_names)
    if private.targets is not None:
        part = part.for_outputs(private.targets.shape[1])
    if (private.targets is None, private.class_names) != (part.targets is None, part.class_names):
        raise UnfitError(
            "private and unseen samples must have labels of one kind, or none: see `data` and `unseen`"
        )
    return part


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
