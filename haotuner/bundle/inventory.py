"""Inventory of this machine, asked part by part: a part that hangs or crashes is a line, not the end."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from haotuner.bundle.manifest import Bundle
from haotuner.isolate import command
from haotuner.isolate.answers import TimedOut

ASK_SECONDS = 90.0  # importing torch from a cold disk took 40 s elsewhere
SMI_FIELDS = (
    "name,driver_version,pstate,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu,"
    "mig.mode.current,ecc.mode.current,compute_mode"
)
TOOLKIT = "/usr/local/cuda/bin"
TOOLS = ("nvcc", "compute-sanitizer", "ncu", "cuobjdump", "nvidia-smi")

# Each script prints one JSON object.
_DEVICE = """
import json, sys
from pathlib import Path
from haotuner.bundle.probe import Probe
probe = Probe(Path(sys.argv[1]))
print(json.dumps({**probe.facts, "error": probe.name_of(probe.opened) if probe.opened else ""}))
"""
_TORCH = """
import json, torch
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "sees_gpu": torch.cuda.is_available()}))
"""
_TRITON = "import json, triton; print(json.dumps({'version': triton.__version__}))"
_CUBLAS = """
import ctypes, json, pathlib, sys
names = [f"{name}.so.{major}" for name in ("libcublasLt", "libcublas") for major in (13, 12, 11)]
for folder in sys.path:
    names += [str(p) for p in sorted(pathlib.Path(folder).glob("nvidia/*/lib/libcublas*.so.*"))]
found = {}
for name in names:
    try:
        library = ctypes.CDLL(name)
    except OSError:
        continue
    ask = getattr(library, "cublasLtGetVersion", None) or getattr(library, "cublasGetCudartVersion", None)
    if ask is not None:
        ask.restype = ctypes.c_size_t
        found[name] = ask()
print(json.dumps(found))
"""
_PACKAGES = {"torch": _TORCH, "triton": _TRITON, "cublas": _CUBLAS}


def take(bundle: Bundle, python_path: str) -> dict[str, Any]:
    """Everything that can be said about the machine."""
    system = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "cpus": os.cpu_count() or 0,
        "memory_bytes": _memory_bytes(),
    }
    with ThreadPoolExecutor() as pool:  # each part is a child process; asked together they take as long as the slowest
        probes = {
            arch: pool.submit(_ask, _DEVICE, str(bundle.root / path), path=python_path)
            for arch, path in bundle.probes.items()
        }
        packages = {name: pool.submit(_ask, script, path=python_path) for name, script in _PACKAGES.items()}
        tools = {tool: pool.submit(_version, tool) for tool in TOOLS}
    opened = {arch: answer.result() for arch, answer in probes.items()}
    facts = next((facts for facts in opened.values() if "name" in facts), {"error": "no probe loads", **opened})
    return {
        "when": time.time(),
        "bundle": {"name": bundle.name, "version": bundle.version, "toolkit": bundle.toolkit, "built": bundle.built},
        "system": system,
        "device": facts,
        "nvidia-smi": clocks(str(facts.get("uuid", ""))),
        **{name: answer.result() for name, answer in packages.items()},
        "tools": {tool: answer.result() for tool, answer in tools.items()},
    }


def complaint(inventory: dict[str, Any]) -> str:
    """Why nothing can run here, or nothing."""
    device = inventory["device"]
    error = device.get("error", "")
    if not error:
        return ""
    driver, runtime = device.get("driver", 0), device.get("runtime", 0)
    if driver == 0 or error in ("cudaErrorNoDevice", "cudaErrorInitializationError"):
        return f"no CUDA driver or no device ({error}); run this on a machine with an NVIDIA GPU"
    if error == "cudaErrorInsufficientDriver" or driver < runtime // 1000 * 1000:
        return (
            f"the driver speaks CUDA {_release(driver)}, the bundle was built with {_release(runtime)}; "
            "update the driver, or build the bundle with a toolkit of the driver's release"
        )
    return f"the GPU cannot be opened: {error}"


def _ask(script: str, *arguments: str, path: str) -> dict[str, Any]:
    try:
        done = command.run([sys.executable, "-P", "-c", script, *arguments], ASK_SECONDS, {**os.environ, "PYTHONPATH": path})
    except TimedOut as error:
        return {"error": str(error)}
    try:
        answer = json.loads(done.out.splitlines()[-1])
    except (ValueError, IndexError):
        return {"error": f"exit {done.code}: {done.errors.strip()[-300:]}"}
    return answer if isinstance(answer, dict) else {"error": f"unexpected answer {answer!r}"}


def clocks(uuid: str) -> dict[str, str]:
    """Clocks, temperature and modes now of the card with that UUID (32 digits), from nvidia-smi; empty without it."""
    if not uuid:
        return {}
    one = f"--id=GPU-{uuid[:8]}-{uuid[8:12]}-{uuid[12:16]}-{uuid[16:20]}-{uuid[20:]}"
    answer = _output(["nvidia-smi", one, f"--query-gpu={SMI_FIELDS}", "--format=csv,noheader,nounits"])
    values = [value.strip() for value in answer.splitlines()[0].split(",")] if answer else []
    return dict(zip(SMI_FIELDS.split(","), values, strict=False))


def tool_path(tool: str) -> str | None:
    """Where a tool of the toolkit is: on the PATH, or where NVIDIA's installers put it."""
    return shutil.which(tool) or shutil.which(tool, path=TOOLKIT)


def _version(tool: str) -> str:
    found = tool_path(tool)
    if found is None:
        return ""
    lines = [line for line in _output([found, "--version"]).splitlines() if any(c.isdigit() for c in line)]
    return lines[-1].strip() if lines else "there, says no version"


def _output(asked: list[str]) -> str:
    if shutil.which(asked[0]) is None:
        return ""
    try:
        return command.run(asked, ASK_SECONDS).out.strip()
    except (OSError, TimedOut):
        return ""


def _memory_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def _release(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
