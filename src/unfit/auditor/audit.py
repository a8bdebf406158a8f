"""From a case to its evidence: attack, match against private and unseen samples, decide, keep everything.

Request → Case → candidates → matches → verdict → Record, which is built once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from unfit.attacker.attacks import as_attack, check_attack
from unfit.attacker.attacks.auto import Auto
from unfit.attacker.candidates import Candidates
from unfit.attacker.costs import check_budget
from unfit.attacker.method import Method, gather
from unfit.attacker.mixtures import check_base
from unfit.attacker.shelf import NOWHERE, Shelf
from unfit.auditor.arrays import Arrays
from unfit.auditor.case import Case, case_of
from unfit.auditor.conclude import Evidence, concluded
from unfit.auditor.evidence import evidence, examine, refuse_misfit
from unfit.auditor.pool import Pool, attack_pool, given_pool
from unfit.auditor.record import (
    SCHEMA_VERSION,
    Record,
    Verdict,
)
from unfit.auditor.report import notebook
from unfit.auditor.report.page import page
from unfit.auditor.report.terminal import plain, show_audit
from unfit.auditor.request import Policy
from unfit.auditor.verdict import ATTACKERS, EXIT_CODES
from unfit.base.budget import limited, seconds_left
from unfit.base.errors import NotApplicableError, UnfitError, UsageError
from unfit.base.files import as_json, check_regular, new_file, read_as, read_json, write_json, write_tensors
from unfit.base.modules import Estimator
from unfit.base.progress import Report, quiet, reporting, split
from unfit.base.reservation import PRIVATE_FILE, PRIVATE_FOLDER
from unfit.base.target import Target
from unfit.base.threads import threads

SUMMARY_WIDTH = 100  # columns
ATTACK_SHARE, MATCH_SHARE = 9, 1  # of an audit's time, as a rule: what its progress is split by
MOMENTS_LEFT = "the file holds sums of gradients of the optimiser, which were not attacked"
JUDGING = 3.0  # times what looking at the samples took: what matching and the oracle take of a budget, at 224×224


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
        """How many came back recognisably or exactly."""
        return self.record.num_recognisable

    @property
    def num_exact(self) -> int:
        """How many came back with a proof that needs no data."""
        return self.record.num_proven

    def summary(self) -> str:
        """What `unfit audit` prints: the decision, why, and what was counted."""
        return plain(show_audit(self.record), SUMMARY_WIDTH)

    @property
    def recovered(self) -> list[int | str]:
        """The indices of the samples that left a trace or more; in a redacted audit their hashes."""
        return [sample.index for sample in self.record.samples if sample.recovered]

    @property
    def recognisable(self) -> list[int | str]:
        """The indices of the samples that came back recognisably or exactly."""
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


@threads()
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
    input_shape: tuple[int, ...] | None = None,
    feature_names: Sequence[str] | None = None,
    progress: Report | bool = quiet,
) -> Audit:
    """Which of the private samples do the weights give away?

    Samples are x or (x, y), exactly as the model sees them: arrays, tensors or tables, a list of pairs, a dict, a
    `Dataset` or a `DataLoader`. Labels y are optional. `Samples`, as `draw` gives them, are taken as stored, less
    the private ones' mean.

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
        policy: What the model must meet to pass; by default, no sample may come back recognisably.
        input_shape: The shape of one sample, where x is flat and the samples are not vectors: (3, 32, 32).
        feature_names: Of a vector's columns, where x is no table that names them.
        progress: True shows a bar; a function is called with the fraction done and what is being done.

    Returns:
        The verdict (`pass`, `leak` or `inconclusive`), its reasons, and all evidence.

    Raises:
        MisfitError: The model does not know the private samples: they come in another form, or are others.

    Example:
        >>> audit = unfit.audit(model, private=(x, y), unseen=(x_test, y_test), attack=unfit.Auto(budget="60s"))
        >>> audit.verdict
        'leak'
    """
    began, value, policy = time.perf_counter(), as_attack(attack), policy or Policy()
    case = case_of(model, private, unseen, base, layer, input_shape, feature_names)
    if candidates is not None and (attack != "auto" or base is not None):
        raise UsageError("with `candidates` nothing is attacked: leave out `attack` and `base`")
    refuse_short(value, case, began)
    examined = examine(case, policy)
    refuse_misfit(examined, policy)

    def measure(form: Case, pool: Pool, num: int, report: Report) -> Evidence:
        return evidence(form, pool, policy, examined, progress=report, num_surfaces=num)

    with limited(value.limit, began), reporting(progress, "auditing") as report:
        found = attack_all(case, value, candidates, measure, examined.seconds, report)
        return Audit(*concluded(found, policy, examined.published))


def refuse_short(attack: Method, case: Case, began: float) -> None:
    """A budget that the attack cannot keep is refused before time is spent on looking at the samples."""
    with limited(attack.limit, began):
        check_budget(case.mixtures)


def attack_all(
    case: Case,
    attack: Method,
    candidates: Candidates | str | Path | None,
    measure: Callable[[Case, Pool, int, Report], Evidence],
    looking: float,
    progress: Report = quiet,
    shelf: Shelf = NOWHERE,
) -> list[Evidence]:
    """Attack each form of the model: an optimiser's moments, the weights, and their normal form if it differs.

    What hides samples in one form must not decide about another, so each has its own candidates and controls, and
    all are attacked, because each may give away other samples. `looking`: seconds that it took to look at the
    samples, by which judging is known to fit into a budget.
    """
    if case.target.moments is not None and (candidates is not None or not attack.takes_base):
        case = replace(case, target=replace(case.target, moments=None, unread=MOMENTS_LEFT))
    forms = [case] if candidates is not None else case.forms()
    done: list[Evidence] = []
    for i, (form, report) in enumerate(zip(forms, split(progress, [1] * len(forms)), strict=True)):
        attacking, matching = split(report, (ATTACK_SHARE, MATCH_SHARE))
        with limited(seconds_left() / (len(forms) - i) - JUDGING * looking):
            pool = find_candidates(form, attack, candidates, attacking, shelf.under(form.name))
        done.append(measure(form, pool, len(forms), matching))
    return done


def find_candidates(
    case: Case,
    attack: Method,
    candidates: Candidates | str | Path | None,
    progress: Report = quiet,
    shelf: Shelf = NOWHERE,
) -> Pool:
    """What is searched: candidates that were given, or those of the attack."""
    if candidates is not None:
        return given_pool(candidates, case.target)
    return attack_pool(try_attack(case, attack, progress, shelf))


def try_attack(case: Case, attack: Method, progress: Report = quiet, shelf: Shelf = NOWHERE) -> Candidates:
    """The attack's candidates; none, and why, where it does not cover this net. What it finishes is kept."""
    check_attack(attack, case.target, case.base)
    check_base(case.mixtures)
    try:
        if isinstance(attack, Auto):
            return attack.run(case.mixtures, progress, shelf)
        return shelf.candidates(attack.method, lambda: attack.run(case.mixtures, progress))
    except NotApplicableError as error:
        return gather(attack, case.mixtures, [], time.perf_counter(), f"not applicable: {error}")
