"""One file an attack. Each is a value: settings that know how to run on a target, and never see training data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, cast, get_args

from pydantic import Field, ValidationError
from torch import nn

from unfit.attacker.attacks.auto import Auto
from unfit.attacker.attacks.cone import Cone
from unfit.attacker.attacks.diary import Diary, attack_tables, pairs_of
from unfit.attacker.attacks.fast import FastKKT
from unfit.attacker.attacks.inversion import Inversion
from unfit.attacker.attacks.paper import PaperKKT
from unfit.attacker.attacks.peel import Peel
from unfit.attacker.attacks.unmix import Unmix
from unfit.attacker.attacks.weights import Weights
from unfit.attacker.bags import attack_bag
from unfit.attacker.candidates import Candidates
from unfit.attacker.method import Method
from unfit.attacker.names import METHODS
from unfit.attacker.run import run_attack
from unfit.base.device import on_device
from unfit.base.errors import UsageError, explained, unknown
from unfit.base.load import Checkpoint, with_checkpoints
from unfit.base.modules import Estimator, as_base, as_target
from unfit.base.progress import Report, reporting
from unfit.base.target import Target

Kkt = Annotated[FastKKT | PaperKKT, Field(discriminator="solver")]
# A new attack is a file beside this one, its class here, and its name in `unfit.attacker.names`.
Attack = Annotated[Auto | Peel | Cone | Unmix | Kkt | Inversion | Weights | Diary, Field(discriminator="method")]


def _kinds(union: Any) -> tuple[type[Method], ...]:
    return (union,) if isinstance(union, type) else tuple(kind for arg in get_args(union) for kind in _kinds(arg))


ATTACKS = _kinds(Attack)


def attack(
    model: Target | nn.Module | Estimator,
    attack: Method | str = "auto",
    base: Target | nn.Module | Estimator | None = None,
    progress: Report | bool | None = None,
    layer: str | None = None,
    device: str | None = None,
    checkpoints: Sequence[Checkpoint] = (),
) -> Candidates:
    """Reconstruct training samples from weights alone.

    Args:
        model: A `torch.nn.Module`, a scikit-learn perceptron, or the `Target` that `load_target` reads of a file.
        attack: A value such as `Unmix(seed=1)`, or a name, which stands for the value with its defaults. `auto`
            does all that applies and puts what it is most confident of first.
        base: The weights that training started from, if they are known: the public model that this one was
            fine-tuned from, say. Then the change is attacked, which gives away far more.
        progress: True shows a bar, False nothing; a function is called with the fraction done and what is being
            done. By default a bar on a terminal, and lines in a notebook.
        layer: The name of the dense layer to attack, if not the first that sees each sample once; of `diary`, of
            the table.
        device: Where it is computed: `cpu`, `cuda` or `cuda:1`; by default on CUDA if there is a GPU.
        checkpoints: Other checkpoints of the same training, in any order: files, folders of them, or models.

    Returns:
        Guesses at inputs, as the model sees them. Most of them are wrong; an audit says which are not.

    Example:
        >>> candidates = unfit.attack(model)
        >>> candidates.save("found.safetensors")
    """
    value = as_attack(attack)
    if isinstance(value, Diary | Cone) and (pairs := pairs_of(model, base, layer)):
        return attack_tables(value, pairs) if isinstance(value, Diary) else attack_bag(value, pairs)
    with on_device(device), reporting(progress, "attacking") as report:
        target = with_checkpoints(as_target(model, layer=layer), checkpoints)
        return run_attack(value, target, as_base(base, target), report)


def as_attack(given: Method | str) -> Method:
    if isinstance(given, Method):
        return given
    if isinstance(given, str):
        return named_attack(given)
    raise UsageError(f"`attack` is a name or a value such as Unmix(), not a {type(given).__name__}")


def named_attack(method: str | None = None, **settings: Any) -> Attack:
    """The attack of this name with these settings; those that are None keep their defaults.

    Without a name it is the first attack that has all of these settings. What it would not read is refused.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    if method is not None and method not in METHODS:
        raise unknown("attack", method, METHODS)
    kinds = [kind for kind in ATTACKS if method in (None, kind.model_fields["method"].default)]
    fitting = [kind for kind in kinds if _has(kind, given)]
    kind = (fitting or kinds)[0]
    if unread := [f"`{name}`" for name in given if name not in kind.model_fields]:
        raise UsageError(f"{kind.title} does not use {', '.join(unread)}")
    try:
        return cast(Attack, kind(**given))
    except ValidationError as error:
        raise UsageError(explained(error)) from error


def _has(kind: type[Method], given: dict[str, Any]) -> bool:
    """Whether this kind of attack reads all of these settings; each kind has one solver."""
    fields = kind.model_fields
    solver = fields["solver"].default if "solver" in fields else None
    return given.keys() <= fields.keys() and given.get("solver", solver) == solver
