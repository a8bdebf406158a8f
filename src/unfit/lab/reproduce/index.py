"""The page that lists what was reproduced: claim, paper, ours, verdict, picture, command, seconds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from unfit.base.files import new_file, read_as
from unfit.lab.reproduce.item import Results, bold, row

HEAD = """# Reproduction of the papers' figures and tables

Each line is a claim of Haim et al. 2022 or Buzaglo et al. 2023, what the paper reports, what `unfit` measures, and
whether that agrees. A claim has a rule with a margin, which is what another draw of the samples may change: it
agrees or differs by that margin or more, and is too close to call in between. Nets that fit less than 75% of their
samples support no claim. A title leads to its text, with the rules, the numbers of every target and their control
on unseen samples. *good*: SSIM > 0.4 (Gaussian window 11; the papers' code has window 3); *recovered*: above what
1% of unseen samples reach. Seconds of an item include the targets and attacks that it shares with others. One draw
of the samples (seed 0): means over three seeds of the main targets are in [results.md](../results.md).

"""


def write_index(folder: Path, names: list[str]) -> None:
    """`index.md`, from the results that are there, in the order of the names."""
    found = [read_as(Results, path) for name in names if (path := folder / name / "results.json").is_file()]
    with new_file(folder / "index.md", force=True) as file:
        file.write_text(HEAD + "\n".join(_summary(found)) + "\n", encoding="utf-8")


def _summary(found: list[Results]) -> list[str]:
    claims = [claim for results in found for claim in results.claims]
    count = Counter(claim.verdict for claim in claims)
    total = sum(results.seconds for results in found)
    lines = [
        f"{len(found)} items, {len(claims)} claims: {count['agrees']} agree, {count['differs']} differ, "
        f"{count['too close to call']} are too close to call; {total / 60:.0f} minutes.",
        "",
    ]
    for scale in sorted({results.scale for results in found}):
        machines = sorted({results.machine for results in found if results.scale == scale})
        lines.append(f"Scale `{scale}`: {'; '.join(machines)}.")
    lines += [
        "",
        "| item | claim | paper | ours | verdict | by | | command | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    return lines + [row for results in found for row in _rows(results)]


def _rows(results: Results) -> list[str]:
    picture = f"[<img src='{results.name}/figure.png' width='120'>]({results.name}/figure.png)"
    rows = []
    for i, claim in enumerate(results.claims):
        first, last = (f"[{results.title}]({results.name}/text.md)", picture) if i == 0 else ("", "")
        ends = (f"`{results.command}`", f"{results.seconds:.0f}") if i == 0 else ("", "")
        rows.append(row(first, claim.claim, claim.paper, claim.ours, bold(claim.verdict), claim.by, last, *ends))
    return rows
