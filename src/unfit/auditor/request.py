"""What an audit is asked to do. The command line fills it, `audit.json` keeps it, `--from` reads it back.

Every option of an audit and its default stand here, in `data_reading`, `base/reading` or the policy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from unfit.attacker.attacks import Attack
from unfit.attacker.attacks.auto import Auto
from unfit.auditor.data_reading import DataReading, FilePath
from unfit.auditor.policy import Policy
from unfit.base.load import two_targets


class AuditRequest(DataReading):
    """What is audited, against what, by which attack, under which policy.

    Example:
        >>> request = unfit.AuditRequest(target="model.pt", data="npz:train.npz", unseen="npz:test.npz")
    """

    target: Annotated[FilePath | None, Field(description="A checkpoint or a run folder.")] = None
    update: Annotated[
        FilePath | None, Field(description="Instead of `target`: a client's differences to `base`.")
    ] = None
    base: Annotated[
        FilePath | None, Field(description="The weights that training started from, if they are known.")
    ] = None
    checkpoints: Annotated[
        tuple[FilePath, ...],
        Field(description="Other checkpoints of the same training, or folders of them, in any order."),
    ] = ()
    rounds: Annotated[
        tuple[tuple[FilePath, FilePath], ...],
        Field(description="Other rounds of the same client: what it was sent, and its differences to that."),
    ] = ()
    attack: Annotated[Attack, Field(description="A value such as `Unmix(seed=1)`.")] = Auto()
    candidates: Annotated[
        FilePath | None, Field(description="Candidates of this model, which are searched: nothing is attacked.")
    ] = None
    policy: Annotated[Policy, Field(description="What the model must meet to pass.")] = Policy()
    controls: Annotated[bool, Field(description="Repeat the attack where nothing can be found.")] = False
    baselines: Annotated[bool, Field(description="Add what simpler methods find.")] = False
    first: Annotated[bool, Field(description="Stop at the first leak that nothing else can undo.")] = False
    seed: Annotated[
        int, Field(ge=0, description="Of the unseen samples that are drawn, and of the models of controls.")
    ] = 0
    author: Annotated[str | None, Field(description="Who makes the audit: reports name them.")] = None

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if problem := two_targets(self.target, self.base, self.update):
            raise ValueError(problem)
        return self

    @property
    def described(self) -> Path:
        """The checkpoint whose folder, or JSON file next to it, describes the model."""
        return Path(self.target or self.base or "")

    @model_validator(mode="after")
    def _attacks_or_searches(self) -> Self:
        if self.candidates is None:
            return self
        if self.controls:
            raise ValueError("with `candidates` nothing is attacked, so there is nothing for `controls` to repeat")
        default = type(self.attack)(seed=self.attack.seed)
        changed = [name for name, value in self.attack if value != getattr(default, name)]
        changed = changed or ["method"] * (self.attack.method != "auto")
        changed += ["first"] * self.first + ["checkpoints"] * bool(self.checkpoints)
        changed += ["rounds"] * bool(self.rounds)
        changed += ["base"] * (self.base is not None and self.update is None)
        if changed:
            names = ", ".join(f"`{name}`" for name in changed)
            raise ValueError(f"with `candidates` nothing is attacked: leave out {names}")
        return self
