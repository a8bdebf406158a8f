"""The notebooks of docs/notebooks, with their outputs: python benchmarks/notebooks.py

Cells are run in order in a folder of their own, without Jupyter; what they print is stored. A test runs them again.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"


def printed(path: Path) -> list[str]:
    """What each cell of code prints, run in this folder."""
    names: dict[str, Any] = {}
    found = []
    for cell in cells(path):
        with redirect_stdout(StringIO()) as out:
            exec(compile("".join(cell["source"]), path.name, "exec"), names)
        found.append(out.getvalue())
    return found


def cells(path: Path) -> list[dict[str, Any]]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kept(path: Path) -> list[str]:
    """What the notebook says that each cell prints."""
    return ["".join("".join(output["text"]) for output in cell["outputs"]) for cell in cells(path)]


def store(path: Path, texts: list[str]) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for i, (cell, text) in enumerate(zip(code, texts, strict=True)):
        stream = {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
        cell |= {"execution_count": i + 1, "outputs": [stream] if text else []}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for each in sorted(NOTEBOOKS.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            before = Path.cwd()
            os.chdir(folder)
            store(each, printed(each))
            os.chdir(before)
