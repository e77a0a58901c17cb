"""Deletes each check, push, pop and clean-up of the host code for CUDA, one at a time: do the scenarios of serving notice?

``python -m tests.serving.cuda_deletions FOLDER [FIRST COUNT]`` prints a line for each deletion that nothing noticed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from haotuner.backends.cuda.pack_source import PACK_SOURCES, pack_data
from haotuner.backends.toolchain import Toolchain
from haotuner.pack.write import write_pack
from tests.serving.cuda_packs import PICKS, Pick, build_pack, document, packed_op
from tests.serving.native_builds import NATIVE
from tests.standin import ROOT, environment

FILES = ("kinds/cuda_dense.c", "kinds/cuda_queue.c", "cuda/launch.c", "cuda/loaded.c", "cuda/workspace.c", "cuda/driver.c")
SCENARIOS = (
    "numbers",
    "alignment",
    "unprepared",
    "captured",
    "refusals",
    "devices",
    "context",
    "counted",
    "forked",
    "preparing",
)
FLAGS = ("-std=c11", "-O1", "-fPIC", "-fvisibility=hidden", "-pthread", "-w")
SECONDS = 60
# A statement that refuses or leaves, with its condition; and calls whose absence must show.
_TEXT = r'(?:"(?:[^"\\]|\\.)*"|[^;{}"])*?'  # with the strings that hold a semicolon
_REFUSAL = re.compile(rf"^ +if \({_TEXT}\)\s+return {_TEXT};\n", re.MULTILINE)
_CALL = re.compile(r"^ +(?:ht_cuda_leave|ht_cuda_workspace_done|atomic_store|free|cu->ModuleUnload)\b[^;]*;\n", re.MULTILINE)
_SCOPE = re.compile(r"ht_cuda_enter\([^)]*\) != 0")


@dataclass(frozen=True)
class Deletion:
    """One text of a file that is left out (or, of an entered context, not tried)."""

    file: str
    start: int
    end: int
    instead: str

    def of(self, text: str) -> str:
        """The file without it."""
        return text[: self.start] + self.instead + text[self.end :]

    def __str__(self) -> str:
        text = (NATIVE / self.file).read_text()
        line = text.count("\n", 0, self.start) + 1
        return f"{self.file}:{line}: {' '.join(text[self.start : self.end].split())[:110]}"


def deletions() -> Iterator[Deletion]:
    """Every one, in the order of the files."""
    for file in FILES:
        text = (NATIVE / file).read_text()
        found = [(one, "") for pattern in (_REFUSAL, _CALL) for one in pattern.finditer(text)]
        found += [(one, "(scope.pushed = 0) != 0") for one in _SCOPE.finditer(text)]
        for match, instead in sorted(found, key=lambda pair: pair[0].start()):
            yield Deletion(file, match.start(), match.end(), instead)


class Bench:
    """Packs of both architectures whose host code is linked anew for each deletion."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tools = Toolchain.find()
        self._built = {pick.arch: build_pack(folder / f"whole-{pick.arch}", pick, folder / "code") for pick in PICKS}
        self._objects = {name: self._object(NATIVE / name, folder / f"{name.replace('/', '_')}.o") for name in PACK_SOURCES}
        for pick in PICKS:
            (cubin,) = (folder / "code").glob(f"*{pick.arch}/unit.cubin")
            data = folder / f"data_{pick.arch}.c"
            data.write_text(pack_data([packed_op(pick.op, pick.kernels, pick.cells)], cubin, pick.arch))
            self._object(data, folder / f"data_{pick.arch}.o")

    def noticed(self, deletion: Deletion) -> bool:
        """Whether a scenario fails without the text."""
        source = self.folder / "mutant.c"
        source.write_text(deletion.of((NATIVE / deletion.file).read_text()))
        try:
            mutant = self._object(source, self.folder / "mutant.o", also=(NATIVE / deletion.file).parent)
        except RuntimeError:
            return True  # the compiler did
        return any(not self._serves(pick, deletion.file, mutant) for pick in PICKS)

    def _serves(self, pick: Pick, file: str, mutant: Path) -> bool:
        objects = [mutant if name == file else path for name, path in self._objects.items()]
        library = self.folder / "mutant.so"
        self._run(
            [self._tools.compiler, "-shared", "-pthread", *objects, self.folder / f"data_{pick.arch}.o", "-o", library]
        )
        pack = self.folder / "mutant"
        ops = [packed_op(pick.op, pick.kernels, pick.cells)]
        write_pack(pack, library, document(ops, pick.arch), lambda _: None)
        where = environment(
            self.folder / "images", device=pick.arch, more_devices=(pick.arch,), sources=self.folder / "code"
        )
        try:
            ran = subprocess.run(
                [sys.executable, "-m", "tests.serving.cuda_scenarios", "several", str(pack), *SCENARIOS],
                cwd=ROOT, env={**os.environ, **where}, capture_output=True, timeout=SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
        return ran.returncode == 0

    def _object(self, source: Path, out: Path, also: Path = NATIVE) -> Path:
        includes = ["-I", str(NATIVE), "-I", str(also), "-I", str(self._tools.include)]
        self._run([self._tools.compiler, *FLAGS, *includes, "-c", source, "-o", out])
        return out

    def _run(self, command: list[str | Path]) -> None:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])


if __name__ == "__main__":
    bench = Bench(Path(sys.argv[1]))
    every = list(deletions())
    first, count = (int(word) for word in sys.argv[2:4]) if len(sys.argv) > 3 else (0, len(every))
    for place, one in enumerate(every[first : first + count], start=first):
        print(place, "noticed" if bench.noticed(one) else "SURVIVED", one, flush=True)
