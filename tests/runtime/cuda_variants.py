"""Builds of the host code for CUDA with one text changed, and the tests that cover it, up to the first that fails."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from haotuner.backends.cpu.pack_source import PACK_SOURCES as CPU_SOURCES
from haotuner.backends.cuda import timing_library
from haotuner.backends.cuda.pack_source import PACK_SOURCES, pack_data
from haotuner.backends.toolchain import Toolchain
from haotuner.pack.write import write_pack
from tests.run_folder import toolchain
from tests.runtime.chain_graphs import ON_DEVICE
from tests.runtime.cuda_device_code import build_pack, device_code
from tests.runtime.cuda_model_packs import GRAPHS, model_pack
from tests.runtime.cuda_odd_models import ODD, others
from tests.runtime.cuda_packs import (
    DIRECT_PICKS,
    FUSED_FP32,
    GENERATED_PICKS,
    GROUPED_FP32,
    GROUPED_HOPPER,
    PARTS_PICK,
    PICKS,
    PRODUCT_FP16,
    PRODUCT_FP32,
    SIMT,
    Pick,
    document,
    packed,
)
from tests.runtime.cuda_variant_lists import (
    ALL_TESTS,
    DRIVEN,
    FLAGS,
    KIND,
    MODELS,
    MORE,
    OF_MODELS,
    OF_THE_DRIVER,
    OPENING,
    PROGRAMS,
    SCENARIOS,
    SCENES,
    SECONDS,
    SHARED,
    SHARED_SECONDS,
    TIMED,
    TIMING,
    TREE,
    UNITS,
    WATCHED,
    WITH_MODELS,
)
from tests.runtime.cuda_window_packs import WINDOW_PICKS
from tests.runtime.memory_refused import preloaded
from tests.runtime.native_builds import CLIB, HERE, LIBRARY, NATIVE, host_pack
from tests.standin import ROOT, environment
from tests.standin.apart import HUNG
from tests.standin.forking import Forking
from tests.standin.patience import ended

MODELS_MEMORY = 4 << 30  # of a device: 256 streams keep 4 MiB each for the op beside a pack's models


@dataclass(frozen=True)
class Swapped:
    """A linker that takes another text in the place of a source, and keeps the objects of what a pack's maker wrote."""

    tools: Toolchain
    source: Path
    mutant: Path

    def link(self, objects: list[Path], sources: list[Path], include: list[Path], out: Path) -> None:
        """As ``Toolchain.link``."""
        native_sources, compiled = list[Path](), list[Path]()
        for source in sources:
            if source.is_relative_to(NATIVE):
                native_sources.append(self.mutant if source == self.source else source)
                continue
            compiled.append(self.mutant.with_name(f"made_{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}.o"))
            if not compiled[-1].exists():
                self.tools.object(source, [*include, self.tools.include], compiled[-1], ())
        self.tools.link([*objects, *compiled], native_sources, [*include, self.source.parent], out)


@dataclass(frozen=True)
class Step:
    """One thing that may notice: its name, and what runs it in at most so many seconds, answering what was wrong."""

    name: str
    run: Callable[[float], str]


class Variants:
    """Whole objects of both packs, of the timing library and of the C library; a variant replaces one of them.

    What noticed most of a function, then of its file, is asked first; ``learn`` tells what noticed earlier.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._noticed: dict[str, Counter[str]] = {}  # by file, and by file and function
        self._tools = toolchain()
        state, state_file = _state(), folder / "state"
        self._built_before = state_file.exists() and state_file.read_text() == state
        if not self._built_before:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        self._ready: set[str] = set()  # picks whose code is there
        timed = [
            source for source in timing_library.SOURCES if source.name not in {Path(name).name for name in PACK_SOURCES}
        ]
        self._sources = {Path(name).name: NATIVE / name for name in PACK_SOURCES} | {source.name: source for source in timed}
        self._objects = {name: self._whole(path, folder / f"{name}.o") for name, path in self._sources.items()}
        client = (*LIBRARY, *(HERE / f"{program}.c" for program in PROGRAMS))
        self._client = {path.name: self._whole(path, folder / f"c_{path.name}.o", watched=True) for path in client}
        self._host = folder / "host"
        if not self._host.exists():
            host_pack(self._host)
        host = [NATIVE / name for name in CPU_SOURCES]
        parts = {path.name: path for path in (*host, folder / "host_kernels.c", folder / "host_data.c")}
        self._host_objects = {n: self._whole(path, folder / f"h_{n}.o", watched=True) for n, path in parts.items()}
        packed_sources = {Path(name).name: NATIVE / name for name in PACK_SOURCES}
        units = {source: HERE / f"drive_{unit}.c" for source, unit in UNITS.items()}
        self._units = {n: self._whole(path, folder / f"c_{path.name}.o", watched=True) for n, path in units.items()}
        self._watched = {n: self._whole(path, folder / f"w_{n}.o", watched=True) for n, path in packed_sources.items()}
        state_file.write_text(state)
        self._forking = Forking(self._where(SIMT) | preloaded(folder), SCENES)

    def close(self) -> None:
        """End the process that scenarios are forked from."""
        self._forking.close()

    def learn(self, file: str, function: str, why: str) -> None:
        """Somebody noticed a place: ``why`` begins with a step's name."""
        for where in (file, f"{file} {function}"):
            self._noticed.setdefault(where, Counter())[why.partition(": ")[0]] += 1

    def whole(self, *, quick: bool = False, sources: Sequence[Path] = ALL_TESTS) -> None:
        """All tests (of these sources) pass with nothing left out; AssertionError says what did not."""
        passed: set[str] = set()
        for source in sources:
            why = self.noticed(source, source.read_text(), quick=quick, passed=passed)
            assert not why, f"with nothing left out: {why}"

    def noticed(
        self, source: Path, text: str, function: str = "", *, quick: bool = False, passed: set[str] | None = None
    ) -> str:
        """What fails where a source has this text: the first thing that did, or nothing; ``passed`` is not asked again."""
        name = source.name
        mutant, out = self.folder / "mutant.c", self.folder / "mutant.o"
        mutant.write_text(text)
        try:
            self._object(mutant, out, also=source.parent)
        except RuntimeError as error:
            return f"compiler: {str(error).strip().splitlines()[0][-120:]}"
        here, there = (self._noticed.get(where, Counter()) for where in (f"{name} {function}", name))
        steps = sorted(self._steps(source, name, out, quick), key=lambda step: (-here[step.name], -there[step.name]))
        for step in steps:
            if passed is not None and step.name in passed:
                continue
            try:
                why = step.run(SECONDS)
            except RuntimeError as error:
                return f"linker: {str(error).strip().splitlines()[-1][-120:]}"
            if why:
                return f"{step.name}: {why}"
            if passed is not None:
                passed.add(step.name)
        return ""

    def noticed_by_shared(self, source: Path, text: str) -> str:
        """The same by the tests that CPUs share, in a copy of the tree; slow."""
        if source.name not in SHARED:
            return ""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            tree = Path(folder) / "tree"
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
                    [*command, f"tests/runtime/{test}"], cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)},
                    capture_output=True, text=True, timeout=SHARED_SECONDS, check=False,
                )  # fmt: skip
                failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
                if done.returncode:
                    return f"{test}: {failed[0][:120] if failed else done.stdout[-120:]}"
        return ""

    def _steps(self, source: Path, name: str, mutant: Path, quick: bool) -> Iterator[Step]:
        if source in MODELS or name in WITH_MODELS:
            of_models: dict[str, Path] = {}
            for module, scenario in (
                (module, scenario) for module, scenarios in OF_MODELS.items() for scenario in scenarios
            ):
                yield Step(f"{scenario} of a model", partial(self._modelled, of_models, source, module, scenario))
        if source in MODELS:
            return
        in_packs = name in {Path(path).name for path in PACK_SOURCES}
        built: dict[str, Path] = {}
        if in_packs:
            opening = OF_THE_DRIVER if name in OPENING else ()
            full = {pick: (*SCENARIOS, *opening) for pick in PICKS} | MORE
            objects = {**self._objects, name: mutant}
            picks = KIND.get(name) or ((SIMT, GROUPED_FP32, FUSED_FP32) if quick else tuple(full))
            for pick, scenarios in ((pick, full[pick]) for pick in picks):
                for scenario in scenarios:
                    run = partial(self._served, built, objects, pick, scenario)
                    yield Step(f"{scenario} of {pick.op}", run)
        if name in KIND:
            return
        if in_packs or source.parent == CLIB:
            for pick in (SIMT,) if quick else PICKS:
                for mode in DRIVEN:
                    yield Step(f"drive_cuda {mode} on {pick.arch}", partial(self._driven, built, source, pick, mode))
        if source.parent == CLIB:
            yield Step("drive_doors", partial(self._driven, built, source, SIMT, "doors"))
            yield Step("drive_grouped", partial(self._driven, built, source, GROUPED_FP32, "grouped"))
            yield Step("drive_fused", partial(self._driven, built, source, FUSED_FP32, "fused"))
        if in_packs or source.parent == CLIB:
            for mode, pick in product(("bound", "ffi") if in_packs else ("bound",), (SIMT,) if quick else PICKS):
                yield Step(f"drive_{mode} on {pick.arch}", partial(self._driven, built, source, pick, mode))
        if in_packs:
            yield Step(f"drive_ffi of {PRODUCT_FP16.op}", partial(self._driven, built, source, PRODUCT_FP16, "ffi"))
            yield Step("drive_products", partial(self._driven, built, source, PRODUCT_FP32, "products"))
        if name in UNITS:
            yield Step(f"drive_{UNITS[name]}", partial(self._alone, built, source))
        if name in TIMING:
            for pick in (SIMT,) if quick else PICKS:
                for scenario in TIMED:
                    yield Step(f"{scenario} of {pick.op}", partial(self._timed, built, name, mutant, pick, scenario))
            for pick in (GROUPED_FP32,) if quick else (GROUPED_FP32, GROUPED_HOPPER):
                yield Step(f"timing_groups of {pick.op}", partial(self._timed, built, name, mutant, pick, "timing_groups"))
            yield Step(
                f"timing_batches of {PRODUCT_FP16.op}",
                partial(self._timed, built, name, mutant, PRODUCT_FP16, "timing_batches"),
            )
            softmax, windows = GENERATED_PICKS[0], (WINDOW_PICKS[0], "timing_windows")
            for pick, scenario in ((softmax, "timing_generated"), (DIRECT_PICKS[0], "timing_direct"), windows):
                yield Step(f"{scenario} of {pick.op}", partial(self._timed, built, name, mutant, pick, scenario))

    def _pack(self, pick: Pick, objects: Mapping[str, Path], *flags: str, name: str = "") -> Path:
        library, pack = self.folder / "mutant.so", self.folder / (name or f"mutant-{pick.op}-{pick.arch}")
        self._cubin(pick)
        parts = [*(objects[Path(path).name] for path in PACK_SOURCES), self.folder / f"data_{pick.op}.o"]
        self._run([self._tools.compiler, "-shared", "-pthread", *flags, *parts, "-o", library])
        write_pack(pack, library, document([packed(pick)], pick.arch), lambda _: None)
        return pack

    def _served(self, built: dict[str, Path], objects: Mapping[str, Path], pick: Pick, scenario: str, seconds: float) -> str:
        if pick.op not in built:
            built[pick.op] = self._pack(pick, objects)
        return self._forking.call(
            "tests.runtime.cuda_scenarios", scenario, str(built[pick.op]), environment=self._where(pick), seconds=seconds
        )

    def _modelled(self, built: dict[str, Path], source: Path, module: str, scenario: str, seconds: float) -> str:
        if not built:
            tools: Any = Swapped(Toolchain.find(self.folder / "objects"), source, self.folder / "mutant.c")
            graphs = {name: GRAPHS[name] for name in ("encoder", "lstm_wide")} | ODD | ON_DEVICE
            out = self.folder / "mutant-model"
            options: dict[str, Any] = {"linker": tools, "others": others, "beside": [packed(PARTS_PICK)]}
            built["model"] = model_pack(out, SIMT.arch, self.folder / "code", graphs, **options)
        words = scenario, str(built["model"])
        where = self._where(SIMT, memory_bytes=MODELS_MEMORY)
        return self._forking.call(module, "run", *words, environment=where, seconds=seconds)

    def _timed(self, built: dict[str, Path], name: str, mutant: Path, pick: Pick, scenario: str, seconds: float) -> str:
        if "timing" not in built:
            objects = [mutant if name == source.name else self._objects[source.name] for source in timing_library.SOURCES]
            built["timing"] = self.folder / "timing.so"
            self._run([self._tools.compiler, "-shared", "-pthread", *objects, "-o", built["timing"]])
        words = (str(self._cubin(pick)), pick.op, str(built["timing"]))
        where = self._where(pick, noise=0.0)
        module = f"tests.backends.cuda_{scenario}" if scenario.startswith("timing_") else "tests.backends.cuda_timing"
        return self._forking.call(module, scenario, *words, environment=where, seconds=seconds)

    def _driven(self, built: dict[str, Path], source: Path, pick: Pick, mode: str, seconds: float) -> str:
        name = f"drive_{mode}" if f"drive_{mode}" in PROGRAMS else "drive_cuda"
        changed = {source.name: self._watch(built, source)}
        in_pack = source.name in self._watched
        if name not in built:
            objects = self._client | ({} if in_pack else changed)
            parts = [objects[part] for part in (*(path.name for path in LIBRARY), f"{name}.c")]
            built[name] = self.folder / f"mutant-{name}"
            flags = [*WATCHED, *PROGRAMS[name]]
            self._run([self._tools.compiler, "-pthread", *flags, *parts, "-o", built[name], "-lm", "-ldl"])
        key = f"watched {pick.op}"
        if key not in built:
            objects = self._watched | (changed if in_pack else {})
            built[key] = self._pack(pick, objects, *WATCHED, name=f"watched-{pick.op}-{pick.arch}")
        words: dict[str, list[str | Path]] = {kind: [built[key], pick.op] for kind in ("grouped", "fused", "ffi")}
        words["products"] = [built[key]]
        if mode in ("doors", "bound"):
            words[mode] = [built[key], pick.op, self._host_with(built, changed if in_pack else {})]
        where = self._where(
            pick, bare=mode not in ("grouped", "fused", "products", "ffi"), execute=mode != "ffi", fail=DRIVEN.get(mode, "")
        )
        return _ran([built[name], *words.get(mode, [mode, built[key], pick.op])], seconds, **where)

    def _alone(self, built: dict[str, Path], source: Path, seconds: float) -> str:
        program, parts = self.folder / "mutant-alone", self._watched | {source.name: self._watch(built, source)}
        objects = {self._units[source.name], parts["check.c"], parts[source.name]}
        self._run([self._tools.compiler, "-pthread", *WATCHED, *objects, "-o", program])
        return _ran([program], seconds)

    def _watch(self, built: dict[str, Path], source: Path) -> Path:
        """The mutant's object with sanitizers."""
        if "watched" not in built:
            mutant, out = self.folder / "mutant.c", self.folder / "watched.o"
            built["watched"] = self._object(mutant, out, also=source.parent, watched=True)
        return built["watched"]

    def _host_with(self, built: dict[str, Path], changed: dict[str, Path]) -> Path:
        """The CPU's pack, with a change where it has the source."""
        if not set(changed) & set(self._host_objects):
            return self._host
        if "host" not in built:
            library, built["host"] = self.folder / "host.so", self.folder / "mutant-host"
            parts = (self._host_objects | changed).values()
            self._run([self._tools.compiler, "-shared", "-pthread", *WATCHED, *parts, "-o", library])
            write_pack(built["host"], library, json.loads((self._host / "manifest.json").read_text()), lambda _: None)
        return built["host"]

    def _cubin(self, pick: Pick) -> Path:
        """The device code of a pick, with the object of its data beside it; made when first asked for."""
        cubin = device_code(pick, self.folder / "code")
        if pick.op not in self._ready:
            if not (out := self.folder / f"whole-{pick.op}").exists():
                build_pack(out, pick, self.folder / "code")
            data = self.folder / f"data_{pick.op}.c"
            data.write_text(pack_data([packed(pick)], cubin, pick.arch))
            self._whole(data, data.with_suffix(".o"))
            self._ready.add(pick.op)
        return cubin

    def _where(
        self, pick: Pick, *, noise: float = 0.01, bare: bool = False, execute: bool = True, fail: str = "",
        memory_bytes: int | None = None,
    ) -> dict[str, str]:  # fmt: skip
        return environment(
            self.folder / "images", device=pick.arch, more_devices=(pick.arch,), sources=self.folder / "code", noise=noise,
            bare=bare, execute=execute, fail=fail, memory_bytes=memory_bytes,
        )  # fmt: skip

    def _whole(self, source: Path, out: Path, *, watched: bool = False) -> Path:
        return out if self._built_before and out.exists() else self._object(source, out, watched=watched)

    def _object(self, source: Path, out: Path, also: Path = NATIVE, *, watched: bool = False) -> Path:
        folders = [NATIVE, NATIVE / "cuda", CLIB / "include", CLIB, also, self._tools.include]
        flags = [*FLAGS, *(WATCHED if watched else ())]
        self._run([self._tools.compiler, *flags, *(f"-I{folder}" for folder in folders), "-c", source, "-o", out])
        return out

    def _run(self, command: list[str | Path]) -> None:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])


def _ran(command: Sequence[str | Path], seconds: float, **environment: str) -> str:
    """What a program said that failed, in a line."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            [str(word) for word in command], env={**os.environ, **environment}, stdout=out, stderr=out, process_group=0
        )
        code = ended(process.pid, seconds)
        process.returncode = code if code is not None else -9  # it was waited for
        if code is None:
            return HUNG
        out.seek(0)
        lines = out.read().decode(errors="replace").splitlines()
    messages = [line for line in lines if line.strip() and not line.startswith("=====")]
    return f"{code} {messages[0][:160] if messages else ''}" if code else ""


def _state() -> str:
    """Of all sources that the builds come of, with the tests that say what is packed."""
    folders = (NATIVE, CLIB, timing_library.SOURCES[0].parent, ROOT / "microkernels" / "cuda", HERE)
    paths = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    python = [Path(__file__), Path(__file__).with_name("cuda_packs.py"), Path(pack_data.__code__.co_filename)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in (*paths, *python))).hexdigest()
