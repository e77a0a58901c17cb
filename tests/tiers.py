"""The tiers of the tests: what a change to the CPU side can break is run by ``make test``, the rest by name.

Slow tests are run in parts: whole files, spread so that each part takes about as long as another.

    python -m tests.tiers REPORT.xml ...    note how long slow tests took, from reports of ``pytest -m slow --junitxml``
"""

from __future__ import annotations

import functools
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath

TESTS = Path(__file__).parent
SECONDS = TESTS / "slow_seconds.json"  # that the slow tests of each file take in one process
UNKNOWN_S = 30.0  # of a file that is not in it
# The CUDA side without a GPU: over the stand-in driver, in the emulator, as text for nvcc.
_DEVICE = re.compile(r"cuda|gpu|bundle|standin|emulator|on_devices|op_kernel_device|test_driver")
_PART = re.compile(r"([1-9][0-9]*)/([1-9][0-9]*)(-timed)?")


def is_device(path: PurePath) -> bool:
    """Whether a test file, relative to ``tests/``, is about the CUDA side alone."""
    return _DEVICE.search(path.as_posix()) is not None


def leaves_out(marks: str, path: Path, part: str = "") -> bool:
    """True if ``pytest -m MARKS --part PART`` can run nothing of a file: it need not be imported."""
    if path.suffix != ".py" or not path.is_relative_to(TESTS) or path.name == "conftest.py" or " or " in marks:
        return False
    inside = path.relative_to(TESTS)
    if "slow" in marks.split(" and ") and inside not in slow_files_of(part):
        return True
    return "not device" in marks and is_device(inside)


@functools.cache
def slow_files_of(part: str = "") -> frozenset[PurePath]:
    """The test files of a part such as ``2/4``, relative to ``tests/``; of an empty one all that have slow tests.

    ``2/4-timed``: of the files whose seconds are known alone, which CI runs.

    ValueError where the part is none.
    """
    files = [path for path in TESTS.rglob("test_*.py") if "mark.slow" in path.read_text(encoding="utf-8")]
    names = [path.relative_to(TESTS).as_posix() for path in files]
    if not part:
        return frozenset(map(PurePath, names))
    match = _PART.fullmatch(part)
    if match is None or not int(match[1]) <= int(match[2]):
        raise ValueError(f"--part {part}: expected K/N with K from 1 to N, such as 2/4 or 2/4-timed")
    took = seconds()
    names = [name for name in names if name in took or not match[3]]
    return frozenset(map(PurePath, parts_of(names, took, int(match[2]))[int(match[1]) - 1]))


def seconds() -> dict[str, float]:
    """Seconds by file."""
    return dict(json.loads(SECONDS.read_text(encoding="utf-8"))) if SECONDS.exists() else {}


def parts_of(names: Iterable[str], seconds_by_file: Mapping[str, float], count: int) -> list[list[str]]:
    """The files in so many parts: the longest first, each to the part that has least (Graham 1969, LPT)."""
    parts: list[list[str]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for name in sorted(names, key=lambda name: (-seconds_by_file.get(name, UNKNOWN_S), name)):
        least = loads.index(min(loads))
        parts[least].append(name)
        loads[least] += seconds_by_file.get(name, UNKNOWN_S)
    return parts


def note(reports: Iterable[Path]) -> None:
    """Replace the seconds of the files in these reports; files without slow tests go."""
    recorded = seconds()
    names = {path.as_posix() for path in slow_files_of()}
    reported: dict[str, float] = {}
    for report in reports:
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            name = f"{case.get('classname', '').removeprefix('tests.').replace('.', '/')}.py"
            reported[name] = reported.get(name, 0.0) + float(case.get("time", "0"))
    all_seconds = {name: round(value, 1) for name, value in sorted((recorded | reported).items()) if name in names}
    SECONDS.write_text(json.dumps(all_seconds, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    note(map(Path, sys.argv[1:]))
