"""This host's CPU as a Device, at its widest instruction set or a narrower one."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from haotuner.errors import EnvironmentMissing, UnknownDevice
from haotuner.host.processor import read_text
from haotuner.hw_profiles import isa as amx
from haotuner.hw_profiles.cpu_peak import CpuPeak, NotMeasured, peak_of
from haotuner.hw_profiles.isa import ISAS, CpuInfo, Isa, parse_cpuinfo, wide_pipes
from haotuner.hw_profiles.topology import Host, Topology, topology
from haotuner.spec.device import Device, Source

COMPILERS = ("cc", "gcc", "clang")
CLOCK_MHZ = 2500.0  # of a server that was not measured yet


def find_compiler() -> str | None:
    """Path of the C compiler that PATH offers first, by the usual names."""
    return next((path for path in map(shutil.which, COMPILERS) if path), None)


def cpu_info(host: Host) -> CpuInfo:
    """This host's ``CpuInfo``, from /proc/cpuinfo.

    Raises:
        EnvironmentMissing: another system or processor than Linux on x86-64, or one older than x86-64-v2.
    """
    if host.system != "Linux" or host.machine not in ("x86_64", "amd64"):
        raise EnvironmentMissing(
            f"haotuner tunes CPUs on Linux x86-64; this host is {host.system} {host.machine}. "
            "Run it on an x86-64 Linux machine; for an absent GPU, `haotuner candidates --device h200` works anywhere."
        )
    text = read_text(host.proc / "cpuinfo")
    if not text:
        raise EnvironmentMissing(f"cannot read {host.proc / 'cpuinfo'}, which tells what this CPU can do; mount /proc")
    info = parse_cpuinfo(text)
    if not info.isas():
        lacking = " ".join(sorted(ISAS[-1].flags - info.flags))
        raise EnvironmentMissing(
            f"the CPU ({info.model_name or 'unnamed'}) lacks {lacking} of x86-64-v2; use a host with SSE4.2 or later."
        )
    return info


def cpu_isas(host: Host) -> tuple[Isa, ...]:
    """Instruction sets of this host, widest first; the same errors as ``cpu_info``."""
    return cpu_info(host).isas()


def cpu_device(isa_name: str | None, *, host: Host, measure: bool, cache_dir: Path | None) -> Device:
    """This host's CPU at one instruction set; None is the widest it has.

    Raises:
        UnknownDevice: the host lacks that instruction set, or there is none of that name.
        EnvironmentMissing: not Linux on x86-64.
    """
    info = cpu_info(host)
    isa = next((i for i in info.isas() if isa_name in (None, i.name, i.arch)), None)
    if isa is None:
        has = ", ".join(f"cpu:{i.name}" for i in info.isas())
        raise UnknownDevice(f"device cpu:{isa_name}: this host ({info.model_name}) has {has}")
    cores = topology(host)
    return _device(info, isa, cores, cpu_rates(isa, host=host, measure=measure, cache_dir=cache_dir))


def cpu_rates(isa: Isa, *, host: Host, measure: bool, cache_dir: Path | None) -> CpuPeak | NotMeasured:
    """Measured rates of this host at one instruction set, or why there are none.

    Memory is the host's, whichever instructions read it: its rates are the best that any instruction set has measured.
    """
    info, cores, compiler = cpu_info(host), topology(host), find_compiler()

    def rates(of: Isa, measure: bool) -> CpuPeak | NotMeasured:
        return peak_of(info=info, isa=of, topology=cores, compiler=compiler, cache_dir=cache_dir, measure=measure)

    own = rates(isa, measure)
    if isinstance(own, NotMeasured):
        return own
    others = [rates(other, False) for other in info.isas() if other != isa]
    known = [own, *(other for other in others if isinstance(other, CpuPeak))]
    alone, together = max(item.memory_gbps_unit for item in known), max(item.memory_gbps for item in known)
    return replace(own, memory_gbps_unit=alone, memory_gbps=together)


def _device(info: CpuInfo, isa: Isa, cores: Topology, rates: CpuPeak | NotMeasured) -> Device:
    queried: dict[str, Any] = {
        "compute_units": cores.cores,
        "l1_bytes": cores.l1_bytes,
        "l2_bytes": cores.l2_bytes,
        "l3_bytes": cores.l3_bytes,
        "memory_bytes": cores.memory_bytes,
    }
    # The level fixes these; the flags that name the level were queried.
    derived: dict[str, Any] = {"wave_width": isa.wave_width, "registers_per_thread": isa.registers}
    measured: dict[str, Any] = {}
    if isa is ISAS[0] and amx.has_tiles(info):
        clock_mhz = rates.clock_mhz if isinstance(rates, CpuPeak) else CLOCK_MHZ
        derived["tensor_tflops"] = amx.FLOPS_PER_CYCLE * cores.cores * clock_mhz * 1e-6
    if not isinstance(rates, CpuPeak) and isa is ISAS[0] and wide_pipes(info):
        derived["fma_pipes"] = wide_pipes(info)
    if isinstance(rates, CpuPeak):
        names = ("clock_mhz", "fma_pipes", "peak_gflops", "peak_gflops_unit", "memory_gbps", "memory_gbps_unit")
        measured = {name: getattr(rates, name) for name in names}
    sources: dict[str, Source] = {name: "queried" for name, value in queried.items() if value is not None}
    sources.update({name: "derived" for name in derived}, **{name: "measured" for name in measured})
    return Device(
        id=info.id(isa),
        kind="cpu",
        name=info.model_name or info.vendor or "x86-64 CPU",
        arch=isa.arch,
        sources=sources,
        **queried,
        **derived,
        **measured,
    )
