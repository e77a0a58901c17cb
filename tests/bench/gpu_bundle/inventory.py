"""What this machine is, asked part by part: ``python -m tests.bench.gpu_bundle.inventory cuda:0`` prints one JSON object."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from haotuner.errors import HaotunerError
from haotuner.hw_profiles.find import find_device
from haotuner.isolate import group
from haotuner.isolate.answers import TimedOut

ASK_SECONDS = 90.0  # importing torch from a cold disk took 40 s elsewhere
TOOLKIT = "/usr/local/cuda/bin"  # where NVIDIA's installers put tools that are not on the path
SANITIZER = "compute-sanitizer"
# Each prints one JSON value.
PACKAGES = {
    "torch": "import json, torch; print(json.dumps([torch.__version__, torch.version.cuda, torch.cuda.is_available()]))",
    "triton": "import json, triton; print(json.dumps(triton.__version__))",
    "doctor": "import sys; sys.argv = ['haotuner', 'doctor', '--json']; from haotuner.entry import main; main()",
}
COMMANDS = {
    "nvidia-smi": ["nvidia-smi", "-q", "-d", "CLOCK,POWER,TEMPERATURE,ECC,PERFORMANCE,COMPUTE"],
    "devices": ["nvidia-smi", "-L"],
    "nvcc": ["nvcc", "--version"],
    SANITIZER: [SANITIZER, "--version"],
}


def tool(name: str) -> str | None:
    """Where a tool of the toolkit is; None if it is not there."""
    return shutil.which(name) or shutil.which(name, path=TOOLKIT)


def take(device: str) -> dict[str, Any]:
    """Everything that can be said about the machine; what cannot is an ``error`` in its place."""
    with ThreadPoolExecutor() as pool:  # a child process each: asked together they take as long as the slowest
        packages = {name: pool.submit(_package, script) for name, script in PACKAGES.items()}
        tools = {name: pool.submit(_tool_output, words) for name, words in COMMANDS.items()}
    return {
        "when": time.time(),
        "system": {"python": platform.python_version(), "kernel": platform.release(), "libc": " ".join(platform.libc_ver()),
                   "cpus": os.cpu_count() or 0},
        "device": _device(device),
        **{name: answer.result() for name, answer in packages.items()},
        "tools": {name: answer.result() for name, answer in tools.items()},
    }  # fmt: skip


def _device(text: str) -> dict[str, Any]:
    try:
        result = find_device(text)
    except HaotunerError as error:
        return {"error": str(error)}
    return {"id": result.id, "name": result.name, "arch": result.arch, **result.numbers()}


def _package(script: str) -> Any:
    try:
        done = group.run([sys.executable, "-c", script], ASK_SECONDS)
    except TimedOut as error:
        return {"error": str(error)}
    try:
        return json.loads(done.out)
    except ValueError:
        return {"error": f"exit {done.code}: {done.errors.strip()[-300:]}"}


def _tool_output(words: list[str]) -> str:
    output = tool(words[0])
    if output is None:
        return ""
    try:
        return group.run([output, *words[1:]], ASK_SECONDS).out.strip()
    except (OSError, TimedOut) as error:
        return f"there, but: {error}"


if __name__ == "__main__":
    print(json.dumps(take(sys.argv[1]), indent=1))
