"""How often does an audit cry leak on samples the model never saw? python benchmarks/unseen.py DATA [AUDITS] [--only blind|base|hidden]

*Blind*: each of a few models is attacked once. Then sets of strangers are audited with these candidates, against unseen samples
that are like them or are not: drawn from the other file of the data set, with other shares of the classes, half blackened,
brighter.

*Base*: models of ten kinds of data are attacked with the weights that training started from, where samples are recovered exactly.
Strangers are labelled as the model labels them, so that every one of them looks like a sample that the model knows. The members
are audited too: none of them may lose the grade *exact* to the rule that keeps strangers from it.

*Hidden*: the attacked weights were trained on other samples, and a second branch, a second state or the last batch in the file holds
the private ones. Such an audit must not pass.

But for these, nothing given as private was trained on, so every `leak` is false. Prints verdicts by kind, and the rate of false leaks with its
95% interval. DATA holds cifar-10-batches-bin and mnist.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from page import write_section
from unfit import DataCheckError, Policy, Reading, Target, Unmix, attack, audit, load_target, read_source
from unfit.attacker.attacks.auto import Auto
from unfit.auditor.audit import find_candidates
from unfit.auditor.case import Case, case_of
from unfit.auditor.conclude import concluded
from unfit.auditor.evidence import measure
from unfit.auditor.examine import examine
from unfit.auditor.pool import Pool
from unfit.auditor.probability import interval
from unfit.auditor.record import Record
from unfit.base.images import ncc
from zoo import Pair, copied, mlp, parts, samples, seen, train

N = 60  # strangers, and as many unseen samples
KINDS = ("comparable", "other file", "other class mix", "half zeros", "brighter")
MEMBERS, WIDTH, SETS = 25, 300, 10  # of each model with a base: samples, neurons, and sets of strangers
ROWS = 1500  # of each kind of data: members and strangers are drawn from them
CODE = ("attacker", "auditor")
BLIND = (
    "Models that were not trained on the samples, audited without a base against unseen samples of another kind (seeds 0 to 14). "
    "*Refused*: the model does no better than guessing on them, so that there is no audit."
)
BASE = (
    "Models trained on 25 other samples, audited with the exact base, ten sets of 60 samples for each model, labelled as the model "
    "labels them. *Members*: training samples that are exact now, of those that resemble a proven candidate (correlation above 0.9), "
    "which was the rule before."
)
HIDDEN = (
    "MNIST, 784-200-100-2, attacked by unmixing; the attacked weights were trained on 40 other digits (seeds 0 to 4). Private digits are in "
    "a second branch of the model that was trained on them, in a second state of the file, or verbatim in its last batch (10 of 40)."
)
ALIKE = 0.9  # correlation with a proven candidate: the rule that called strangers exact
Said = Counter[tuple[str, str]]
Lines = list[str]


def changed(kind: str, private: Pair, unseen: Pair, other: Pair) -> tuple[Pair, Pair]:
    """The two sets, made unlike each other in one way."""
    (x, y), (x_unseen, y_unseen) = private, unseen
    if kind == "other file":
        return private, other
    if kind == "other class mix":
        kept = (y == 1) | (torch.arange(len(y)) % 3 == 0)
        return (x[kept], y[kept]), unseen
    if kind == "half zeros":
        x = x.clone()
        x[..., x.shape[-2] // 2 :, :] = 0
    if kind == "brighter":
        x = x + 0.1
    return (x, y), (x_unseen, y_unseen)


def blind(data: Path, audits: int) -> Said:
    said, each = Said(), max(1, audits // (2 * 2 * len(KINDS)))
    for name in ("cifar10", "mnist"):
        place = data / "mnist" if name == "mnist" else data
        test = read_source(f"{name}:{place}").test
        assert test is not None
        taken = test.take(test.balanced(2000, 0))
        members, pool = parts(samples(name, 4000, data), 60, 3940)
        mean = members[0].mean(0, keepdim=True)
        members, pool, others = (seen(pair, mean) for pair in (members, pool, (taken.x, taken.y)))
        d = members[0][0].numel()
        nets = (
            train(mlp(d, 500, 200, 1, first=1e-4), members, 600, 0.05),
            train(mlp(d, 300, 300, 1), members, 800, 0.1, 0.01),
        )
        for net in nets:
            found = attack(net)
            for kind in KINDS:
                for seed in range(each):
                    random = torch.Generator().manual_seed(seed)
                    at, there = (torch.randperm(len(p[1]), generator=random) for p in (pool, others))
                    private, unseen = ((pool[0][i], pool[1][i]) for i in at[: 2 * N].split(N))
                    other = others[0][there[:N]], others[1][there[:N]]
                    try:
                        verdict = audit(net, *changed(kind, private, unseen, other), candidates=found).verdict
                    except DataCheckError:
                        verdict = "refused"
                    said[kind, verdict] += 1
            print(f"{name}: {dict(said)}", flush=True)
    return said


# With a base ---------------------------------------------------------------------------------------------------


def records(groups: int, shares: tuple[float, ...]) -> Callable[[torch.Generator], Tensor]:
    """One-hot records: `groups` columns of as many values as there are shares."""

    def draw(random: torch.Generator) -> Tensor:
        codes = torch.multinomial(torch.tensor(shares), ROWS * groups, replacement=True, generator=random)
        return nn.functional.one_hot(codes.view(ROWS, groups), len(shares)).flatten(1).float()

    return draw


def counts(random: torch.Generator) -> Tensor:
    """Word counts: a few words in each text, some words in many texts."""
    return torch.poisson(0.7 * torch.rand(200, generator=random).pow(3).expand(ROWS, -1), generator=random)


def features(random: torch.Generator) -> Tensor:
    """As a ReLU leaves them, with something in common."""
    common = torch.randn(1, 200, generator=random)
    return (torch.randn(ROWS, 200, generator=random) + common - 0.3).clamp_min(0)


def correlated(random: torch.Generator) -> Tensor:
    """Columns that follow a few common causes, as measurements do."""
    few = torch.randn(ROWS, 8, generator=random)
    return 0.3 * torch.randn(ROWS, 60, generator=random) + few @ torch.randn(8, 60, generator=random) / 8**0.5


def tables() -> dict[str, Callable[[torch.Generator], Tensor]]:
    return {
        "records, 14 groups of 4, skewed": records(14, (0.7, 0.15, 0.1, 0.05)),
        "records, 14 groups of 4, even": records(14, (0.25, 0.25, 0.25, 0.25)),
        "records, 30 groups of 5, skewed": records(30, (0.5, 0.25, 0.15, 0.07, 0.03)),
        "word counts": counts,
        "features behind a ReLU": features,
        "measurements": correlated,
    }


def rows_of(kind: str, data: Path, seed: int) -> Tensor:
    """ROWS samples as a model sees them."""
    if kind in tables():
        return tables()[kind](torch.Generator().manual_seed(seed))
    name, classes = {"CIFAR-10": ("cifar10", None), "MNIST": ("mnist", None), "MNIST as given": ("mnist", "all")}[
        kind
    ]
    x = samples(name, ROWS, data, classes, seed)[0]
    return x if kind == "MNIST as given" else x - x.mean(0, keepdim=True)


def resembling(proven: Tensor, x: Tensor) -> int:
    """How many samples correlate with a proven candidate: the rule that called strangers exact."""
    if not len(proven):
        return 0
    return int((torch.stack([ncc(proven, each.expand_as(proven)).amax() for each in x]) > ALIKE).sum())


@dataclass(frozen=True)
class Audited:
    """Audits of strangers with one model."""

    records: list[Record]
    num_alike: int  # of them, with a stranger that resembles a proven candidate: leaks, by the rule before
    exact: int  # members …
    alike: int  # … and how many of these resemble one


def judged(case: Case, pool: Pool) -> Record:
    """As an audit judges what its attack found."""
    examined = examine(case, Policy())
    return concluded([measure(case, pool, Policy(), examined)], examined, Policy())[0]


def with_base(kind: str, data: Path, seed: int) -> Audited:
    torch.manual_seed(seed)
    x = rows_of(kind, data, seed)
    members = x[:MEMBERS]
    y = (torch.arange(MEMBERS) % 2)[torch.randperm(MEMBERS)]
    deep = (100,) if seed % 2 else ()  # one hidden layer, or two
    base = mlp(members[0].numel(), WIDTH, *deep, 2, seed=seed)
    model = train(copied(base), (members, y), 200, 0.05)
    # a record that equals a member's was trained on, whoever it belongs to
    far = torch.cdist(x[MEMBERS:].flatten(1), members.flatten(1)).amin(1) > 1e-4
    others = x[MEMBERS:][far]
    labels = model(others).argmax(1).detach()
    shape = tuple(members.shape[1:])
    own = case_of(model, (members, y), (others[:MEMBERS], labels[:MEMBERS]), base, input_shape=shape)
    pool = find_candidates(own, Auto(), None)
    proven = pool.blocks.take(pool.proven.nonzero()[:, 0])
    done, num_alike = [], 0
    for i in range(SETS):
        at = torch.randperm(len(others), generator=torch.Generator().manual_seed(i))[: 2 * N]
        private, unseen = ((others[part], labels[part]) for part in at.split(N))
        case = case_of(model, private, unseen, base, input_shape=shape)
        done.append(judged(case, pool))
        num_alike += resembling(proven, private[0]) > 0
    of_members = judged(own, pool)
    return Audited(done, num_alike, of_members.num_exact, resembling(proven, members))


def given_base(data: Path, audits: int) -> tuple[Said, Lines]:
    kinds = [*tables(), "CIFAR-10", "MNIST", "MNIST as given"]
    said = Said()
    columns = (
        "data",
        "leak",
        "inconclusive",
        "pass",
        "leak by the rule before",
        "exact private",
        "exact unseen",
        "members exact now, before",
    )
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for kind in kinds:
        runs = [with_base(kind, data, seed) for seed in range(max(1, -(-audits // (SETS * len(kinds)))))]
        records = [record for run in runs for record in run.records]
        said.update((kind, record.verdict) for record in records)
        numbers = (
            *(said[kind, verdict] for verdict in ("leak", "inconclusive", "pass")),
            sum(run.num_alike for run in runs),
            sum(record.num_exact for record in records),
            sum(record.num_exact_unseen for record in records),
        )
        members = f"{sum(run.exact for run in runs)} of {sum(run.alike for run in runs)}"
        lines.append(f"| {' | '.join((kind, *map(str, numbers), members))} |")
        print(lines[-1], flush=True)
    return said, lines


# In another part of the file -------------------------------------------------------------------------------------


class Branches(nn.Module):
    """Two stacks that both receive the samples; only one of them is attacked."""

    def __init__(self, a: nn.Module, b: nn.Module) -> None:
        super().__init__()
        self.a, self.b = a, b

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + 0.3 * self.b(x)


def elsewhere(place: str, first: nn.Module, second: nn.Module, batch: Tensor, folder: Path) -> Target | nn.Module:
    """A model whose attacked part was trained on other samples, and another part of it or of its file was not."""
    if place == "a second branch":
        return Branches(first, second)
    rest = {"teacher": second.state_dict()} if place == "a second state" else {"last_batch": batch}
    torch.save({"state_dict": first.state_dict(), **rest}, folder / "model.pt")
    return load_target(folder / "model.pt", Reading(input_shape=tuple(batch.shape[1:])))


def hidden(data: Path, seeds: int) -> tuple[Said, Lines]:
    """Samples that another part of the file was trained on, or holds: such an audit must not pass. And strangers."""
    said, places = Said(), ("a second branch", "a second state", "the last batch")
    for seed in range(seeds):
        x, y = samples("mnist", 400, data, None, seed)
        sets = parts((x - x.mean(0, keepdim=True), y), 40, 40, 80, 80)
        (private, others, unseen, strangers) = sets
        nets = [
            train(mlp(784, 200, 100, 2, seed=seed + i), pair, 300, 0.05)
            for i, pair in enumerate((others, private))
        ]
        for place in places:
            with TemporaryDirectory() as folder:
                model = elsewhere(
                    place, *nets, private[0][:10].clone(), Path(folder)
                )  # a slice would be saved with all of its storage
                for truth, given in (("private", private), ("strangers", parts(strangers, 40)[0])):
                    try:
                        verdict = audit(model, given, unseen, attack=Unmix(), input_shape=(1, 28, 28)).verdict
                    except DataCheckError:
                        verdict = "refused"
                    said[f"{truth}, {place}", verdict] += 1
    verdicts = ("leak", "inconclusive", "pass", "refused")
    lines = [
        f"| samples, and where the private ones are | {' | '.join(verdicts)} |",
        "|---" * (1 + len(verdicts)) + "|",
    ]
    kinds = [f"{truth}, {place}" for truth in ("private", "strangers") for place in places]
    lines += [f"| {kind} | {' | '.join(str(said[kind, verdict]) for verdict in verdicts)} |" for kind in kinds]
    print("\n".join(lines), flush=True)
    return said, lines


def rate(said: Said) -> str:
    leaks, total = sum(num for (_, verdict), num in said.items() if verdict == "leak"), sum(said.values())
    low, high = interval(leaks, total)
    return f"{leaks} false leaks in {total} audits: {leaks / total:.1%} ({low:.1%} to {high:.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("audits", type=int, nargs="?", default=300)
    parser.add_argument("--only", choices=("blind", "base", "hidden"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.only in (None, "blind"):
        said = blind(args.data, args.audits)
        verdicts = ("leak", "inconclusive", "pass", "refused")
        lines = [f"| strangers | {' | '.join(verdicts)} |", "|---" * (1 + len(verdicts)) + "|"]
        lines += [f"| {kind} | {' | '.join(str(said[kind, verdict]) for verdict in verdicts)} |" for kind in KINDS]
        write_section(
            "Strangers without a base: how many leaks are false?", [BLIND, "", *lines, "", rate(said)], CODE
        )
    if args.only in (None, "base"):
        said, lines = given_base(args.data, args.audits)
        write_section("Strangers with a base: how many leaks are false?", [BASE, "", *lines, "", rate(said)], CODE)
    if args.only in (None, "hidden"):
        said, lines = hidden(args.data, 5)
        write_section(
            "Samples in another part of the file: does anything pass unseen?", [HIDDEN, "", *lines], CODE
        )


if __name__ == "__main__":
    main()
