"""Checks kernels of every family on a device: ``python -m tests.bench.gpu_bundle.correctness --device cuda:0 --out FILE``.

Each is built and verified as a tuner does before it times one (small ragged products, guarded and poisoned outputs, against
float64). One JSON line a kernel; those that the file has are not checked again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from haotuner.backends.backend import CACHE_WORD, DEVICE_WORD, Backend, LibrarySlot, Timer
from haotuner.backends.fingerprint import Policy
from haotuner.backends.index import backend_for
from haotuner.errors import HaotunerError
from haotuner.host.files import scratch_folder
from haotuner.hw_profiles.find import find_device
from haotuner.isolate.answers import ChildNotResponding
from haotuner.isolate.child import Child
from haotuner.spec.device import Device
from haotuner.spec.op import Op
from haotuner.spec.record import Failed
from tests.bench.gpu_bundle.candidates import Choice, choose

BUILD_LIMIT_S = 180.0
COLUMNS, DEPTH = 72, 128  # of the products, and a vector more of depth: ragged for every tile


def op_of(choice: Choice) -> Op:
    """A small op that the kernel serves."""
    kn = (("weight", "kn"),) if choice.family.reads_kn(choice.kernel) else ()
    depth = DEPTH + choice.family.vector(choice.kernel)
    return Op(kind="dense", static=(("n", COLUMNS), ("k", depth)), dtype=choice.family.dtype, options=kn)


def main(arguments: list[str]) -> int:
    """Check kernels; 0 if all are right, 1 if some are not."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu_bundle.correctness")
    parser.add_argument("--device", required=True)
    parser.add_argument("--kernels", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path, help="folder of compiled code")
    options = parser.parse_args(arguments)
    environment = {**os.environ, DEVICE_WORD: options.device}
    if options.cache is not None:
        environment[CACHE_WORD] = str(options.cache)
    try:
        device = find_device(options.device)
        return _check(device, _some(choose(device, options.kernels), options.kernels), options.out, environment)
    except HaotunerError as error:
        print(f"correctness: {error}", file=sys.stderr)
        return error.exit_code


def _some(choices: list[Choice], most: int) -> list[Choice]:
    """At most so many, from the first to the last: a choice has one of every family at least."""
    return choices if len(choices) <= most else [choices[index * len(choices) // most] for index in range(most)]


def _check(device: Device, choices: list[Choice], out: Path, environment: dict[str, str]) -> int:
    backend = backend_for(device)
    earlier = read(out)
    done = {(line["kernel"], line["op"]) for line in earlier}
    wrong = sum("failed" in line for line in earlier)
    timer = backend.timer(device, Policy(), environment, seed=0)
    with closing(backend.builder(environment)) as builder, closing(timer), scratch_folder() as scratch:
        for number, choice in enumerate(choices):
            op = op_of(choice)
            if (choice.kernel.name, op.name) not in done:
                result = _verified(backend, device, builder, timer, choice, scratch / f"{number}.cubin")
                line: dict[str, Any] = {"family": choice.family.name, "kernel": choice.kernel.name, "op": op.name}
                line |= {"failed": asdict(result)} if isinstance(result, Failed) else {"max_error": result}
                wrong += isinstance(result, Failed)
                with out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
    return 1 if wrong else 0


def _verified(
    backend: Backend, device: Device, builder: Child, timer: Timer, choice: Choice, library: Path
) -> float | Failed:
    try:
        builder.ask(backend.build_request([choice.kernel.name], device, str(library)), BUILD_LIMIT_S)
    except ChildNotResponding as error:
        return error.failed("build")
    return timer.verify(op_of(choice), choice.kernel, LibrarySlot(library=str(library), index=0))


def read(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of answers; a torn last one is taken off it."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        path.write_bytes(whole)
    return [json.loads(line) for line in whole.splitlines()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
