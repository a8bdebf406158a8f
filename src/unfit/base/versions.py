"""Which versions of which packages a number was computed with."""

from __future__ import annotations

import platform
from importlib.metadata import version

PACKAGES = ("unfit", "torch", "numpy", "scipy")


def versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}
