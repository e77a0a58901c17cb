"""One contender behind HTTP: ``python -m tests.bench.server CONTENDER THREADS [--tiny] [--pack DIR]``.

Prints its port, then answers ``POST /encode`` with ``{"ids": [...]}`` until it is stopped. One request computes at a time,
on one thread that is always the same: the whole model's threads belong to it, and what waits, waits in order. (With a thread
for each request, FastAPI's default, OpenMP starts a team of its own for each; torch eager then takes three times as long.)
"""

from __future__ import annotations

import argparse
import asyncio
import io
import socket
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from tests.bench.encoder import TINY, Size, encoder

OURS = ("ours", "ours_compiled")  # linears from the pack; the rest by torch eager, or by torch.compile
CONTENDERS = (*OURS, "eager", "compile", "onnxruntime", "openvino")
Model = Callable[[torch.Tensor], float]  # ids (1, tokens) -> first element of the result, so that nothing is optimised away


def contender(name: str, size: Size, threads: int, pack: str | None) -> Model:
    """The encoder as this contender runs it."""
    torch.set_num_threads(threads)
    model = encoder(size)
    if name in OURS:
        import haotuner
        from haotuner.torch import register, swap_linears

        if pack is None:
            raise SystemExit("ours needs --pack")
        opened = haotuner.load(pack, threads=threads)
        registered = register(opened) if name == "ours_compiled" else None
        if len(swap_linears(model, opened, registered)) != 4 * size.layers:
            raise SystemExit(f"the pack holds {', '.join(opened.ops)}; not every linear of the encoder is among them")
        opened.warmup()
    if name in ("compile", "ours_compiled"):
        model = torch.compile(model, dynamic=True)
    if name not in ("onnxruntime", "openvino"):
        return lambda ids: float(model(ids)[0, 0, 0])
    graph = onnx_bytes(model)
    if name == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        return lambda ids: float(session.run(None, {"ids": ids.numpy()})[0][0, 0, 0])
    import openvino

    core = openvino.Core()
    exact = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(graph), "CPU", exact)  # its default is bf16 where the CPU has it
    return lambda ids: float(compiled(ids.numpy())[0][0, 0, 0])


def onnx_bytes(model: torch.nn.Module) -> bytes:
    """The model with a dynamic number of tokens."""
    stream = io.BytesIO()
    ids = torch.zeros(1, 8, dtype=torch.int64)
    names = {"ids": {1: "tokens"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the newer exporter needs a package more
        torch.onnx.export(model, (ids,), stream, input_names=["ids"], dynamic_axes=names, dynamo=False, opset_version=17)
    return stream.getvalue()


def app(compute: Callable[[list[int]], float], worker: ThreadPoolExecutor) -> Any:
    """The FastAPI application."""
    import fastapi  # type: ignore[import-not-found, unused-ignore]

    served = fastapi.FastAPI()

    async def encode(body: dict[str, list[int]]) -> dict[str, float]:
        return {"first": await asyncio.get_running_loop().run_in_executor(worker, compute, body["ids"])}

    served.post("/encode")(encode)
    return served


def main() -> None:
    """Serve until stopped."""
    import uvicorn  # type: ignore[import-not-found, unused-ignore]

    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("contender", choices=CONTENDERS)
    reader.add_argument("threads", type=int)
    reader.add_argument("--pack")
    reader.add_argument("--tiny", action="store_true")
    args = reader.parse_args()
    worker = ThreadPoolExecutor(1)
    model = worker.submit(contender, args.contender, TINY if args.tiny else Size(), args.threads, args.pack).result()

    def compute(ids: list[int]) -> float:
        with torch.inference_mode():
            return model(torch.tensor([ids], dtype=torch.int64))

    for tokens in (8, 9, 64, 127):  # compilers see more than one length before the clock starts
        worker.submit(compute, [1] * tokens).result()
    # asyncio turns Nagle's algorithm off only on sockets that say IPPROTO_TCP; with it on, every answer waits 40 ms.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app(compute, worker), log_level="error", access_log=False)).run(sockets=[listening])


if __name__ == "__main__":
    main()
