"""Every figure and table: all of them, small enough for a test; a few as a user runs them."""

from __future__ import annotations

import base64
import gzip
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
import skimage.data
import torch
from PIL import Image

from unfit import Audit, UnfitError, read_source
from unfit.base.files import read_as, read_json, write_json
from unfit.lab.measurement import hash_of
from unfit.lab.reproduce import draw
from unfit.lab.reproduce.buzaglo2023 import (
    BASELINE,
    BY_CLASS,
    FIXED,
    LARGE,
    beyond_unseen,
    dip,
    fewer_channels,
    more_with_decay,
)
from unfit.lab.reproduce.catalogue import ITEMS, chosen
from unfit.lab.reproduce.claims import (
    Verdict,
    come_back,
    come_back_counts,
    dozens,
    dozens_counts,
    few,
    harder,
    judge,
    leaks,
    on_margin,
    on_margin_of,
    over_seeds,
    over_words,
)
from unfit.lab.reproduce.haim2022 import N50, N100, N500, SGD
from unfit.lab.reproduce.index import collect, stored, write_pages
from unfit.lab.reproduce.item import FILES, OTHERS, Results, joined, make, place_of, text
from unfit.lab.reproduce.lab import FULL, SMALL, Lab, Scale, Setup, describe
from unfit.lab.settings import FitSettings

TINY = Scale("tiny", {}, 40, 10, 60, trials=1, iterations=2, values=3, inversions=20, most_samples=20)
DOCS = Path(__file__).parents[2] / "docs" / "reproduction"
MOST_BYTES = 15_000_000


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory) -> Path:
    """Pieces of photographs and digits, in the official layouts of CIFAR-10 and MNIST."""
    folder = tmp_path_factory.mktemp("data")
    photographs = (getattr(skimage.data, name)() for name in ("astronaut", "chelsea", "coffee", "rocket"))
    pieces = [
        image[i : i + 32, j : j + 32].transpose(2, 0, 1).reshape(-1)
        for image in photographs
        for i in range(0, image.shape[0] - 31, 32)
        for j in range(0, image.shape[1] - 31, 32)
    ]
    records = np.stack([np.concatenate([[i % 10], piece]) for i, piece in enumerate(pieces)]).astype(np.uint8)
    (folder / "cifar-10-batches-bin").mkdir()
    for name, half in (("data_batch_1", records[::2]), ("test_batch", records[1::2])):
        half[:, 0] = np.arange(len(half)) % 10
        half.tofile(folder / "cifar-10-batches-bin" / f"{name}.bin")
    digits = read_source("mnist5k", "all").train
    (folder / "mnist").mkdir()
    for name, part in (("train", slice(0, None, 2)), ("t10k", slice(1, None, 2))):
        images, labels = digits.raw[part, 0], digits.labels[part].astype(np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = np.array([0x800 + array.ndim, *array.shape], ">u4").tobytes()
            (folder / "mnist" / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes(), 1))
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_all_figures_and_tables_are_there():
    haim = [f"haim2022/fig{i}" for i in range(1, 22)] + ["haim2022/table1", "haim2022/table2"]
    buzaglo = [f"buzaglo2023/fig{i}" for i in (3, 4, 5, 6, *range(8, 18))]
    assert sorted(item.name for item in ITEMS) == sorted(haim + buzaglo)


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_every_item_is_made_whole(item, data_dir, cache, tmp_path):
    lab = Lab(cache, TINY, ("paper",), data_dir)
    results = make(item, lab, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(FILES)
    assert read_as(Results, tmp_path / "out" / "results.json") == results
    assert results.claims
    assert all(claim.ours and claim.by for claim in results.claims)
    assert len(results.measured) >= 1
    with Image.open(tmp_path / "out" / "figure.png") as image:
        assert min(image.size) > 50
    assert ET.parse(tmp_path / "out" / "figure.svg").getroot().tag.endswith("svg")
    text = (tmp_path / "out" / "text.md").read_text("utf-8")
    assert all(claim.ours in text for claim in results.claims)
    asked = {describe(lab.size(setup)) for setup in item.targets}
    assert {measured.target for measured in results.measured} <= asked  # nothing that its cost leaves out


def test_attacks_stand_side_by_side(data_dir, cache, tmp_path):
    lab = Lab(cache, TINY, ("unmix", "paper"), data_dir)
    results = make(chosen("haim2022/fig1")[0], lab, tmp_path / "out")
    assert [measured.attack for measured in results.measured] == ["unmix", "paper"]
    svg = (tmp_path / "out" / "figure.svg").read_text("utf-8")
    assert "unmix: the best" in svg
    assert "paper: the best" in svg


def test_the_papers_sweep_runs_once(data_dir, tmp_path):
    lab = Lab(tmp_path / "cache", replace(TINY, trials=2), ("paper",), data_dir)
    first = lab.audit(N50)
    trials = sorted((tmp_path / "cache" / "sweeps").glob("*/trials/*"))
    before = [path.stat().st_mtime_ns for path in trials]
    assert len(trials) in (1, 2)  # a random setting may diverge
    assert first.record.sweep is not None
    assert sum(first.record.sweep.num_trials.values()) == 2
    again = Lab(tmp_path / "cache", replace(TINY, trials=2), ("paper",), data_dir).audit(N50)
    assert again.record == first.record
    assert [path.stat().st_mtime_ns for path in trials] == before


def test_the_papers_sweep_runs_on_a_cluster(data_dir, tmp_path):
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        scale = replace(TINY, trials=2)
        found = Lab(tmp_path / "cache", scale, ("paper",), data_dir, ray=cluster.address).audit(N50)
    finally:
        cluster.shutdown()
    assert found.record.sweep is not None
    assert sum(found.record.sweep.num_trials.values()) == 2


def test_a_scale_keeps_what_a_caption_says():
    assert FULL.shrunk(N500) == N500
    small = SMALL.shrunk(SGD)
    assert small.n < SGD.n
    assert abs(small.fit.batch / small.n - SGD.fit.batch / SGD.n) < 0.01  # as many steps an epoch
    three = SMALL.shrunk(Setup(500, classes="3", fit=FitSettings(loss="ce")))
    assert three.n % 3 == 0
    wide = SMALL.shrunk(Setup(500, arch="conv(3,32)-1000"))
    assert wide.arch == f"conv(3,32)-{SMALL.conv_width}"


def test_figures_share_their_nets():
    """One that several figures name is trained and attacked once, whatever else they say of a smaller scale."""
    assert FULL.shrunk(BY_CLASS[10]) == FULL.shrunk(FIXED[10]) == FULL.shrunk(BASELINE["ten"])
    assert FULL.shrunk(BASELINE["two"]) == N100


def test_fig17_reads_cifar100_where_it_is(tmp_path):
    (tmp_path / "cifar-100-binary").mkdir()
    random = np.random.default_rng(0)
    for name in ("train", "test"):
        fine = np.arange(600) % 100
        records = np.column_stack([fine // 5, fine, random.integers(0, 256, (600, 3072))]).astype(np.uint8)
        records.tofile(tmp_path / "cifar-100-binary" / f"{name}.bin")
    lab = Lab(tmp_path / "cache", replace(TINY, width=10, most_steps=2), ("paper",), tmp_path)
    results = make(chosen("buzaglo2023/fig17")[0], lab, tmp_path / "out")
    assert results.notes == []
    assert [(measured.data, measured.n) for measured in results.measured] == [("cifar100", 200)]


def test_fig17_says_what_stands_in_for_cifar100(data_dir, cache, tmp_path):
    results = make(chosen("buzaglo2023/fig17")[0], Lab(cache, TINY, ("paper",), data_dir), tmp_path / "out")
    assert "CIFAR-100 was not given: this is CIFAR-10, 40-40, n=20" in results.notes[0]
    made = Lab(cache, FULL, data_dir=data_dir).size(LARGE)
    assert (made.data, made.n, made.arch, made.num_classes) == ("cifar10", 5000, "2000-2000", 10)


def test_another_seed_is_another_target(data_dir, cache):
    one, other = (Lab(cache, TINY, ("paper",), data_dir, seed=seed).run(N50) for seed in (0, 1))
    assert one != other


def test_a_table_needs_no_attack(data_dir, cache, tmp_path):
    results = make(chosen("haim2022/table2")[0], Lab(cache, TINY, ("paper",), data_dir), tmp_path / "out")
    assert {measured.attack for measured in results.measured} == {None}


def test_claims_can_fail(face_audit: Audit):
    size = face_audit.arrays["output"].abs()

    def with_similarity(values: torch.Tensor) -> Audit:
        return replace(face_audit, arrays=face_audit.arrays | {"ssim": values})

    near = on_margin(with_similarity(-size), "near")
    far = on_margin(with_similarity(size), "far")
    assert (near.verdict, near.num_seeds) == ("agrees", 1)
    assert "1.00" in near.ours
    assert far.verdict == "differs"
    good = face_audit.record.num_good
    for p, verdict in ((1e-3, "agrees"), (0.05, "too close to call"), (0.5, "differs")):
        assert leaks(changed(face_audit, p_value=p), "", "").verdict == verdict
    for most, verdict in ((good - 2, "differs"), (good, "too close to call"), (good + 2, "agrees")):
        assert few(face_audit, "", "", most).verdict == verdict
    assert come_back(face_audit, "", "").verdict == "agrees"
    assert come_back(changed(face_audit, num_good=1, num_good_unseen=0), "", "").verdict == "too close to call"
    assert come_back(changed(face_audit, num_good=0, num_good_unseen=0), "", "").verdict == "differs"
    digits = changed(face_audit, num_good=0, num_good_unseen=0, num_recognisable=20, num_recognisable_unseen=1)
    for claim in (come_back, dozens):  # digits are legible and not good
        assert claim(digits, "", "").verdict == "differs"
        legible = claim(digits, "", "", "legible")
        assert legible.verdict == "agrees"
        assert legible.ours.startswith("20 of 40 legible, 1 on unseen")
        assert "correlation of edges above 0.6" in legible.rule
    assert come_back_counts("", "", 838, 5000, 729, 53).verdict == "too close to call"  # most are near by chance
    assert come_back_counts("", "", 60, 5000, 20, 53).verdict == "agrees"


def changed(audit: Audit, **fields: object) -> Audit:
    return replace(audit, record=audit.record.model_copy(update=fields))


def test_a_net_that_is_not_trained_supports_no_claim(face_audit: Audit):
    output = face_audit.arrays["output"].clone()
    output[::2] = 0  # dead: that is neither side, though a tie would be called the first class
    dead = replace(face_audit, arrays=face_audit.arrays | {"output": output})
    for claim in (come_back, leaks, dozens):
        assert claim(face_audit, "", "").verdict == "agrees"
        found = claim(dead, "", "")
        assert (found.verdict, found.by) == ("too close to call", "not trained: 50% of its samples fitted")


def test_thin_agreements_are_too_close_to_call():
    """Cases that once counted as agreements."""
    assert more_with_decay("ten", {7.2e-3: 40, 0.1: 30}, 39, 40).verdict == "too close to call"
    assert more_with_decay("two", {8.5e-4: 40}, 31, 40).verdict == "agrees"
    assert more_with_decay("two", {8.5e-4: 31}, 40, 40).verdict == "differs"
    assert more_with_decay("two", {}, 31, 40).verdict == "too close to call"
    assert dozens_counts("", "", 2, 120, 0, 36).verdict == "differs"
    assert dozens_counts("", "", 7, 120, 0, 36).verdict == "too close to call"
    assert dozens_counts("", "", 64, 120, 1, 66).verdict == "agrees"
    grid = {(3, 4): 19, (3, 32): 15, (9, 4): 1, (9, 32): 3, (32, 32): 20}  # (32, 4) is not trained
    fewer = fewer_channels(grid, 4, 32, 20)
    assert fewer.verdict == "too close to call"
    assert fewer.ours == "18 of 40 good beyond unseen with 32, 20 with 4 (kernels 3, 9)"
    assert dip(grid, (3, 9, 32), 20).verdict == "agrees"
    assert dip({(3, 4): 19, (9, 4): 1}, (3, 9, 32), 20).verdict == "too close to call"
    few, most = SimpleNamespace(num_good=10, num_good_unseen=12), SimpleNamespace(num_good=64, num_good_unseen=37)
    assert [beyond_unseen(SimpleNamespace(record=record)) for record in (few, most)] == [0, 27]
    assert harder((50, 200), (40, 64)).verdict == "agrees"
    assert harder((50, 200), (20, 70)).verdict == "too close to call"
    assert harder((50, 200), (20, 160)).verdict == "differs"
    assert [judge(value, 5, 2) for value in (7, 6, 5, 3)] == ["agrees", *["too close to call"] * 2, "differs"]
    assert judge(5, 5, 0) == "too close to call"


def test_pictures_in_a_drawing_are_light_and_the_same(tmp_path):
    figure = draw.gallery(torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(0)), "some", 4)
    draw.save(figure, tmp_path)
    (inside,) = re.findall(r"base64,([\w+/=\s]+)", (tmp_path / "figure.svg").read_text("utf-8"))
    image = Image.open(io.BytesIO(base64.b64decode(inside)))
    assert image.mode == "P"
    assert (np.asarray(image.convert("RGB")) == figure.axes[0].images[0].get_array()).all()


def test_a_legend_says_which_colour_several_classes_have(face_audit: Audit):
    three = changed(face_audit, class_names=["a", "b", "c"])
    first, second = face_audit.record.class_names
    for panels, words in (
        ([face_audit], [first, second]),
        ([three], ["samples"]),
        ([face_audit, three], [f"{first}; of several classes, all", second]),
    ):
        (legend,) = draw.scatter([("", audit) for audit in panels]).legends
        assert [text.get_text() for text in legend.get_texts()][:-2] == words


def test_seeds_are_told_together():
    assert (
        over_words(["64 of 120 good, -0.5", "58 of 120 good, 0.25"])
        == "61.0 (58–64) of 120 good, -0.12 (-0.5–0.25)"
    )
    assert over_words(["77.5%", "76%"]) == "76.8 (76–77.5)%"
    assert over_words(["none", "0.1: 3 recovered", "none"]) == "none; 0.1: 3 recovered"
    claims = [dozens_counts("", "", good, 120, 0, good) for good in (64, 58, 7)]
    same, mixed = over_seeds(claims[:2]), over_seeds(claims)
    assert (same.verdict, same.by, same.num_seeds) == ("agrees", "2 of 2 agree", 2)
    assert (mixed.verdict, mixed.by) == ("too close to call", "2 of 3 agree, 1 of 3 too close to call")
    assert over_seeds(claims[:1]) == claims[0]
    best = [on_margin_of(f"weight decay {decay}", 0.5, 1e-3) for decay in (0.01, 0.03)]
    assert over_seeds(best).claim.startswith("weight decay 0.02 (0.01–0.03): ")


def test_another_seed_is_stored_beside_the_first(data_dir, cache, tmp_path):
    item = chosen("haim2022/fig17")[0]
    found = []
    for seed in (0, 1):
        lab = Lab(cache, TINY, ("paper",), data_dir, seed=seed)
        found.append(make(item, lab, place_of(tmp_path, item, TINY.name, seed)))
        write_pages(tmp_path, ITEMS)
    first, other = found
    assert read_as(Results, tmp_path / "others" / "tiny-1" / "haim2022" / "fig17.json") == other
    assert read_as(Results, tmp_path / item.name / "results.json") == first
    assert place_of(tmp_path, item, TINY.name, 0) == tmp_path / item.name
    means = over_words([f"{results.measured[0].test_accuracy:.1%}" for results in found])
    text = (tmp_path / item.name / "text.md").read_text("utf-8")
    assert f"| {means} |" in text
    assert "seeds 0, 1" in text
    assert over_words([results.claims[0].ours for results in found]) in (tmp_path / "index.md").read_text("utf-8")


def test_what_was_run_at_full_size_is_collected(run, data_dir, cache, tmp_path):
    item = chosen("haim2022/fig17")[0]
    out, away = tmp_path / "out", tmp_path / "away"
    for other in (item, chosen("haim2022/fig1")[0]):
        make(other, Lab(cache, TINY, ("paper",), data_dir), out / other.name)
    small = read_as(Results, out / item.name / "results.json")
    claim = small.claims[0].model_copy(update={"claim": "n=10: another", "ours": "much more", "verdict": "agrees"})
    full = small.model_copy(update={"scale": "full", "claims": [claim], "seconds": 7200.0})
    (away / item.name).mkdir(parents=True)
    write_json(away / item.name / "results.json", full.model_dump(mode="json"))
    before = (out / item.name / "figure.png").read_bytes()
    assert collect(away, out, ITEMS, lambda item: "about 2 days") == 1
    write_pages(out, ITEMS)
    page = (out / "full.md").read_text("utf-8")
    assert "1 of 2 items and 1 of 2 claims were run at full size, in 0.0 hours." in page
    assert f"| {small.claims[0].ours} | **too close to call** | 1 | n=10: much more | agrees | 1 |" in page
    assert "| 120 min |" in page
    assert "| not run |  |  | about 2 days |" in page
    assert "| n=10: another |" in (out / item.name / "text.md").read_text("utf-8").partition("own size")[2]
    assert (out / item.name / "figure.png").read_bytes() == before
    assert collect(away, away, ITEMS, lambda item: "") == 0  # its own
    code, printed, _ = run("reproduce", "--collect", str(away), "--out", str(out), "--data-dir", str(data_dir))
    assert (code, printed.startswith("1 items of")) == (0, True)
    assert "| not run |  |  | about " in (out / "full.md").read_text("utf-8")
    assert '"buzaglo2023/fig17": "about ' in (out / "others" / "not-run.json").read_text("utf-8")
    assert item.why_not_run(Lab(cache, FULL, data_dir=away)) == "needs CIFAR-10"
    other = full.model_copy(update={"seed": 1, "name": "haim2022/fig1"})
    (tmp_path / "second" / "haim2022" / "fig1").mkdir(parents=True)
    write_json(tmp_path / "second" / "haim2022" / "fig1" / "results.json", other.model_dump(mode="json"))
    assert collect(tmp_path / "second", out, ITEMS, lambda item: "about 2 days") == 1
    missing = read_json(out / "others" / "not-run.json")
    assert not {"haim2022/fig1", item.name} & missing.keys()  # another seed of them was run


def test_a_page_says_what_code_has_changed_since():
    item = chosen("haim2022/fig17")[0]
    found = read_as(Results, DOCS / item.name / "results.json")
    assert "Older" not in text([found], item)
    other = found.model_copy(update={"code": {"lab/fit.py": hash_of("lab/fit.py"), "attacker": "0"}})
    assert "`. Older than the code: attacker changed since.\n" in text([found, other], item)


def test_without_data_a_substitute_or_a_sentence(tmp_path):
    lab = Lab(tmp_path / "cache")
    assert lab.source_name(N50) == "faces"
    assert "CIFAR-10 was not given" in lab.notes[0]
    with pytest.raises(UnfitError, match=r"CIFAR-10: get .*kriz/cifar.html.* `data_dir` or UNFIT_DATA"):
        make(chosen("haim2022/fig4")[0], lab, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_cost_grows_with_the_papers_own_method():
    item = chosen("haim2022/fig1")[0]
    by = {attack: item.full_seconds(Lab(Path("cache"), FULL, (attack,))) for attack in ("paper", "auto")}
    assert by["paper"] > 100 * by["auto"] > 0


def test_the_cost_is_that_of_what_stands_in(tmp_path):
    item, without = chosen("buzaglo2023/fig17")[0], Lab(tmp_path, FULL, data_dir=tmp_path)
    seconds = item.full_seconds(without)
    (tmp_path / "cifar-100-binary").mkdir()
    assert item.full_seconds(without) > 10 * seconds


def test_list(run):
    code, printed, _ = run("reproduce", "--list")
    lines = printed.splitlines()
    assert code == 0
    assert len(lines) == len(ITEMS)
    assert all(item.name in line and item.title in line for item, line in zip(ITEMS, lines, strict=True))


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((), 64, "--list shows all"),
        (("haim2022/fig99",), 64, "unknown figure or table 'haim2022/fig99'"),
        (("haim2022/fig1", "--ray", "auto"), 64, "leave it out"),
        (("haim2022/fig1", "--scale", "huge"), 64, "huge"),
        (("haim2022/fig1", "--data-dir", "/no/such/place"), 2, "/no/such/place"),
        (("buzaglo2023/fig10",), 2, "kriz/cifar.html"),
    ],
)
def test_wrong_usage(run, words, code, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNFIT_DATA", raising=False)
    found, _, error = run("reproduce", *words)
    assert (found, message in error.replace("`unfit reproduce --list`", "--list")) == (code, True)
    assert not (tmp_path / "reproduction" / "haim2022").exists()


def test_killed_it_goes_on_where_it_was(run, tmp_path, monkeypatch):
    """The tenth figure of standard init: 10 faces, seconds to train and to attack."""
    monkeypatch.delenv("UNFIT_DATA", raising=False)
    words = ("reproduce", "haim2022/fig17", "--out", str(tmp_path / "out"))
    process = subprocess.Popen([Path(sys.executable).with_name("unfit"), *words])
    targets = tmp_path / "out" / "cache" / "targets"
    while not (targets.is_dir() and [path for path in targets.iterdir() if not path.name.startswith(".")]):
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    (trained,) = (path for path in targets.iterdir() if not path.name.startswith("."))
    before = trained.stat().st_mtime_ns
    assert not (tmp_path / "out" / "haim2022" / "fig17").exists()

    code, printed, error = run(*words)
    assert (code, error) == (0, "")
    assert "CIFAR-10 was not given" in printed
    assert any(verdict in printed.lower() for verdict in get_args(Verdict))
    assert trained.stat().st_mtime_ns == before
    assert "fig17" in (tmp_path / "out" / "index.md").read_text("utf-8")

    code, _, error = run(*words)
    assert code == 2
    assert "exists already" in error
    code, printed, _ = run(*words, "--force")
    assert code == 0


def stored_seeds(out, item):
    first, *others = stored(out, item)
    return [first, *(each for each in others if each.scale == first.scale)]


class TestCommitted:
    """docs/reproduction: what is there was made by all that is here."""

    @pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
    def test_every_item(self, item):
        results = read_as(Results, DOCS / item.name / "results.json")
        assert (results.name, results.title, results.scale) == (item.name, item.title, "small")
        kept = set(FILES) - {"figure.svg"}  # one figure is enough here
        assert {path.name for path in (DOCS / item.name).iterdir()} == kept
        assert item.seconds < 300  # alone on the machine

    def test_small_enough_and_indexed(self, tmp_path):
        files = [path for item in ITEMS for path in (DOCS / item.name).iterdir()]
        assert sum(path.stat().st_size for path in files) < MOST_BYTES
        for item in ITEMS:
            (tmp_path / item.name).mkdir(parents=True)
            (tmp_path / item.name / "results.json").write_bytes((DOCS / item.name / "results.json").read_bytes())
        shutil.copytree(DOCS / OTHERS, tmp_path / OTHERS)
        write_pages(tmp_path, ITEMS)
        claims = [claim for item in ITEMS for claim in joined(stored_seeds(tmp_path, item))]
        agree = sum(claim.verdict == "agrees" for claim in claims)
        assert f"{agree} of {len(claims)} claims agree" in (DOCS.parent / "papers.md").read_text("utf-8")
        for page in ("index.md", "full.md", *(f"{item.name}/text.md" for item in ITEMS)):
            assert (tmp_path / page).read_text("utf-8") == (DOCS / page).read_text("utf-8"), page
