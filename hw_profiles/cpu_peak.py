"""Peak FMA rate, clock and read bandwidth of this host: measured once by a small C program, then cached.

Nobody publishes these for the machine at hand (virtual machines, shared memory channels, lowered clocks), and every share
of peak that haotuner prints is only as good as they are. ``fma_pipes`` comes from the same program: FMAs per second over the
clock, which is the rate of a chain of dependent additions (one cycle each), both in one 0.3 ms pair.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

from haotuner.host.files import read_regular
from haotuner.hw_profiles.isa import CpuInfo, Isa
from haotuner.hw_profiles.topology import Topology
from haotuner.isolate import group
from haotuner.isolate.answers import TimedOut

SCHEMA = 1
COMPILE_LIMIT_S = 30.0  # 0.2 s where it was tried; a cold network disk is slower
RUN_LIMIT_S = 20.0  # 0.7 to 1.5 s on two cores; a host with many sockets touches more memory
BUSY_SPREAD = 0.10  # a one-core sample this far under the best says that others used the core meanwhile
MAX_RUNS = 3  # a busy host is measured again by later processes, but not for ever
MIB = 1 << 20
WAYS = 5  # in which a round of read.h reads its bytes
ROUNDS_ALONE, ROUNDS_EACH = 5, 12  # the best of so many counts, where caches are small
READ_BYTES = 8192 * MIB  # of a thread in all rounds, but for one: a cache of 300 MB must not take half a minute
ENTRY_LIMIT_BYTES = 1 << 16  # of a cached entry, which has half a kilobyte


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuPeak:
    """Measured rates; ``_unit`` is one core alone."""

    clock_mhz: float
    fma_per_cycle: float  # wave-wide multiply-adds a core starts per cycle
    peak_gflops_unit: float
    peak_gflops: float
    memory_gbps_unit: float
    memory_gbps: float
    spread: float  # (best - median) / best of the one-core FMA samples
    runs: int = 1  # how many runs these are the best of

    def __post_init__(self) -> None:
        flops = (self.clock_mhz, self.fma_per_cycle, self.peak_gflops_unit, self.peak_gflops)
        rates = (*flops, self.memory_gbps_unit, self.memory_gbps)
        if not all(isinstance(r, (int, float)) and math.isfinite(r) and r > 0 for r in rates) or self.runs < 1:
            raise ValueError(f"a measured rate is not a positive number: {self}")
        if not 0 <= self.spread <= 1:
            raise ValueError(f"spread {self.spread} is not a fraction")

    @property
    def fma_pipes(self) -> int:
        """Whole pipes nearest to the measured rate."""
        return max(1, round(self.fma_per_cycle))

    def settled(self, cores: int) -> bool:
        """True if another run would hardly find more.

        So it is when the one core was calm, and all cores together did more than one but not more than each alone could.
        """
        gains = (self.memory_gbps / self.memory_gbps_unit, self.peak_gflops / self.peak_gflops_unit)
        sound = cores == 1 or (min(gains) > 1 and max(gains) <= cores * (1 + BUSY_SPREAD))
        return self.runs >= MAX_RUNS or (self.spread <= BUSY_SPREAD and sound)

    def better(self, other: CpuPeak) -> CpuPeak:
        """The best of both runs: interference only ever lowers a rate."""
        calm = self if self.spread <= other.spread else other
        return CpuPeak(
            clock_mhz=max(self.clock_mhz, other.clock_mhz),
            fma_per_cycle=calm.fma_per_cycle,
            peak_gflops_unit=max(self.peak_gflops_unit, other.peak_gflops_unit),
            peak_gflops=max(self.peak_gflops, other.peak_gflops),
            memory_gbps_unit=max(self.memory_gbps_unit, other.memory_gbps_unit),
            memory_gbps=max(self.memory_gbps, other.memory_gbps),
            spread=calm.spread,
            runs=self.runs + other.runs,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotMeasured:
    """Reason why there are no measured rates, and what would help."""

    reason: str
    remedy: str


def peak_of(
    *,
    info: CpuInfo,
    isa: Isa,
    topology: Topology,
    compiler: str | None,
    cache_dir: Path | None,
    measure: bool,
    limit_s: float = RUN_LIMIT_S,
) -> CpuPeak | NotMeasured:
    """Rates of this host at one instruction set, from the cache or by measuring.

    Args:
        info: the CPU, part of the cache's key.
        isa: the instruction set the program is compiled for.
        topology: the cores it may use and the caches its buffers must exceed.
        compiler: path of a C compiler (gcc or clang), None where there is none.
        cache_dir: folder that keeps results between processes, made when missing; None for no cache.
        measure: False looks into the cache only.
        limit_s: when a run of the program is ended.
    """
    native = files("haotuner.hw_profiles").joinpath("native")
    source, *loops = (native.joinpath(name).read_bytes() for name in ("peak.c", "fma.h", "read.h"))
    key = {
        "schema": SCHEMA,
        "program": hashlib.sha256(b"".join((source, *loops))).hexdigest()[:16],
        "cpu": [info.vendor, info.model_name, info.family, info.model, info.stepping, info.microcode],
        "cpus": list(topology.cpus),
        "isa": isa.name,
    }
    known = _load(cache_dir, key)
    if known is not None and (known.settled(topology.cores) or not measure or compiler is None):
        return known
    if not measure:
        return NotMeasured(reason="not measured yet", remedy="run `haotuner doctor`, or tune: both measure once")
    if compiler is None:
        return NotMeasured(
            reason="no C compiler found", remedy="install one: `apt-get install gcc libc6-dev`, or any cc on PATH"
        )
    result = _run(source, isa=isa, topology=topology, compiler=compiler, limit_s=limit_s)
    if isinstance(result, NotMeasured):
        return known or result
    best = result if known is None else result.better(known)
    _store(cache_dir, key, best)
    return best


def loop_options(isa: Isa) -> tuple[str, ...]:
    """Compiler options for a program with the loops of native/fma.h or read.h, for an instruction set."""
    defines = (f"-DVECTOR_BYTES={4 * isa.wave_width}", f"-DCHAINS={isa.chains}")
    include = ("-I", str(files("haotuner.hw_profiles").joinpath("native")))
    return ("-std=gnu11", "-O2", "-ffp-contract=fast", "-pthread", *isa.compile_flags, *defines, *include)


def _sizes(topology: Topology) -> tuple[int, int]:
    """Bytes that one thread alone and each thread together read: four times the cache, within a quarter of memory."""
    cache = (topology.l3_bytes or 32 * MIB) + topology.cores * (topology.l2_bytes or MIB)
    room = (topology.memory_bytes or 4096 * MIB) // 4
    alone = min(max(4 * cache, 256 * MIB), room)
    # 64 MiB each: on several sockets each L3 is filled by its own cores only, and all of them exceed it together
    return alone, max(MIB, min(max(4 * cache // topology.cores, 64 * MIB), room // topology.cores))


def _rounds(size: int, most: int) -> int:
    """Number of times that a thread reads so many bytes in every way."""
    return max(1, min(most, READ_BYTES // (WAYS * size)))


def _run(source: bytes, *, isa: Isa, topology: Topology, compiler: str, limit_s: float) -> CpuPeak | NotMeasured:
    alone, each = _sizes(topology)
    cpus = ",".join(map(str, topology.cpus))
    with tempfile.TemporaryDirectory(prefix="haotuner-peak-") as folder:
        text, program = Path(folder) / "peak.c", Path(folder) / "peak"
        text.write_bytes(source)
        built = _command([compiler, *loop_options(isa), str(text), "-o", str(program)], COMPILE_LIMIT_S)
        if isinstance(built, NotMeasured):
            return built
        rounds = [str(_rounds(alone, ROUNDS_ALONE)), str(_rounds(each, ROUNDS_EACH))]
        output = _command([str(program), str(topology.cores), str(alone), str(each), cpus, *rounds], limit_s)
    if isinstance(output, NotMeasured):
        return output
    try:
        return CpuPeak(**json.loads(output))
    except (ValueError, TypeError) as error:
        return NotMeasured(
            reason=f"the measuring program said {output[:200]!r}: {error}", remedy="report it with `haotuner doctor --json`"
        )


def _command(command_: list[str], limit_s: float) -> str | NotMeasured:
    """Standard output of a command that ended well."""
    name = Path(command_[0]).name
    try:
        done = group.run(command_, limit_s)
    except TimedOut as error:
        return NotMeasured(reason=str(error), remedy="try again on a quieter machine")
    except OSError as error:
        return NotMeasured(
            reason=f"{name} could not be started: {error}", remedy="point TMPDIR at a folder that may hold programs"
        )
    if done.code != 0:
        detail = done.errors.strip().splitlines()
        why = f"signal {-done.code}" if done.code < 0 else f"exit {done.code}"
        return NotMeasured(
            reason=f"{name} failed ({why}): {detail[0][:200] if detail else 'it said nothing'}",
            remedy="install a complete C toolchain: `apt-get install gcc libc6-dev`",
        )
    return done.out


def _path(cache_dir: Path, key: dict[str, object]) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir / f"cpu-peak-{key['isa']}-{digest}.json"


def _load(cache_dir: Path | None, key: dict[str, object]) -> CpuPeak | None:
    """The cached rates; None when absent, damaged, or of another key (then they are measured again)."""
    if cache_dir is None:
        return None
    try:
        entry = json.loads(read_regular(_path(cache_dir, key), ENTRY_LIMIT_BYTES))
        return CpuPeak(**entry["rates"]) if entry["key"] == key else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _store(cache_dir: Path | None, key: dict[str, object], peak: CpuPeak) -> None:
    """Write aside and rename, so that a reader never sees half a file. A folder that refuses costs the cache only."""
    if cache_dir is None:
        return
    path = _path(cache_dir, key)
    aside = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps({"key": key, "rates": asdict(peak)}, indent=1) + "\n", encoding="utf-8")
        aside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink()
