"""Where the documentation stands on the web, for people who installed a wheel and have no `docs/`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.metadata import metadata

LABEL = "documentation"  # of the address, in pyproject's [project.urls]


@cache
def docs_url() -> str | None:
    """None while the package names no address: a page must not link to what is not there."""
    return url_of(metadata("unfit").get_all("Project-URL") or ())


def url_of(lines: Iterable[str]) -> str | None:
    """The address among `Label, https://…` lines, as package metadata has them."""
    pairs = (line.partition(",") for line in lines)
    found = {label.strip().lower(): url.strip() for label, _, url in pairs}.get(LABEL, "")
    return found.rstrip("/") if found.startswith(("https://", "http://")) else None


def page_url(name: str) -> str | None:
    """The address of one page, such as `defences`."""
    base = docs_url()
    return base and f"{base}/{name}.html"
