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

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from unfit.attacker.attacked_layer import AttackedLayer, read_layer
from unfit.attacker.surfaces import Surface, layer_of
from unfit.auditor.arrays import Arrays, as_samples, in_unit_range, opened, shape_of, words_on
from unfit.auditor.comparability import near_copies
from unfit.auditor.labels import matched
from unfit.auditor.match import vote_factor
from unfit.auditor.preprocessing import as_seen, words
from unfit.auditor.request import AuditRequest
from unfit.auditor.samples import Samples, Source, Subset, draw_unseen
from unfit.auditor.sources import paths_of, read_source
from unfit.auditor.sources.tables import read_names
from unfit.auditor.split import check_split
from unfit.base.device import device
from unfit.base.errors import UnfitError, UsageError, explained
from unfit.base.files import parse_json
from unfit.base.formats import check_model
from unfit.base.load import load_base, load_target, with_checkpoints, with_rounds
from unfit.base.modules import Estimator, as_base, as_target
from unfit.base.nets import margin, outputs
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
    num_left_out: int = 0  # unseen samples that were given and not used, so that classes have the same shares
    inputs: str = "as given"  # how the model is taken to have seen the samples
    surface: Surface | None = None  # what is attacked of the target; None: the layer that the target names
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
    def layer(self) -> AttackedLayer:
        """What the attacks work on, read once for all of them."""
        return self.surface.attacked if self.surface else read_layer(self.target, self.base)

    @property
    def attacked(self) -> Target:
        return self.surface.target if self.surface else self.target

    def at(self, surface: Surface) -> Case:
        """The case with this surface attacked, and what enters its layer as the samples.

        A normal form is the same function of the same samples, so they are judged by the model itself.
        """
        case = replace(self, surface=surface, base=surface.base)
        if surface.kind == "normal form" or surface.layer == layer_of(self.target):
            return case
        given = replace(case, target=surface.target, private=self.given[0], unseen=self.given[1], originals=None)
        return given.with_features()

    def with_features(self) -> Case:
        """With what enters the attacked layer as both sets, where the model has other layers in front of it."""
        private, unseen = self.private, self.unseen
        if not self.target.has_prefix or private.shape != self.target.sample_shape:  # which `check` refuses
            return self
        first, second = as_features(self.target, private, unseen)
        return replace(self, private=first, unseen=second, originals=(private, unseen))

    @cached_property
    def mean(self) -> Tensor:
        """What is subtracted before the model sees a sample, private or unseen."""
        return self.private.mean

    @property
    def vote(self) -> float:
        return vote_factor(self.target.architecture)

    @cached_property
    def as_a_whole(self) -> Case:
        """The case as the model itself sees it: samples to outputs.

        What enters the attacked layer decides the outputs, unless other parts of the model receive samples too.
        """
        target = self.target
        if not target.has_prefix or not target.split.has_bypass:
            return self
        whole = replace(target.split, layer="", has_prefix=False, feature_shape=target.split.input_shape)
        architecture = replace(target.architecture, input_shape=whole.input_shape)
        model = replace(target, whole=whole, architecture=architecture)
        return replace(self, target=model, private=self.given[0], unseen=self.given[1], originals=None)

    def outputs(self) -> tuple[Tensor, Tensor]:
        """Φ of the private and of the unseen samples; with several outputs the margin to the runner-up.

        Without classes there is no margin: then it is the largest output.
        """
        case = self.as_a_whole
        net = case.target.net()
        own, unseen = (samples.centred(case.mean) for samples in (case.private, case.unseen))
        both = [(outputs(net, samples.x), samples.y) for samples in (own, unseen)]
        plain = self.target.architecture.num_outputs == 1 or self.private.truth != "classes"
        first, second = (phi.amax(1) if plain else margin(phi, y) for phi, y in both)
        return first, second

    def check(self, window: int) -> None:
        """Refuse samples that do not fit the model, or one another; everything that is wrong in one error."""
        shape, classes = self.target.architecture.input_shape, max(self.target.architecture.num_outputs, 2)
        problems = [
            f"the {name} samples have shape {samples.shape}, the model takes {shape}{_hint(samples, shape)}"
            for name, samples in (("private", self.private), ("unseen", self.unseen))
            if samples.shape != shape
        ]
        if (found := self.private.num_classes) != classes and self.private.truth == "classes":
            problems.append(f"the data have {found} classes, the model has {classes} (see `classes`)")
        for name, samples in (("private", self.private), ("unseen", self.unseen)):
            if samples.targets is not None and samples.targets.shape[1] != self.target.architecture.num_outputs:
                k = self.target.architecture.num_outputs
                problems.append(
                    f"y of the {name} samples has {samples.targets.shape[1]} columns, the model {k} outputs"
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
    shape = shape_of(private)
    if isinstance(model, Target):
        target = model.for_shape(input_shape, shape)
    else:
        target = as_target(model, input_shape, layer=layer, data_shape=shape)
    own, others = as_samples(private, unseen, target.sample_shape, target.architecture.num_outputs)
    return named(case_with(target, as_base(base, target), own, others, inputs=words_on(private)), feature_names)


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
    num_repeated = given - len(private)
    case = Case(target, base, private, unseen, source, num_copies, num_repeated, inputs=inputs)
    return case.with_features()


def as_features(target: Target, private: Samples, unseen: Samples) -> tuple[Samples, Samples]:
    """What enters the attacked layer for each sample; where that is an image still, in [0, 1] as images are.

    Where a scaler is all that comes before the layer, these are the samples themselves, in the model's units: a
    pipeline is compared by the same measure as its last step with scaled samples.
    """
    mean, entering, is_scaled = private.mean, target.split.on(device()).features, target.split.scaling is not None
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

    A run folder may come from anybody, who must not choose which other files of this machine are read.
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
    """From the files that a request names, of which the model is looked for first."""
    for path in (request.target, request.update, request.base, *request.checkpoints, *chain(*request.rounds)):
        if path is not None:
            check_model(Path(path))
    about = read_members(request)
    _check_split(request, about)
    source = _private_source(request, about)
    target = load_target(request.target, request, request.base, request.update, source.train.shape)
    source, other = _for_outputs(source, _other_source(request, source), target.architecture.num_outputs)
    private = _members_of(source, about)
    unseen = _draw_unseen(request, source, private, other)
    trained_here = about is not None and about.data is not None  # by `fit`, which subtracts the mean
    untold = (request.scale, request.mean, request.std) == (None, None, None) and not request.as_is
    centred = request.center or (trained_here and untold)
    sets = (_reshaped(each, target.sample_shape) for each in (private, unseen))
    private, unseen = in_unit_range(*(as_seen(each, request, centred) for each in sets))
    base = load_base(request.base, target) if request.base else None
    target = with_rounds(with_checkpoints(target, request.checkpoints), request.rounds, request)
    names = None if request.feature_names is None else read_names(Path(request.feature_names))
    num_left_out = 0 if other is None or request.num_unseen else int((other.labels >= 0).sum()) - len(unseen)
    case = case_with(target, base, private, unseen, source, words(request, centred))
    return named(replace(case, num_left_out=num_left_out), names)


def _check_split(request: AuditRequest, about: Members | None) -> None:
    """Files that `unfit split` wrote must be what they were, and in their places."""
    data, unseen = named_data(request, about), request.unseen
    place = next(iter(paths_of(data)), None)
    if place is not None:
        check_split(place, next(iter(paths_of(unseen)), None) if unseen else None)


def _for_outputs(source: Source, other: Subset | None, k: int) -> tuple[Source, Subset | None]:
    """Both with labels as a model with k outputs has them."""
    own = source.train.y
    try:
        for each in (source.test, other):
            own, _ = matched(own, each.y if each else None, k)
        test, other = (each and replace(each, y=each.y.like(own)) for each in (source.test, other))
    except UnfitError as error:
        raise UnfitError(f"{error}: see `data` and `unseen`") from error
    return replace(source, train=replace(source.train, y=own), test=test), other


def _reshaped(samples: Samples, shape: tuple[int, ...]) -> Samples:
    """Flat rows as the images that they are, steps as vectors; whatever else does not fit is refused later."""
    has_steps = samples.is_image and samples.shape[0] == 1 and len(shape) == 1
    if (samples.is_image and not has_steps) or math.prod(samples.shape) != math.prod(shape):
        return samples
    return replace(samples, x=samples.x.reshape(-1, *shape))


def private_set(request: AuditRequest) -> tuple[Source, Samples]:
    """The source and the samples trained on, of a run folder or as named."""
    about = read_members(request)
    source = _private_source(request, about)
    return source, _members_of(source, about)


def _private_source(request: AuditRequest, about: Members | None) -> Source:
    classes = request.classes or (about.classes if about else None)
    return read_source(named_data(request, about), classes, request.resize)


def _members_of(source: Source, about: Members | None) -> Samples:
    """Without a list of members (`members.json` of a run, or one given) the source's whole training part."""
    if about is None:
        return source.train.chosen()
    private = source.train.take(about.indices)
    if about.sha256 and private.sha256 != about.sha256:
        raise UnfitError(f"{source.name} has changed since the model was trained: its members' hash differs")
    return private


def _other_source(request: AuditRequest, source: Source) -> Subset | None:
    if request.unseen is None:
        return None
    return read_source(request.unseen, request.classes or source.classes, request.resize).train


def _draw_unseen(request: AuditRequest, source: Source, private: Samples, other: Subset | None) -> Samples:
    """Samples the model never saw, of the same source or of another one; classes as in the private set.

    All of another source; as many as it was trained on of the same one; or `num_unseen`. Fewer where there are no
    more, or where classes would not have the shares that they have in the private set.
    """
    asked, seed, k = request.num_unseen, request.seed, private.num_classes
    if asked is not None and asked < k:
        raise UsageError(f"{asked} unseen samples are fewer than the {k} classes")
    n = asked or (len(private) if other is None else len(other))
    counts = private.y.bincount(minlength=k)
    if counts.min() < counts.max():
        return _unbalanced(source, other, private, n, seed)
    if other is None:
        return draw_unseen(source, private, n - n % k, seed)
    n = min(n - n % k, other.largest_balanced())
    return other.take(other.balanced(n, (seed, 1)))


def _unbalanced(source: Source, other: Subset | None, private: Samples, n: int, seed: int) -> Samples:
    """Another mix of classes would tell private from unseen samples by itself."""
    y = private.y.numpy()
    places = [(other, None)] if other else [(source.train, private.indices.numpy()), (source.test, None)]
    drawn = [part.take(part.like(y, n, (seed, 1), without)) for part, without in places if part is not None]
    if not (fitting := [each for each in drawn if len(each)]):
        raise UnfitError(
            "nothing is left for unseen samples in at least one class; name another source with `unseen`"
        )
    return max(fitting, key=len)  # the first of those with most
