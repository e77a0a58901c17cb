"""The haotuner command: says what to install when the tuning extra is not there, else hands over to cli/app.py."""

from __future__ import annotations

import sys
from importlib.util import find_spec

NEEDED = ("typer", "rich", "tvm", "lightgbm", "pandas", "sklearn", "scipy")


def main() -> None:
    """Run the command line; never returns."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(
            f"haotuner: the command line needs the tuning extra; not installed: {', '.join(missing)}.\n"
            'Run: pip install "haotuner[tune]"\n'
            "This install serves packs from Python (haotuner.load); `python -m haotuner.pack verify DIR` checks one.",
            file=sys.stderr,
        )
        sys.exit(4)
    from haotuner.cli.app import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
