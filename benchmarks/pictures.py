"""The pictures of the README and the quickstart: python benchmarks/pictures.py

It runs `unfit demo` in a folder of its own, draws a strip of pairs from the saved audit, and takes a screenshot of the page
where `chromium` is installed. A test draws the strip again and compares.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import unfit
from unfit.base.images import tiles

IMAGES = Path(__file__).parents[1] / "docs" / "images"
STRIP, PAGE = IMAGES / "demo.png", IMAGES / "page.png"
NUM_PAIRS, ZOOM = 20, 2
SIZE = (1200, 1000)  # of the screenshot


def strip(audit: unfit.Audit) -> Image.Image:
    """Pairs in order of their labels: reconstructions above, training images below."""
    labels = torch.tensor([sample.label for sample in audit.record.samples])
    order = labels.argsort(stable=True)
    chosen = order[torch.linspace(0, len(order) - 1, NUM_PAIRS).round().long()]
    rows = [audit.arrays[name][chosen] for name in ("reconstruction", "original")]
    return Image.fromarray(np.concatenate(tiles(torch.cat(rows), NUM_PAIRS, ZOOM)))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "unfit", "demo", "--out", f"{folder}/demo"], check=True)
        audit = Path(folder, "demo", "audit")
        strip(unfit.load_audit(audit)).save(STRIP, optimize=True)
        if browser := shutil.which("chromium"):
            size, taken = f"--window-size={SIZE[0]},{SIZE[1]}", f"{folder}/page.png"
            flags = ["--headless", "--no-sandbox", "--hide-scrollbars", size, f"--screenshot={taken}"]
            subprocess.run([browser, *flags, (audit / "index.html").as_uri()], check=True, capture_output=True)
            Image.open(taken).convert("RGB").quantize(128).save(PAGE, optimize=True)


if __name__ == "__main__":
    main()
