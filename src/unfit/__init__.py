"""unfit, the inverse of fit: training samples from the weights of a trained model.

    import unfit

    unfit.scan("model.joblib")                 # what stands in a file in plain sight
    unfit.preflight(model)                     # what applies to this model, and how long it takes
    candidates = unfit.attack(model)           # what an attacker gets from the weights alone
    audit = unfit.audit(model, private=(x, y), unseen=(x_test, y_test))  # which of your samples are among it
    print(audit.summary())                     # audit.verdict is "pass", "leak" or "inconclusive"

Scan:       scan
Audit:      audit, Audit, Policy, load_audit, audit_ids; of files: audit_run, AuditRequest
Attack:     attack, Candidates, load_candidates, preflight, find_initial_weights, sweep
Attacks:    Auto, Peel, Cone, Unmix, FastKKT, PaperKKT, Inversion, Weights, Diary
Models:     as_target, load_target, load_base, apply_update, Reading, Target
Data:       read_source, draw, draw_unseen, Samples
Training:   fit, fit_run, FitSettings, parse_architecture, Architecture
Errors:     UnfitError, DataCheckError, NoAttackError

help(unfit.audit), and so on, describes every parameter, with an example.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unfit.attacker.attacks import attack as attack
    from unfit.attacker.attacks.auto import Auto as Auto
    from unfit.attacker.attacks.cone import Cone as Cone
    from unfit.attacker.attacks.diary import Diary as Diary
    from unfit.attacker.attacks.fast import FastKKT as FastKKT
    from unfit.attacker.attacks.inversion import Inversion as Inversion
    from unfit.attacker.attacks.paper import PaperKKT as PaperKKT
    from unfit.attacker.attacks.peel import Peel as Peel
    from unfit.attacker.attacks.unmix import Unmix as Unmix
    from unfit.attacker.attacks.weights import Weights as Weights
    from unfit.attacker.candidates import Candidates as Candidates
    from unfit.attacker.candidates import load_candidates as load_candidates
    from unfit.attacker.initial.find import find_initial_weights as find_initial_weights
    from unfit.attacker.initial.found import InitialWeights as InitialWeights
    from unfit.attacker.preflight import Preflight as Preflight
    from unfit.attacker.preflight import preflight as preflight
    from unfit.attacker.sweep.run import sweep as sweep
    from unfit.auditor.audit import Audit as Audit
    from unfit.auditor.audit import audit as audit
    from unfit.auditor.audit import load_audit as load_audit
    from unfit.auditor.ids import IdAudit as IdAudit
    from unfit.auditor.ids import audit_ids as audit_ids
    from unfit.auditor.policy import Policy as Policy
    from unfit.auditor.request import AuditRequest as AuditRequest
    from unfit.auditor.samples import Samples as Samples
    from unfit.auditor.samples import draw as draw
    from unfit.auditor.samples import draw_unseen as draw_unseen
    from unfit.auditor.scan.scan import scan as scan
    from unfit.auditor.sources import read_source as read_source
    from unfit.base.errors import DataCheckError as DataCheckError
    from unfit.base.errors import NoAttackError as NoAttackError
    from unfit.base.errors import UnfitError as UnfitError
    from unfit.base.load import load_base as load_base
    from unfit.base.load import load_target as load_target
    from unfit.base.modules import as_target as as_target
    from unfit.base.nets import Architecture as Architecture
    from unfit.base.nets import parse_architecture as parse_architecture
    from unfit.base.reading import Reading as Reading
    from unfit.base.target import Target as Target
    from unfit.base.updates import apply_update as apply_update
    from unfit.lab.fit import fit as fit
    from unfit.lab.runs import audit_run as audit_run
    from unfit.lab.runs import fit_run as fit_run
    from unfit.lab.settings import FitSettings as FitSettings

__version__ = "0.1.0"

_PUBLIC = {  # module: what it gives the package; loaded when it is first asked for, since PyTorch takes seconds
    "unfit.attacker.attacks": ("attack",),
    "unfit.attacker.attacks.auto": ("Auto",),
    "unfit.attacker.attacks.cone": ("Cone",),
    "unfit.attacker.attacks.diary": ("Diary",),
    "unfit.attacker.attacks.fast": ("FastKKT",),
    "unfit.attacker.attacks.inversion": ("Inversion",),
    "unfit.attacker.attacks.paper": ("PaperKKT",),
    "unfit.attacker.attacks.peel": ("Peel",),
    "unfit.attacker.attacks.unmix": ("Unmix",),
    "unfit.attacker.attacks.weights": ("Weights",),
    "unfit.attacker.candidates": ("Candidates", "load_candidates"),
    "unfit.attacker.preflight": (
        "Preflight",
        "preflight",
    ),
    "unfit.attacker.initial.find": ("find_initial_weights",),
    "unfit.attacker.initial.found": ("InitialWeights",),
    "unfit.attacker.sweep.run": ("sweep",),
    "unfit.auditor.audit": (
        "Audit",
        "audit",
        "load_audit",
    ),
    "unfit.auditor.ids": ("IdAudit", "audit_ids"),
    "unfit.auditor.policy": ("Policy",),
    "unfit.auditor.request": ("AuditRequest",),
    "unfit.auditor.samples": (
        "Samples",
        "draw",
        "draw_unseen",
    ),
    "unfit.auditor.scan.scan": ("scan",),
    "unfit.auditor.sources": ("read_source",),
    "unfit.base.errors": ("DataCheckError", "NoAttackError", "UnfitError"),
    "unfit.base.load": ("load_base", "load_target"),
    "unfit.base.modules": ("as_target",),
    "unfit.base.nets": (
        "Architecture",
        "parse_architecture",
    ),
    "unfit.base.reading": ("Reading",),
    "unfit.base.target": ("Target",),
    "unfit.base.updates": ("apply_update",),
    "unfit.lab.fit": ("fit",),
    "unfit.lab.runs": (
        "audit_run",
        "fit_run",
    ),
    "unfit.lab.settings": ("FitSettings",),
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = sorted(_HOME)  # what help() shows


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'unfit' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
