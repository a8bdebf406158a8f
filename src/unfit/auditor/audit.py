"""From a case to its evidence: attack, match against private and unseen samples, decide, keep everything.

Request → Case → candidates → matches → verdict → Record, which is built once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from unfit.attacker.attacked_layer import check_base
from unfit.attacker.attacks import as_attack
from unfit.attacker.candidates import Candidates
from unfit.attacker.costs import check_budget, check_size
from unfit.attacker.method import UNFINISHED, Method, gather, inapplicable
from unfit.attacker.run import check_attack
from unfit.attacker.stage_cache import NOWHERE, StageCache
from unfit.attacker.surfaces import Surface
from unfit.auditor.arrays import Arrays
from unfit.auditor.case import Case, case_of
from unfit.auditor.conclude import NO_COMPARISONS, Comparisons, concluded
from unfit.auditor.evidence import Evidence, measure
from unfit.auditor.examine import Examined, examine, refuse_other_data
from unfit.auditor.policy import Policy
from unfit.auditor.pool import Pool, attack_pool, given_pool
from unfit.auditor.record import (
    SCHEMA_VERSION,
    Record,
    Verdict,
)
from unfit.auditor.report import notebook
from unfit.auditor.report.page import page
from unfit.auditor.report.scan import text
from unfit.auditor.report.terminal import plain, show_audit
from unfit.auditor.request import AuditRequest
from unfit.auditor.scan.scan import scan
from unfit.auditor.verdict import ATTACKERS, EXIT_CODES, STOPPED
from unfit.auditor.watch import Watch
from unfit.base.budget import limited, seconds_left
from unfit.base.device import on_device
from unfit.base.errors import NoAttackError, NotApplicableError, UnfitError, UsageError
from unfit.base.files import as_json, check_regular, new_file, read_as, read_json, write_json, write_tensors
from unfit.base.load import Checkpoint, with_checkpoints
from unfit.base.memory import FLOAT
from unfit.base.modules import Estimator
from unfit.base.progress import Report, quiet, reporting, split
from unfit.base.reservation import PRIVATE_FILE, PRIVATE_FOLDER
from unfit.base.target import Target
from unfit.base.threads import threads
from unfit.base.times import as_seconds

SUMMARY_WIDTH = 100  # columns
ATTACK_SHARE, MATCH_SHARE = 9, 1  # of an audit's time, as a rule: what its progress is split by
SETS = 11  # times the larger set: both as given, as the model sees them, what was recovered of each, and as shown
JUDGING = (
    3.0  # times what looking at the samples took: what matching and the signal check take of a budget, at 224×224
)


@dataclass(frozen=True, eq=False)
class Audit:
    """The whole evidence: the record, and the arrays that the page is drawn from.

    Example:
        >>> audit.verdict
        'leak'
        >>> counts = audit.num_exact, audit.num_recognisable, audit.num_recovered
        >>> text = audit.summary()
        >>> page = audit.to_html("audit.html")
    """

    record: Record
    arrays: dict[str, Tensor]

    def __repr__(self) -> str:
        """One line for logs, with nothing in it about any one sample."""
        n, record = self.record.num_samples, self.record
        counts = f"{self.num_exact} exact, {self.num_recognisable} recognisable, {self.num_recovered} recovered"
        return f"Audit({self.verdict}: {counts} of {n} samples, by {ATTACKERS[record.attacker]})"

    @property
    def verdict(self) -> Verdict:
        """`pass`, `leak` or `inconclusive`; `record.reasons` says why."""
        return self.record.verdict

    @property
    def exit_code(self) -> int:
        """That of `unfit audit`: 0 pass, 1 leak, 3 inconclusive."""
        return EXIT_CODES[self.verdict]

    @property
    def num_recovered(self) -> int:
        """How many samples left a trace or more."""
        return self.record.num_recovered

    @property
    def num_recognisable(self) -> int:
        """How many were recovered recognisably or exactly."""
        return self.record.num_recognisable

    @property
    def num_exact(self) -> int:
        """How many were recovered with a proof that needs no data."""
        return self.record.num_exact

    def summary(self, verbose: bool = False) -> str:
        """What `unfit audit` prints: the decision, why, what next, what was counted; `verbose`: all the rest."""
        return plain(show_audit(self.record, verbose), SUMMARY_WIDTH)

    @property
    def recovered(self) -> list[int | str]:
        """The indices of the samples that left a trace or more; in a redacted audit their hashes."""
        return [sample.index for sample in self.record.samples if sample.recovered]

    @property
    def recognisable(self) -> list[int | str]:
        """The indices of the samples that were recovered recognisably or exactly."""
        return [sample.index for sample in self.record.samples if sample.grade in ("recognisable", "exact")]

    def to_json(self, path: str | Path | None = None) -> str:
        """The content of `audit.json`, also written to `path` if one is given."""
        return _written(as_json(self.record.model_dump(mode="json")), path)

    def to_html(self, path: str | Path | None = None) -> str:
        """The page, self-contained, also written to `path` if one is given."""
        return _written(page(self.record, self.arrays), path)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return notebook.show(self.record, self.arrays)

    def save(self, folder: str | Path) -> None:
        """Write `audit.json` and `arrays.safetensors`; the page is built from these alone."""
        folder = Path(folder)
        folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
        write_tensors(folder / "arrays.safetensors", self.arrays)
        write_json(folder / "audit.json", self.record.model_dump(mode="json"))
        for name in ("arrays.safetensors", "audit.json"):
            (folder / name).chmod(PRIVATE_FILE)


def _written(text: str, path: str | Path | None) -> str:
    if path is not None:
        with new_file(Path(path), force=True) as file:
            file.write_text(text, encoding="utf-8")
    return text


def load_audit(folder: str | Path) -> Audit:
    """Read the folder that `unfit audit` or `Audit.save` wrote.

    Args:
        folder: It holds `audit.json` and `arrays.safetensors`.

    Example:
        >>> audit = unfit.load_audit("audit")
    """
    folder = Path(folder)
    check_regular(folder / "arrays.safetensors")
    try:
        return Audit(load_record(folder), load_file(folder / "arrays.safetensors"))
    except (SafetensorError, OSError) as error:
        raise UnfitError(f"{folder}: not the folder of an audit: {error}") from error


def load_record(path: Path) -> Record:
    """Read an `audit.json`, or the one in a folder, of this version of the format."""
    path = path / "audit.json" if path.is_dir() else path
    found = read_json(path).get("schema_version")
    if not isinstance(found, int):
        raise UnfitError(f"{path}: not an audit: it has no schema_version")
    if found != SCHEMA_VERSION:
        raise UnfitError(
            f"{path}: schema_version {found}, this unfit reads {SCHEMA_VERSION}: make the audit again, "
            f"or use an unfit {'older' if found < SCHEMA_VERSION else 'newer'} than {version('unfit')}"
        )
    return read_as(Record, path)


def audit(
    model: Target | nn.Module | Estimator,
    private: Arrays,
    unseen: Arrays,
    *,
    attack: Method | str = "auto",
    base: Target | nn.Module | Estimator | None = None,
    layer: str | None = None,
    candidates: Candidates | str | Path | None = None,
    policy: Policy | None = None,
    budget: float | str | None = None,
    first: bool = False,
    input_shape: tuple[int, ...] | None = None,
    feature_names: Sequence[str] | None = None,
    progress: Report | bool | None = None,
    device: str | None = None,
    checkpoints: Sequence[Checkpoint] = (),
) -> Audit:
    """Which of the private samples do the weights give away?

    Samples are x or (x, y), exactly as the model sees them: arrays, tensors or tables, a list of pairs, a dict, a
    `Dataset` or a `DataLoader`. Labels y are optional. `Samples`, as `draw` gives them, are taken as stored, minus
    the mean of the private ones.

    Args:
        model: A `torch.nn.Module`, a scikit-learn perceptron, or the `Target` that `load_target` reads of a file.
        private: What the model was trained on.
        unseen: At least as many samples of the same kind that it never saw: the control.
        attack: A name, or a value such as `Unmix(seed=1)` or `Auto(budget="60s")`.
        base: The weights that training started from, if they are known: the public model that this one was
            fine-tuned from, say. A fine-tuned model must be audited with it.
        layer: The name of the dense layer to attack, if not the first that sees each sample once.
        candidates: What was made from this model before (`Candidates`, their file, or the folder of a sweep): it
            is searched, and nothing is attacked.
        policy: What the model must meet to pass; by default, no sample may be recovered recognisably.
        budget: Seconds, or a time such as "60s" or "10m", for all of it; as the attack's own `budget`.
        first: Stop at the first leak beyond doubt: samples recovered exactly, so that nothing else could undo the
            verdict. Counts are lower bounds then, which `record.reasons` says. Without a leak nothing changes.
        input_shape: The shape of one sample, where x is flat and the samples are not vectors: (3, 32, 32).
        feature_names: Of a vector's columns, where x is no table that names them.
        progress: True shows a bar, False nothing; a function is called with the fraction done and what is being
            done. By default a bar on a terminal, and lines in a notebook.
        device: Where it is computed: `cpu`, `cuda` or `cuda:1`; by default on CUDA if there is a GPU.
        checkpoints: Other checkpoints of the same training, in any order: files, folders of them, or models.

    Returns:
        The verdict (`pass`, `leak` or `inconclusive`), its reasons, and all evidence.

    Raises:
        NoAttackError: No attack applies to such an estimator. It is scanned instead: the error's `scan` says what
            stands in it.
        DataCheckError: The model does not know the private samples: they come in another form, or are others.

    Example:
        >>> audit = unfit.audit(model, private=(x, y), unseen=(x_test, y_test), attack=unfit.Auto(budget="60s"))
        >>> audit.verdict
        'leak'
    """
    began, value = time.perf_counter(), with_budget(as_attack(attack), budget)
    with threads(), on_device(device):
        try:
            with limited(value.limit, began):
                case = case_of(model, private, unseen, base, layer, input_shape, feature_names)
                case = replace(case, target=with_checkpoints(case.target, checkpoints))
        except NoAttackError as error:
            found = scan(model, private, unseen)
            raise NoAttackError(f"{error}. {text(found)}", found) from error
        if candidates is not None and (attack != "auto" or base is not None or first or checkpoints):
            words = "leave out `attack`, `base`, `checkpoints` and `first`"
            raise UsageError(f"with `candidates` nothing is attacked: {words}")
        with reporting(progress, "auditing") as report:
            rules = policy or Policy()
            return run_audit(case, value, rules, candidates, first=first, progress=report, began=began)


def run_audit(
    case: Case,
    attack: Method,
    policy: Policy,
    candidates: Candidates | str | Path | None = None,
    *,
    first: bool = False,
    request: AuditRequest | None = None,
    compare: Callable[[Report], Comparisons] = lambda _: NO_COMPARISONS,
    compare_share: float = 0.0,
    progress: Report = quiet,
    began: float,
    cache: StageCache = NOWHERE,
) -> Audit:
    """The way of every audit: examine, attack each surface, match, judge, record.

    The budget is that of the attack and of all it takes to judge it, from `began` on. What `compare` runs comes on
    top; it takes `compare_share` times as long as the audit itself, as a rule. `request` is what the record keeps.
    """
    attack = told_sizes(attack, case)
    if candidates is None:
        refuse_short(attack, case, began)
    refuse_large(attack, case, candidates)
    examined = examine(case, policy, attack, candidates)
    refuse_other_data(examined, policy)
    comparing, attacking = split(progress, (compare_share, 1))
    before = time.perf_counter()
    compared = compare(comparing)
    began += time.perf_counter() - before
    with limited(attack.limit, began):
        watch = Watch(policy, examined.published, first)
        found = attack_all(case, attack, candidates, policy, examined, attacking, cache, watch=watch)
        return Audit(*concluded(found, examined, policy, compared, request))


def with_budget(attack: Method, budget: float | str | None) -> Method:
    """The same attack within this time."""
    seconds = as_seconds(budget, "budget")
    if seconds is None:
        return attack
    if not hasattr(attack, "budget"):
        raise UsageError(f"{attack.title} takes no `budget`: leave it out, or use the attack auto")
    if attack.limit is not None:
        raise UsageError("`budget` is given twice: to the audit and to its attack")
    return attack.model_copy(update={"budget": seconds})


def told_sizes(attack: Method, case: Case) -> Method:
    """The search for the initial weights may know how many samples were shuffled before the model was built."""
    private = len(case.private) + case.num_repeated
    both = private + len(case.unseen) + case.num_copies + case.num_left_out
    return attack.knowing((private, both))


def refuse_short(attack: Method, case: Case, began: float) -> None:
    """A budget that the attack cannot keep is refused before time is spent on looking at the samples."""
    with limited(attack.limit, began):
        check_budget(case.layer)


def refuse_large(attack: Method, case: Case, candidates: Candidates | str | Path | None) -> None:
    """What would not fit into memory is refused before any of it is allocated."""
    samples = FLOAT * max(len(case.private), len(case.unseen)) * case.private.x[0].numel()
    check_size(case.layer, 0.0, SETS * samples)  # before the spectrum is read
    if candidates is None:
        found = attack.held(case.layer)
    elif isinstance(candidates, Candidates):
        found = float(FLOAT * candidates.x.numel())
    else:  # the trials of a sweep, which stand in a folder, are read one at a time
        found = float(Path(candidates).stat().st_size if Path(candidates).is_file() else 0)
    check_size(case.layer, found, SETS * samples)


def attack_all(
    case: Case,
    attack: Method,
    candidates: Candidates | str | Path | None,
    policy: Policy,
    examined: Examined,
    progress: Report = quiet,
    cache: StageCache = NOWHERE,
    *,
    watch: Watch,
) -> list[Evidence]:
    """Attack each surface of the model.

    What hides samples on one surface must not decide about another, so each has its own candidates and controls,
    and all are attacked, because each may give away other samples. The seconds that it took to look at the samples
    tell how much of a budget judging will need. A leak that `watch` stops at ends it all.
    """
    there, looking = examined.surfaces.found, examined.seconds
    progress = watch.telling(progress)
    whole: dict[str, Pool] = {}
    for i, (surface, report) in enumerate(zip(there, split(progress, [1] * len(there)), strict=True)):
        form = case.at(surface.after(whole))
        attacking, matching = split(report, (ATTACK_SHARE, MATCH_SHARE))
        watch.elsewhere = _directions_left(there[i:])
        with limited(seconds_left() / (len(there) - i) - JUDGING * looking):
            pool = find_candidates(form, attack, candidates, attacking, cache.under(f"surface{i}"), watch)
        if surface.kind == "weights":
            whole[surface.layer] = pool
        if candidates is None:
            watch.look(form, pool)
        if watch.has_enough and i + 1 < len(there):
            pool = replace(pool, facts=pool.facts | {"status": STOPPED})
        watch.done.append(measure(form, pool, policy, examined, matching, len(there)))
        if watch.has_enough:
            break
    return watch.done


def _directions_left(surfaces: Sequence[Surface]) -> int:
    """How many samples other layers than the first of these may hold at most: one per direction."""
    first, *others = surfaces
    weights = {each.layer: each.target.weights["layer1.weight"] for each in others if each.layer != first.layer}
    return sum(min(weight.flatten(1).shape) for weight in weights.values())


def find_candidates(
    case: Case,
    attack: Method,
    candidates: Candidates | str | Path | None,
    progress: Report = quiet,
    cache: StageCache = NOWHERE,
    watch: Watch | None = None,
) -> Pool:
    """What is searched: candidates that were given, or those of the attack."""
    if candidates is not None:
        return given_pool(candidates, case.target)
    return attack_pool(try_attack(case, attack, progress, cache, watch))


def try_attack(
    case: Case,
    attack: Method,
    progress: Report = quiet,
    cache: StageCache = NOWHERE,
    watch: Watch | None = None,
) -> Candidates:
    """The attack's candidates; none, and why, where it does not cover this model. What it finishes is kept."""
    check_attack(attack, case.target, case.base)
    check_base(case.layer)
    if watch is not None and watch.has_enough:
        return gather(attack, case.layer, [], time.perf_counter(), STOPPED)
    try:
        return _until_enough(case, attack, progress, cache, watch)
    except NotApplicableError as error:
        return inapplicable(attack, case.layer, error)


def _until_enough(
    case: Case, attack: Method, progress: Report, cache: StageCache, watch: Watch | None
) -> Candidates:
    """All candidates, or those at which the audit stops."""
    nobody_asks = watch is None or (progress is quiet and not watch.stops)
    with closing(attack.growing(case.layer, progress, cache)) as stages:
        for candidates in stages:
            if watch is None or nobody_asks or candidates.facts["status"] != UNFINISHED:
                continue  # to the last, which is all of them
            watch.look(case, attack_pool(candidates))
            if watch.has_enough:
                return replace(candidates, facts=candidates.facts | {"status": STOPPED})
    return candidates
