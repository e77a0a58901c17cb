"""Builds of the host code for CUDA with one text changed, and the tests that cover it, up to the first that fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from haotuner.backends.cuda import timing_library
from haotuner.backends.cuda.pack_source import PACK_SOURCES, pack_data
from haotuner.backends.toolchain import Toolchain
from haotuner.pack.write import write_pack
from tests.serving.cuda_packs import PICKS, SIMT, Pick, build_pack, document, packed_op
from tests.serving.native_builds import CLIB, HERE, LIBRARY, NATIVE
from tests.standin import ROOT, environment
from tests.standin.forking import Forking

SCENARIOS = (
    "refusals", "faults", "numbers", "alignment", "unprepared", "captured", "devices", "context", "counted", "forked",
    "preparing", "frameworks", "allocating", "threads",
)  # fmt: skip
FLAGS = ("-std=c11", "-O1", "-fPIC", "-fvisibility=hidden", "-pthread", "-w")
SECONDS = 20  # of scenarios that take one or two; a machine that others use, and a wait that never ends
TIMING = {source.name for source in timing_library.SOURCES}
# What else covers a file that CPUs share: tests that build the library anew from a tree with the change.
SHARED = {
    "serve.c": ("test_life.py", "test_results.py", "test_kinds.py", "test_bad_input.py"),
    "door.c": ("test_c_library.py", "test_cuda_c.py"),
    "check.c": ("test_bad_input.py", "test_kinds.py", "test_operator.py"),
    "ffi.c": ("test_bad_input.py", "test_life.py", "test_kinds.py", "test_pack_files.py", "test_results.py"),
    "gpu.c": ("test_cuda_packs.py", "test_cuda_c.py"),
    "linear.c": ("test_cuda_c.py", "test_c_library.py"),
    "open.c": ("test_cuda_c.py", "test_c_library.py"),
}
SHARED_SECONDS = 300
TREE = ("haotuner", "microkernels", "transfer", "hw_profiles", "tests", "pyproject.toml")


class Variants:
    """Whole objects of both packs, of the timing library and of the C library; a variant replaces one of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tools = Toolchain.find()
        folder.mkdir(parents=True, exist_ok=True)
        self._packs = {pick.arch: self._built(pick) for pick in PICKS}
        self._cubins = {pick.arch: next((folder / "code").glob(f"*{pick.arch}/unit.cubin")) for pick in PICKS}
        timed = [
            source for source in timing_library.SOURCES if source.name not in {Path(name).name for name in PACK_SOURCES}
        ]
        self._sources = {Path(name).name: NATIVE / name for name in PACK_SOURCES} | {one.name: one for one in timed}
        self._objects = {name: self._object(path, folder / f"{name}.o") for name, path in self._sources.items()}
        for pick in PICKS:
            data = folder / f"data_{pick.arch}.c"
            data.write_text(pack_data([packed_op(pick.op, pick.kernels, pick.cells)], self._cubins[pick.arch], pick.arch))
            self._object(data, folder / f"data_{pick.arch}.o")
        self._client = {path.name: path for path in LIBRARY} | {"drive_cuda.c": HERE / "drive_cuda.c"}
        self._client_objects = {n: self._object(path, folder / f"c_{n}.o") for n, path in self._client.items()}
        self._forking = Forking(self._where(SIMT), ("tests.serving.cuda_scenarios", "tests.work.cuda_timing"))

    def close(self) -> None:
        """End the process that scenarios are forked from."""
        self._forking.close()

    def whole(self) -> None:
        """All tests pass with nothing left out; AssertionError says what did not."""
        for source in (NATIVE / "cuda" / "driver.c", CLIB / "gpu.c"):  # whose tests are all, between them
            why = self.noticed(source, source.read_text())
            assert not why, f"with nothing left out: {why}"

    def noticed(self, source: Path, text: str) -> str:
        """What fails where a source has this text: the first thing that did, or nothing."""
        name = source.name
        mutant, out = self.folder / "mutant.c", self.folder / "mutant.o"
        mutant.write_text(text)
        try:
            self._object(mutant, out, also=source.parent, public=source.parent == CLIB)
        except RuntimeError as error:
            return f"compiler: {str(error).strip().splitlines()[0][-120:]}"
        try:
            return next((why for why in self._looks(source, name, out) if why), "")
        except RuntimeError as error:  # it does not link
            return f"linker: {str(error).strip().splitlines()[-1][-120:]}"

    def noticed_by_shared(self, source: Path, text: str) -> str:
        """The same by the tests that CPUs share, in a copy of the tree; slow."""
        if source.name not in SHARED:
            return ""
        with tempfile.TemporaryDirectory(dir=self.folder) as made:
            tree = Path(made) / "tree"
            tree.mkdir()
            for name in TREE:
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(ROOT / name, tree / name)
            (tree / source.relative_to(ROOT)).write_text(text)
            for test in SHARED[source.name]:
                command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow"]
                done = subprocess.run(
                    [*command, f"tests/serving/{test}"], cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)},
                    capture_output=True, text=True, timeout=SHARED_SECONDS, check=False,
                )  # fmt: skip
                failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
                if done.returncode:
                    return f"{test}: {failed[0][:120] if failed else done.stdout[-120:]}"
        return ""

    def _looks(self, source: Path, name: str, mutant: Path) -> Iterator[str]:
        if source.parent == CLIB:
            objects = [mutant if one == name else path for one, path in self._client_objects.items()]
            for pick in PICKS:
                yield self._driven(objects, self._packs[pick.arch], pick)
            return
        if name in {Path(one).name for one in PACK_SOURCES}:
            packs = {pick.arch: self._pack(pick, name, mutant) for pick in PICKS}
            for pick in PICKS:
                yield self._served(packs[pick.arch], pick)
            for pick in PICKS:
                yield self._driven(list(self._client_objects.values()), packs[pick.arch], pick)
        if name in TIMING:
            for pick in PICKS:
                yield self._timed(name, mutant, pick)

    def _pack(self, pick: Pick, name: str, mutant: Path) -> Path:
        objects = [mutant if name == Path(one).name else self._objects[Path(one).name] for one in PACK_SOURCES]
        library, pack = self.folder / "mutant.so", self.folder / f"mutant-{pick.arch}"
        self._run(
            [self._tools.compiler, "-shared", "-pthread", *objects, self.folder / f"data_{pick.arch}.o", "-o", library]
        )
        write_pack(pack, library, document([packed_op(pick.op, pick.kernels, pick.cells)], pick.arch), lambda _: None)
        return pack

    def _served(self, pack: Path, pick: Pick) -> str:
        for scenario in SCENARIOS:
            why = self._forking.call(
                "tests.serving.cuda_scenarios", scenario, str(pack), environment=self._where(pick), seconds=SECONDS
            )
            if why:
                return f"{scenario} on {pick.arch}: {why}"
        return ""

    def _timed(self, name: str, mutant: Path, pick: Pick) -> str:
        objects = [mutant if name == source.name else self._objects[source.name] for source in timing_library.SOURCES]
        library = self.folder / "timing.so"
        self._run([self._tools.compiler, "-shared", "-pthread", *objects, "-o", library])
        for scenario in ("timing", "unended"):
            words = (str(self._cubins[pick.arch]), pick.op, str(library))
            where = self._where(pick, noise=0.0)
            why = self._forking.call("tests.work.cuda_timing", scenario, *words, environment=where, seconds=SECONDS)
            if why:
                return f"{scenario} on {pick.arch}: {why}"
        return ""

    def _driven(self, objects: list[Path], pack: Path, pick: Pick) -> str:
        program = self.folder / "mutant-drive"
        self._run([self._tools.compiler, "-pthread", *objects, "-o", program, "-lm", "-ldl"])
        where = self._where(pick, bare=True)
        try:
            done = subprocess.run(
                [str(program), "threads", str(pack), pick.op], env={**os.environ, **where}, capture_output=True, text=True,
                timeout=SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"drive_cuda on {pick.arch}: it hung"
        return f"drive_cuda on {pick.arch}: {done.returncode} {done.stderr[-120:]}" if done.returncode else ""

    def _built(self, pick: Pick) -> Path:
        out = self.folder / f"whole-{pick.arch}"
        return out if out.exists() else build_pack(out, pick, self.folder / "code")

    def _where(self, pick: Pick, *, noise: float = 0.01, bare: bool = False) -> dict[str, str]:
        return environment(
            self.folder / "images", device=pick.arch, more_devices=(pick.arch,), sources=self.folder / "code", noise=noise,
            bare=bare,
        )  # fmt: skip

    def _object(self, source: Path, out: Path, also: Path = NATIVE, public: bool = False) -> Path:
        folders = [NATIVE, NATIVE / "cuda", CLIB / "include", also, self._tools.include]
        flags = [flag for flag in FLAGS if not public or flag != "-fvisibility=hidden"]
        self._run([self._tools.compiler, *flags, *(f"-I{one}" for one in folders), "-c", source, "-o", out])
        return out

    def _run(self, command: list[str | Path]) -> None:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
