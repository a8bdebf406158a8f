"""Does a change leave every result as it was? python benchmarks/goldens.py freeze|check FOLDER

`freeze` trains four small targets, attacks them by every attack with two seeds, audits them, and keeps the results in
FOLDER; `check` does it again with the code as it is now and names what differs. Candidates must be equal bit by bit, an
audit in everything but its times. Bits depend on the machine, so goldens are frozen before a change and not committed.
About three minutes on one core.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from unfit import AuditRequest, FitSettings, UnfitError, audit_run, fit_run, load_base, load_target, read_source
from unfit.attacker.attacks import ATTACKS
from unfit.attacker.attacks.paper import PaperKKT
from unfit.attacker.candidates import TENSORS, Candidates
from unfit.attacker.method import Method
from unfit.attacker.run import run_attack
from unfit.base.errors import NotApplicableError
from unfit.base.files import read_json, write_json

TARGETS = {  # name: source, classes, n, training, hidden layers, is the initial weights known?
    "faces": ("faces", None, 40, FitSettings(), "1000-1000", False),
    "conv": ("faces", None, 20, FitSettings(init=None, weight_decay=1e-3, max_steps=300), "conv(3,8)-200", False),
    "classes": ("mnist5k", "all", 50, FitSettings(loss="ce", flow_time=1e3), "500-100", False),
    "base": ("faces", None, 20, FitSettings(init=None, flow_time=1e3), "400-100", True),
}
SHORT = {PaperKKT: {"num_candidates": 20, "iterations": 10}}  # a whole run takes hours
TIMES = {"seconds", "finished"}


def main(command: str, folder: Path) -> int:
    torch.set_num_threads(1)  # sums over several threads are not always added up in the same order
    found = {key: value for name in TARGETS for key, value in results(name, folder)}
    kept = folder / "goldens.json"
    if command == "freeze":
        write_json(kept, found)
        return 0
    frozen = read_json(kept)
    names = frozen.keys() | found.keys()
    differing = sorted(name for name in names if frozen.get(name) != found.get(name))
    print("\n".join(f"differs: {name}" for name in differing) or f"all {len(names)} equal")
    return int(bool(differing))


def results(name: str, folder: Path) -> Iterator[tuple[str, Any]]:
    data, classes, n, settings, arch, knows_initial = TARGETS[name]
    run = folder / name
    if not run.is_dir():
        run.mkdir(parents=True)
        fit_run(read_source(data, classes), n, run, settings, arch)
    target = load_target(run)
    base = load_base(run, target) if knows_initial else None
    for kind in ATTACKS:
        for seed in (0, 1):
            attack = kind(seed=seed, **SHORT.get(kind, {}))
            try:
                found = run_attack(attack, target, base if attack.takes_base else None)
            except NotApplicableError:
                continue
            yield f"{name}/{label(attack)}/{seed}", digest(found)
    audit = audit_run(AuditRequest(target=str(run), base=str(run) if knows_initial else None, baselines=True))
    yield f"{name}/audit.json", untimed(audit.record.model_dump(mode="json", exclude={"repeat", "versions"}))
    yield f"{name}/arrays", {key: hashed(value) for key, value in sorted(audit.arrays.items())}


def label(attack: Method) -> str:
    return " ".join([attack.method, getattr(attack, "solver", "")]).strip()


def digest(candidates: Candidates) -> dict[str, Any]:
    tensors = {name: hashed(getattr(candidates, name)) for name in TENSORS}
    return tensors | {"origins": list(candidates.origins), "attack": candidates.attack}


def hashed(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()[:16]


def untimed(content: Any) -> Any:
    """Without what differs from run to run."""
    if isinstance(content, dict):
        return {key: untimed(value) for key, value in content.items() if key not in TIMES}
    return [untimed(each) for each in content] if isinstance(content, list) else content


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("freeze", "check"):
        sys.exit(__doc__)
    try:
        sys.exit(main(sys.argv[1], Path(sys.argv[2])))
    except UnfitError as error:
        sys.exit(f"unfit: {error}")
