"""Where the program starts."""

from __future__ import annotations

import sys

from unfit import __version__
from unfit.base.ends import ending


def main() -> None:
    """The command line; the version without it, since loading PyTorch takes seconds."""
    if sys.argv[1:] == ["--version"]:
        print(__version__)
        return
    with ending():  # loading takes seconds, in which a user may change their mind
        from unfit.cli import main

        main()


if __name__ == "__main__":
    main()
