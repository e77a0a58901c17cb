"""A bundle's code: kernels in libraries of a few, the probe, and their sources, built on all cores asked for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from haotuner.backends.cuda.compile import compile_source, cuda_source
from haotuner.backends.cuda.toolkit import COMPILE_SECONDS, Toolkit, run_tool
from haotuner.bundle.candidates import Choice
from haotuner.bundle.manifest import Entry, digest

NATIVE = Path(__file__).parent / "native"
PROBE_SOURCES = ("probe_machine.cu", "probe_check.cu", "probe_peaks.cu", "probe_subsets.cu")
KERNELS_OF_A_LIBRARY = 8  # the CUDA runtime inside costs 1 MB a library; more kernels make the last core wait

Progress = Callable[[str], None]
Resources = Mapping[str, Mapping[str, float]]


class Compiler(Protocol):
    """Compiler of sources into libraries: nvcc, or the emulator in a dry run."""

    @property
    def release(self) -> str:
        """Names the toolkit in the manifest."""
        ...

    def kernels(self, source: str, library: Path, arch: str) -> Resources:
        """Compile one translation unit of kernels; what the compiler reported of each."""
        ...

    def probe(self, library: Path, arch: str) -> None:
        """Compile the probe."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvcc:
    """The CUDA toolkit."""

    toolkit: Toolkit

    @property
    def release(self) -> str:
        """The toolkit's release."""
        return self.toolkit.release

    def kernels(self, source: str, library: Path, arch: str) -> Resources:
        """Compile one translation unit of kernels."""
        return compile_source(source, library, arch=arch, toolkit=self.toolkit).resources

    def probe(self, library: Path, arch: str) -> None:
        """Compile the probe with the CUDA runtime inside."""
        number = arch.removeprefix("sm_")
        run_tool(
            [
                str(self.toolkit.nvcc), "-O3", "-std=c++17", "-shared", "-Xcompiler=-fPIC,-fvisibility=hidden",
                f"-gencode=arch=compute_{number},code={arch}", *(str(NATIVE / name) for name in PROBE_SOURCES),
                "-o", str(library), "-cudart=static", "-Xlinker=--exclude-libs=ALL",
            ],
            seconds=COMPILE_SECONDS,
        )  # fmt: skip


def build(
    choices: Sequence[Choice], root: Path, arch: str, compiler: Compiler, *, jobs: int, say: Progress
) -> tuple[Entry, ...]:
    """Build the kernels of one architecture into ``root/lib/ARCH``, sources in ``root/src/ARCH``.

    What an earlier build left there of the same sources is taken as it is; what is left of others goes.
    """
    groups = [choices[start : start + KERNELS_OF_A_LIBRARY] for start in range(0, len(choices), KERNELS_OF_A_LIBRARY)]
    libraries, sources = root / "lib" / arch, root / "src" / arch
    libraries.mkdir(parents=True, exist_ok=True)
    sources.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        compiled: list[Future[Resources]] = []
        for number, group in enumerate(groups):
            source = cuda_source({choice.kernel.name: (choice.family, choice.kernel) for choice in group}, arch)
            unit = sources / f"kernels{number:02}.cu"
            unit.write_text(source)
            compiled.append(pool.submit(_compiled, compiler, unit, libraries / f"kernels{number:02}.so", arch))
        compiler.probe(libraries / "probe.so", arch)
        entries: list[Entry] = []
        for number, (group, future) in enumerate(zip(groups, compiled, strict=True)):
            resources = future.result()
            library = f"lib/{arch}/kernels{number:02}.so"
            code = _code(compiler, sources / f"kernels{number:02}.cu", arch)[:12]
            entries += [_entry(choice, library, code, resources.get(choice.kernel.name, {})) for choice in group]
            say(f"{arch}: {len(entries)} of {len(choices)} kernels")
    units = {f"kernels{number:02}" for number in range(len(groups))} | {"probe"}
    for path in [*libraries.iterdir(), *sources.iterdir()]:
        if path.stem not in units:
            path.unlink()
    return tuple(entries)


def _compiled(compiler: Compiler, unit: Path, library: Path, arch: str) -> Resources:
    """Compile a unit, or recall what came of the same text before."""
    kept = unit.with_suffix(".json")
    key = _code(compiler, unit, arch)
    if kept.exists() and library.exists():
        found = json.loads(kept.read_text())
        if found["key"] == key and found["library"] == digest(library):
            resources: Resources = found["resources"]
            return resources
    made = compiler.kernels(unit.read_text(), library, arch)
    plain = {kernel: dict(facts) for kernel, facts in made.items()}
    kept.write_text(json.dumps({"key": key, "library": digest(library), "resources": plain}))
    return made


def _code(compiler: Compiler, unit: Path, arch: str) -> str:
    """Hash of all that a unit's machine code comes of."""
    return hashlib.sha256(f"{compiler.release}\n{arch}\n{unit.read_text()}".encode()).hexdigest()


def _entry(choice: Choice, library: str, code: str, facts: Mapping[str, float]) -> Entry:
    kernel, family = choice.kernel, choice.family
    footprint, tile = family.footprint(kernel), family.tile(kernel).extent
    return Entry(
        kernel=kernel.name, family=family.name, dtype=family.dtype, library=library, vector=family.vector(kernel),
        kn=family.reads_kn(kernel), tile=(tile["m"], tile["n"]), shared_bytes=footprint.shared_bytes,
        threads=footprint.threads, code=code, facts=json.loads(json.dumps(dict(facts))),
    )  # fmt: skip
