"""Where the program starts."""

from __future__ import annotations

import sys

from unfit import __version__


def main() -> None:
    """The command line; the version without it, since loading PyTorch takes seconds."""
    if sys.argv[1:] == ["--version"]:
        print(__version__)
        return
    from unfit.cli import main

    main()


if __name__ == "__main__":
    main()
