"""CUDA micro-kernels to a cubin: generated, compiled, judged by the compiler's report, and cached by content.

Number of blocks an SM runs together, by the rules of CUDA: registers go to whole warps, per scheduler, in steps.

The rules are those of NVIDIA's occupancy calculator (``cuda_occupancy.h``); the sizes are the device's.

A folder of compiled units by their content: ``KEY/unit.cu``, ``KEY/unit.cubin``, ``KEY/facts.json``.

The key is a hash of source, architecture and flags, then the compiler's name. An entry appears whole or not at all,
whoever else writes the same one and whenever a process is killed; one that was damaged since is made again.

A kernel's launch bounds hold it to the registers with which a given number of blocks fits an SM. Where that makes it
spill, or its main loop long, it is compiled without the bound as well, and the better of the two is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from haotuner.backends.cuda.compiler import FLAGS, CompileFailed, Compiler, find_nvcc, find_nvrtc, first_for
from haotuner.backends.cuda.sass import WIDTHS, find_nvdisasm, mix, read
from haotuner.backends.cuda.translation_unit import device_unit
from haotuner.errors import EnvironmentMissing, UsageError
from haotuner.host.files import written_aside
from haotuner.hw_profiles.profile import profiles
from haotuner.microkernels.cuda.dense import CudaDense
from haotuner.microkernels.cuda.direct import CudaDirect
from haotuner.microkernels.cuda.generated import CudaGenerated
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.occupancy import BLOCKS, REGISTERS, RESERVED_BYTES, SHARED_BYTES, THREADS

WARP = 32
SCHEDULERS = 4
REGISTER_STEP = 256  # a warp's registers come in multiples of it
SHARED_STEP = 128  # bytes


def resident_blocks(device: Device, *, threads: int, registers: int, shared_bytes: int) -> int:
    """Blocks that one SM runs together; 0 where not one fits.

    Args:
        device: what limits an SM.
        threads: of a block.
        registers: of a thread, as the compiled kernel has them.
        shared_bytes: of a block, static and dynamic.
    """
    warps = -(-threads // WARP)
    of_a_warp = -(-registers * WARP // REGISTER_STEP) * REGISTER_STEP
    per_scheduler = (device.registers_per_unit or REGISTERS) // SCHEDULERS // max(of_a_warp, REGISTER_STEP)
    shared = -(-(shared_bytes + RESERVED_BYTES) // SHARED_STEP) * SHARED_STEP
    return min(
        per_scheduler * SCHEDULERS // warps,
        (device.threads_per_unit or THREADS) // (warps * WARP),
        (device.l1_bytes or SHARED_BYTES) // shared,
        device.blocks_per_unit or BLOCKS,
    )


def typical_of(arch: str) -> Device:
    """A device of an architecture, for its SM's limits; where no profile is one, one that knows none of them."""
    for profile in profiles():
        if profile.device.arch == arch:
            return profile.device
    return Device(
        id="unknown", kind="cuda", name=arch, arch=arch, compute_units=1, wave_width=WARP, registers_per_thread=255
    )


UNIT, CUBIN, FACTS = "unit.cu", "unit.cubin", "facts.json"
MEANING = 1  # of a key and an entry: raised when either changes
ABANDONED_SECONDS = 3600.0  # an unfinished entry that is older was left by a process that was killed


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One unit as it was built; ``unit`` is the text that became the cubin."""

    unit: str
    cubin: bytes
    facts: Mapping[str, Any]  # JSON


@dataclass(frozen=True, slots=True)
class CodeCache:
    """A folder that any number of processes use at a time."""

    folder: Path

    def find(self, content: str, compiler: str | None) -> Entry | None:
        """The entry of some content by a compiler's name; of any compiler if None. None where there is no sound one."""
        hashed = _hash(content)
        names = [f"{hashed}-*"] if compiler is None else [f"{hashed}-{_slug(compiler)}"]
        paths = sorted(position for name in names for position in self.folder.glob(name))
        return next((entry for position in paths if (entry := _sound(position)) is not None), None)

    def keep(self, content: str, compiler: str, entry: Entry) -> Path:
        """Publish an entry; its folder. UsageError if the cache cannot be written.

        Where another process was faster its entry stays, unless it is damaged.
        """
        path = self.folder / f"{_hash(content)}-{_slug(compiler)}"
        aside = self.folder / f".{uuid.uuid4().hex[:12]}.new"
        try:
            aside.mkdir(parents=True)
            facts = {**entry.facts, "sha256": _digest(entry)}
            _written(aside / UNIT, entry.unit.encode())
            _written(aside / CUBIN, entry.cubin)
            _written(aside / FACTS, json.dumps(facts, indent=1, sort_keys=True).encode())
            self._publish(aside, path)
        except OSError as error:
            raise UsageError(f"cannot keep compiled code in {self.folder}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        self._sweep()
        return path

    def _publish(self, aside: Path, position: Path) -> None:
        while True:
            try:
                aside.rename(position)  # onto a folder that is not there, or is empty
                return
            except OSError:
                if not position.exists():
                    raise
            if _sound(position) is not None:
                return
            damaged = self.folder / f".{uuid.uuid4().hex[:12]}.new"
            with contextlib.suppress(FileNotFoundError):  # another process took it away
                position.rename(damaged)
            shutil.rmtree(damaged, ignore_errors=True)

    def _sweep(self) -> None:
        for left in self.folder.glob(".*.new"):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > ABANDONED_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)


def _hash(content: str) -> str:
    return hashlib.sha256(f"{MEANING}\0{content}".encode()).hexdigest()[:32]


def _digest(entry: Entry) -> str:
    return hashlib.sha256(entry.unit.encode() + b"\0" + entry.cubin).hexdigest()


def _slug(compiler: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", compiler.lower())


def _written(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())  # a rename that outlives its content would publish an empty file


def _sound(position: Path) -> Entry | None:
    try:
        facts = json.loads((position / FACTS).read_bytes())
        entry = Entry(unit=(position / UNIT).read_text(), cubin=(position / CUBIN).read_bytes(), facts=facts)
    except (OSError, ValueError):
        return None
    sound = isinstance(facts, dict) and facts.get("sha256") == _digest(entry)
    return entry if sound else None


SHARE_DIGITS = 2  # of instructions for each that multiplies: a hundredth more is nobody's loss


@dataclass(frozen=True, slots=True)
class Gate:
    """Limit of a main loop's instructions to one that multiplies, where it has ``enough`` of them."""

    limit: float
    enough: int


# What well-made loops keep to (tests/microkernels/cuda_gates.py); in shorter ones branch and addresses weigh more.
GATES: Mapping[float, Gate] = {
    WIDTHS["HGMMA"]: Gate(13.0, 4),
    WIDTHS["HMMA"]: Gate(3.0, 32),
    WIDTHS["FFMA"]: Gate(1.16, 1024),
}
Programs = Mapping[str, tuple[CudaDense | CudaGenerated | CudaDirect, MicroKernel]]  # by exported symbol
Resources = Mapping[str, Mapping[str, float]]  # by symbol


@dataclass(frozen=True, slots=True, kw_only=True)
class Cubin:
    """Machine code of one unit, its text beside it, and what is known of its kernels.

    ``resources`` by symbol: registers, stack_bytes, spill_bytes, static_shared_bytes, resident_blocks (of an SM of the
    architecture), and ``bounded``: 1 where the launch bounds ask for a number of resident blocks. Where nvdisasm is there,
    loop_instructions, loop_multiplies (of ``loop_width``, see ``sass.WIDTHS``) and loop_local_loads of the main loop, too.
    """

    path: Path
    arch: str
    compiler: str  # "nvcc 13.0" or "nvrtc 13.0"
    resources: Resources
    seconds: float  # generating and compiling; next to nothing from a cache


def find_compiler(arch: str) -> Compiler:
    """A compiler for the architecture; EnvironmentMissing says how to get one.

    nvcc before NVRTC, which compiles in half the time, but of whose kernels on an H200 most took 1 to 7 % longer.
    """
    result: list[Compiler] = []
    missing: list[str] = []
    for find in (find_nvcc, find_nvrtc):
        try:
            result.append(find())
        except EnvironmentMissing as error:
            missing.append(str(error))
        if result and result[-1].builds_for(arch):
            return result[-1]
    return first_for(arch, result, missing)


def build_cubin(
    programs: Programs,
    out: Path,
    *,
    arch: str,
    reduces: Sequence[str] = (),
    compiler: Compiler | None = None,
    cache: Path | None = None,
) -> Cubin:
    """Write the cubin of programs and reductions to ``out``, and the text of the unit beside it as ``.cu``.

    Args:
        programs: family and micro-kernel by exported symbol.
        out: the cubin's path; its folder exists.
        arch: as ``sm_90a``.
        reduces: dtypes whose reduction of partial sums the unit has.
        compiler: None finds one, nvcc before NVRTC. A cache that has the unit needs none.
        cache: a folder of units by content (``CodeCache``); None: nothing is kept.

    Raises:
        EnvironmentMissing: no compiler for the architecture, with what to install.
        CompileFailed: the compiler refused, or ptxas does not follow the program.
    """
    started = time.monotonic()
    source = device_unit(programs, reduces=reduces)
    content = json.dumps([source, arch, FLAGS])
    code_cache = None if cache is None else CodeCache(cache)
    entry = None if code_cache is None else code_cache.find(content, None if compiler is None else compiler.name)
    if entry is None:
        entry = _built(programs, source, arch, compiler or find_compiler(arch))
        if code_cache is not None:
            code_cache.keep(content, entry.facts["compiler"], entry)
    for path, data in ((out.with_suffix(".cu"), entry.unit.encode()), (out, entry.cubin)):
        with written_aside(path) as aside:
            aside.write_bytes(data)
    return Cubin(
        path=out, arch=arch, compiler=entry.facts["compiler"], resources=entry.facts["resources"],
        seconds=time.monotonic() - started,
    )  # fmt: skip


def unbounded(unit: str, symbols: Sequence[str]) -> str:
    """The unit's text in which these kernels are free of a least number of resident blocks."""
    for symbol in symbols:
        unit = re.sub(rf"(__launch_bounds__\(\d+), \d+\)( {symbol}\()", r"\1)\2", unit)
    return unit


def only(unit: str, symbols: Sequence[str]) -> str:
    """The unit with these of its kernels alone."""
    for symbol in set(re.findall(r"^HT_DEVICE void (\w+)_kernel\(", unit, re.MULTILINE)) - set(symbols):
        for head in (rf"HT_DEVICE void {symbol}_kernel\(", rf'extern "C" __global__ [^;{{\n]* {symbol}\('):
            unit = re.sub(rf"^{head}[^;{{]*\{{\n.*?^\}}\n", "", unit, flags=re.MULTILINE | re.DOTALL)
    return unit


def bounded(unit: str) -> list[str]:
    """Kernels of a unit whose launch bounds ask for a number of resident blocks."""
    return re.findall(r"__launch_bounds__\(\d+, \d+\) (\w+)\(", unit)


def suspicious(facts: Mapping[str, float]) -> bool:
    """True if the bound may have cost a kernel too much: it spills, or its main loop is longer than such loops need be."""
    if facts["spill_bytes"] or facts.get("loop_local_loads"):
        return True
    gate = GATES.get(facts.get("loop_width", 0.0))
    return gate is not None and facts["loop_multiplies"] >= gate.enough and _share(facts) > gate.limit


def rank(facts: Mapping[str, float]) -> tuple[float, ...]:
    """Order of two builds of one kernel, better first: fewer spills, resident blocks, a shorter loop, registers.

    Blocks come before instructions: a tensor core takes four cycles and more for an HMMA, so that a loop of three to an HMMA
    waits for operands before it waits for issue slots.
    """
    return (
        facts["spill_bytes"],
        facts.get("loop_local_loads", 0),
        -facts["resident_blocks"],
        round(_share(facts), SHARE_DIGITS),
        facts["registers"],
    )


def _share(facts: Mapping[str, float]) -> float:
    """Instructions of the main loop for each that multiplies; 0 where no disassembler has seen them."""
    return facts.get("loop_instructions", 0) / max(facts.get("loop_multiplies", 0), 1)


def _built(programs: Programs, source: str, arch: str, compiler: Compiler) -> Entry:
    bounded_source = bounded(source)
    cubin, resources = _compiled(programs, source, arch, compiler)
    symbols = [symbol for symbol in bounded_source if suspicious(resources[symbol])]
    unit = source
    if symbols:
        tried = unbounded(only(source, symbols), symbols)  # the others are not compiled again
        free_cubin, free = _freed({symbol: programs[symbol] for symbol in symbols}, tried, arch, compiler)
        better = [symbol for symbol in symbols if free and rank(free[symbol]) < rank(resources[symbol])]
        unit = unbounded(source, better)
        if unit == tried:
            cubin, resources = free_cubin, free
        elif better:
            cubin, resources = _compiled(programs, unit, arch, compiler)
    still = bounded(unit)
    resources_of = {symbol: {**facts, "bounded": float(symbol in still)} for symbol, facts in resources.items()}
    return Entry(unit=unit, cubin=cubin, facts={"compiler": compiler.name, "arch": arch, "resources": resources_of})


def _freed(programs: Programs, unit: str, arch: str, compiler: Compiler) -> tuple[bytes, Resources]:
    """Kernels without their bound; nothing where they cannot be without it: setmaxnreg needs it."""
    try:
        return _compiled(programs, unit, arch, compiler)
    except CompileFailed:
        return b"", {}


def _mixes(cubin: bytes) -> dict[str, dict[str, float]]:
    """Facts of main loops by symbol; nothing without a disassembler, or where it does not know the architecture."""
    nvdisasm = find_nvdisasm()
    if nvdisasm is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "unit.cubin")
        path.write_bytes(cubin)
        try:
            return {symbol: mix(code) for symbol, code in read(path, nvdisasm).items()}
        except (CompileFailed, EnvironmentMissing):
            return {}


def _compiled(programs: Programs, source: str, arch: str, compiler: Compiler) -> tuple[bytes, Resources]:
    done, device = compiler.compile(source, arch), typical_of(arch)
    resources: dict[str, Mapping[str, float]] = {}
    for symbol, facts in done.resources.items():
        if symbol not in programs:  # a reduction
            resources[symbol] = facts
            continue
        family, kernel = programs[symbol]
        launch = family.launch(kernel)
        shared = launch.shared_bytes + int(facts["static_shared_bytes"])
        resident = resident_blocks(device, threads=launch.threads, registers=int(facts["registers"]), shared_bytes=shared)
        resources[symbol] = {**facts, "resident_blocks": float(resident)}
    mixes = _mixes(done.cubin)
    return done.cubin, {symbol: {**facts, **mixes.get(symbol, {})} for symbol, facts in resources.items()}
