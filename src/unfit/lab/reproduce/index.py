"""The pages about all items: what was reproduced, and what changes at the papers' own size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from unfit.base.files import new_file, read_as, read_json, write_json
from unfit.lab.measurement import Passage, Table, markdown, older, store
from unfit.lab.reproduce.claims import Claim
from unfit.lab.reproduce.item import FILES, OTHERS, Item, Results, bold, joined, place_of, spent, text
from unfit.lab.reproduce.lab import FULL

HEAD = """# Reproduction of the papers' figures and tables

Each line is a claim of Haim et al. 2022 or Buzaglo et al. 2023, what the paper reports, what `unfit` measures, and
whether that agrees. A claim has a rule with a margin, which is what another draw of the samples may change: it
agrees or differs by that margin or more, and is too close to call in between. With several seeds, which draw the
samples and initial weights, numbers are means with the extremes in brackets; what the seeds do not agree on is too
close to call. Nets that fit less than 75% of their samples support no claim. A title leads to its text, with the
rules, the numbers of every target and their control on unseen samples. *good*: SSIM > 0.4 (Gaussian window 11; the
papers' code has window 3); *recovered*: above what 1% of unseen samples reach. Seconds of an item are of its first
seed, an upper bound if other work ran beside it, and include the targets and attacks that it shares with others.

"""
FULL_HEAD = """# The papers' claims, small and at the papers' own size

Each claim at small scale, which takes minutes, and at the sizes of the papers, if it was run. *seeds*: how many
draws of samples and initial weights there are; with several, numbers are means with the extremes in brackets.
*time*: what an item took at full size with its first seed, beside other work, with the targets and attacks that
it shares with others; of what was not run an estimate from operations counted, within a factor of three, or what
is missing. The attack sees the weights alone and does not seek the initial ones. [All claims](index.md) has the
rules.

"""
NOT_RUN = "not-run.json"
BySeed = Sequence[Results]


def write_pages(out: Path, items: Iterable[Item]) -> None:
    """`index.md`, all texts and, if anything was run at full scale, `full.md`: from what is stored."""
    small, full = {}, {}
    for item in items:
        if (out / item.name / FILES[0]).is_file():
            first, *others = stored(out, item)
            seeds = [first, *(each for each in others if each.scale == first.scale)]
            small[item.name] = seeds
            full[item.name] = [each for each in others if each.scale == FULL.name]
            _write(out / item.name / "text.md", text(seeds, item, full[item.name]))
    _write(out / "index.md", HEAD + markdown(_summary(list(small.values()))))
    if any(full.values()):
        reasons = read_json(out / OTHERS / NOT_RUN) if (out / OTHERS / NOT_RUN).is_file() else {}
        _write(out / "full.md", FULL_HEAD + markdown(_against(small, full, reasons)))


def stored(out: Path, item: Item) -> list[Results]:
    """What there is of an item: the one with the figure, then other scales and seeds, by the same first attack."""
    first = read_as(Results, out / item.name / FILES[0])
    others = [read_as(Results, path) for path in sorted(out.glob(f"{OTHERS}/*/{item.name}.json"))]
    return [first, *(each for each in others if each.attacks[0] == first.attacks[0])]


def collect(source: Path, out: Path, items: Sequence[Item], reason: Callable[[Item], str]) -> int:
    """Take over what another run has measured, with other seeds or at full scale; how many items that are.

    `reason` says why an item was never run at full scale.
    """
    count, scales = 0, set()
    for item in items:
        if not (path := source / item.name / FILES[0]).is_file():
            continue
        results = read_as(Results, path)
        scales.add(results.scale)
        place = place_of(out, item, results.scale, results.seed)
        if place.suffix == ".json":  # no figure is replaced
            store(results, place)
            count += 1
    if count and FULL.name in scales:
        never = [item for item in items if not any(out.glob(f"{OTHERS}/{FULL.name}-*/{item.name}.json"))]
        write_json(out / OTHERS / NOT_RUN, {item.name: reason(item) for item in never})
    return count


def _write(path: Path, content: str) -> None:
    with new_file(path, force=True) as file:
        file.write_text(content, encoding="utf-8")


def counted(claims: Iterable[Claim]) -> str:
    count = Counter(claim.verdict for claim in claims)
    return (
        f"{count['agrees']} agree, {count['differs']} differ, {count['too close to call']} are too close to call"
    )


# index.md -------------------------------------------------------------------------------------------------------


def _summary(found: list[BySeed]) -> list[Passage]:
    claims = [claim for seeds in found for claim in joined(seeds)]
    total = spent(measured for seeds in found for measured in seeds[0].measured)
    lines = [_how_many_seeds(found)]
    for scale in sorted({seeds[0].scale for seeds in found}):
        machines = sorted({seeds[0].machine for seeds in found if seeds[0].scale == scale})
        lines.append(f"Scale `{scale}`: {'; '.join(machines)}.")
    lines += older(*(each for seeds in found for each in seeds))
    table = Table(
        columns=("item", "claim", "paper", "ours", "verdict", "by", "seeds", "", "command", "seconds"),
        rows=tuple(row for seeds in found for row in _rows(seeds)),
    )
    first = f"{len(found)} items, {len(claims)} claims: {counted(claims)}; {total / 60:.0f} minutes."
    return [[first], lines, table]


def _how_many_seeds(found: Iterable[BySeed]) -> str:
    counts = sorted(Counter(len(seeds) for seeds in found).items())
    return " ".join(f"{items} items with {num} {'seed' if num == 1 else 'seeds'}." for num, items in counts)


def _rows(seeds: BySeed) -> list[tuple[str, ...]]:
    results = seeds[0]
    image = f"[<img src='{results.name}/figure.png' width='120'>]({results.name}/figure.png)"
    rows: list[tuple[str, ...]] = []
    for i, claim in enumerate(joined(seeds)):
        first, last = (f"[{results.title}]({results.name}/text.md)", image) if i == 0 else ("", "")
        ends = (f"`{results.command}`", f"{results.seconds:.0f}") if i == 0 else ("", "")
        found = (claim.claim, claim.paper, claim.ours, bold(claim.verdict), claim.by, str(claim.num_seeds))
        rows.append((first, *found, last, *ends))
    return rows


def _time(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


# full.md --------------------------------------------------------------------------------------------------------


def _against(small: Mapping[str, BySeed], full: Mapping[str, BySeed], reasons: Mapping[str, str]) -> list[Passage]:
    both = {name: (joined(small[name]), joined(seeds)) for name, seeds in full.items() if seeds}
    every = sum(len(joined(seeds)) for seeds in small.values())
    before, after = ([claim for pair in both.values() for claim in pair[i]] for i in (0, 1))
    changed = [
        f"- {small[name][0].title.partition(':')[0]} of {name.partition('/')[0]}, {b.claim}: "
        f"{bold(a.verdict)} small, {bold(b.verdict)} at full size"
        for name, claims in both.items()
        for a, b in zip(*claims, strict=True)
        if a.verdict != b.verdict
    ]
    total = spent(measured for seeds in full.values() if seeds for measured in seeds[0].measured)
    words = (
        f"{len(both)} of {len(small)} items and {len(after)} of {every} claims were run at full size, in "
        f"{total / 3600:.1f} hours. Of these {counted(after)}; at small scale {counted(before)}. "
        f"{_how_many_seeds(seeds for seeds in full.values() if seeds)} "
        f"{len(changed)} verdicts change{':' if changed else '.'}"
    )
    rows: list[tuple[str, ...]] = []
    for name, seeds in small.items():
        for i, claim in enumerate(joined(seeds)):
            first = f"[{seeds[0].title}]({name}/text.md)" if i == 0 else ""
            cells = [first, claim.claim, claim.paper, claim.ours, bold(claim.verdict), str(claim.num_seeds)]
            if name in both:
                large = both[name][1][i]
                which = "" if large.claim == claim.claim else f"{large.claim.partition(':')[0]}: "
                cells += [which + large.ours, bold(large.verdict), str(large.num_seeds)]
            else:
                cells += ["not run", "", ""]
            time = _time(full[name][0].seconds) if name in both else reasons.get(name, "")
            rows.append((*cells, time if i == 0 else ""))
    columns = ("item", "claim", "paper", "small", "verdict", "seeds", "full size", "verdict", "seeds", "time")
    return [[words], changed, Table(columns=columns, rows=tuple(rows))]
