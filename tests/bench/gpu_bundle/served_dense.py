"""Checks of a dense op served on a device: numbers over rows, streams, captured graphs, threads, layers, other libraries."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import haotuner
from haotuner.ops.dtypes import DTYPES
from haotuner.ops.kind import sum_rounding
from haotuner.spec.numerics import EPILOGUE_ULPS
from tests.bench.gpu_bundle.served_products import Wrong

CALLS = 400  # that a host queues while its cost is taken
THREADS, TURNS = 4, 25
EDGE = 3  # rows around the last that was tuned for


class Missing(Exception):
    """A package that a check needs is not there."""


class Served:
    """A dense op of a pack, its weight, and what is right, in float64 on the device."""

    def __init__(self, path: Path, device: str) -> None:
        import torch

        self.torch, self.device = torch, torch.device(device)
        torch.manual_seed(0)
        self.pack = haotuner.load(path, device=device)
        (self.name,) = self.pack.ops
        self.op = self.pack.op(self.name)
        self.entry = self.op.entry
        self.epilogue = self.entry.op.epilogue
        self.dtype = getattr(torch, DTYPES[self.entry.output.dtype].numpy)
        self.beside = [operand for operand in self.entry.extra if operand.role == "input"]
        extents = {axis.name: axis.extent for axis in self.entry.axes}
        self.kn = self.entry.operands[1].dims[-1] == "n"
        self.weight = self.drawn(*(extents[axis] for axis in self.entry.operands[1].dims))
        self.bias = self.drawn(self.op.n)
        self.linear = self.op.bind(self.weight, self.bias)
        self.last = max(axis.last for axis in self.entry.axes if axis.extent is None)

    def drawn(self, *size: int) -> Any:
        """Standard normal numbers of the op's type."""
        return self.torch.randn(*size, device=self.device).to(self.dtype)

    def judge(self, y: Any, x: Any, what: str, residual: Any = None) -> None:
        """Raise unless y is right within the judge's tolerance: rounding of the sums, and of y itself."""
        torch, wide = self.torch, self.torch.float64
        matrix = self.weight.to(wide) if self.kn else self.weight.to(wide).T
        expected = x.to(wide) @ matrix + self.bias.to(wide)
        rounding = sum_rounding(self.op.k) * (x.to(wide).abs() @ matrix.abs() + self.bias.to(wide).abs())
        if residual is not None:
            expected = expected + residual.to(wide)
        act = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu,
               "gelutanh": lambda v: torch.nn.functional.gelu(v, approximate="tanh")}  # fmt: skip
        for step in self.epilogue:
            expected = act.get(step, lambda v: v)(expected)
        element_type = DTYPES[self.entry.output.dtype]
        allowed = (
            element_type.eps * expected.abs()
            + DTYPES["fp32"].eps * (rounding + EPILOGUE_ULPS * (1 + expected.abs()))
            + element_type.least
        )
        wrong = ~((y.to(wide) - expected).abs() <= allowed)
        if bool(wrong.any()):
            at = wrong.nonzero()[0].tolist()
            raise Wrong(
                f"{what}: {int(wrong.sum())} wrong results, the first at {at}: {y[tuple(at)].item()}, "
                f"want {expected[tuple(at)].item()}"
            )

    def call(self, x: Any, **how: Any) -> tuple[Any, Any]:
        """The product and what was added to it."""
        rest = {item.name: self.drawn(*x.shape[:-1], self.op.n) for item in self.beside}
        return self.linear(x, **rest, **how), next(iter(rest.values()), None)

    def rows(self) -> list[int]:
        """Few and many, whole and ragged tiles, the ends of the plan, and beyond."""
        powers = [1 << turn for turn in range(self.last.bit_length())]
        around = [power + step for power in powers for step in (-1, 0, 1)]
        return sorted({m for m in (*around, 3, 5, 100, self.last, self.last + EDGE, 2 * self.last) if m > 0})


def numbers(served: Served) -> None:
    """Every row count, into poisoned memory and into new."""
    for m in served.rows():
        x, y = served.drawn(m, served.op.k), served.torch.full(
            (m, served.op.n), float("nan"), device=served.device, dtype=served.dtype
        )  # fmt: skip
        _, residual = served.call(x, out=y)
        served.judge(y, x, f"m={m}", residual)
    x = served.drawn(2, 5, served.op.k)
    y, residual = served.call(x)
    served.judge(y.view(10, -1), x.view(10, -1), "three axes", None if residual is None else residual.view(10, -1))
    x = served.drawn(0, served.op.k)
    if tuple(served.call(x)[0].shape) != (0, served.op.n):
        raise Wrong("no rows give no rows")


def strides(served: Served) -> None:
    """Rows that lie apart; then what is refused leaves no error behind."""
    gap = 16 // DTYPES[served.entry.output.dtype].size
    x = served.drawn(37, served.op.k + gap)[:, : served.op.k]
    y, residual = served.call(x)
    served.judge(y, x, "rows apart", residual)
    for wrong in (
        served.drawn(4, served.op.k).cpu(),
        served.drawn(4, served.op.k + 1),
        served.drawn(4, served.op.k).double(),
    ):
        try:
            served.linear(wrong, **{item.name: served.drawn(4, served.op.n) for item in served.beside})
        except (ValueError, TypeError, RuntimeError):
            continue
        raise Wrong(f"served {wrong.dtype} {tuple(wrong.shape)} on {wrong.device}")
    numbers_once(served, "after refusals")


def numbers_once(served: Served, what: str, m: int = 33) -> None:
    """One call, judged."""
    x = served.drawn(m, served.op.k)
    y, residual = served.call(x)
    served.judge(y, x, what, residual)


def streams(served: Served) -> None:
    """The current stream of torch, and one that is named."""
    torch = served.torch
    side = torch.cuda.Stream(served.device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x = served.drawn(65, served.op.k)
        torch.cuda._sleep(1 << 22)  # what comes on the wrong stream comes too early
        x = x * 2
        y, residual = served.call(x)
    side.synchronize()
    served.judge(y, x, "another current stream", residual)
    x, y = served.drawn(65, served.op.k), served.drawn(65, served.op.n)
    side.wait_stream(torch.cuda.current_stream())
    _, residual = served.call(x, out=y, stream=side.cuda_stream)
    torch.cuda.synchronize()
    served.judge(y, x, "a named stream", residual)


def graphs(served: Served) -> None:
    """Captured once, replayed with other rows; short and long calls."""
    torch = served.torch
    for m in (1, 16, 255, min(2048, served.last)):
        x, y = served.drawn(m, served.op.k), served.drawn(m, served.op.n)
        served.call(x, out=y)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            _, residual = served.call(x, out=y)
        for _ in range(2):
            x.copy_(served.drawn(m, served.op.k))
            y.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            served.judge(y, x, f"replayed, m={m}", residual)


def threads(served: Served) -> None:
    """Threads with streams of their own."""
    torch = served.torch
    result: list[BaseException] = []

    def work() -> None:
        try:
            with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream(served.device)):
                for turn in range(TURNS):
                    numbers_once(served, f"turn {turn} of a thread", m=1 + 37 * turn)
        except BaseException as error:  # told by the main thread
            result.append(error)

    started = [threading.Thread(target=work) for _ in range(THREADS)]
    for item in started:
        item.start()
    for entry in started:
        entry.join()
    if result:
        raise result[0]


def layers(served: Served) -> None:
    """``swap_linears`` in a model, as it is and compiled with dynamic sizes."""
    import haotuner.torch as adapter

    torch = served.torch
    if served.kn or served.epilogue:
        raise Missing("nn.Linear has no such layer")
    with torch.inference_mode(False):
        layer = torch.nn.Linear(served.op.k, served.op.n, device=served.device, dtype=served.dtype)
        layer.weight = torch.nn.Parameter(served.weight.clone(), requires_grad=False)
        layer.bias = torch.nn.Parameter(served.bias.clone(), requires_grad=False)
    model = torch.nn.Sequential(layer).eval()
    with adapter.register(served.pack) as registered:
        description = adapter.swap(model, served.pack, registered)
        if description.replaced != ("0",):
            raise Wrong(f"swap left the layer: {description}")
        compiled = torch.compile(model, fullgraph=True, dynamic=True)
        for run, what in ((model, "swapped"), (compiled, "compiled")):
            for m in (7, 64, 300):
                x = served.drawn(m, served.op.k)
                served.judge(run(x), x, f"{what}, m={m}")


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Missing(name) from error


def cupy(served: Served) -> None:
    """Arrays of CuPy on its current stream."""
    library = _library("cupy")
    if served.dtype is served.torch.bfloat16 or served.beside:
        raise Missing("CuPy has no bfloat16" if not served.beside else "one operand is enough")
    x = served.drawn(41, served.op.k)
    served.torch.cuda.synchronize()
    with library.cuda.Stream(non_blocking=True) as stream:
        y = served.linear(library.from_dlpack(x))
        stream.synchronize()
    served.judge(served.torch.from_dlpack(y), x, "cupy")


def jax(served: Served) -> None:
    """Arrays of JAX, into memory of torch."""
    library = _library("jax")
    if served.beside:
        raise Missing("one operand is enough")
    x, y = served.drawn(41, served.op.k), served.drawn(41, served.op.n)
    served.torch.cuda.synchronize()
    array = library.dlpack.from_dlpack(x)
    array.block_until_ready()
    served.linear(array, out=y, stream=served.torch.cuda.current_stream().cuda_stream)
    served.torch.cuda.synchronize()
    served.judge(y, x, "jax")


def cost(served: Served) -> dict[str, float]:
    """Microseconds a call takes of the host, one row: ours from Python, torch's linear beside it."""
    torch = served.torch
    x, y = served.drawn(1, served.op.k), served.drawn(1, served.op.n)
    stream = torch.cuda.current_stream().cuda_stream
    residual = {item.name: served.drawn(1, served.op.n) for item in served.beside}
    w = served.weight.T if served.kn else served.weight
    result = {}
    runs: dict[str, Callable[[], object]] = {
        "ours": lambda: served.linear(x, out=y, stream=stream, **residual),
        "ours_current_stream": lambda: served.linear(x, out=y, **residual),
        "ours_new_output": lambda: served.linear(x, **residual),
        "torch_linear": lambda: torch.nn.functional.linear(x, w, served.bias),
    }
    for name, run in runs.items():
        times = []
        for _ in range(5):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(CALLS):
                run()
            times.append((time.perf_counter() - began) / CALLS * 1e6)
        torch.cuda.synchronize()
        result[f"{name}_us"] = round(sorted(times)[2], 2)
    return result


CHECKS: tuple[Callable[[Served], Any], ...] = (numbers, strides, streams, graphs, threads, cupy, jax, cost, layers)
