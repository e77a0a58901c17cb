"""Other machines, as their system files describe them: /proc/cpuinfo as recorded, and trees that look like /sys."""

from pathlib import Path

from haotuner.hw_profiles.topology import Host

_AVX2 = "fpu sse sse2 pni ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt xsave avx f16c lahf_lm abm bmi1 avx2 bmi2"
_AVX512 = f"{_AVX2} avx512f avx512dq avx512cd avx512bw avx512vl"

EPYC = f"""processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 26
model\t\t: 2
model name\t: AMD EPYC
stepping\t: 1
microcode\t: 0x1000065
flags\t\t: {_AVX512}

processor\t: 1
vendor_id\t: AuthenticAMD
model name\t: another, which must not be read
flags\t\t: fpu
"""
XEON = f"""processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 85
model name\t: Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz
stepping\t: 7
microcode\t: 0x5003605
flags\t\t: {_AVX512}
"""
RYZEN = f"""processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 23
model\t\t: 113
model name\t: AMD Ryzen 9 3900X 12-Core Processor
stepping\t: 0
flags\t\t: {_AVX2}
"""
CORE_2 = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 23
model name\t: Intel(R) Core(TM)2 Duo CPU     E8400  @ 3.00GHz
flags\t\t: fpu sse sse2 pni ssse3 cx16 sse4_1 lahf_lm
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def machine(
    folder: Path,
    *,
    cpuinfo: str = EPYC,
    cpus: int = 2,
    threads_per_core: int = 1,
    l2_shared_by: str = "",
    cgroup: str = "0::/\n",
    architecture: str = "x86_64",
    system: str = "Linux",
) -> Host:
    """A host under ``folder``. Siblings are numbered as Linux does: core c has the CPUs c, c + cores, ..."""
    proc, sysfs = folder / "proc", folder / "sys"
    write(proc / "cpuinfo", cpuinfo)
    write(proc / "meminfo", "MemTotal:       24684100 kB\nMemFree:        24439368 kB\n")
    write(proc / "self/cgroup", cgroup)
    cores = cpus // threads_per_core
    for cpu in range(cpus):
        siblings = ",".join(str(c) for c in range(cpu % cores, cpus, cores))
        cpu_folder = sysfs / f"devices/system/cpu/cpu{cpu}"
        write(cpu_folder / "topology/thread_siblings_list", siblings)
        caches = [("1", "Data", "48K", siblings), ("1", "Instruction", "32K", siblings)]
        caches += [("2", "Unified", "1024K", l2_shared_by or siblings), ("3", "Unified", "32768K", f"0-{cpus - 1}")]
        for index, values in enumerate(caches):
            for name, value in zip(("level", "type", "size", "shared_cpu_list"), values, strict=True):
                write(cpu_folder / f"cache/index{index}" / name, value + "\n")
    return Host(
        system=system,
        machine=architecture,
        cpus=frozenset(range(cpus)),
        proc=proc,
        sysfs=sysfs,
        cuda_library=str(folder / "no-libcuda.so"),
    )
