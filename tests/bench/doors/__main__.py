"""The table of doors: ``python -m tests.bench.doors [DOOR ...] [--folder FOLDER] [--page docs/results/doors.md]``.

Every door is a module beside this one. ``prepare(folder)`` makes its models and packs there, which takes minutes and any
machine will do. ``rows(folder) -> list[Row]`` measures, and ``notes(folder) -> str`` is the text below the table. With
``--prepare`` nothing is measured. A door whose packages are not installed says so and is left out. With ``--page`` each
door writes its own section alone, so that doors may be measured on different days. Measure on a quiet machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

from tests.bench.doors.row import FIGURES, Row, cells
from tests.bench.markdown import markdown_table
from tests.bench.sections import section_written

DOORS = {
    "serve": "`haotuner serve`",
    "torch_compile": "torch.compile",
    "onnxruntime_ep": "ONNX Runtime",
    "vllm": "vLLM",
}
HEAD = ("model", "beside", *FIGURES)
COMMAND = "python -m tests.bench.doors"
PREFACE = f"""# Doors

haotuner inside servers that people run, beside the same server without it:
`{COMMAND} [DOOR …] --folder FOLDER --page docs/results/doors.md`.
A cell is haotuner's figure, then the other's, then how many times better haotuner is: over 1 it is.
"""


def body(door: str, rows: list[Row], notes: str) -> str:
    """The section of one door."""
    return "\n".join([f"`{COMMAND} {door}`", "", *markdown_table(HEAD, [cells(row) for row in rows]), notes]).strip()


def main(arguments: list[str]) -> int:
    """Print each door's table, or write its section of the page; 3 where a door could not be measured."""
    reader = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    reader.add_argument("doors", nargs="*", choices=[[], *DOORS], default=[])
    reader.add_argument("--folder", type=Path, help="keeps models and packs; one of this run where it is not given")
    reader.add_argument("--prepare", action="store_true", help="make models and packs, and measure nothing")
    reader.add_argument("--page", type=Path)
    options = reader.parse_args(arguments)
    missing = 0
    with nullcontext(options.folder) if options.folder is not None else tempfile.TemporaryDirectory() as models:
        for door in options.doors or DOORS:
            folder = Path(models) / door
            folder.mkdir(parents=True, exist_ok=True)
            try:
                module = import_module(f"tests.bench.doors.{door}")
                module.prepare(folder)
                text = "" if options.prepare else body(door, module.rows(folder), module.notes(folder))
            except ImportError as error:
                missing += 1
                print(f"{door}: not measured, {error.name} is not installed", file=sys.stderr)
                continue
            if text and options.page is None:
                print(f"## {DOORS[door]}\n\n{text}\n", flush=True)
            elif text:
                if not options.page.exists():
                    options.page.write_text(PREFACE, encoding="utf-8")
                section_written(options.page, DOORS[door], text)
    return 3 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
