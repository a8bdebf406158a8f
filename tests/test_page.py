"""The page as people see it: in a real browser, offline, at a desk and on a phone."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from unfit import Audit
from unfit.report import plots
from unfit.report.page import page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM:
        assert not os.environ.get("CI"), "CI must test the page in a browser"
        pytest.skip("no Chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_the_page_opens_whole_without_network_or_errors(
    browser: Browser, face_page: Path, width: int, scheme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
    tab = context.new_page()
    problems: list[str] = []
    requests: list[str] = []
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto((face_page / "index.html").as_uri())
    assert problems == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    broken = tab.evaluate("[...document.images].filter(image => !image.naturalWidth).length")
    assert (tab.locator("img").count(), broken) == (3 * 40, 0)
    assert tab.locator("svg").count() == 2
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
    context.close()


def test_the_decision_comes_first_and_agrees_with_the_record(
    browser: Browser, face_page: Path, face_audit: Audit
) -> None:
    tab = browser.new_page()
    tab.goto((face_page / "index.html").as_uri())
    record = face_audit.record
    assert f"{record.num_recovered} of its {record.num_samples} training samples" in tab.locator("h1").inner_text()
    first = tab.locator(".pair").first.inner_text()
    assert f"{max(sample.similarity for sample in record.samples):.2f}" in first
    tab.close()


def test_the_page_is_self_contained_and_escapes_what_it_shows(face_audit: Audit) -> None:
    spiked = face_audit.record.model_copy(update={"data": "<script>alert(1)</script>"})
    html = page(Audit(spiked, face_audit.arrays))
    assert "<script" not in html
    assert not re.search(r'(src|href)="(?!data:|#)', html)


def test_plots_take_the_pages_colour_and_share_no_ids(face_audit: Audit) -> None:
    both = [plots.scatter(face_audit), plots.spectrum(face_audit)]
    ids = [re.findall(r'id="([^"]+)"', svg) for svg in both]
    assert not set(ids[0]) & set(ids[1])
    assert all("currentColor" in svg and plots.INK not in svg for svg in both)
    for svg, names in zip(both, ids, strict=True):
        assert set(re.findall(r'(?:url\(|href=")#([^)"]+)', svg)) <= set(names)


def test_pairs_are_a_picture_with_each_reconstruction_above_its_original(
    face_audit: Audit, face_page: Path
) -> None:
    picture = Image.open(face_page / "pairs.png")
    tile, zoom = 25 * 3 + 2, 3
    assert picture.size == (15 * tile, 3 * 2 * tile + 2 * 2 * zoom)
    best = int(face_audit.arrays["similarity"].argmax())
    for row, name in enumerate(("reconstruction", "original")):
        shown = picture.crop((1, row * tile + 1, 1 + 75, row * tile + 76)).resize(
            (25, 25), Image.Resampling.NEAREST
        )
        assert shown.convert("L").tobytes() == plots.png(face_audit.arrays[name][best]).tobytes()
