"""What `unfit` shows before it is told what to do. It is shown at once: nothing here loads PyTorch."""

from __future__ import annotations

TITLE = "unfit: recover training samples from the weights of a model"
TRY = {
    "unfit demo": "seconds: train on digits, recover them exactly from the weights",
    "unfit scan model.joblib": "what stands in a file in plain sight: rows, words, values",
    "unfit preflight model.pt": "which attacks apply to a model, and how long they take",
    "unfit attack model.pt --out found.safetensors": "what an attacker recovers from the weights alone",
    "unfit audit model.pt --data npz:train.npz --unseen npz:test.npz --out audit": (
        "which of your samples leak: a page, JSON, and an exit code"
    ),
}
COMMANDS = {
    "Audit a model": {
        "scan": "what stands in a file in plain sight, and which of your samples",
        "audit": "which training samples can be recovered from this file?",
        "preflight": "which attacks apply, why others do not, and how long they take",
        "split": "hold samples out before training, for the audit to compare with",
        "diff": "what changed between two audits",
        "report": "the page of an audit again, or a report for those who sign",
        "card": "an audit as a section of a model card, without private data",
        "formats": "which files can be attacked or audited",
    },
    "Attack it": {
        "attack": "reconstruct training samples from weights alone",
        "find-init": "find the weights that training started from, by their seed",
        "sweep": "attack with many sampled settings, on one machine or a cluster",
    },
    "Learn and reproduce": {
        "demo": "train a digit classifier, attack and audit it",
        "fit": "train a target as the papers do, in seconds",
        "reproduce": "make a figure or a table of the papers",
    },
}


def first_steps() -> str:
    """Commands to try."""
    steps = "".join(f"  {command}\n      {words}\n" for command, words in TRY.items())
    return (
        f"{TITLE}\n\nTry:\n{steps}\n`unfit --help` lists all commands, `unfit COMMAND --help` the options of one."
    )


def overview() -> str:
    """All commands, by what they are for."""
    groups = "\n".join(f"\n{purpose}:\n{_listed(commands)}" for purpose, commands in COMMANDS.items())
    options = {"--version": "print the version", "-h, --help": "show this; after a command, its options"}
    return f"{TITLE}\n\nUsage: unfit COMMAND [OPTIONS]\n{groups}\n\nOptions:\n{_listed(options)}"


def _listed(rows: dict[str, str]) -> str:
    return "\n".join(f"  {name:<10} {words}" for name, words in rows.items())
