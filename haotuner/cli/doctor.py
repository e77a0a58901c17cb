"""`haotuner doctor`: whether tuning can work here, what is missing, and how to get it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from haotuner.backends.cpu.compile import unknown_extensions
from haotuner.backends.cuda.compiler import find_nvrtc
from haotuner.backends.toolchain import compiler_commands
from haotuner.cli.devices import columns, device_json, in_full
from haotuner.cli.output import say, tell
from haotuner.errors import EnvironmentMissing
from haotuner.host.cache_folder import cache_folder
from haotuner.host.extras import how_to_get
from haotuner.host.processor import read_text
from haotuner.hw_profiles.cpu import cpu_info, cpu_rates
from haotuner.hw_profiles.cpu_peak import NotMeasured
from haotuner.hw_profiles.find import find_device
from haotuner.hw_profiles.gpu import gpu_devices
from haotuner.hw_profiles.gpu_queries import NoGpu, query_driver, query_nvml
from haotuner.hw_profiles.topology import Host, topology
from haotuner.isolate import group
from haotuner.isolate.answers import TimedOut
from haotuner.spec.device import Device

Status = Literal["ok", "missing", "warning", "absent"]  # missing: tuning on the CPU cannot work; absent: optional

# The pair that works: ffi 0.1.15 crashes inside this TVM. pyproject.toml pins the same; a test compares them.
PINNED = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}
TUNING = ("numpy", "lightgbm", "pandas", "scikit-learn", "scipy")
PEERS = ("torch", "onnx", "onnxruntime", "openvino")
DISK_BYTES = 500 << 20  # a tuning run leaves some 10 MB; compilers and record stores want room beside it
MEMORY_BYTES = 2 << 30  # a worker with TVM takes 0.3 GB; cold weights rotate through four times the last-level cache
_TUNE = how_to_get("tune")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


def checkup(*, host: Host, cache_dir: Path | None, folder: Path, version: Callable[[str], str | None]) -> list[Check]:
    """Every check, in the order of a report.

    Args:
        host: the machine that is asked.
        cache_dir: where measured rates are kept.
        folder: where packs would be written.
        version: gives a distribution's version, None where it is not installed.
    """
    checks = [*_cpu(host, cache_dir), _compiler(host), *_packages(version)]
    checks += [_disk("disk", folder), _cache(cache_dir), *_gpu(host), _nvcc(), _nvrtc()]
    return [*checks, *(_peer(name, version(name)) for name in PEERS)]


def installed(name: str) -> str | None:
    """Version of an installed distribution; nothing is imported."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu(host: Host, cache_dir: Path | None) -> Iterator[Check]:
    try:
        info = cpu_info(host)
    except EnvironmentMissing as error:
        yield Check(name="platform", status="missing", detail=f"{host.system} {host.machine}", remedy=str(error))
        return
    yield Check(name="platform", status="ok", detail=f"{host.system} {host.machine}, {info.model_name or info.vendor}")
    isas = info.isas()
    # Peak and bars were set with AVX-512 in mind; narrower hosts work and are reported as such.
    yield Check(name="instruction sets", status="ok", detail=", ".join(f"{isa.name} ({isa.arch})" for isa in isas))
    cores = topology(host)
    limit = "" if cores.quota is None else f", control group allows {cores.quota:g} cores' time"
    yield Check(name="cores", status="ok", detail=f"{cores.cores} of {len(host.cpus)} logical CPUs{limit}")
    caches = ", ".join(
        f"{label} {size // 1024} KiB"
        for label, size in (("L1d", cores.l1_bytes), ("L2", cores.l2_bytes), ("L3", cores.l3_bytes))
        if size
    )
    yield Check(name="caches", status="ok" if caches else "warning", detail=caches or "/sys does not tell", remedy="")
    memory = cores.memory_bytes
    yield Check(
        name="memory",
        status="ok" if memory is None or memory >= MEMORY_BYTES else "warning",
        detail="unknown" if memory is None else f"{memory / (1 << 30):.1f} GiB",
        remedy="" if memory is None or memory >= MEMORY_BYTES else "tuning wants 2 GiB; give the container more",
    )
    yield _huge_pages(host)
    rates = cpu_rates(isas[0], host=host, measure=True, cache_dir=cache_dir)
    if isinstance(rates, NotMeasured):
        yield Check(name="peak", status="warning", detail=f"not measured: {rates.reason}", remedy=rates.remedy)
        return
    yield Check(
        name="peak",
        status="ok",
        detail=f"one core {rates.peak_gflops_unit:.0f} GFLOP/s and {rates.memory_gbps_unit:.0f} GB/s, "
        f"all {rates.peak_gflops:.0f} and {rates.memory_gbps:.0f}; {rates.clock_mhz:.0f} MHz, FMA pipes: {rates.fma_pipes}",
    )


def _huge_pages(host: Host) -> Check:
    """Transparent huge pages (Linux, admin-guide/mm/transhuge): packed weights ask for them."""
    path = host.sysfs / "kernel" / "mm" / "transparent_hugepage" / "enabled"
    chosen = re.search(r"\[(\w+)\]", read_text(path) or "")
    if chosen is None:
        return Check(name="huge pages", status="absent", detail="not offered by this kernel, or not visible from here")
    off = chosen[1] == "never"
    remedy = f"as root: echo madvise > {path}; few rows on weights out of cache were up to 1.3 times as fast"
    return Check(name="huge pages", status="warning" if off else "ok", detail=chosen[1], remedy=remedy if off else "")


def _compiler(host: Host) -> Check:
    command = next(compiler_commands(), None)
    remedy = "install one: `apt-get install gcc libc6-dev`, or `pip install ziglang`, or put a cc, gcc or clang on PATH"
    if command is None:
        return Check(name="C compiler", status="missing", detail="none of cc, gcc, clang on PATH", remedy=remedy)
    compiler, first_line = command[0], _first_line([*command, "--version"])
    unknown = _not_compiled(command, host) if first_line else []
    if unknown:
        return Check(
            name="C compiler",
            status="warning",
            detail=f"{compiler} ({first_line}) does not know {', '.join(unknown)}, which this CPU has: "
            "bf16 and int8 do without",
            remedy="put a newer compiler on PATH, gcc 11 or later for all of them, and tune again",
        )
    return Check(
        name="C compiler",
        status="ok" if first_line else "missing",
        detail=f"{compiler} ({first_line or 'does not run'})",
        remedy="" if first_line else remedy,
    )


def _not_compiled(compiler: Sequence[str], host: Host) -> list[str]:
    """Extensions for bf16 and int8 that the CPU has and the compiler has no option for."""
    try:
        info = cpu_info(host)
    except EnvironmentMissing:
        return []
    return unknown_extensions(compiler, info)


def _packages(version: Callable[[str], str | None]) -> Iterator[Check]:
    for name, required_version in PINNED.items():
        result = version(name)
        if result == required_version:
            yield Check(name=name, status="ok", detail=result)
        else:
            why = f"{result}, not the pinned {required_version}; other pairs crash" if result else "not installed"
            yield Check(
                name=name, status="missing", detail=why, remedy=f"{_TUNE} (or: pip install '{name}=={required_version}')"
            )
    for name in TUNING:
        result = version(name)
        yield Check(
            name=name, status="ok" if result else "missing", detail=result or "not installed", remedy="" if result else _TUNE
        )


def _disk(name: str, folder: Path) -> Check:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check(
            name=name, status="warning", detail=f"{folder}: {error.strerror}", remedy="choose another folder with --out"
        )
    enough = free >= DISK_BYTES
    remedy = "" if enough else "make room, or choose another folder with --out"
    return Check(
        name=name, status="ok" if enough else "warning", detail=f"{free / (1 << 30):.1f} GiB free in {folder}", remedy=remedy
    )


def _cache(cache_dir: Path | None) -> Check:
    if cache_dir is None:
        return Check(
            name="cache", status="warning", detail="no home folder", remedy="set XDG_CACHE_HOME to an absolute path"
        )
    selected = len(list(cache_dir.glob("cpu-peak-*.json"))) if cache_dir.is_dir() else 0
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        probe = cache_dir / ".probe"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        remedy = "set XDG_CACHE_HOME to a writable folder; until then rates are measured in every process (about 2 s)"
        return Check(name="cache", status="warning", detail=f"{cache_dir}: {error.strerror}", remedy=remedy)
    return Check(
        name="cache", status="ok", detail=f"{cache_dir}, {selected} measured instruction set{'s' if selected != 1 else ''}"
    )


def _gpu(host: Host) -> Iterator[Check]:
    nvml = query_nvml(host.nvml)
    if isinstance(nvml, NoGpu):
        yield Check(name="NVML", status="absent", detail=nvml.detail, remedy=nvml.remedy)
    else:
        yield Check(
            name="NVML", status="ok", detail=f"driver {nvml.driver or 'unknown'}, CUDA up to {nvml.cuda or 'unknown'}"
        )
    driver = query_driver(host.cuda_library)
    if isinstance(driver, NoGpu):
        yield Check(name="CUDA driver", status="absent", detail=driver.detail, remedy=driver.remedy)
    else:
        yield Check(name="CUDA driver", status="ok", detail=f"{len(driver)} GPU{'s' if len(driver) != 1 else ''}")
    for index, gpu in enumerate(gpu_devices(host)):
        if isinstance(gpu, Device):
            mig = ", MIG" if gpu.mig else ""
            yield Check(
                name=f"cuda:{index}", status="ok", detail=f"{gpu.name} ({gpu.id}, {gpu.arch}, {gpu.compute_units} SMs{mig})"
            )
        elif not isinstance(nvml, NoGpu):
            yield Check(name=f"cuda:{index}", status="warning", detail=gpu.detail, remedy=gpu.remedy)


def _nvcc() -> Check:
    path = shutil.which("nvcc")
    if path is None:
        return Check(
            name="nvcc", status="absent", detail="not on PATH", remedy="install a CUDA toolkit to build packs for GPUs"
        )
    release = re.search(r"release (\d+)\.(\d+)", _output([path, "--version"]) or "")
    if release is None:
        return Check(
            name="nvcc", status="warning", detail=f"{path} does not tell its version", remedy="reinstall the CUDA toolkit"
        )
    # CUDA 13 dropped Maxwell, Pascal and Volta (its release notes).
    oldest = "sm_75 (sm_60 and sm_70 need the nvcc of CUDA 12)" if int(release[1]) >= 13 else "sm_60"
    return Check(name="nvcc", status="ok", detail=f"{path}, CUDA {release[1]}.{release[2]}, builds for {oldest} and later")


def _nvrtc() -> Check:
    """NVIDIA's compiler as a library, which builds packs for GPUs where there is no toolkit."""
    try:
        result = find_nvrtc()
    except EnvironmentMissing as error:
        found_none = str(error).partition("; ")[0]  # what follows is the remedy
        return Check(name="NVRTC", status="absent", detail=found_none, remedy=how_to_get("cuda"))
    return Check(name="NVRTC", status="ok", detail=result.name)


def _peer(name: str, version: str | None) -> Check:
    extra, what = ("models", "tune ONNX models") if name == "onnx" else ("bench", "race against it")
    remedy = "" if version else f"{how_to_get(extra)}, to {what}"
    return Check(name=name, status="ok" if version else "absent", detail=version or "not installed", remedy=remedy)


def _output(words: list[str]) -> str | None:
    try:
        done = group.run(words, 20)
    except (OSError, TimedOut):
        return None
    return done.out if done.code == 0 else None


def _first_line(words: list[str]) -> str:
    return next(iter((_output(words) or "").splitlines()), "")


_MARKS = {"ok": "ok", "missing": "MISSING", "warning": "warning", "absent": "-"}


def doctor(
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only what is wrong.")] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Print the CPU's numbers with their sources too.")
    ] = False,
) -> None:
    """Check compiler, packages, CPU and GPU, and say what is missing and how to get it.

    Ends with 0 when tuning on this host's CPU can work, with 4 when not.
    """
    host, cache_dir = Host.here(), cache_folder(os.environ)
    if not quiet:
        tell("haotuner doctor: looking at this host; the first time it measures peak and bandwidth for about 2 s")
    checks = checkup(host=host, cache_dir=cache_dir, folder=Path.cwd(), version=installed)
    missing = [check for check in checks if check.status == "missing"]
    if json_output:
        say(json.dumps(_document(checks, host, cache_dir), indent=1))
    else:
        shown = [c for c in checks if not quiet or c.status in ("missing", "warning")]
        if shown:
            say(_table(shown))
        if verbose and not any(c.name == "platform" for c in missing):
            device = find_device("cpu", measure=False, cache_dir=cache_dir, host=host)
            say(f"\n{in_full('cpu', device)}")
    if missing:
        todo = "; ".join(f"{check.name}: {check.remedy or check.detail}" for check in missing)
        raise EnvironmentMissing(f"tuning on this host cannot work yet: {todo}")
    if not json_output and not quiet:
        say("\nTuning on this host's CPU can work: `haotuner tune --shapes dynamic`")


def _table(checks: list[Check]) -> str:
    rows = [("check", "", "found")]
    for check in checks:
        rows.append((check.name, _MARKS[check.status], check.detail))
        if check.remedy and check.status != "ok":
            rows.append(("", "", f"-> {check.remedy}"))
    return columns(rows)


def _document(checks: list[Check], host: Host, cache_dir: Path | None) -> dict[str, Any]:
    try:
        device: dict[str, Any] | None = device_json(find_device("cpu", measure=False, cache_dir=cache_dir, host=host))
    except EnvironmentMissing:
        device = None
    return {
        "ok": all(check.status != "missing" for check in checks),
        "checks": [
            {"name": check.name, "status": check.status, "found": check.detail, "remedy": check.remedy} for check in checks
        ],
        "missing": [check.name for check in checks if check.status == "missing"],
        "python": sys.version.split()[0],
        "versions": {name: installed(name) for name in ("haotuner", *PINNED, *TUNING)},
        "peers": {name: installed(name) for name in PEERS},
        "device": device,
    }
