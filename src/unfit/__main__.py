"""Where the program starts."""

from __future__ import annotations

import sys

from unfit import __version__
from unfit.base.ends import ending
from unfit.base.errors import UsageError
from unfit.base.overview import first_steps, overview


def main() -> None:
    """The command line; what stands in the package itself is answered before anything else is loaded."""
    with ending():  # a command loads PyTorch for seconds, in which a user may change their mind
        if sys.argv[1:] in (["--version"], ["--help"], ["-h"]):
            print(__version__ if sys.argv[1:] == ["--version"] else overview())
            return
        if not sys.argv[1:]:
            print(first_steps())
            sys.exit(UsageError.exit_code)
        from unfit.cli import main

        main()


if __name__ == "__main__":
    main()
