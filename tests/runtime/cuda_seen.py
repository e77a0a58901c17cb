"""What cuda_deletions saw: a journal for each process that looks, the list kept in the tree, and its page of counts."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.runtime.c_places import Place
from tests.standin import ROOT

SEEN = Path(__file__).with_name("cuda_seen.txt")
PAGE = ROOT / "docs" / "results" / "cuda-deletions.md"
VERDICTS = ("noticed", "justified", "survived", "not looked at")
NOBODY = "-"


def digest(*texts: str) -> str:
    """Of texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


class Journal:
    """What was seen: that of the tree, then a line each in a file of its own for each process that writes."""

    def __init__(self, folder: Path, part: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"seen-{part}.jsonl"
        self.seen: dict[tuple[str, str], dict[str, str]] = {}
        for line in SEEN.read_text().splitlines() if SEEN.exists() else ():
            around, tests, why, name = line.split("\t")
            why = "" if why == NOBODY else why
            self.seen[name, around] = {"name": name, "around": around, "why": why, "tests": tests}
        for path in sorted(folder.glob("seen-*.jsonl"), key=lambda path: path.stat().st_mtime):
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                self.seen[entry["name"], entry["around"]] = entry

    def write(self, entry: Mapping[str, str]) -> None:
        """Note one place."""
        self.seen[entry["name"], entry["around"]] = dict(entry)
        with self._path.open("a") as out:
            out.write(json.dumps(entry) + "\n")

    def wanted(self, deletion: Place, tests: str, shared: bool, quick: bool) -> bool:
        """Whether a place must be looked at: not seen, or it survived tests that have changed since, or fewer of them."""
        entry = self.seen.get((deletion.name, digest(deletion.around)))
        if entry is None:
            return True
        if entry.get("quick"):
            return not quick
        return not entry["why"] and (entry["tests"] != tests or (shared and not entry.get("shared")))


def keep(journal: Journal, verdicts: Iterable[tuple[Path, Place, str]]) -> None:
    """Write the list of the tree and its page."""
    lines, counts = [], Counter[tuple[str, str]]()
    for file, deletion, verdict in verdicts:
        counts[file.relative_to(ROOT).as_posix(), verdict] += 1
        entry = journal.seen.get((deletion.name, digest(deletion.around)))
        if entry is not None and not entry.get("quick"):
            by = entry["why"].partition(": ")[0] or NOBODY
            lines.append("\t".join((entry["around"], NOBODY if entry["why"] else entry["tests"], by, deletion.name)))
    SEEN.write_text("".join(f"{line}\n" for line in lines))
    PAGE.write_text(page(counts))


def page(counts: Mapping[tuple[str, str], int]) -> str:
    """Counts of every file, as docs/results has them."""
    rows = ["| file | places | " + " | ".join(VERDICTS) + " |", "|---" * (len(VERDICTS) + 2) + "|"]
    files = list(dict.fromkeys(file for file, _ in counts))
    for title, among in (*((file, (file,)) for file in files), ("all", tuple(files))):
        numbers = [sum(counts.get((file, verdict), 0) for file in among) for verdict in VERDICTS]
        rows.append(f"| {title} | {sum(numbers)} | " + " | ".join(map(str, numbers)) + " |")
    return HEAD + "\n".join(rows) + "\n"


HEAD = """# What the tests would miss of the host code for CUDA

Made by `python -m tests.runtime.cuda_deletions FOLDER --keep`. Each check, part of a check, wait, event, push, free and
clean-up of the host code is left out, one at a time; the host code is built anew, and scenarios over the stand-in driver,
the C program and the library that times run until one fails. *Noticed*: one did (`tests/runtime/cuda_seen.txt` says which).
*Justified*: none can, for the reason in `tests/runtime/cuda_justified.txt`. *Survived*: none did, and nobody knows a reason.
A place counts as looked at as long as the function around it is the same.

"""
