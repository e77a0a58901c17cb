"""CUDA micro-kernels to a cubin: generated, compiled, judged by what the compiler reports, and kept by content.

A kernel's launch bounds hold it to the registers with which a given number of blocks fits an SM. Where that makes it
spill, or its main loop long, it is compiled without the bound as well, and the better of the two is kept.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from haotuner.backends.cuda.code_cache import CodeCache, Entry
from haotuner.backends.cuda.compiler import FLAGS, Compiler, first_for
from haotuner.backends.cuda.nvcc import find_nvcc
from haotuner.backends.cuda.nvrtc import find_nvrtc
from haotuner.backends.cuda.occupancy import resident_blocks, typical_of
from haotuner.backends.cuda.sass import WIDTHS, find_nvdisasm, mix, read
from haotuner.backends.cuda.toolkit import CompileFailed
from haotuner.backends.cuda.translation_unit import device_unit
from haotuner.errors import EnvironmentMissing
from haotuner.host.files import written_aside
from haotuner.microkernels.cuda.dense import CudaDense
from haotuner.microkernels.cuda.direct import CudaDirect
from haotuner.microkernels.cuda.generated import CudaGenerated
from haotuner.spec.kernel import MicroKernel

SHARE_DIGITS = 2  # of instructions for each that multiplies: a hundredth more is nobody's loss


@dataclass(frozen=True, slots=True)
class Gate:
    """Limit of a main loop's instructions to one that multiplies, where it has ``enough`` of them."""

    limit: float
    enough: int


# What well-made loops keep to (tests/content/cuda_gates.py); in shorter ones branch and addresses weigh more.
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
