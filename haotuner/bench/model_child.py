"""One contender of a model race, alone in its process: it loads the model, then answers requests as it is told."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.bench.contender import OURS
from haotuner.bench.peers.on_host import openvino_settings
from haotuner.errors import UsageError
from haotuner.isolate.answers import MISSING, Job, Refusal
from haotuner.isolate.program import Program

PROGRAM = "haotuner.bench.model_child:contender"
Run = Callable[[Mapping[str, Any]], Any]
RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")  # what ``--inputs`` says of an input whose elements are drawn


def contender(config: Mapping[str, Any]) -> Program:
    """The contender ``config`` names, its model loaded. It greets with the milliseconds of loading, and serves two verbs.

    ``answer``: request ``place``, ``calls`` times and until ``seconds`` are over; microseconds of each call.
    ``peak``: the most memory that the process held.
    """
    try:
        load_model = loader(config["contender"], config)
    except ImportError as error:
        raise Refusal("load", MISSING, str(error)) from error
    begin = time.perf_counter()
    run = load_model()
    load_ms = (time.perf_counter() - begin) * 1e3

    def answer(job: Job) -> Job:
        position = job["place"]
        feeds = feeds_of(config["inputs"], config["requests"][position], position, config["given"])
        times: list[float] = []
        until = time.perf_counter() + job["seconds"]
        while len(times) < job["calls"] or time.perf_counter() < until:
            begin = time.perf_counter()
            run(feeds)
            times.append((time.perf_counter() - begin) * 1e6)
        return {"us": times}

    return Program(verbs={"answer": answer, "peak": lambda _: {"bytes": peak_bytes()}}, greeting={"load_ms": load_ms})


def loader(name: str, task: Mapping[str, Any]) -> Callable[[], Run]:
    """Loader of the model, which gives a function that answers feeds. ImportError where its library is not installed."""
    if name == OURS:
        from haotuner.runtime.pack import Pack

        return lambda: Pack(task["pack"], threads=task["threads"]).model(task["model"]).run
    if name == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = task["threads"], 1
        options.add_session_config_entry("session.set_denormal_as_zero", "1")  # ours and OpenVINO's are; it is twice as fast

        def load_session() -> Run:
            session = onnxruntime.InferenceSession(task["file"], options, providers=["CPUExecutionProvider"])
            return lambda feeds: session.run(None, dict(feeds))

        return load_session
    if name == "openvino":
        import openvino

        settings = openvino_settings(task["threads"])

        def load_request() -> Run:
            request = openvino.Core().compile_model(task["file"], "CPU", settings).create_infer_request()
            return lambda feeds: request.infer(dict(feeds))

        return load_request
    if name == "torch":
        from haotuner.bench.model_torch import loading

        def load_program() -> Run:
            requests = enumerate(task["requests"])
            warm = [feeds_of(task["inputs"], sizes, position, task["given"]) for position, sizes in requests]
            return loading(task["file"], task["threads"], warm)

        return load_program
    raise ValueError(f"no contender {name!r}")


def feeds_of(
    inputs: Sequence[Mapping[str, Any]], dims: Mapping[str, int], seed: int, arguments: Mapping[str, list[str]]
) -> dict[str, Any]:
    """Inputs of a request: normal numbers, whole ones 0 or 1; ``arguments``: numbers, a range or dimensions, for some."""
    draw, result = np.random.default_rng(seed), {}
    for operand in inputs:
        shape = [dims[e] if isinstance(e, str) else e for e in operand["shape"]]
        ranged = RANGE.fullmatch(",".join(arguments.get(operand["name"], ())))
        if ranged:
            result[operand["name"]] = draw.integers(int(ranged[1]), int(ranged[2]) + 1, shape).astype(operand["dtype"])
        elif operand["name"] in arguments:
            values = np.array([dims[e] if e in dims else float(e) for e in arguments[operand["name"]]], operand["dtype"])
            if values.size > 1 and not shape:
                raise UsageError(f"--inputs {operand['name']}: {values.size} numbers for an input that is one")
            result[operand["name"]] = np.array(np.broadcast_to(values if shape else values.reshape(()), shape), order="C")
        elif operand["dtype"].startswith("float"):
            result[operand["name"]] = draw.standard_normal(shape).astype(operand["dtype"])
        else:
            result[operand["name"]] = draw.integers(0, 2, shape).astype(operand["dtype"])
    return result


def peak_bytes() -> int:
    """The most memory that this process held; the system's other count also has that of the process which started it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
