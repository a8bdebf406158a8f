"""Is this ready to be released? python benchmarks/release.py DIST [--tag]

It checks what is in the wheel and the source distribution in DIST, and that all files name one version. With --tag it also wants a
clean work tree, and tags the commit. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import unfit

ROOT = Path(__file__).parents[1]
LARGEST = 2_000_000  # bytes of a wheel
NEEDED = {"unfit/py.typed", "unfit/auditor/measured.json", "unfit/auditor/scan/known.json"}
IN_WHEEL = {".c", ".css", ".j2", ".js", ".json", ".py", ".typ", ".typed"}  # code and what it reads
DATA = {".bin", ".gz", ".joblib", ".npy", ".npz", ".pkl", ".pt", ".safetensors"}  # may hold samples or weights
NAMED = {  # where the version stands besides the package
    "CHANGELOG.md": r"^## (\S+?),? ",
    "CITATION.cff": r"^version: (\S+)$",
    "README.md": r"^  version = \{(\S+)\}$",
}


def problems(folder: Path, root: Path = ROOT, version: str = unfit.__version__) -> Iterator[str]:
    wheels, sources = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if [path.name for path in wheels] != [f"unfit-{version}-py3-none-any.whl"]:
        yield f"{folder} has {[path.name for path in wheels]} for one wheel of {version}"
    if [path.name for path in sources] != [f"unfit-{version}.tar.gz"]:
        yield f"{folder} has {[path.name for path in sources]} for one source distribution of {version}"
    for wheel in wheels:
        yield from of_wheel(wheel, f"unfit-{version}.dist-info/")
    for source in sources:
        with tarfile.open(source) as file:
            yield from (f"{source.name} holds {name}" for name in file.getnames() if is_test_data(name))
    for name, pattern in NAMED.items():
        found = re.search(pattern, (root / name).read_text("utf-8"), re.M)
        if found is None or found[1] != version:
            yield f"{name} names version {found[1] if found else None}, not {version}"


def of_wheel(wheel: Path, info: str) -> Iterator[str]:
    if wheel.stat().st_size > LARGEST:
        yield f"{wheel.name} has {wheel.stat().st_size:,} bytes, more than {LARGEST:,}"
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    yield from (f"{wheel.name} lacks {name}" for name in sorted({*NEEDED, f"{info}licenses/LICENSE"} - names))
    for name in sorted(names):
        is_code = name.startswith("unfit/") and Path(name).suffix in IN_WHEEL
        if not (is_code or name.startswith(info)):
            yield f"{wheel.name} holds {name}"


def is_test_data(name: str) -> bool:
    return Path(name).suffix in DATA or "/tests/" in name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dist", type=Path)
    parser.add_argument("--tag", action="store_true")
    given = parser.parse_args()
    found = list(problems(given.dist))
    if given.tag and git("status", "--porcelain"):
        found.append("the work tree has changes that are not committed")
    if found:
        sys.exit("\n".join(found))
    print(f"unfit {unfit.__version__} is ready")
    if given.tag:
        git("tag", "--annotate", f"v{unfit.__version__}", "--message", f"unfit {unfit.__version__}")
        print(f"tagged v{unfit.__version__}: push it, and upload {given.dist} with twine")


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
