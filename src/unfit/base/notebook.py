"""What notebooks show: the design of an audit's page in a few lines of HTML, with all text escaped.

Styles are inline and colours work on light and dark, because a notebook has a theme of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

RED, GREEN, AMBER = "#b3261e", "#0a6b4e", "#8a5200"  # as on the page; each bears white text
FONT = "font:14px/1.5 system-ui,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"
SOFT = "font-size:.85em;opacity:.75"
CELL = "text-align:left;vertical-align:top;padding:.15em 1.2em .15em 0"


def card(*parts: str) -> str:
    """All of it, as wide as a text should be."""
    return f'<div style="{FONT};max-width:46em">{"".join(parts)}</div>'


def lead(word: str, colour: str, what: str, sentence: str) -> str:
    """The decision: a word in colour and what it is about, then one sentence."""
    pill = "display:inline-block;padding:0 .7em;border-radius:1em;color:#fff;font-size:.8em;letter-spacing:.06em"
    return (
        f'<p style="margin:0"><b style="{pill};background:{colour}">{escape(word.upper())}</b> '
        f'<span style="{SOFT}">{escape(what)}</span></p>'
        f'<p style="margin:.3em 0 .8em;font-size:1.25em;font-weight:650;line-height:1.25">{escape(sentence)}</p>'
    )


def figures(rows: Iterable[tuple[str, int, int, str]]) -> str:
    """Large numbers side by side: a name, how many, of how many, and what that means."""
    return (
        f'<div style="display:flex;flex-wrap:wrap;gap:.8em 1.8em">{"".join(_figure(*row) for row in rows)}</div>'
    )


def _figure(name: str, num: int, whole: int, words: str) -> str:
    return (
        '<div style="flex:1 1 8em;border-top:2px solid;padding-top:.3em">'
        f'<div style="font-weight:600;font-size:.9em">{escape(name)}</div>'
        f'<div style="font-size:1.7em;font-weight:650;line-height:1.2">{num}'
        f'<span style="font-size:.55em;font-weight:500;opacity:.75"> of {whole}</span></div>'
        f'<div style="{SOFT}">{escape(words)}</div></div>'
    )


def image(source: str, words: str) -> str:
    """An embedded image and what it shows."""
    return (
        '<figure style="margin:.8em 0 0">'
        f'<img alt="{escape(words)}" src="{escape(source)}" style="max-width:100%">'
        f'<figcaption style="{SOFT}">{escape(words)}</figcaption></figure>'
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    heads = "".join(f'<th scope="col" style="{CELL};font-size:.85em">{escape(each)}</th>' for each in head)
    body = "".join(
        "<tr>" + "".join(f'<td style="{CELL}">{escape(each)}</td>' for each in row) + "</tr>" for row in rows
    )
    return f'<table style="border-collapse:collapse"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'


def bullets(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul style="margin:.6em 0 0;padding-left:1.2em;font-size:.92em">{items}</ul>'
