"""Builds of the host code for CUDA with one text changed, and the tests that cover it, up to the first that fails."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from haotuner.backends.cuda import timing_library
from haotuner.backends.cuda.pack_source import PACK_SOURCES, pack_data
from haotuner.backends.toolchain import Toolchain
from haotuner.pack.write import write_pack
from tests.serving.cuda_packs import (
    GROUPED_FP32,
    GROUPED_HOPPER,
    KN_HOPPER,
    PICKS,
    SIMT,
    Pick,
    build_pack,
    document,
    packed_op,
)
from tests.serving.native_builds import CLIB, HERE, LIBRARY, NATIVE
from tests.standin import ROOT, environment
from tests.standin.forking import Forking

SCENARIOS = (
    "refusals", "misuses", "faults", "numbers", "alignment", "unprepared", "captured", "devices", "context", "counted",
    "forked", "preparing", "frameworks", "allocating",
)  # fmt: skip
OF_THE_DRIVER = ("early", "crowd", "older_load", "older_maps", "older_still", "other_major", "other_shared", "other_driver",
                 "threads")  # fmt: skip
QUICK = SCENARIOS[:6]  # a second's worth, which notices most
OPENING = ("driver.c", "loaded.c", "launch.c", "placed.c")  # what they are for, beside the rest
# Picks beside PICKS, which go through all of the above, and what they are for.
MORE = {KN_HOPPER: ("stored",), GROUPED_HOPPER: ("grouped", "grouped_refusals"), GROUPED_FP32: ("grouped",)}
FLAGS = ("-std=c11", "-O1", "-fPIC", "-fvisibility=hidden", "-pthread", "-w")
WATCHED = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
)  # what the C program and the pack in it are built with
SLOWLY = "cuInit:1+=wait:20,cuDevicePrimaryCtxRetain:1+=wait:20,cuModuleLoadData:1+=wait:20"  # so that threads meet there
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
        state, kept = _state(), folder / "state"
        self._built_before = kept.exists() and kept.read_text() == state
        if not self._built_before:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        every = (*PICKS, *MORE)
        self._packs = {pick.op: self._built(pick) for pick in every}
        self._cubins = {pick.op: folder / "code" / f"{pick.op}-{pick.arch}" / "unit.cubin" for pick in every}
        timed = [
            source for source in timing_library.SOURCES if source.name not in {Path(name).name for name in PACK_SOURCES}
        ]
        self._sources = {Path(name).name: NATIVE / name for name in PACK_SOURCES} | {one.name: one for one in timed}
        self._objects = {name: self._whole(path, folder / f"{name}.o") for name, path in self._sources.items()}
        for pick in every:
            data = folder / f"data_{pick.op}.c"
            data.write_text(pack_data([packed_op(pick.op, pick.kernels, pick.cells)], self._cubins[pick.op], pick.arch))
            self._whole(data, folder / f"data_{pick.op}.o")
        self._client = {path.name: path for path in LIBRARY} | {"drive_cuda.c": HERE / "drive_cuda.c"}
        self._client_objects = {n: self._whole(path, folder / f"c_{n}.o", watched=True) for n, path in self._client.items()}
        packed_sources = {Path(name).name: NATIVE / name for name in PACK_SOURCES}
        self._watched = {n: self._whole(path, folder / f"w_{n}.o", watched=True) for n, path in packed_sources.items()}
        kept.write_text(state)
        self._forking = Forking(self._where(SIMT), ("tests.serving.cuda_scenarios", "tests.work.cuda_timing"))

    def close(self) -> None:
        """End the process that scenarios are forked from."""
        self._forking.close()

    def whole(self, *, quick: bool = False) -> None:
        """All tests pass with nothing left out; AssertionError says what did not."""
        for source in (NATIVE / "cuda" / "driver.c", CLIB / "gpu.c"):  # whose tests are all, between them
            why = self.noticed(source, source.read_text(), quick=quick)
            assert not why, f"with nothing left out: {why}"

    def noticed(self, source: Path, text: str, *, quick: bool = False) -> str:
        """What fails where a source has this text: the first thing that did, or nothing."""
        name = source.name
        mutant, out = self.folder / "mutant.c", self.folder / "mutant.o"
        mutant.write_text(text)
        try:
            self._object(mutant, out, also=source.parent)
        except RuntimeError as error:
            return f"compiler: {str(error).strip().splitlines()[0][-120:]}"
        try:
            return next((why for why in self._looks(source, name, out, quick) if why), "")
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

    def _looks(self, source: Path, name: str, mutant: Path, quick: bool) -> Iterator[str]:
        packed = name in {Path(one).name for one in PACK_SOURCES}
        if packed:
            opening = OF_THE_DRIVER if name in OPENING else ()
            full = {pick: (*SCENARIOS, *opening) for pick in PICKS} | MORE
            for pick, scenarios in ({SIMT: QUICK} if quick else full).items():
                yield self._served(self._pack(pick, {**self._objects, name: mutant}), pick, scenarios)
        if packed and quick:
            return
        if packed or source.parent == CLIB:
            watched = self._object(self.folder / "mutant.c", self.folder / "watched.o", also=source.parent, watched=True)
            client = self._client_objects | ({} if packed else {name: watched})
            for pick in (SIMT,) if quick else PICKS:
                pack = self._pack(pick, self._watched | ({name: watched} if packed else {}), *WATCHED)
                yield self._driven(list(client.values()), pack, pick)
        if name in TIMING:
            for pick in (SIMT,) if quick else PICKS:
                yield self._timed(name, mutant, pick)

    def _pack(self, pick: Pick, objects: Mapping[str, Path], *flags: str) -> Path:
        library, pack = self.folder / "mutant.so", self.folder / f"mutant-{pick.op}"
        parts = [*(objects[Path(one).name] for one in PACK_SOURCES), self.folder / f"data_{pick.op}.o"]
        self._run([self._tools.compiler, "-shared", "-pthread", *flags, *parts, "-o", library])
        write_pack(pack, library, document([packed_op(pick.op, pick.kernels, pick.cells)], pick.arch), lambda _: None)
        return pack

    def _served(self, pack: Path, pick: Pick, scenarios: Sequence[str]) -> str:
        for scenario in scenarios:
            why = self._forking.call(
                "tests.serving.cuda_scenarios", scenario, str(pack), environment=self._where(pick), seconds=SECONDS
            )
            if why:
                return f"{scenario} of {pick.op}: {why}"
        return ""

    def _timed(self, name: str, mutant: Path, pick: Pick) -> str:
        objects = [mutant if name == source.name else self._objects[source.name] for source in timing_library.SOURCES]
        library = self.folder / "timing.so"
        self._run([self._tools.compiler, "-shared", "-pthread", *objects, "-o", library])
        for scenario in ("timing", "unended", "parted"):
            words = (str(self._cubins[pick.op]), pick.op, str(library))
            where = self._where(pick, noise=0.0)
            why = self._forking.call("tests.work.cuda_timing", scenario, *words, environment=where, seconds=SECONDS)
            if why:
                return f"{scenario} of {pick.op}: {why}"
        return ""

    def _driven(self, objects: list[Path], pack: Path, pick: Pick) -> str:
        program = self.folder / "mutant-drive"
        self._run([self._tools.compiler, "-pthread", *WATCHED, *objects, "-o", program, "-lm", "-ldl"])
        for mode, fail in (("threads", ""), ("together", f"{SLOWLY},cuModuleGetFunction:2=2")):
            where = self._where(pick, bare=True, fail=fail)
            try:
                done = subprocess.run(
                    [str(program), mode, str(pack), pick.op], env={**os.environ, **where}, capture_output=True, text=True,
                    timeout=SECONDS, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return f"drive_cuda {mode} on {pick.arch}: it hung"
            if done.returncode:
                return f"drive_cuda {mode} on {pick.arch}: {done.returncode} {done.stderr[-160:]}"
        return ""

    def _built(self, pick: Pick) -> Path:
        out = self.folder / f"whole-{pick.op}"
        return out if out.exists() else build_pack(out, pick, self.folder / "code")

    def _where(self, pick: Pick, *, noise: float = 0.01, bare: bool = False, fail: str = "") -> dict[str, str]:
        return environment(
            self.folder / "images", device=pick.arch, more_devices=(pick.arch,), sources=self.folder / "code", noise=noise,
            bare=bare, fail=fail,
        )  # fmt: skip

    def _whole(self, source: Path, out: Path, *, watched: bool = False) -> Path:
        return out if self._built_before else self._object(source, out, watched=watched)

    def _object(self, source: Path, out: Path, also: Path = NATIVE, *, watched: bool = False) -> Path:
        folders = [NATIVE, NATIVE / "cuda", CLIB / "include", CLIB, also, self._tools.include]
        flags = [*FLAGS, *(WATCHED if watched else ())]
        self._run([self._tools.compiler, *flags, *(f"-I{one}" for one in folders), "-c", source, "-o", out])
        return out

    def _run(self, command: list[str | Path]) -> None:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])


def _state() -> str:
    """Of all sources that the builds come of, with the tests that say what is packed."""
    folders = (NATIVE, CLIB, timing_library.SOURCES[0].parent, ROOT / "microkernels" / "cuda", HERE)
    paths = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    python = [Path(__file__), Path(__file__).with_name("cuda_packs.py"), Path(pack_data.__code__.co_filename)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in (*paths, *python))).hexdigest()
