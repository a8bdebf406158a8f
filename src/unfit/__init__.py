"""unfit, the inverse of fit: training samples from the weights of a trained classifier."""

import os

# Before PyTorch is loaded. Threads that spin while they wait make a machine with other work many times slower;
# those that sleep at once are woken thousands of times a second. A thousand turns, some microseconds, are near the
# best of both: an attack of 39 s takes 23, and two at once 46 instead of 33 (spinning on: 20, and 241).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from unfit.attacks import attack
from unfit.audit import Audit, audit, load_audit
from unfit.candidates import Candidates
from unfit.errors import UnfitError
from unfit.fit import FitSettings, fit
from unfit.modules import as_target
from unfit.nets import Architecture, parse_architecture
from unfit.preflight import Preflight, preflight
from unfit.record import Policy
from unfit.runs import audit_run, fit_run
from unfit.samples import Samples, draw, draw_unseen
from unfit.sources import read_source
from unfit.sweep import sweep
from unfit.target import Target, load_base, load_target

__version__ = "0.1.0"

__all__ = [
    "Architecture",
    "Audit",
    "Candidates",
    "FitSettings",
    "Policy",
    "Preflight",
    "Samples",
    "Target",
    "UnfitError",
    "as_target",
    "attack",
    "audit",
    "audit_run",
    "draw",
    "draw_unseen",
    "fit",
    "fit_run",
    "load_audit",
    "load_base",
    "load_target",
    "parse_architecture",
    "preflight",
    "read_source",
    "sweep",
]
