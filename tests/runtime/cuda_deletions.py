"""Leaves out each check, wait, event, push, free and clean-up of the host code for CUDA, one at a time: do the tests notice?

``python -m tests.runtime.cuda_deletions FOLDER [--seconds N] [--part I OF] [--quick | --shared] [--only TEXT] [--unseen]
[--keep]`` goes on where ``cuda_seen.txt`` and FOLDER stop: they keep what was seen, as long as the function is the same.
Run it in a tree that nobody changes meanwhile. Survivors are tried again when the tests have changed. With ``--shared``
those of files that CPUs share go through their tests, too (minutes each). ``--keep`` writes all that was seen to
``cuda_seen.txt`` and the counts to ``docs/results/cuda-deletions.md``. Exit 0: all were looked at, and what survives is in
``cuda_justified.txt``; 3: time ran out; 1: an unjustified one survives.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from tests.runtime.c_places import Place, places
from tests.runtime.cuda_seen import Journal, digest, keep
from tests.runtime.native_builds import CLIB, NATIVE
from tests.standin import ROOT

TIMING = ROOT / "haotuner" / "backends" / "cuda" / "native"
JUSTIFIED = Path(__file__).with_name("cuda_justified.txt")
# What calls on a device share with those on a CPU; of a file that serves both, the functions that calls on a device use.
SHARED_FILES: dict[Path, tuple[str, ...]] = {
    NATIVE / "serve.c": ("ht_call_op", "out_of_range", "ht_counts"),
    NATIVE / "c_api.c": ("describe", "setting", "said", "open_device", "packed_floats"),
    NATIVE / "check.c": ("ht_contiguous", "fold_strides", "ht_fold"),
    NATIVE / "ffi.c": ("ht_ffi_raise", "ht_ffi_tensor", "ht_ffi_whole", "ht_ffi_allocate"),
    CLIB / "gpu.c": (),
    CLIB / "linear.c": (
        "bind_placed",
        "ht_prepare",
        "ht_bind",
        "ht_linear_free",
        "call",
        "ht_call",
        "ht_call_grouped",
        "ht_call_threads",
    ),
    CLIB / "open.c": (
        "ht_pack_release",
        "load",
        "connect",
        "open_once",
        "open_steadily",
        "ht_pack_open_on",
        "ht_pack_close",
    ),
}
NOTHING = "nothing left out"
EVERY = 25  # places noted together, if nothing has changed meanwhile and the tests pass with nothing left out


def files() -> list[Path]:
    """The host code for CUDA, then what it shares with CPUs."""
    own = (*NATIVE.glob("cuda/*.c"), *NATIVE.glob("kinds/cuda_*.c"), *TIMING.glob("*.c"))
    return [*sorted(own), *SHARED_FILES]


def every() -> list[tuple[Path, Place]]:
    """Every place of every file."""
    return [
        (file, mutation)
        for file in files()
        for mutation in places(file.name, file.read_text())
        if mutation.function in (SHARED_FILES.get(file) or (mutation.function,))
    ]


def justified() -> dict[str, str]:
    """Places whose absence cannot show, each with its reason: pairs of lines, name and indented reason."""
    reasons: dict[str, str] = {}
    name = ""
    for line in JUSTIFIED.read_text().splitlines():
        if line.startswith("    "):
            reasons[name] = f"{reasons.get(name, '')} {line.strip()}".strip()
        elif line and not line.startswith("#"):
            name = line
            reasons[name] = ""
    return reasons


def tests() -> str:
    """The state of what may notice."""
    here = Path(__file__).parent
    programs = [
        here / "native" / f"drive_{name}.c"
        for name in ("cuda", "doors", "bound", "ffi", "checks", "workspace", "grouped", "products")
    ]
    looked = [*here.glob("cuda_*.py"), *programs, *(ROOT / "tests" / "backends").glob("cuda_timing*.py")]
    return digest(*(path.read_text() for path in sorted(looked) if path.name != Path(__file__).name))


def tree() -> str:
    """The state of all that a test runs."""
    paths = [path for folder in ("haotuner", "microkernels", "tests") for path in (ROOT / folder).rglob("*")]
    return digest(*(path.read_text() for path in sorted(paths) if path.suffix in (".py", ".c", ".h", ".cc", ".cuh")))


def look(
    folder: Path, seconds: float, part: tuple[int, int], shared: bool, quick: bool, only: str = "", unseen: bool = False
) -> bool:
    """Look at what is wanted and has a text in its name, as long as there is time; whether all of the part was.

    ``unseen``: nothing that survived other tests before.
    """
    from tests.runtime.cuda_variant_lists import ALL_TESTS, SHARED
    from tests.runtime.cuda_variants import Variants

    end = time.monotonic() + seconds
    journal, reasons, state = Journal(folder, f"{part[0]}-{part[1]}"), justified(), tests()
    texts, before = {file: file.read_text() for file in files()}, tree()
    mine = every()[part[0] :: part[1]]
    left = [
        (file, mutation)
        for file, mutation in mine
        if only in mutation.name
        and not (unseen and (mutation.name, digest(mutation.around)) in journal.seen)
        and journal.wanted(mutation, state, shared and file.name in SHARED and mutation.name not in reasons, quick)
    ]
    # Those that survived come again later, and those that have a reason last.
    left.sort(key=lambda pair: (pair[1].name in reasons, (pair[1].name, digest(pair[1].around)) in journal.seen))
    if not left:
        return True
    sources = sorted({file for file, _ in left}) if only else ALL_TESTS
    whole = ", ".join([NOTHING, *(["quick"] if quick else []), *(file.name for file in sources if only)])
    variants = Variants(folder / f"build-{part[0]}-{part[1]}")
    for file, mutation in every():
        if seen := journal.seen.get((mutation.name, digest(mutation.around)), {}).get("why"):
            variants.learn(file.name, mutation.function, seen)
    try:
        if (whole, before) not in journal.seen:
            variants.whole(quick=quick, sources=sources)
        for at in range(0, len(left), EVERY):
            entries: list[dict[str, str]] = []
            for file, mutation in left[at : at + EVERY]:
                if time.monotonic() > end:
                    break
                text = mutation.without(texts[file])
                begin = time.monotonic()
                why = variants.noticed(file, text, mutation.function, quick=quick)
                print(f"{time.monotonic() - begin:5.1f} s  {mutation.name}: {why[:90] or 'SURVIVED'}", flush=True)
                if why:
                    variants.learn(file.name, mutation.function, why)
                if not why and shared and mutation.name not in reasons:
                    why = variants.noticed_by_shared(file, text)
                entry = {"name": mutation.name, "around": digest(mutation.around), "why": why, "tests": state}
                entry |= {"quick": "yes"} if quick and not why else {}
                entries.append(entry | ({"shared": "yes"} if shared else {}))
            assert tree() == before, "the tree changed meanwhile: use a copy of it"
            if (whole, before) not in journal.seen:
                journal.write({"name": whole, "around": before, "why": "none expected", "tests": state})
            for entry in entries:
                journal.write(entry)
            if time.monotonic() > end:
                return False
    finally:
        variants.close()
    return True


def verdicts(journal: Journal) -> list[tuple[Path, Place, str]]:
    """What is known of each place: noticed, justified, survived or not looked at."""
    reasons, judged = justified(), []
    for file, mutation in every():
        entry = journal.seen.get((mutation.name, digest(mutation.around)))
        verdict = "not looked at" if entry is None or entry.get("quick") else "noticed" if entry["why"] else "survived"
        if verdict == "survived" and mutation.name in reasons:
            verdict = "justified"
        if verdict == "noticed" and mutation.name in reasons:
            print(f"noticed, yet justified: {mutation.name}")
        judged.append((file, mutation, verdict))
    return judged


def report(folder: Path, write: bool) -> int:
    """Print what survives without a reason, and counts; the exit code."""
    journal = Journal(folder, "none")
    judged = verdicts(journal)
    for file, mutation, verdict in judged:
        if verdict == "survived":
            line = file.read_text().count("\n", 0, mutation.start) + 1
            print(f"SURVIVED {file.relative_to(ROOT)}:{line}\n{mutation.name}")
    counts = Counter(verdict for _, _, verdict in judged)
    print(", ".join(f"{counts[name]} {name}" for name in ("noticed", "justified", "survived", "not looked at")))
    if write:
        keep(journal, judged)
    return 1 if counts["survived"] else 3 if counts["not looked at"] else 0


def main() -> None:
    """Look and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), metavar=("I", "OF"), help="from 0")
    parser.add_argument("--shared", action="store_true")
    parser.add_argument("--quick", action="store_true", help="tests of one architecture; what survives them is not noted")
    parser.add_argument("--only", default="", metavar="TEXT", help="places that have it in their names")
    parser.add_argument("--unseen", action="store_true", help="places that were never looked at alone")
    parser.add_argument("--keep", action="store_true", help="write what was seen into the tree")
    args = parser.parse_args()
    look(args.folder, args.seconds, tuple(args.part), args.shared, args.quick, args.only, args.unseen)
    sys.exit(report(args.folder, args.keep))


if __name__ == "__main__":
    main()
