"""The page as people see it: in a real browser, offline, at a desk and on a phone, with a keyboard, on paper."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import unescape
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from unfit import Audit, scan
from unfit.auditor.grades import Grade
from unfit.auditor.record import (
    Baseline,
    Bin,
    Control,
    Parameter,
    Point,
    Rate,
    SampleRecord,
    Similarity,
    Sweep,
    Trial,
    UnreadSurface,
)
from unfit.auditor.redact import redact
from unfit.auditor.report import diff as diff_report
from unfit.auditor.report import plots
from unfit.auditor.report import scan as scan_report
from unfit.auditor.report.page import coded
from unfit.auditor.report.vectors import LONGEST_NAME, as_tables
from unfit.auditor.report.words import KEEP, answers, headline, sentence
from unfit.auditor.scan.findings import FolderRecord
from unfit.auditor.verdict import DEFEND, LOWER_BOUNDS
from unfit.base.errors import UnfitError
from unfit.base.images import png
from unfit.base.links import url_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked = 1">' + "long" * 40,
]
AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
WORDS = ["apple", "bread", "cheese", "dill", "egg", *(f"word{i}" for i in range(55))]
Show = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM:
        assert not os.environ.get("CI"), "CI must test the page in a browser"
        pytest.skip("no Chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Show]:
    """Open an audit's page. In the end nothing may have gone wrong, and nothing been asked of any network."""
    problems: list[str] = []
    requests: list[str] = []

    def open_page(
        audit: Audit,
        width: int = 1200,
        scheme: str = "light",
        touch: bool = False,
        js: bool = True,
        details: bool = True,
    ) -> Page:
        (tmp_path / "index.html").write_text(audit.to_html(), encoding="utf-8")
        tab = browser.new_page(
            viewport={"width": width, "height": 800},
            color_scheme=scheme,  # type: ignore[arg-type]
            has_touch=touch,
            java_script_enabled=js,
        )
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("request", lambda request: requests.append(request.url))
        tab.goto((tmp_path / "index.html").as_uri())
        if details:
            tab.locator("#details > summary").click()
            tab.evaluate("() => new Promise(done => setTimeout(done, 0))")  # the plots are drawn in the next task
            tab.evaluate("scrollTo(0, 0)")
        return tab

    yield open_page
    for context in browser.contexts:
        context.close()
    assert problems == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


def grade_of(similarity: float, threshold: float, line: float) -> Grade | None:
    """Of a sample without a proof."""
    return None if similarity <= threshold else "recognisable" if similarity > line else "trace"


def synthetic(like: Audit, n: int, shape: tuple[int, ...], num_unseen: int = 100, classes: int = 10) -> Audit:
    """An audit of noise, members 0.2 more alike than others: as large as one likes, made in no time."""
    random = torch.Generator().manual_seed(0)

    def uniform(*size: int) -> torch.Tensor:
        return torch.rand(size, generator=random)

    arrays = {
        "original": uniform(n, *shape),
        "reconstruction": uniform(n, *shape),
        "unseen": uniform(num_unseen, *shape),
        "nearest_unseen": torch.randint(num_unseen, (n,), generator=random),
        "similarity": 0.2 + 0.5 * uniform(n),
        "unseen_similarity": 0.5 * uniform(num_unseen),
        "projection_similarity": 0.3 + 0.5 * uniform(n),
        "unseen_projection_similarity": 0.5 * uniform(num_unseen),
        "output": 10 * uniform(n) - 5,
        "unseen_output": 10 * uniform(num_unseen) - 5,
        "spectrum": uniform(64),
    }
    threshold = float(arrays["unseen_similarity"].sort(descending=True)[0][num_unseen // 100])
    rows = zip(arrays["similarity"].tolist(), arrays["output"].tolist(), strict=True)
    samples = [
        SampleRecord(
            index=1000 + i,
            label=i % classes,
            output=output,
            similarity=similarity,
            ssim=similarity / 2 if len(shape) == 3 else None,
            assigned=similarity,
            ncc=0.5,
            psnr=10.0,
            l2=1.0,
            projection_similarity=similarity,
            recovered=similarity > threshold,
            exact=False,
            grade=grade_of(similarity, threshold, 0.6),
        )
        for i, (similarity, output) in enumerate(rows)
    ]
    made: dict[str, Any] = {
        "num_samples": n,
        "num_unseen": num_unseen,
        "num_recovered": sum(sample.recovered for sample in samples),
        "num_recovered_unseen": num_unseen // 100,
        "num_recognisable": sum(sample.grade == "recognisable" for sample in samples),
        "threshold": threshold,
        "recognisable_line": 0.6,
        "class_names": [f"class {k}" for k in range(classes)],
        "samples": samples,
    }
    if len(shape) == 1:
        made["similarity"] = Similarity(name="relative error", window=None, vote=1.0)
    return Audit(like.record.model_copy(update=made), arrays)


def texts(like: Audit, n: int = 6) -> Audit:
    """Of the first text its five words come back, of the second apple for bread, of the others noise."""
    audit = synthetic(like, n, (len(WORDS),), classes=2)
    true = torch.zeros(n, len(WORDS))
    true[:, :5] = torch.tensor([0.5, 0.4, 0.3, 0.2, 0.02])
    true[1, 0] = 0
    back = true.clone()
    back[1, 0], back[1, 1], back[1, 2] = 0.5, 0, 0.29
    back[2:] = 0.1 * audit.arrays["reconstruction"][2:]
    similarity = torch.linspace(1, 0, n)
    samples = [
        sample.model_copy(update={"similarity": float(s)})
        for sample, s in zip(audit.record.samples, similarity, strict=True)
    ]
    audit = replace(
        audit, arrays=audit.arrays | {"original": true, "reconstruction": back, "similarity": similarity}
    )
    return edited(audit, feature_names=WORDS, samples=samples)


def of_features(like: Audit, n: int = 8) -> Audit:
    """Behind a prefix: features of 12 values that came back, pictures that were sought for all but the last."""
    audit = synthetic(like, n, (1, 8, 8), classes=2)
    true = torch.rand(n, 20, generator=torch.Generator().manual_seed(1))
    images = audit.arrays["reconstruction"].clone()
    images[-1] = 0
    features = {"features": true, "reconstructed_features": 0.5 * true, "reconstruction": images}
    measure = Similarity(name="explained variance", window=None, vote=1.0)
    return edited(replace(audit, arrays=audit.arrays | features), similarity=measure)


def inconclusive(like: Audit) -> Audit:
    """The attack did not apply: there are no candidates, and nothing is like anything."""
    samples = [
        s.model_copy(update={"similarity": 0.0, "recovered": False, "grade": None}) for s in like.record.samples
    ]
    nothing = {"num_recovered": 0, "num_recognisable": 0, "num_candidates": 0, "threshold": 0.0, "noise_edge": 0.0}
    audit = edited(
        like,
        verdict="inconclusive",
        reasons=["this attack cannot be run (not applicable: 3 < 4)"],
        next_steps=["give the base (--base), or ask `unfit preflight`"],
        p_value=1.0,
        over_time=[],
        samples=samples,
        **nothing,
    )
    zeros = {name: torch.zeros_like(like.arrays[name]) for name in ("similarity", "unseen_similarity")}
    return replace(audit, arrays=audit.arrays | {**zeros, "spectrum": torch.zeros(0)})


def edited(audit: Audit, **changes: object) -> Audit:
    return replace(audit, record=audit.record.model_copy(update=changes))


def numbers(tab: Page) -> list[int]:
    return [int(tab.locator(name).inner_text()) for name in ("#num-recovered", "#num-unseen")]


def similarities(tab: Page) -> list[float]:
    return [float(text) for text in tab.locator("#gallery b").all_inner_texts()]


def too_wide(tab: Page) -> list[str]:
    """The elements that reach beyond the window."""
    right = "Math.max(e.getBoundingClientRect().right, e.tagName === 'HTML' ? e.scrollWidth : 0)"
    elements = f"[...document.querySelectorAll('html, body *')].filter(e => {right} > innerWidth)"
    return tab.evaluate(f"{elements}.map(e => e.outerHTML.slice(0, 80))")


def pixels(tab: Page, selector: str) -> torch.Tensor:
    """What a canvas shows, grey or colour, as bytes (h, w, 4)."""
    tab.evaluate("Promise.all([...document.images].map(image => image.decode()))")
    shown = tab.locator(selector).first.evaluate(
        "c => [c.height, c.width, [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]]"
    )
    return torch.tensor(shown[2]).view(shown[0], shown[1], 4)


def bytes_of(image: torch.Tensor) -> torch.Tensor:
    """(c, h, w) as a browser shows it."""
    return (image.clamp(0, 1) * 255).round().long().expand(3, -1, -1).permute(1, 2, 0)


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark"), (320, "light")])
def test_the_page_is_whole_and_never_scrolls_sideways(
    show: Show, face_audit: Audit, width: int, scheme: str
) -> None:
    tab = show(face_audit, width, scheme)
    assert tab.locator("#gallery canvas").count() == 3 * 40
    assert tab.locator(".plot svg").count() == 5
    assert too_wide(tab) == []
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    tab.set_viewport_size({"width": 500, "height": 800})
    assert too_wide(tab) == []
    assert tab.locator("#scatter svg").evaluate("svg => svg.viewBox.baseVal.width === svg.clientWidth")


def test_the_decision_comes_first_and_agrees_with_the_record(show: Show, face_audit: Audit) -> None:
    tab, record = show(face_audit), face_audit.record
    said = f"{record.num_recognisable} of {record.num_samples} training images can be recovered from this file."
    assert tab.locator("h1").inner_text() == said
    needs, chance, todo = tab.locator(".answers > div").all_inner_texts()
    assert "The published file alone." in needs
    assert "0 of 40 unseen images were recovered." in chance
    assert "Do not publish this file.\n" in todo
    counts = [(record.num_exact, 0), (record.num_recognisable, 0), (record.num_recovered, 0)]
    shown = [re.findall(r"(\d+) of", text) for text in tab.locator(".figures > div").all_inner_texts()]
    assert shown == [[str(num), str(unseen)] for num, unseen in counts]
    assert tab.evaluate("document.body.firstElementChild.querySelector('h1') !== null")
    assert numbers(tab) == [record.num_recovered, record.num_recovered_unseen]


def test_pictures_are_those_of_the_arrays(show: Show, face_audit: Audit) -> None:
    tab, arrays = show(face_audit), face_audit.arrays
    best = int(arrays["similarity"].argmax())
    images = {
        "reconstruction": arrays["reconstruction"][best],
        "original": arrays["original"][best],
        "unseen": arrays["unseen"][int(arrays["nearest_unseen"][best])],
    }
    for place in ("#gallery li:first-child", "#pair"):
        for kind, image in images.items():
            assert torch.equal(pixels(tab, f"{place} canvas.{kind}")[..., :3], bytes_of(image)), (place, kind)


def test_the_slider_moves_the_counts_and_finds_back(show: Show, face_audit: Audit) -> None:
    tab, arrays, record = show(face_audit), face_audit.arrays, face_audit.record
    for threshold in (0.1, 0.3, 0.5, 0.8):
        tab.locator("#threshold").fill(str(threshold))
        above = [int((arrays[name] > threshold).sum()) for name in ("similarity", "unseen_similarity")]
        assert numbers(tab) == above
        assert tab.locator("#tpr").inner_text() == f"{100 * above[0] / 40:g}%"
        assert tab.locator("#fpr").inner_text() == f"{100 * above[1] / 40:g}%"
        assert tab.locator("#scatter circle.recovered").count() == above[0]
        similarity, word = tab.locator("#pair dl div:nth-child(2) dd").inner_text().split(", ")
        assert word == (grade_of(float(similarity), threshold, record.recognisable_line) or "not recovered")
    tab.locator("#calibrated").click()
    assert numbers(tab) == [record.num_recovered, record.num_recovered_unseen]
    tab.locator("#threshold").press("ArrowRight")
    assert float(tab.locator("#threshold-value").inner_text()) > record.threshold


def test_a_point_shows_its_pair_by_keyboard_mouse_and_finger(show: Show, face_audit: Audit) -> None:
    order = sorted(face_audit.record.samples, key=lambda sample: sample.output)
    tab = show(face_audit, touch=True)
    plot, pair, ring = tab.locator("#scatter"), tab.locator("#pair"), tab.locator("#scatter .selected")
    plot.focus()
    places = []
    for key, sample in (("Home", order[0]), ("ArrowRight", order[1]), ("End", order[-1])):
        plot.press(key)
        assert f"Sample {sample.index}" == pair.locator("h3").inner_text()
        assert f"{sample.similarity:.3f}" in pair.inner_text()
        assert face_audit.record.class_names[sample.label] in pair.inner_text()
        box = ring.bounding_box()
        assert box
        places.append((box["x"] + box["width"] / 2, box["y"] + box["height"] / 2))
    tab.mouse.move(*places[0])
    assert pair.locator("h3").inner_text() == f"Sample {order[0].index}"
    tab.touchscreen.tap(*places[2])
    assert pair.locator("h3").inner_text() == f"Sample {order[-1].index}"
    assert pair.locator("canvas").count() == 3


def test_the_gallery_sorts_and_filters(show: Show, face_audit: Audit) -> None:
    tab, samples = show(face_audit), face_audit.record.samples
    shown = sorted((round(sample.similarity, 2) for sample in samples), reverse=True)
    assert similarities(tab) == pytest.approx(shown, abs=0.0051)
    tab.locator("#sort").select_option("unlike")
    assert similarities(tab) == pytest.approx(shown[::-1], abs=0.0051)
    tab.locator("#sort").select_option("output")
    margin = sorted(samples, key=lambda sample: abs(sample.output))
    assert similarities(tab) == pytest.approx([sample.similarity for sample in margin], abs=0.0051)
    tab.locator("#class").select_option(label="face")
    assert set(tab.locator("#gallery .class").all_inner_texts()) == {"face"}
    tab.locator("#state").select_option("recognisable")
    wanted = [sample for sample in samples if sample.label == 1 and sample.grade == "recognisable"]
    assert len(similarities(tab)) == len(wanted) > 0
    tab.locator("#state").select_option("not recovered")
    wanted = [sample for sample in samples if sample.label == 1 and not sample.recovered]
    assert len(similarities(tab)) == len(wanted)
    tab.locator("#class").select_option(label="all")
    wanted = [sample for sample in samples if not sample.recovered]
    assert len(similarities(tab)) == len(wanted)
    assert tab.locator("#gallery-count").inner_text() == f"{len(wanted)} of {len(wanted)} shown"


def test_of_five_hundred_colour_samples_few_are_drawn_at_a_time(show: Show, face_audit: Audit) -> None:
    audit = synthetic(face_audit, 500, (3, 32, 32), num_unseen=1000)
    assert len(audit.to_html()) < 10e6  # of noise, which cannot be compressed
    tab = show(audit)
    assert tab.locator("#gallery li").count() == 45
    tab.locator("#more").click()
    assert tab.locator("#gallery li").count() == 90
    tab.locator("#sort").select_option("index")
    assert tab.locator("#gallery li").count() == 45
    last = "#gallery li:nth-child(45) canvas"
    assert torch.equal(pixels(tab, f"{last}.original")[..., :3], bytes_of(audit.arrays["original"][44]))
    unseen = audit.arrays["unseen"][int(audit.arrays["nearest_unseen"][44])]
    assert torch.equal(pixels(tab, f"{last}.unseen")[..., :3], bytes_of(unseen))
    tab.locator("#threshold").fill("0.45")
    assert numbers(tab)[1] == int((audit.arrays["unseen_similarity"] > 0.45).sum())


def test_a_redacted_page_says_so_and_names_nobody(show: Show, face_audit: Audit) -> None:
    tab = show(redact(face_audit))
    assert "Redacted." in tab.locator("main").inner_text()
    assert "--no-redact" in tab.locator("main").inner_text()
    assert re.fullmatch("Sample [0-9a-f]{16}", tab.locator("#pair h3").inner_text())
    assert tab.locator("#sort option[value=index]").count() == 0
    assert "Redacted" not in show(face_audit).locator("main").inner_text()


def test_vectors_are_tables_of_name_value_and_error(show: Show, face_audit: Audit) -> None:
    audit = synthetic(face_audit, 20, (30,), classes=2)
    names = [f"name {i}" for i in range(30)]
    tab = show(edited(audit, feature_names=names), 320)
    assert too_wide(tab) == []
    assert tab.locator("canvas").count() == 0
    best = int(audit.arrays["similarity"].argmax())
    rows = tab.locator("#pair tr").all_text_contents()[1:]
    true, back = (audit.arrays[name].double() for name in ("original", "reconstruction"))
    away = torch.maximum(true[best] - true.mean(0), true.mean(0) - true[best])
    away = torch.maximum(away, (back[best] - true.mean(0)).abs()) / true.std(0, correction=0)
    assert tab.locator("#pair tbody th").first.text_content() == names[int(away.argmax())]
    assert len(rows) == 12 + 1 + 18  # with the second header, of the part that is folded
    for column in range(30):
        value, came = float(true[best, column]), float(back[best, column])
        shown = [f"{float(f'{each:.3g}'):g}" for each in (value, came, abs(came - value))]
        assert any(row.startswith(names[column] + shown[0] + shown[1] + shown[2][:3]) for row in rows), (
            column,
            rows,
        )
    assert tab.locator("#pair tr:visible").count() == 1 + 12
    tab.locator("#pair summary", has_text="18 more").click()
    assert tab.locator("#pair tr:visible").count() == 2 + 30
    assert tab.locator("#gallery li").count() == 20


def test_few_columns_keep_their_order_and_need_no_names(show: Show, face_audit: Audit) -> None:
    audit = synthetic(face_audit, 20, (2,), classes=2)
    tab = show(audit)
    assert tab.locator("#pair tbody th").all_inner_texts() == ["column 0", "column 1"]
    assert tab.locator("#scatter circle").count() == 20 + 1
    assert tab.locator("#spectrum, #pair summary:has-text('more')").count() == 0
    assert "1 − relative error" in tab.locator("#pair").inner_text()
    said = tab.locator("section[aria-labelledby=how]").inner_text()
    assert "one minus the relative error" in said
    assert f"a trace needs more than {audit.record.threshold:.3f}" in said


def test_texts_are_words_by_weight_and_what_differs_is_marked(show: Show, face_audit: Audit) -> None:
    tab = show(texts(face_audit), 320)
    cards = tab.locator("#gallery > li")

    def words(card: int, side: int, mark: str = "") -> list[str]:
        return cards.nth(card).locator(f".entries > div:nth-child({side}) li{mark}").all_inner_texts()

    assert words(0, 1) == words(0, 2) == WORDS[:5]
    assert (words(0, 1, ".only"), words(0, 2, ".only")) == ([], [])
    assert (words(1, 1), words(1, 2)) == (["apple", "cheese", "dill", "egg"], ["bread", "cheese", "dill", "egg"])
    assert (words(1, 1, ".only"), words(1, 2, ".only")) == (["apple"], ["bread"])
    assert words(3, 1)[-1].endswith("more")  # noise in every column
    assert set(words(3, 2, ".only")) <= set(WORDS[:5])
    assert too_wide(tab) == []


def test_only_what_reads_as_a_list_is_one(face_audit: Audit) -> None:
    def is_list(**changes: object) -> bool:
        audit = texts(face_audit)
        arrays = audit.arrays | {name: value for name, value in changes.items() if name == "original"}
        record = audit.record.model_copy(update={name: v for name, v in changes.items() if name != "original"})
        tables = as_tables(record, arrays)  # type: ignore[arg-type]
        assert tables is not None
        return tables.has_entries

    original = texts(face_audit).arrays["original"]
    assert is_list()
    assert not is_list(feature_names=None)
    assert not is_list(original=original - 1e-3)
    assert not is_list(original=original + 1e-3)


def test_features_are_shown_beside_the_pictures_that_lead_to_them(show: Show, face_audit: Audit) -> None:
    audit = of_features(face_audit)
    tab = show(audit, 320)
    best, last = int(audit.arrays["similarity"].argmax()), len(audit.record.samples) - 1
    true = audit.arrays["features"][best]
    shades = (true - true.min()) / (true.max() - true.min())
    assert torch.equal(pixels(tab, "#pair canvas.features")[..., :3], bytes_of(shades.view(1, 4, 5)))
    back = ((0.5 * true - true.min()) / (true.max() - true.min())).view(1, 4, 5)
    assert torch.equal(pixels(tab, "#pair canvas.reconstructed_features")[..., :3], bytes_of(back))
    shown = bytes_of(audit.arrays["reconstruction"][best])
    assert torch.equal(pixels(tab, "#pair canvas.reconstruction")[..., :3], shown)
    assert "explained variance" in tab.locator("#pair dt").all_inner_texts()
    assert tab.locator("#gallery .blank").count() == 1
    tab.locator("#sort").select_option("index")
    assert tab.locator("#gallery > li").nth(last).locator(".blank").count() == 1
    assert "the 7 most similar" in tab.locator("section[aria-labelledby=gallery-title]").inner_text()
    assert too_wide(tab) == []


@pytest.mark.parametrize("make", [texts, of_features])
def test_what_is_redacted_has_no_values_and_no_names(face_audit: Audit, make: Callable[[Audit], Audit]) -> None:
    audit = edited(make(face_audit), feature_names=[f"Ada{i}" for i in range(60)] if make is texts else None)
    hidden = redact(audit)
    page, record = hidden.to_html(), hidden.to_json()
    assert "Ada" in audit.to_html() or make is of_features
    assert "Ada" not in page + record
    assert '"tables":null' in page
    assert not {"features", "reconstructed_features"} & hidden.arrays.keys()
    if make is texts:
        assert "Values are left out" in page
        assert all(not hidden.arrays[name].any() for name in ("original", "reconstruction", "unseen"))


def test_names_are_shown_as_text_whatever_they_are(show: Show, face_audit: Audit) -> None:
    attack = face_audit.record.attack | {"settings": {HOSTILE[0]: HOSTILE[1]}}
    audit = edited(face_audit, class_names=HOSTILE, data=HOSTILE[0], attack=attack, reasons=HOSTILE)
    tab = show(audit, 360)
    assert tab.evaluate("window.hacked") is None
    assert tab.locator("img[src=x]").count() == 0
    assert tab.locator("#class option").all_inner_texts()[1:] == HOSTILE
    assert tab.locator("#pair dd").first.inner_text() in HOSTILE
    assert too_wide(tab) == []


def test_names_of_columns_are_text_and_cut(show: Show, face_audit: Audit) -> None:
    names = [*HOSTILE, "a\x1b[31m\u202eb", "x" * 10_000, *(f"c{i}" for i in range(56))]
    audit = edited(texts(face_audit), feature_names=names)
    assert len(audit.to_html()) < 200_000
    tab = show(audit, 320)
    assert tab.evaluate("window.hacked") is None
    assert tab.locator("img[src=x]").count() == 0
    shown = tab.locator("#gallery > li").first.locator("div:nth-child(2) li").all_inner_texts()
    assert shown[0] == HOSTILE[0]
    assert all(len(name) <= LONGEST_NAME for name in shown)
    assert (shown[2], shown[3]) == (r"a\x1b[31m\u202eb", "x" * (LONGEST_NAME - 1) + "…")
    assert too_wide(tab) == []
    with pytest.raises(UnfitError, match="names 3 of 60 columns"):
        edited(audit, feature_names=names[:3]).to_html()


def test_code_in_a_reason_is_code_and_nothing_else_is() -> None:
    assert coded("<b> `unfit split`, --base") == ("&lt;b&gt; <code>unfit split</code>, <code>--base</code>")
    assert coded("`<i>`") == "<code>&lt;i&gt;</code>"


def test_an_inconclusive_audit_says_why_and_what_next_instead_of_empty_plots(
    show: Show, face_audit: Audit
) -> None:
    tab = show(inconclusive(face_audit))
    assert "cannot rule out a leak" in tab.locator("h1").inner_text()
    assert tab.locator(".answers dd").all_inner_texts() == [
        "Not yet. This audit neither found a leak nor ruled one out.",
        "This attack cannot be run (not applicable: 3 < 4).",
        "Give the base (--base), or ask unfit preflight.",
    ]
    assert tab.locator("svg, canvas, #gallery").count() == 0
    assert tab.locator(".figures").count() == 0
    assert "no sign of safety" in tab.locator("main").inner_text()


def test_without_a_script_there_are_still_pictures_and_tables(show: Show, face_audit: Audit) -> None:
    tab = show(face_audit, 390, js=False, details=False)
    assert "JavaScript" in tab.locator("header > :first-child").inner_text()
    assert tab.locator("main figure:visible").count() == 1  # no empty plots
    box = tab.locator(".still").bounding_box()
    assert box
    assert box["width"] > 300
    assert tab.locator("button:visible, select:visible, input:visible").count() == 0
    tab = show(texts(face_audit), 390, js=False, details=False)
    first = tab.locator("table.values").first.locator("tr").nth(1)
    assert first.inner_text().split() == ["apple", "0.5", "0.5", "0"]


def test_a_card_opens_a_closer_look(show: Show, face_audit: Audit) -> None:
    tab, order = show(face_audit), sorted(face_audit.record.samples, key=lambda sample: -sample.similarity)
    box = tab.locator("#gallery > li").nth(1).locator("canvas").first.bounding_box()
    assert box
    title, dialog = tab.locator("#closer-title"), tab.locator("dialog")
    tab.locator("#gallery > li").nth(1).click()  # anywhere on it
    assert title.inner_text() == f"Sample {order[1].index}"
    assert dialog.locator("canvas").count() == 3
    dialog.press("ArrowRight")
    assert title.inner_text() == f"Sample {order[2].index}"
    dialog.press("Escape")
    assert not dialog.is_visible()
    tab.locator("#gallery .open").first.focus()
    tab.keyboard.press("Enter")
    assert title.inner_text() == f"Sample {order[0].index}"
    tab.locator("#close").click()
    assert not dialog.is_visible()


def test_every_kind_of_page_is_accessible_and_fits_the_smallest_phone(show: Show, face_audit: Audit) -> None:
    """By the rules of axe-core: by night on a phone, and for what has marks of its own by day at a desk too."""
    images = synthetic(face_audit, 6, (1, 8, 8), classes=2)
    kinds = {
        "leak": images,
        "pass": edited(images, verdict="pass"),
        "inconclusive": inconclusive(images),
        "vectors": synthetic(face_audit, 6, (30,), classes=2),
        "texts": texts(face_audit),
        "features": of_features(face_audit),
        "redacted": redact(images),
        "redacted texts": redact(texts(face_audit)),
        "pool": swept(images, num_bins=20),
    }
    for name, audit in kinds.items():
        tab = show(audit, 320, "dark")
        assert too_wide(tab) == [], name
        tab.evaluate(f"{AXE}; null")
        assert violations(tab) == [], name
        if name in ("texts", "features"):
            tab.set_viewport_size({"width": 1200, "height": 800})
            tab.emulate_media(color_scheme="light")
            assert violations(tab) == [], f"{name}, at a desk"
            tab.locator(".open").first.click()
            assert violations(tab) == [], f"{name}, closer"
        tab.close()


def test_the_pages_of_scan_and_diff_are_accessible_and_fit_the_smallest_phone(
    browser: Browser, face_audit: Audit, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 6))
    one = scan(make_pipeline(StandardScaler(), SVC()).fit(x, np.arange(40) % 2), x, random.normal(size=(40, 6)))
    folder = FolderRecord(folder="models", files=(one, one), failed={"broken" * 20 + ".pkl": "cut short"})
    worse = edited(face_audit, verdict="pass").record
    for name, text in {
        "scan": scan_report.page(one),
        "folder": scan_report.page(folder),
        "diff": diff_report.page(worse, face_audit.record),
    }.items():
        (tmp_path / "page.html").write_text(text, encoding="utf-8")
        tab = browser.new_page(viewport={"width": 320, "height": 800}, color_scheme="dark")
        tab.goto((tmp_path / "page.html").as_uri())
        assert too_wide(tab) == [], name
        tab.evaluate(f"{AXE}; null")
        assert violations(tab) == [], name
        tab.emulate_media(color_scheme="light")
        tab.set_viewport_size({"width": 1200, "height": 800})
        assert (too_wide(tab), violations(tab)) == ([], []), name
        tab.close()


def violations(tab: Page) -> list[str]:
    found = tab.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found]


def test_on_paper_no_heading_is_left_behind(show: Show, face_audit: Audit) -> None:
    tab = show(swept(face_audit))
    tab.emulate_media(media="print")
    style = "all => all.map(e => [getComputedStyle(e).breakAfter, getComputedStyle(e.parentElement).display])"
    found = tab.locator("h2, main h3").evaluate_all(style)
    assert {tuple(each) for each in found} == {("avoid", "block")}  # in a grid it would not be heeded
    assert tab.locator(".long").evaluate_all("all => all.every(e => e.scrollHeight <= e.clientHeight)")


def test_controls_baselines_and_rates_stand_beside_the_audit(show: Show, face_audit: Audit) -> None:
    without = show(face_audit).locator("section[aria-labelledby=sure]").inner_text()
    assert all(option in without for option in ("--controls", "--baselines", "--num-unseen"))
    counts = {"num_candidates": 4321, "num_recovered": 3, "num_good": 7, "seconds": 1.5}
    rate = Rate(fpr=0.01, threshold=0.4321, num_recovered=25, tpr=0.5, interval=(0.4, 0.6))
    audit = edited(
        face_audit,
        controls=[Control(name="untrained model", **counts)],
        baselines=[Baseline(method="weights", num_good_unseen=2, **counts)],
        rates=[rate, rate.model_copy(update={"fpr": 0.001})],
    )
    tables = show(audit, 360).locator("section[aria-labelledby=sure] table")
    assert re.search(r"0.1%\s+0.432\s+25\s+50% \(40%–60%\)", tables.nth(0).inner_text())
    for name in ("control: untrained model", "baseline: weights"):
        assert re.search(rf"{name}\s+3\s+7\s+4,321\s+1.5", tables.nth(1).inner_text())


def test_classes_are_counted_in_the_table(show: Show, face_audit: Audit) -> None:
    rows = show(face_audit).locator("section[aria-labelledby=where] tbody tr").all_inner_texts()
    assert len(rows) == 2
    for label, row in enumerate(rows):
        members = [sample for sample in face_audit.record.samples if sample.label == label]
        num, mean = sum(s.recovered for s in members), sum(s.similarity for s in members) / len(members)
        numbers = ["20", str(num), f"{num / 20:.0%}", f"{mean:.2f}"]
        assert row.split() == [face_audit.record.class_names[label], *numbers]


def test_proven_samples_are_marked_and_can_be_chosen(show: Show, face_audit: Audit) -> None:
    samples = [s.model_copy(update={"exact": i < 3}) for i, s in enumerate(face_audit.record.samples)]
    tab = show(edited(face_audit, samples=samples, num_exact=3))
    assert tab.locator("#scatter circle.proven").count() == 3
    tab.locator("#state").select_option("exact")
    assert tab.locator("#gallery p.proven").count() == tab.locator("#gallery li").count() == 3


def swept(audit: Audit, names: tuple[str, str] = ("lr", "seed"), num_bins: int = 1) -> Audit:
    """As if it had pooled six trials: of a range, of choices, one of them without any candidates."""
    trials = [
        Trial(
            number=10 + i,
            state="complete" if i else "pruned",
            settings={names[0]: 10.0**-i, names[1]: i % 2},
            objective=0.5**i if i else None,
            num_candidates=100 * i,
            num_recovered=3 * i,
            num_best=i,
        )
        for i in range(6)
    ]
    halves = [
        Bin(low=1e-6, high=1e-3, choice=None, num_trials=3, mean_recovered=12.0, num_best=12),
        Bin(low=1e-3, high=1.0, choice=None, num_trials=3, mean_recovered=3.0, num_best=3),
    ]
    each = [
        Bin(low=None, high=None, choice=k, num_trials=3, mean_recovered=6.0 + 3 * k, num_best=6 + 3 * k)
        for k in (0, 1)
    ]
    sweep = Sweep(
        num_trials={"pruned": 1, "complete": 5},
        num_copies=321,
        parameters={names[0]: Parameter(low=1e-6, high=1.0, log=True), names[1]: Parameter(choices=[0, 1])},
        trials=trials,
        shares={names[0]: halves * num_bins, names[1]: each},
    )
    points = [
        Point(seconds=9.0 * k, num_trials=k, num_candidates=99 * k, num_recovered=4 * k, num_recovered_unseen=0)
        for k in (1, 3, 5)
    ]
    return edited(audit, sweep=sweep, over_time=points)


def test_a_sweep_shows_which_settings_worked(show: Show, face_audit: Audit) -> None:
    tab = show(swept(face_audit))
    section = tab.locator("section[aria-labelledby=sweep]")
    assert "6 attacks with sampled settings (1 pruned, 5 complete)" in section.inner_text()
    plots = section.locator(".plot")
    assert plots.count() == 3  # two settings, and the attacker's loss
    points = [plots.nth(i).locator("circle:not(.selected)").count() for i in range(3)]
    assert points == [6, 6, 5]  # the one that was pruned has no loss
    assert [plots.nth(i).locator("path.level").count() for i in range(3)] == [2, 2, 0]
    assert section.locator("circle.recovered").count() == 5 + 5 + 5
    across = plots.first.locator("circle:not(.selected)").evaluate_all(
        "all => all.map(c => +c.getAttribute('cx'))"
    )
    steps = [left - right for left, right in pairwise(across)]
    assert steps == pytest.approx([steps[0]] * 5)  # powers of ten lie equally far apart
    assert re.search(r"lr\s+1e-06 to 0.001\s+3\s+12.0\s+12", section.locator("table").inner_text())
    assert "trials" in tab.locator("#over-time").inner_text()
    assert "--controls" in tab.locator("section[aria-labelledby=sure]").inner_text()


def test_a_trial_is_marked_in_all_plots(show: Show, face_audit: Audit) -> None:
    tab = show(swept(face_audit), touch=True)
    panel, plots = tab.locator("#trial"), tab.locator("#slices .plot")
    assert panel.locator("h3").inner_text() == "Trial 15: complete"  # the one that gave most
    tab.locator("#slices").focus()
    tab.locator("#slices").press("ArrowLeft")
    assert panel.locator("h3").inner_text() == "Trial 14: complete"
    assert re.search(r"lr\s*0.0001?\b|lr\s*1e−4", panel.inner_text())
    for i in range(3):
        place, ring = (
            plots.nth(i)
            .locator(name)
            .evaluate("c => [c.getAttribute('cx'), c.getAttribute('cy'), c.getAttribute('visibility')]")
            for name in ("circle:not(.selected) >> nth=-2", "circle.selected")
        )
        assert ring[:2] == place[:2]
        assert ring[2] == "visible"
    tab.locator("#slices").press("Home")
    assert panel.locator("h3").inner_text() == "Trial 10: pruned"
    assert plots.nth(2).locator("circle.selected").get_attribute("visibility") == "hidden"  # it has no loss
    box = plots.nth(2).locator("circle").nth(1).bounding_box()
    assert box
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert panel.locator("h3").inner_text() == "Trial 12: complete"
    box = plots.nth(0).locator("circle").nth(3).bounding_box()
    assert box
    tab.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert panel.locator("h3").inner_text() == "Trial 13: complete"


def test_settings_are_text_and_fit_on_a_phone(show: Show, face_audit: Audit) -> None:
    tab = show(swept(face_audit, (HOSTILE[0], HOSTILE[1])), 360)
    assert tab.evaluate("window.hacked") is None
    assert tab.locator("img[src=x]").count() == 0
    assert HOSTILE[0] in tab.locator("#trial dt").all_inner_texts()
    assert too_wide(show(swept(face_audit), 360)) == []
    tab.set_viewport_size({"width": 700, "height": 800})
    assert tab.locator("#slices .plot").count() == 3  # drawn anew, not once more


def test_an_audit_without_a_sweep_says_nothing_of_trials(show: Show, face_audit: Audit) -> None:
    tab = show(face_audit)
    assert tab.locator("#slices, #trial").count() == 0
    assert "seconds of attack" in tab.locator("#over-time").inner_text()


def test_the_headline_says_what_the_verdict_means(face_audit: Audit) -> None:
    def said(**changes: object) -> str:
        return headline(edited(face_audit, **changes).record)

    assert said(num_recognisable=9) == "9 of 40 training images can be recovered from this file."
    assert said(num_recognisable=9, num_exact=9).endswith("images can be recovered exactly from this file.")
    assert said(num_recognisable=9, num_exact=3).endswith("from this file, 3 of them exactly.")
    assert said(num_recognisable=0, num_recovered=25).startswith("25 of 40 training images leave a trace")
    assert "stand in this file" in said(attacker="reads the file")
    of_features = Similarity(name="explained variance", window=None, vote=1.0)
    assert said(similarity=of_features).startswith("The features of 12 of 40 training samples can be")
    nothing = {"verdict": "pass", "num_recovered": 0, "num_recognisable": 0, "p_value": 1.0}
    blind = "No training image could be recovered by an attacker who has only this file."
    assert said(**nothing) == blind
    assert said(**nothing, attacker="has the base").endswith("the base model that training started from.")
    assert said(**nothing, attacker="computes the initial weights").endswith("computes its initial weights.")
    assert "than chance gives" in said(**nothing | {"num_recognisable": 2})  # not: nothing could be recovered
    assert said(verdict="pass").endswith("from this file: the policy allows that.")
    assert said(verdict="inconclusive").startswith("No verdict: this audit cannot rule out a leak.")


def test_what_an_attacker_needs_and_what_to_do_fit_the_case(face_audit: Audit) -> None:
    def said(**changes: object) -> str:
        found = answers(edited(face_audit, **changes).record)
        return " ".join(text for _, texts in found for text in texts)

    assert "and the base model that training started from" in said(attacker="has the base")
    assert "its initial weights were computed from it" in said(attacker="computes the initial weights")
    for attacker, step in DEFEND.items():
        words = said(attacker=attacker, next_steps=[step])
        assert words.count(KEEP) == 1
        assert sentence(step).removeprefix(f"{KEEP} ").rstrip(".") in words
    assert said(next_steps=["publish the weights alone"]).endswith(f"{KEEP} Publish the weights alone.")
    assert "lower bounds" in said(reasons=[LOWER_BOUNDS])
    assert "not known yet" in said(verdict="pass")
    assert "lower bounds" not in said()


def test_who_made_it_when_and_of_what_is_on_the_page(show: Show, face_audit: Audit) -> None:
    record = face_audit.record
    assert record.repeat is not None
    repeat = record.repeat.model_copy(update={"author": "Ada <b>", "base": "/secret/base.pt"})
    hashes = record.hashes.model_copy(update={"base": "b" * 64})
    tab = show(edited(face_audit, date="2026-11-19T04:34:28+00:00", repeat=repeat, hashes=hashes))
    assert "Made on 2026-11-19 at 04:34 UTC by Ada <b> with unfit" in tab.locator("header").inner_text()
    said = tab.locator("table.settings").inner_text()
    assert all(each in said for each in (record.target.sha256, record.hashes.private, "b" * 64, "base.pt", "Ada"))
    assert "/secret" not in said


def test_surfaces_that_were_not_attacked_are_named(show: Show, face_audit: Audit) -> None:
    left = [UnreadSurface(name="tower", why="it is a convolution")]
    said = show(edited(face_audit, surfaces_left=left), 320).locator("section[aria-labelledby=surfaces]")
    assert "tower: it is a convolution" in said.inner_text()
    assert "with nothing subtracted; finished" in said.inner_text()


def test_a_signal_check_that_finds_nothing_is_no_objection_to_a_leak(show: Show, face_audit: Audit) -> None:
    weak = face_audit.record.signal_check.model_copy(update={"p_value": 0.4})
    said = "does not weaken it"
    assert said in show(edited(face_audit, signal_check=weak)).locator("#details").inner_text()
    assert said not in show(edited(face_audit, verdict="pass")).locator("#details").inner_text()


def test_the_documentation_is_linked_only_if_the_package_names_it() -> None:
    lines = ["Source, https://a.org", "Documentation, https://b.org/unfit/"]
    assert url_of(lines) == "https://b.org/unfit"
    assert url_of(lines[:1]) is url_of(["Documentation, javascript:alert(1)"]) is None


def test_the_page_is_self_contained_and_its_policy_allows_nothing_else(face_audit: Audit) -> None:
    html = face_audit.to_html()
    assert not re.search(r'(src|href)="(?!data:|#)', html)
    assert not re.search(r'\son\w+="|style="', html)
    assert "default-src 'none'" in unescape(html)
    assert "unsafe" not in html


def test_sheets_hold_every_image_in_its_place() -> None:
    images = torch.rand(7, 3, 4, 5)
    sheet = plots.sheet(images, columns=3)
    assert sheet.shape == (3, 3 * 4, 3 * 5)
    for i, image in enumerate(images):
        row, column = divmod(i, 3)
        assert torch.equal(sheet[:, 4 * row : 4 * row + 4, 5 * column : 5 * column + 5], image)
    assert sheet[:, 8:, 5:].min() == 1


def test_many_large_images_are_shrunk_and_few_are_not() -> None:
    images = torch.rand(10, 1, 64, 32)
    assert torch.equal(plots.shrink(images, 10), images)
    height, width = plots.shrink(images, 10_000).shape[2:]
    assert 10_000 * height * width <= plots.MOST_PIXELS
    assert height == 2 * width


def test_pairs_are_a_picture_with_each_reconstruction_above_its_original(
    face_audit: Audit, face_page: Path
) -> None:
    image = Image.open(face_page / "pairs.png")
    tile, zoom = 25 * 3 + 2, 3
    assert image.size == (15 * tile, 3 * 2 * tile + 2 * 2 * zoom)
    best = int(face_audit.arrays["similarity"].argmax())
    for row, name in enumerate(("reconstruction", "original")):
        shown = image.crop((1, row * tile + 1, 1 + 75, row * tile + 76)).resize((25, 25), Image.Resampling.NEAREST)
        assert shown.convert("L").tobytes() == png(face_audit.arrays[name][best]).tobytes()
