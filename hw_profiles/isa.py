"""Instruction sets that kernels are compiled for, AMX among them, and how a host says which it has."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass

_V2 = frozenset(["cx16", "lahf_lm", "popcnt", "pni", "ssse3", "sse4_1", "sse4_2"])
_V3 = _V2 | frozenset(["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"])
_V4 = _V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Isa:
    """One instruction-set level: x86-64 psABI micro-architecture levels v2, v3 and v4."""

    name: str  # as a user writes it after ``cpu:``
    arch: str  # LLVM's -mcpu name
    wave_width: int  # fp32 lanes of a SIMD register
    registers: int  # SIMD registers
    flags: frozenset[str]  # /proc/cpuinfo words that the level asks for
    compile_flags: tuple[str, ...]  # for gcc and clang of any age; they know -march=x86-64-vN only since 11 and 12
    chains: int  # independent multiply-adds that fill the pipes and still fit the registers (hw_profiles/native/fma.h)


# Widest first. Chains: latency 4 x 2 pipes = 8 at the least for FMA; SSE multiplies, then adds: 7 cycles x 2 pipes = 14,
# and 14 with two constants are all 16 registers.
ISAS = (
    Isa(
        name="avx512",
        arch="x86-64-v4",
        wave_width=16,
        registers=32,
        flags=_V4,
        compile_flags=tuple(["-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mavx512cd", "-mavx2", "-mfma"]),
        chains=12,
    ),
    Isa(name="avx2", arch="x86-64-v3", wave_width=8, registers=16, flags=_V3, compile_flags=("-mavx2", "-mfma"), chains=12),
    Isa(name="sse", arch="x86-64-v2", wave_width=4, registers=16, flags=_V2, compile_flags=("-msse4.2",), chains=14),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuInfo:
    """Facts of one logical CPU from /proc/cpuinfo; empty text where it has none."""

    vendor: str
    model_name: str
    family: str
    model: str
    stepping: str
    microcode: str
    flags: frozenset[str]

    def isas(self) -> tuple[Isa, ...]:
        """The levels this CPU has, widest first. The kernel lists AVX flags only where it saves those registers."""
        return tuple(isa for isa in ISAS if isa.flags <= self.flags)

    def id(self, isa: Isa) -> str:
        """Stable device id such as ``cpu-intel-xeon-gold-6248-avx512``.

        A hypervisor may hide the model ("AMD EPYC"): then family and model numbers keep generations apart.
        """
        text = re.sub(r"\((r|tm|c)\)", " ", self.model_name.lower()).replace("+", " plus ")
        text = re.sub(r"@.*$|\b\d+-core\b|\b(cpu|processor|with radeon.*)\b", " ", text)
        words = re.findall(r"[a-z0-9]+", text)
        vendor = {"genuineintel": "intel", "authenticamd": "amd"}.get(self.vendor.lower())
        if vendor and vendor not in words:
            words.insert(0, vendor)
        if not any(digit in word for word in words for digit in "0123456789"):
            words += [f"f{self.family}m{self.model}"] if self.family.isdigit() and self.model.isdigit() else []
        return "-".join(["cpu", *(words or ["x86-64"]), isa.name])


def wide_pipes(info: CpuInfo) -> int | None:
    """Multiply-adds of the widest vectors that a core starts in a cycle, where its generation says so, else None.

    Two of AVX-512 on Intel's server cores with AMX (optimization manual: ports 0 and 5) and on EPYCs of family 26 (Zen 5).
    Others have one or two by model, so that only measuring tells.
    """
    zen5 = info.vendor == "AuthenticAMD" and info.family == "26" and "epyc" in info.model_name.lower()
    return 2 if info.flags >= _V4 and ("amx_tile" in info.flags or zen5) else None


def parse_cpuinfo(text: str) -> CpuInfo:
    """Read the first processor of /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            if fields:
                break
            continue
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    return CpuInfo(
        vendor=fields.get("vendor_id", ""),
        model_name=fields.get("model name", ""),
        family=fields.get("cpu family", ""),
        model=fields.get("model", ""),
        stepping=fields.get("stepping", ""),
        microcode=fields.get("microcode", ""),
        flags=frozenset(fields.get("flags", "").split()),
    )


FEATURES = ("amx-tile", "amx-bf16", "amx-int8")  # as compilers name them
_FLAGS = frozenset(["amx_tile", "amx_bf16", "amx_int8"])
# A tile of 16 x 16 sums and 32 terms of bf16 every 16 cycles (Intel's optimization manual, chapter on AMX); bytes are
# twice as many. Measured on one core of an Intel Xeon with AMX: 2,970 GFLOP/s at 2.9 GHz.
FLOPS_PER_CYCLE = 1024
_ARCH_PRCTL, _GET_SUPPORTED, _TILE_DATA = 158, 0x1021, 18  # Linux on x86-64: arch_prctl, ARCH_GET_XCOMP_SUPP, XTILEDATA


def has_tiles(info: CpuInfo) -> bool:
    """True if the CPU has tiles for bf16 and bytes, and this Linux saves them between processes: 5.16 and later do."""
    return info.flags >= _FLAGS and bool(_supported() >> _TILE_DATA & 1)


def _supported() -> int:
    """Mask of the register states that a process may ask for; 0 where Linux does not know the question."""
    mask = ctypes.c_uint64()
    call = ctypes.CDLL(None, use_errno=True).syscall
    return mask.value if call(_ARCH_PRCTL, _GET_SUPPORTED, ctypes.byref(mask)) == 0 else 0
