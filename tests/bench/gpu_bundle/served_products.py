"""Checks of batched and grouped products served on a device: shapes, strides, broadcast factors, captured graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import haotuner
from haotuner.ops.dtypes import DTYPES
from haotuner.ops.kind import sum_rounding


class Wrong(Exception):
    """What was served is not what it should be."""


def products(path: Path, device: str) -> Callable[[], None]:
    """Batched products: heads of a (b, t, h, d) tensor, broadcast factors, a captured graph."""
    import torch

    pack = haotuner.load(path, device=device)
    (name,) = pack.ops
    op, meant = pack.op(name), pack.op_entry(name).op
    kind, element_type = getattr(torch, DTYPES[meant.dtype].numpy), DTYPES[meant.dtype]
    k, layout = meant["k"], dict(meant.options).get("layout", "nn")

    def right(y: Any, x: Any, w: Any, what: str) -> None:
        wide = torch.float64
        a = x.to(wide).transpose(-1, -2) if layout[0] == "t" else x.to(wide)
        expected = a @ (w.to(wide).transpose(-1, -2) if layout[1] == "t" else w.to(wide))
        off = a.abs() @ (w.to(wide).transpose(-1, -2) if layout[1] == "t" else w.to(wide)).abs()
        allowed = element_type.eps * expected.abs() + DTYPES["fp32"].eps * sum_rounding(k) * off + element_type.least
        wrong = int((~((y.to(wide) - expected).abs() <= allowed)).sum())
        if wrong:
            raise Wrong(f"{what}: {wrong} wrong results")

    def drawn(batch: tuple[int, ...], m: int, n: int) -> tuple[Any, Any]:
        x, w = ((k, m) if layout[0] == "t" else (m, k)), ((n, k) if layout[1] == "t" else (k, n))
        return tuple(torch.randn(*batch, *size, device=device).to(kind) for size in (x, w))

    def check() -> None:
        for batch, m, n in (
            ((1,), 1, 1),
            ((12,), 1, 77),
            ((2, 6), 128, 128),
            ((96,), 33, 511),
            ((5,), 512, 512),
            ((3,), 600, 7),
        ):
            x, w = drawn(batch, m, n)
            right(op.run(x, w), x, w, f"batch {batch}, {m} x {n}")
        heads = torch.randn(2, 64, 3, 4, k, device=device).to(kind).permute(2, 0, 3, 1, 4)  # (qkv, b, h, t, d), as it lies
        if layout == "nt":
            right(op.run(heads[0], heads[1]), heads[0], heads[1], "heads as they lie")
        x, w = drawn((8,), 100, 100)
        y = op.run(x, w)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            op.run(x, w, out=y)
        x.copy_(drawn((8,), 100, 100)[0])
        graph.replay()
        torch.cuda.synchronize()
        right(y, x, w, "replayed")

    return check


def groups(path: Path, device: str) -> Callable[[], None]:
    """Experts: uneven and empty groups, ends that are known to the device alone, a captured graph."""
    import torch

    pack = haotuner.load(path, device=device)
    (name,) = pack.ops
    op, meant = pack.op(name), pack.op_entry(name).op
    kind, element_type = getattr(torch, DTYPES[meant.dtype].numpy), DTYPES[meant.dtype]
    weight = torch.randn(meant["g"], meant["n"], meant["k"], device=device).to(kind)
    linear = op.bind(weight)

    def right(y: Any, x: Any, ends: Any, what: str) -> None:
        first = 0
        for index, end in enumerate(ends.tolist()):
            expected = x[first:end].double() @ weight[index].double().T
            off = x[first:end].double().abs() @ weight[index].double().abs().T
            allowed = (
                element_type.eps * expected.abs() + DTYPES["fp32"].eps * sum_rounding(meant["k"]) * off + element_type.least
            )
            wrong = int((~((y[first:end].double() - expected).abs() <= allowed)).sum())
            if wrong:
                raise Wrong(f"{what}: group {index} has {wrong} wrong results")
            first = end

    def check() -> None:
        for m in (1, 7, 64, 500, 4097):
            x = torch.randn(m, meant["k"], device=device).to(kind)
            ends = torch.sort(torch.randint(0, m + 1, (meant["g"],), device=device)).values.int()
            ends[-1] = m
            right(linear(x, ends), x, ends, f"m={m}")
        y = linear(x, ends)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            linear(x, ends, out=y)
        ends.copy_(torch.arange(1, meant["g"] + 1, device=device).int() * (m // meant["g"]))
        graph.replay()
        torch.cuda.synchronize()
        right(y, x, ends, "replayed with other ends")

    return check
