"""Look for inputs that reach what the corpus does not: ``python -m tests.runtime.distil [COUNT]``; adds them to it."""

from __future__ import annotations

import hashlib
import random
import re
import sys
import tempfile
from pathlib import Path

from haotuner.errors import PackInvalid
from haotuner.pack.manifest import read_manifest
from tests.runtime.native_builds import CLIB, HERE, NATIVE, cc, run

CORPUS = Path(__file__).parent / "corpus"
MANIFESTS = CORPUS / "manifest"
LETTERS = b'{}[]",:\\0123456789truefalsenull.eE+- \n\t/u'
WORDS = (
    b"NaN",
    b"-1",
    b"1e9",
    b'"levels":{},',
    b'"files":{},',
    b"null",
    b"\xff\xfe",
    b'"n":8,',
    b"[" * 40,
    b'""',
    b"{}",
    b"true",
)


def fuzzer(folder: Path) -> Path:
    """The fuzzers of native/fuzz.c under ASan and UBSan."""
    flags = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    kinds = ("dense.c", "dense_plan.c", "dense_run.c", "typed_run.c", "typed_pack.c", "sliced.c")
    native = [NATIVE / "check.c", NATIVE / "pool.c", *(NATIVE / "kinds" / name for name in kinds)]
    return cc([HERE / "fuzz.c", *native, CLIB / "manifest.c"], folder / "fuzz", *flags)


def damaged(text: bytes, seed: int) -> bytes:
    """A copy with up to four edits: bytes changed, words put in, spans cut or repeated."""
    draw = random.Random(seed)
    copy = bytearray(text)
    for _ in range(draw.randrange(1, 5)):
        at = draw.randrange(len(copy) + 1)
        kind = draw.randrange(4)
        if kind == 0 and at < len(copy):
            copy[at] = draw.choice(LETTERS)
        elif kind == 1:
            copy[at:at] = draw.choice(WORDS)
        elif kind == 2:
            del copy[at : at + draw.randrange(1, 20)]
        else:
            copy[at:at] = copy[at : at + draw.randrange(1, 60)]
    return bytes(copy)


def said_by_c(fuzz: Path, paths: list[Path]) -> list[str]:
    """What the C reader says of each file."""
    answers: list[str] = []
    for first in range(0, len(paths), 500):
        answers += run([fuzz, "read", "1", "0", *paths[first : first + 500]], 100).stdout.splitlines()
    return answers


def said_by_python(folder: Path) -> str:
    """The kind of answer: words without the numbers and names in them."""
    try:
        read_manifest(folder)
    except PackInvalid as error:
        words = str(error).replace(str(folder), "").partition(";")[0]
        return re.sub(r"'[^']*'|\d+|\(.*", "#", words)
    return "ok"


def distil(count: int) -> int:
    """Outcomes found that were new."""
    from tests.runtime.test_pack_files import GOOD, HOSTILE

    CORPUS.mkdir(exist_ok=True)
    MANIFESTS.mkdir(exist_ok=True)
    new = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        fuzz = fuzzer(folder)
        seeds = CORPUS / "seeds.txt"
        lines = seeds.read_text(encoding="utf-8").splitlines() if seeds.exists() else []
        reached = {(line.split(" ", 2)[0], re.sub(r"-?\d+", "#", line.split(" ", 2)[2])) for line in lines}
        for mode in ("check", "plan"):
            for seed in range(1, count):
                outcome = run([fuzz, mode, "1", str(seed)]).stdout.strip()
                kind = mode, re.sub(r"-?\d+", "#", outcome) if mode == "check" else outcome.rpartition(",")[2]
                if kind not in reached:
                    reached.add(kind)
                    lines.append(f"{mode} {seed} {outcome}")
                    new += 1
        seeds.write_text("\n".join(lines) + "\n", encoding="utf-8")
        tries = [GOOD.encode(), *(raw for raw, _ in HOSTILE.values() if len(raw) < 2000)]
        tries += [path.read_bytes() for path in sorted(MANIFESTS.iterdir())]
        known = len(list(MANIFESTS.iterdir()))
        tries = tries[-known:] + tries[: len(tries) - known] if known else tries  # what is kept counts as reached first
        tries += [damaged(GOOD.encode(), seed) for seed in range(count)]
        paths = []
        for index, text in enumerate(tries):
            (folder / str(index)).mkdir()
            paths.append(folder / str(index) / "manifest.json")
            paths[-1].write_bytes(text)
        answers: set[tuple[str, str]] = set()
        for index, (path, c) in enumerate(zip(paths, said_by_c(fuzz, paths), strict=True)):
            kind = c, said_by_python(path.parent)
            if kind not in answers and index >= known:
                raw = path.read_bytes()
                (MANIFESTS / hashlib.sha256(raw).hexdigest()[:12]).write_bytes(raw)
                new += 1
            answers.add(kind)
    return new


if __name__ == "__main__":
    print(f"{distil(int(sys.argv[1]) if len(sys.argv) > 1 else 3000)} new")
