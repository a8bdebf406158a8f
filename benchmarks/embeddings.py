"""What embeddings give away: python benchmarks/embeddings.py MODEL NAMES [words] [texts] [strangers] [minilm] [many] [when]

MODEL is a folder with `model.safetensors` and `vocab.txt` of a BERT (all-MiniLM-L6-v2 was measured), NAMES a file with one full name
per line (the package `faker` makes them). Texts are the descriptions of Debian's packages, as `apt-cache dumpavail` prints
them. One core; `words`, `strangers` and `when` take minutes, `minilm` half an hour, `many` longer.
"""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from minilm import Bert, WordPiece, load
from page import SEEDS, spread, write_section
from unfit import attack, audit_ids
from unfit.attacker.embeddings import Pair, presence
from unfit.auditor.ids import judge_ids
from unfit.base.errors import NotApplicableError
from unfit.base.tables import Table
from unfit.base.words import Words

CODE = ("attacker/moved.py", "attacker/embeddings.py", "auditor/ids.py")
VOCABULARY, WIDTH, FEWEST = 5000, 64, 5  # of the small models; and words in a text
PLANTED = 40  # texts that name a person
Texts = list[list[int]]


def main(model: Path, names: Path, parts: list[str]) -> None:
    torch.set_num_threads(1)
    if "words" in parts:
        write_section("Embeddings: which words occurred", words(), CODE)
    if "texts" in parts:
        write_section(
            "Embeddings: whole texts", whole_texts(), (*CODE, "attacker/bags.py", "attacker/attacks/cone.py")
        )
    if "strangers" in parts:
        write_section("Embeddings: how many verdicts are false", strangers(), CODE)
    if "when" in parts:
        write_section("Embeddings: when a word was last used", when(), CODE)
    if "minilm" in parts:
        write_section("Embeddings: a fine-tuned MiniLM", minilm(model, names, 200), CODE)
    if "many" in parts:
        write_section("Embeddings: a fine-tuned MiniLM, 2,000 texts", minilm(model, names, 2000), CODE)


# Texts -----------------------------------------------------------------------------------------------------------


@cache
def descriptions() -> list[str]:
    printed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    return sorted(set(re.findall(r"^Description(?:-en)?: (.*)$", printed, re.M)))


def drawn(seed: int, num: int) -> list[str]:
    every = descriptions()
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(seed))
    return [every[i] for i in order[:num].tolist()]


@cache
def vocabulary() -> dict[str, int]:
    """The most frequent words of all descriptions, from 1 upwards."""
    counts = Counter(word for text in descriptions() for word in re.findall(r"[a-z]+", text.lower()))
    return {word: i for i, (word, _) in enumerate(counts.most_common(VOCABULARY - 1), 1)}


def numbered(texts: list[str]) -> Texts:
    ids = vocabulary()
    split = ([ids[word] for word in re.findall(r"[a-z]+", text.lower()) if word in ids] for text in texts)
    return [text for text in split if len(text) >= FEWEST]


def padded(texts: Texts) -> Tensor:
    return nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)


# Words -----------------------------------------------------------------------------------------------------------

Steps = Callable[[Any], torch.optim.Optimizer]
TRAININGS: dict[str, Steps] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.5),
    "SGD, momentum 0.9": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "SGD, weight decay 1e-3": lambda p: torch.optim.SGD(p, 0.5, weight_decay=1e-3),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
    "Adam": lambda p: torch.optim.Adam(p, 1e-3),
    "AdamW, 0.01": lambda p: torch.optim.AdamW(p, 1e-3, weight_decay=0.01),
    "AdamW, 0.1": lambda p: torch.optim.AdamW(p, 1e-3, weight_decay=0.1),
    "Adam, weight decay 1e-3 (no common factor)": lambda p: torch.optim.Adam(p, 1e-3, weight_decay=1e-3),
}


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(VOCABULARY, WIDTH, mode="mean", padding_idx=0)
        self.rest = nn.Sequential(nn.Linear(WIDTH, 100), nn.ReLU(), nn.Linear(100, 2))

    def forward(self, ids: Tensor) -> Tensor:
        return self.rest(self.words(ids))


def trained(texts: Texts, steps: Steps, seed: int, epochs: int = 10, batch: int = 20) -> tuple[Bag, Bag, Any]:
    torch.manual_seed(seed)
    base = Bag()
    model, ids = copy.deepcopy(base), padded(texts)
    y = torch.randint(2, (len(ids),))
    step = steps(model.parameters())
    for _ in range(epochs):
        for some in torch.randperm(len(ids)).split(batch):
            step.zero_grad()
            F.cross_entropy(model(ids[some]), y[some]).backward()
            step.step()
    return model, base, step


def by_row(weight: Tensor) -> Tensor:
    step = weight.abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
    return step * (weight / step).round()


STORED: dict[str, Callable[[Tensor], Tensor]] = {
    "float32": lambda weight: weight,
    "bfloat16": lambda weight: weight.bfloat16().float(),
    "float16": lambda weight: weight.half().float(),
    "int8, a scale per row": by_row,
}


def rates(ids: Tensor, true: set[int], rows: int) -> tuple[float, float]:
    """Percent of the ids that occurred that are found, and percent of the others."""
    found = set(ids.tolist())
    return 100 * len(found & true) / len(true), 100 * len(found - true) / (rows - len(true))


def words() -> Iterator[str]:
    yield f"`python benchmarks/embeddings.py MODEL NAMES words`: {VOCABULARY} words, mean of {WIDTH} values per word, a hidden layer of 100, 200"
    yield "package descriptions, batches of 20, 10 epochs, plain PyTorch; base known. *found*: percent of the words that occurred;"
    yield "*false*: percent of the others. Means over seeds 0, 1, 2 with the extremes."
    yield ""
    yield "| training | stored as | found, % | false, % |"
    yield "|---|---|---|---|"
    for name, steps in TRAININGS.items():
        made = [_trained(seed, steps) for seed in SEEDS]
        for stored, rounded in STORED.items():
            rows = [
                rates(presence(Pair(Table("words", rounded(after)), Table("words", before))).ids, true, VOCABULARY)
                for after, before, true in made
            ]
            found, false = zip(*rows, strict=True)
            line = f"| {name} | {stored} | {spread(found, digits=1)} | {spread(false, digits=2)} |"
            print(line, flush=True)
            yield line


def _trained(seed: int, steps: Steps) -> tuple[Tensor, Tensor, set[int]]:
    """The table after and before training, and the words that occurred."""
    texts = numbered(drawn(seed, 200))
    model, base, _ = trained(texts, steps, seed)
    after, before = (each.words.weight.detach() for each in (model, base))
    return after, before, {i for text in texts for i in text}


# Whole texts -----------------------------------------------------------------------------------------------------

DIMENSION, TEXTS_WIDTH, FREQUENT = 100, 200, 2000


def whole_texts() -> Iterator[str]:
    yield f"`python benchmarks/embeddings.py MODEL NAMES texts`: a bag of {DIMENSION} values for each of {FREQUENT} words, a hidden layer of"
    yield f'{TEXTS_WIDTH}, four classes, full-batch SGD; base known; `unfit.attack(model, "cone", base=base)`. *right*: texts whose words and numbers of'
    yield "words are exactly those of a candidate; *wrong*: candidates that are no text. Embeddings begin as fastText's do, uniform between"
    yield "±1/dimension, or as PyTorch's do, with variance 1. Means over seeds 0, 1, 2 with the extremes."
    yield ""
    yield "| pooling | initial weights | texts | right | wrong | with proof | verdict of the attack |"
    yield "|---|---|---|---|---|---|---|"
    for mode, rate in (("mean", 1.0), ("sum", 0.1)):
        for normal in (False, True):
            for num in (40, 60):
                rows = [_bag(mode, rate, normal, num, seed) for seed in SEEDS]
                counts = [spread([row[k] for row in rows]) for k in range(3)]
                said = "; ".join(dict.fromkeys(row[3] for row in rows))
                start = "PyTorch" if normal else "fastText"
                line = f"| {mode} | {start} | {num} | {' | '.join(counts)} | {said} |"
                print(line, flush=True)
                yield line


def _bag(mode: str, rate: float, normal: bool, num: int, seed: int) -> tuple[int, int, int, str]:
    texts = [[i for i in text if i < FREQUENT] for text in numbered(drawn(seed, 10 * num))]
    texts = list({tuple(sorted(text)): text for text in texts if len(text) >= FEWEST}.values())[:num]
    torch.manual_seed(seed)
    bag = nn.EmbeddingBag(FREQUENT, DIMENSION, mode=mode, padding_idx=0)
    if not normal:
        bag.weight.data.uniform_(-1 / DIMENSION, 1 / DIMENSION)
    base = nn.Sequential(bag, nn.Linear(DIMENSION, TEXTS_WIDTH), nn.ReLU(), nn.Linear(TEXTS_WIDTH, 4))
    model, ids, y = copy.deepcopy(base), padded(texts), torch.randint(4, (num,))
    step = torch.optim.SGD(model.parameters(), rate)
    for _ in range(500):
        step.zero_grad()
        F.cross_entropy(model(ids), y).backward()
        step.step()
    true = torch.zeros(num, FREQUENT)
    for i, text in enumerate(texts):
        true[i] = torch.bincount(torch.tensor(text), minlength=FREQUENT)
    try:
        found = attack(model, "cone", base=base)
    except NotApplicableError as error:
        return 0, 0, 0, str(error).partition(":")[2].strip()[:60]
    shares = found.x / found.x.sum(1, keepdim=True)
    near = (shares[:, None] - (true / true.sum(1, keepdim=True))).abs().amax(2) < 1e-3
    return int(near.any(0).sum()), int((~near.any(1)).sum()), int(found.proven.sum()), "finished"


# Verdicts --------------------------------------------------------------------------------------------------------


def strangers() -> Iterator[str]:
    yield "`python benchmarks/embeddings.py MODEL NAMES strangers`: the same models (AdamW 0.01), audited with the texts that they were trained"
    yield "on, and with texts that they were not trained on (as private and as unseen ones), 100 descriptions each, seeds 0 to 39."
    yield ""
    yield "| private texts | leak | inconclusive | rare words told, private / unseen |"
    yield "|---|---|---|---|"
    verdicts: dict[str, Counter[str]] = {"trained on": Counter(), "strangers": Counter()}
    told: dict[str, list[int]] = {"trained on": [0, 0], "strangers": [0, 0]}
    for seed in range(40):
        every = numbered(drawn(seed, 400))
        own, other, unseen = every[:100], every[100:200], every[200:300]
        model, base, _ = trained(own, TRAININGS["AdamW, 0.01"], seed, epochs=3)
        for name, private in (("trained on", own), ("strangers", other)):
            found = audit_ids(model, private, unseen, base=base)
            verdicts[name][found.verdict] += 1
            told[name] = [told[name][0] + len(found.ids), told[name][1] + found.num_moved_unseen]
    for name, counts in verdicts.items():
        line = f"| {name} | {counts['leak']} | {counts['inconclusive']} | {told[name][0]:,} / {told[name][1]:,} |"
        print(line, flush=True)
        yield line


# When ------------------------------------------------------------------------------------------------------------

BETA_1, BETA_2 = 0.9, 0.999


def when() -> Iterator[str]:
    yield "`python benchmarks/embeddings.py MODEL NAMES when`: Adam for one epoch of batches of 20, 200 descriptions, its state known. A row used"
    yield "once, s steps ago, has m²/v = (0.1 · 0.9ˢ)² / (0.001 · 0.999ˢ) in all values. *told*: percent of the words that occur in one batch"
    yield "alone whose values agree so; *right*: percent of these whose step is the true one; *others*: words of several batches that look"
    yield "the same. Words of one step are words of the same 20 texts."
    yield ""
    yield "| seed | words of one batch | told, % | right, % | others |"
    yield "|---|---|---|---|---|"
    for seed in SEEDS:
        line = f"| {seed} | {' | '.join(_when(seed))} |"
        print(line, flush=True)
        yield line


def _when(seed: int) -> list[str]:
    texts = numbered(drawn(seed, 200))
    order: list[Tensor] = []
    torch.manual_seed(seed)
    base = Bag()
    model, ids = copy.deepcopy(base), padded(texts)
    y, step = torch.randint(2, (len(ids),)), torch.optim.Adam(model.parameters(), 1e-3)
    for some in torch.randperm(len(ids)).split(20):
        order.append(ids[some])
        step.zero_grad()
        F.cross_entropy(model(ids[some]), y[some]).backward()
        step.step()
    state = step.state[model.words.weight]
    used = {
        i: [s for s, batch in enumerate(order) if (batch == i).any()] for i in {int(i) for i in ids.unique()} - {0}
    }
    once = {i: steps[0] for i, steps in used.items() if len(steps) == 1}
    m, v = state["exp_avg"].double(), state["exp_avg_sq"].double()
    ago = torch.log((m.square() / v) / ((1 - BETA_1) ** 2 / (1 - BETA_2))) / torch.log(
        torch.tensor(BETA_1**2 / BETA_2)
    )
    told = {
        i: len(order) - 1 - round(float(ago[i].median()))
        for i in used
        if float((ago[i] - ago[i].median()).abs().median()) < 0.05 and abs(float(ago[i].median()) % 1 - 0.5) > 0.4
    }
    right = sum(told.get(i) == s for i, s in once.items())
    shared = len(told.keys() & once.keys())
    return [
        str(len(once)),
        f"{100 * shared / len(once):.1f}",
        f"{100 * right / max(1, shared):.1f}",
        str(len(told.keys() - once.keys())),
    ]


# MiniLM ----------------------------------------------------------------------------------------------------------


def minilm(folder: Path, names: Path, num: int) -> Iterator[str]:
    yield f"`python benchmarks/embeddings.py MODEL NAMES {'minilm' if num == 200 else 'many'}`: all-MiniLM-L6-v2, fine-tuned by plain PyTorch as trainers do it: AdamW, learning rate"
    yield f"2e-5, weight decay 0.01, linear schedule, batches of 16, {num:,} package descriptions of which {PLANTED} name a person that `faker` made up."
    yield "*found*: percent of the ids that occurred, of 30,522; *false*: percent of the others. *names*: of those that are one id and that at"
    yield "most three texts have, how many are read off. *verdict*: `audit_ids` with as many unseen texts; *strangers*: the same with texts it was not trained on."
    yield ""
    yield "| epochs | seed | stored as | found, % | false, % | names | verdict | strangers |"
    yield "|---|---|---|---|---|---|---|---|"
    split, weights, people = WordPiece(folder), load(folder), names.read_text("utf-8").splitlines()
    for epochs in (1, 3) if num <= 200 else (1,):
        for seed in SEEDS if num <= 200 else SEEDS[:1]:
            every = drawn(seed, 3 * num)
            random = torch.Generator().manual_seed(seed)
            who = [people[i] for i in torch.randperm(len(people), generator=random)[: 3 * PLANTED].tolist()]
            for k, name in enumerate(who):
                at = (k // PLANTED) * num + k % PLANTED
                every[at] = f"{every[at]}, packaged by {name}"
            texts = [split(text) for text in every]
            own, other, unseen = texts[:num], texts[num : 2 * num], texts[2 * num :]
            model, base = finetuned(weights, own, seed, epochs)
            yield from _minilm_rows(split, model, base, (own, other, unseen), who[:PLANTED], epochs, seed)


def finetuned(weights: dict[str, Tensor], texts: Texts, seed: int, epochs: int) -> tuple[Bert, Bert]:
    torch.manual_seed(seed)
    base = Bert(weights)
    model, ids = copy.deepcopy(base), padded(texts)
    y = torch.randint(2, (len(ids),))
    decayed = [p for p in model.parameters() if p.ndim > 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0}]  # fmt: skip
    step = torch.optim.AdamW(groups, 2e-5)
    total = epochs * -(-len(ids) // 16)
    schedule = torch.optim.lr_scheduler.LambdaLR(step, lambda done: 1 - done / total)
    for _ in range(epochs):
        for some in torch.randperm(len(ids)).split(16):
            step.zero_grad()
            batch = ids[some]
            F.cross_entropy(model(batch[:, : int((batch != 0).sum(1).max())]), y[some]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            step.step()
            schedule.step()
    return model, base


def _minilm_rows(
    split: WordPiece,
    model: Bert,
    base: Bert,
    sets: tuple[Texts, Texts, Texts],
    who: list[str],
    epochs: int,
    seed: int,
) -> Iterator[str]:
    own, other, unseen = sets
    true = {i for text in own for i in text}
    rarely = Counter(i for text in own for i in set(text))
    single = [pieces[0] for name in who for part in name.lower().split() if len(pieces := split.split(part)) == 1]
    single = [i for i in dict.fromkeys(single) if rarely[i] <= 3]
    found = attack(model, "diary", base=base).facts["diary"]
    print(found[1]["sentence"], "| longest text:", max(map(len, own)), flush=True)
    before = base.embeddings["word_embeddings"].weight.detach()
    after = model.embeddings["word_embeddings"].weight.detach()
    for stored in ("float32", "bfloat16", "float16", "int8, a scale per row"):
        table = Table("word_embeddings", STORED[stored](after), padding=0)
        told = presence(Pair(table, Table("word_embeddings", before)))
        recall, false = rates(told.ids, true, len(before))
        seen = len(set(single) & set(told.ids.tolist()))
        sets = [list(map(frozenset, texts)) for texts in (own, other, unseen)]
        verdicts = [
            judge_ids(told, private, sets[2], Words(tuple(split.words)), 3).verdict for private in sets[:2]
        ]
        line = f"| {epochs} | {seed} | {stored} | {recall:.2f} | {false:.3f} | {seen} of {len(single)} | {' | '.join(verdicts)} |"
        print(line, flush=True)
        yield line


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(
            "usage: python benchmarks/embeddings.py MODEL NAMES PART…, of words, texts, strangers, when, minilm, many"
        )
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
