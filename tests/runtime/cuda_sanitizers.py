"""The host code for CUDA under sanitizers: ``python -m tests.runtime.cuda_sanitizers FOLDER [address|thread]``.

AddressSanitizer with UndefinedBehaviorSanitizer, then ThreadSanitizer, over the stand-in: packs of both architectures and
the library that times are built with them and do what the tests do, called from C (``drive_cuda.c``; leaks count) and from
Python (its own leaks and those of its packages do not). A line each; exit 1 if a sanitizer spoke or a result was wrong.

Under AddressSanitizer, scenarios in Python are forked from a process that has imported what they import: to start anew and
to import takes longer than most of them. The first of each pack's is a process of its own, which also ends as one does.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from haotuner.backends.cuda import timing_library
from haotuner.backends.cuda.pack_source import PACK_SOURCES, pack_data
from haotuner.backends.toolchain import Toolchain
from haotuner.pack.manifest import read_manifest
from haotuner.pack.write import write_pack
from tests.run_folder import toolchain
from tests.runtime.chain_graphs import ON_DEVICE
from tests.runtime.cuda_beside_packs import ARCH as BESIDE_ARCH
from tests.runtime.cuda_beside_packs import beside_pack
from tests.runtime.cuda_device_code import build_pack, device_code
from tests.runtime.cuda_model_packs import GRAPHS, model_pack
from tests.runtime.cuda_packs import PICKS, Pick, document, packed_op
from tests.runtime.cuda_variant_lists import MORE
from tests.runtime.native_builds import ASAN, CLIB, DOORS_FLAGS, HERE, LIBRARY, NATIVE, TSAN, cc, host_pack
from tests.standin import ROOT, environment
from tests.standin.forking import REPORT, Forking

BUILDS = {
    "address": ASAN,
    "thread": TSAN,
}
RUNTIMES = {"address": "libasan.so", "thread": "libtsan.so"}  # which must come first in a process that was not built with it
SCENARIOS = {
    "address": ("refusals", "faults", "numbers", "alignment", "looked", "unprepared", "captured", "devices", "context",
                "counted", "forked", "preparing", "frameworks", "allocating", "misuses", "settings",
                "early", "crowd", "older_load", "older_maps", "threads"),
    "thread": ("threads",),
}  # fmt: skip
MODEL_SCENARIOS = {
    "address": ("numbers", "steady", "captured", "streams", "refusals", "faults", "devices"),
    "thread": ("streams",),
}
CHAIN_SCENARIOS = {
    "address": ("numbers", "steady", "captured", "streams", "refusals", "framework", "faults", "devices"),
    "thread": ("streams",),
}
SLOWLY = "cuInit:1+=wait:20,cuDevicePrimaryCtxRetain:1+=wait:20,cuModuleLoadData:1+=wait:20"  # so that threads meet there
# Threads of OpenBLAS would be races to a sanitizer that does not see inside it.
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1", "OPENBLAS_NUM_THREADS": "1"}
EXCEPTIONS = "libstdc++.so.6"  # the runtimes look for what throws when they start
SECONDS = 600
FRESH = "numbers"  # the scenario that is a process of its own
MODULES = ("tests.runtime.cuda_scenarios", "tests.runtime.cuda_models", "tests.runtime.cuda_chains",
           "tests.runtime.cuda_beside", "tests.backends.cuda_timing")  # fmt: skip


class ScenarioRunner:
    """Scenarios in Python under a sanitizer."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        # ThreadSanitizer says at the end of a process what it saw, and knows forks of one thread alone.
        self._forking = Forking(self._environment(PICKS[0]), MODULES) if name == "address" else None

    def close(self) -> None:
        """End the process that forks."""
        if self._forking is not None:
            self._forking.close()

    def run(self, pick: Pick, module: str, function: str, *words: str, noise: float = 0.01) -> str:
        """What came of a function of a module: nothing, or the last words."""
        where = self._environment(pick, noise)
        if self._forking is not None and FRESH not in words:
            return self._forking.call(module, function, *words, environment=where, seconds=SECONDS)
        call = f"import sys; from {module} import {function}; {function}(*sys.argv[1:])"
        return _said([sys.executable, "-c", call, *words], where)

    def _environment(self, pick: Pick, noise: float = 0.01) -> Mapping[str, str]:
        preloaded = f"{_library(RUNTIMES[self._name])}:{_library(EXCEPTIONS)}"
        return {**_environment(self._folder, pick, noise=noise), "LD_PRELOAD": preloaded, **OPTIONS}


def runs(folder: Path, name: str, pick: Pick, runner: ScenarioRunner) -> Iterator[tuple[str, str]]:
    """What was done, and what came of it: nothing, or the last words."""
    flags = BUILDS[name]
    code = folder / "code"
    if not (folder / pick.arch).exists():
        build_pack(folder / pick.arch, pick, code)
    cubin = device_code(pick, code)
    ops = [packed_op(pick.op, pick.kernels, pick.cells)]
    data, pack = folder / f"{name}-{pick.arch}.c", folder / f"{name}-{pick.arch}"
    data.write_text(pack_data(ops, cubin, pick.arch))
    shared = ("-shared", "-fPIC", "-fvisibility=hidden", *flags)
    library = cc([data, *(NATIVE / source for source in PACK_SOURCES)], folder / f"{name}.so", *shared)
    write_pack(pack, library, document(ops, pick.arch), lambda _: None)
    program = cc([HERE / "drive_cuda.c", *LIBRARY], folder / f"drive_{name}", *flags)
    for mode, fail in (("threads", ""), ("together", f"{SLOWLY},cuModuleGetFunction:2=2")):
        yield f"drive_cuda {mode}", _run(folder, pick, [str(program), mode, str(pack), pick.op], bare=True, fail=fail)
    yield from programs(folder, name, pick, pack)
    for scenario in SCENARIOS[name]:
        yield scenario, runner.run(pick, "tests.runtime.cuda_scenarios", "run", scenario, str(pack))
    timing = cc(list(timing_library.SOURCES), folder / f"timing_{name}.so", *shared, f"-I{NATIVE / 'cuda'}")
    yield "timing", runner.run(pick, "tests.backends.cuda_timing", "timing", str(cubin), pick.op, str(timing), noise=0.0)


def models(folder: Path, name: str, runner: ScenarioRunner) -> Iterator[tuple[str, str]]:
    """Whole models, those whose sizes depend on data among them: the host code of their packs built with the sanitizer."""
    for module, graphs, scenarios in (
        ("models", {"encoder": GRAPHS["encoder"]}, MODEL_SCENARIOS[name]),
        ("chains", ON_DEVICE, CHAIN_SCENARIOS[name]),
    ):
        pack = folder / f"{module}_{name}"
        model_pack(pack, PICKS[0].arch, folder / "code", graphs, linker=linker(folder, name))
        for scenario in scenarios:
            yield f"{module} {scenario}", runner.run(PICKS[0], f"tests.runtime.cuda_{module}", "run", scenario, str(pack))


def kinds(folder: Path, name: str, runner: ScenarioRunner) -> Iterator[tuple[str, str]]:
    """Every other kind of op (``cuda_variant_lists.MORE``), its pack built with the sanitizer."""
    for number, (pick, scenarios) in enumerate(MORE.items()):
        pack = build_pack(folder / f"kind{number}_{name}", pick, folder / "code", linker(folder, name))
        for scenario in scenarios:
            what = f"{pick.arch} {pick.op} {scenario}"
            yield what, runner.run(pick, "tests.runtime.cuda_scenarios", "run", scenario, str(pack))


def beside(folder: Path, name: str, runner: ScenarioRunner) -> Iterator[tuple[str, str]]:
    """Groups whose outputs one launch writes, from Python and from C: the host code of their pack, and the client's."""
    pack, pick = folder / f"beside_{name}", replace(PICKS[0], arch=BESIDE_ARCH)
    cubin = beside_pack(pack, folder / "code", linker(folder, name))
    yield "outputs of one launch", runner.run(pick, "tests.runtime.cuda_beside", "main", str(pack), str(cubin))
    (op,) = (entry.name for entry in read_manifest(pack).ops if entry.name.startswith("group_maps"))
    program = cc([HERE / "drive_beside.c", *LIBRARY], folder / f"drive_beside_{name}", *BUILDS[name])
    yield "drive_beside", _run(folder, pick, [str(program), str(pack), op])


def linker(folder: Path, name: str) -> Toolchain:
    """A C compiler that always asks for the sanitizer; what it compiled of the package is kept for the next pack."""
    script = folder / f"cc_{name}"
    script.write_text(f'#!/bin/sh\nexec {toolchain().compiler} "$@" {" ".join(BUILDS[name])}\n')
    script.chmod(0o755)
    return replace(toolchain(), compiler=str(script), objects=folder / f"objects_{name}")


def programs(folder: Path, name: str, pick: Pick, pack: Path) -> Iterator[tuple[str, str]]:
    """What is refused at every door, and the memory that threads prepare at once."""
    flags = BUILDS[name]
    parts = [HERE / "drive_workspace.c", NATIVE / "check.c", NATIVE / "cuda" / "workspace.c"]
    alone = cc(parts, folder / f"drive_workspace_{name}", *flags)
    yield "drive_workspace", _run(folder, pick, [str(alone)])
    if name == "thread":
        return
    host = folder / "host"
    if not host.exists():
        host_pack(host)
    for program, how in (
        ("drive_doors", DOORS_FLAGS),
        ("drive_bound", DOORS_FLAGS),
        ("drive_ffi", (f"-I{CLIB}", "-rdynamic")),
    ):
        built = cc([HERE / f"{program}.c", *LIBRARY], folder / f"{program}_{name}", *flags, *how)
        command = [str(built), str(pack), pick.op, *([str(host)] if how is DOORS_FLAGS else [])]
        yield program, _run(folder, pick, command, bare=how is DOORS_FLAGS, execute=how is DOORS_FLAGS)


def _run(folder: Path, pick: Pick, command: list[str], *, bare: bool = False, fail: str = "", execute: bool = True) -> str:
    return _said(command, _environment(folder, pick, bare=bare, fail=fail, execute=execute))


def _environment(
    folder: Path, pick: Pick, *, bare: bool = False, fail: str = "", noise: float = 0.01, execute: bool = True
) -> dict[str, str]:
    return environment(
        folder / "images",
        device=pick.arch,
        more_devices=(pick.arch,),
        sources=folder / "code",
        bare=bare,
        fail=fail,
        noise=noise,
        execute=execute,
    )


def _said(command: list[str], where: Mapping[str, str]) -> str:
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **where}, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    spoke = [line for line in done.stderr.splitlines() if REPORT.search(line)]
    if done.returncode == 0 and not spoke:
        return ""
    return f"exit {done.returncode}: {(spoke or done.stderr.strip().splitlines() or [''])[0][:300]}\n{done.stderr[-3000:]}"


@functools.cache
def _library(name: str) -> str:
    command = [str(toolchain().compiler), f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Run all, or those of one sanitizer."""
    folder, names = Path(sys.argv[1]), sys.argv[2:] or list(BUILDS)
    folder.mkdir(parents=True, exist_ok=True)
    bad = 0
    for name in names:
        with closing(ScenarioRunner(folder, name)) as runner:
            for pick in PICKS:
                for what, why in runs(folder, name, pick, runner):
                    print(f"{name} {pick.arch} {what}: {why or 'clean'}", flush=True)
                    bad += bool(why)
            others = (kinds, models, beside) if name == "address" else (models,)
            for what, why in (outcome for of in others for outcome in of(folder, name, runner)):
                print(f"{name} {what}: {why or 'clean'}", flush=True)
                bad += bool(why)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
