"""``python -m tests.cli.alone WORDS``: a command in a process of its own, for signals, without what each race does anew.

The host's peak is that of the run, and no scattered pages are taken, as where a command is forked (``warm.py``).
"""

from __future__ import annotations

import runpy

from tests.cli.warm import spare_races

if __name__ == "__main__":
    spare_races()
    runpy.run_module("haotuner", run_name="__main__", alter_sys=True)
