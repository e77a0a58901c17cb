"""Groups whose outputs one launch writes, in one pack, on a CUDA device: ``python -m tests.runtime.cuda_beside PACK``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.backends.cuda.generated_calls import GeneratedOperands, verify_generated
from haotuner.backends.cuda.timing_library import DeviceScratch
from haotuner.errors import UsageError
from haotuner.graph.graph import Graph
from haotuner.graph.interpret import interpret
from haotuner.isolate.answers import Refusal
from haotuner.microkernels.cuda.generated import CudaGenerated
from haotuner.microkernels.index import family_named
from haotuner.pack.manifest import read_manifest
from haotuner.spec import numerics
from haotuner.spec.call_case import CallCase
from haotuner.spec.kernel import MicroKernel, shares_terms
from haotuner.spec.shape import Shape
from haotuner.verify.pack_groups import meaning_of
from tests.backends.cuda_timing_shared import loaded, one_launch, opened
from tests.codegen.groups_beside import folds, maps, mixed, norm
from tests.runtime.cuda_memory import Device
from tests.runtime.cuda_served import counts
from tests.standin.client import Driver

UNTOUCHED, VERDICT = -7.0, CallCase.verdict
SIZES = {"m": 2, "n": 9000, "k": 5}  # of rows that blocks share
GRAPHS = {"norm": norm(), "maps": maps(), "mixed": mixed(), "folds": folds()}


class Served:
    """The pack on device 0."""

    def __init__(self, path: str) -> None:
        self.device, self.driver = Device(), Driver()
        self.pack = haotuner.load(path, device="cuda:0")
        self.stream = self.device.stream()

    def drawn(self, graph: Graph, m: int, n: int) -> dict[str, Any]:
        rng, sizes = np.random.default_rng(m * n), {"m": m, "n": n, "k": 4}
        return {
            name: rng.standard_normal([sizes[str(extent)] for extent in graph.types[name].shape]).astype(np.float32)
            for name in graph.inputs
        }

    def placed(self, values: Any, gap: int = 0) -> Any:
        if not values.size:
            return self.device.empty(values.shape)
        strides = (values.shape[1] + gap, 1) if gap and values.ndim == 2 else None
        return self.device.upload(values, strides=strides)

    def outs(self, expected: dict[str, Any], gap: int = 0) -> list[Any]:
        return [self.placed(np.full(np.shape(value), UNTOUCHED, np.float32), gap) for value in expected.values()]

    def close(self, outs: Any, expected: dict[str, Any], what: object) -> None:
        self.device.wait(self.stream)
        for output, (name, value) in zip(outs, expected.items(), strict=True):
            if np.size(value):
                np.testing.assert_allclose(
                    self.device.download(output), value, rtol=2e-5, atol=2e-5, err_msg=f"{what}: {name}"
                )

    def served(self, name: str, m: int, n: int, gap: int, launches: int) -> None:
        """A group by its own name, outputs in the file's order."""
        graph = GRAPHS[name]
        inputs, op = self.drawn(graph, m, n), self.pack.op(f"group_{name}")
        expected = interpret(graph, inputs)
        placed, outs = [self.placed(value, gap) for value in inputs.values()], self.outs(expected, gap)
        self.driver.library.standin_counts_reset()
        returned = op.run(*placed, out=tuple(outs), stream=self.stream)
        assert counts(self.driver).get("cuLaunchKernel", 0) == launches, (name, m, n, launches)
        assert all(result is other for result, other in zip(returned, outs, strict=True))
        self.close(outs, expected, (name, m, n, gap))


def served(server: Served) -> None:
    """Short rows and long ones, strides, empty axes: one launch for all that share rows, in parts where prepared."""
    for m, n in ((1, 1), (3, 5), (40, 16), (5, 200), (2, 300), (130, 9)):
        for gap in (0, 3):
            server.served("norm", m, n, gap, 1)
            server.served("maps", m, n, gap, 1)
        server.served("mixed", m, n, 0, 4)
        server.served("folds", m, n, 0, 2)
    server.served("norm", 0, 5, 0, 0)
    server.served("norm", 4, 0, 0, 1)  # of rows of nothing: their sums, and the largest of none
    server.pack.op("group_norm").prepare(server.stream)
    server.served("norm", 2, 300, 0, 3)
    server.served("norm", 3, 700, 3, 3)
    server.served("norm", 3, 40, 0, 1)


def replayed(server: Served) -> None:
    """A graph of a call, on inputs that changed since."""
    graph, op = GRAPHS["norm"], server.pack.op("group_norm")
    inputs, later = server.drawn(graph, 6, 40), server.drawn(graph, 6, 41)
    later = {name: value[:, :40].copy() for name, value in later.items()}
    expected = interpret(graph, later)
    placed = {name: server.placed(value) for name, value in inputs.items()}
    outs = server.outs(expected)
    server.device.begin(server.stream)
    op.run(**placed, out=tuple(outs), stream=server.stream)
    captured = server.device.end(server.stream)
    for name, value in later.items():
        server.device.put(placed[name], value)
    server.device.replay(captured, server.stream)
    server.close(outs, expected, "a graph")


def refused(server: Served) -> None:
    """What shares memory, has another shape, or is missing; nothing is launched then."""
    graph, op = GRAPHS["norm"], server.pack.op("group_norm")
    inputs = server.drawn(graph, 6, 40)
    expected = interpret(graph, inputs)
    x, r = (server.placed(value) for value in inputs.values())
    outs = server.outs(expected)  # mean, total, the norm, scale, largest
    row, whole = server.placed(np.zeros((6, 1), np.float32)), server.placed(np.zeros((7, 40), np.float32))
    names = dict(zip(("mean", "total", "norm", "scale", "largest"), outs, strict=True))
    server.driver.library.standin_counts_reset()

    def out(**other: Any) -> tuple[Any, ...]:
        return tuple((names | other).values())

    cases: tuple[tuple[tuple[Any, ...], type[Exception], str], ...] = (
        (out(total=x), ValueError, "shares memory with x, which is read meanwhile"),
        (out(norm=r), ValueError, "shares memory with r, which is read meanwhile"),
        (out(total=names["norm"]), ValueError, "shares memory with .*, which is written, too"),
        (out(mean=names["scale"]), ValueError, "shares memory with .*, which is written, too"),
        (out(norm=whole), ValueError, "they must be equal"),
        (out(total=whole), ValueError, "they must be equal"),
        (out(mean=outs[1]), ValueError, "extent"),
        (out(largest=row), ValueError, "rank|axes|extent"),
        (out()[:4], UsageError, "out= takes 5 tensors, for reduce, map"),
        (outs[0], UsageError, "out= takes 5 tensors"),
    )
    for given_out, error, why in cases:
        with pytest.raises(error, match=why):
            op.run(x, r, out=given_out, stream=server.stream)
    with pytest.raises(ValueError, match="rows overlap"):
        flat = server.device.empty((6, 40), strides=(1, 1))
        op.run(x, r, out=out(total=flat), stream=server.stream)
    with pytest.raises(ValueError, match="pass out="):
        op.run(x, r, stream=server.stream)
    with pytest.raises(UsageError, match="out= takes 5 tensors, for"):
        server.pack.op("group_mixed").run(x, server.placed(np.zeros((40, 4), np.float32)), out=(x,), stream=server.stream)
    assert counts(server.driver).get("cuLaunchKernel", 0) == 0
    for name, tensor in names.items():
        assert (server.device.download(tensor) == UNTOUCHED).all(), name


def torch_fakes(server: Served) -> None:
    """Torch's operator gives every output's shape in the file's order, and its ``.out`` takes them all."""
    try:
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError:  # the package is not needed to serve
        return
    import haotuner.torch as adapter

    op = server.pack.op("group_norm")
    with adapter.register(server.pack), FakeTensorMode():
        call = getattr(torch.ops.haotuner, op.name)
        x, r = (torch.empty(5, 9, device="cuda:0") for _ in range(2))
        outputs = call(x, r)
        assert [tuple(y.shape) for y in outputs] == [(5, 1), (5, 9), (5, 9), (5, 1), (5,)]
        assert call.out(x, r, **{f"out{index}": y for index, y in enumerate(outputs)}) is None


def timed(path: str, cubin: str) -> None:
    """The process that times judges every output, and its call is one launch, or one for each stage of shared rows."""
    driver, library = opened()
    module = library.load(Path(cubin))
    for entry in read_manifest(Path(path)).ops:
        op = meaning_of(entry)
        for kernel in map(MicroKernel.parse, entry.kernels):
            family, rng = family_named(kernel.family), np.random.default_rng(3)
            assert isinstance(family, CudaGenerated)
            placed = loaded(library, module, kernel)
            assert verify_generated(op, kernel, family, placed, library, rng) <= 1
            with DeviceScratch(library) as scratch:
                operands = GeneratedOperands(scratch, op, Shape.of({axis: SIZES[axis] for axis in op.dynamic}))
                launches = family.cut(kernel).stages or 1 + shares_terms(kernel)
                one_launch(driver, library, operands.call(placed, family, kernel), launches)
            for operand in op.meaning.written if len(op.meaning.written) > 1 else ():
                with pytest.MonkeyPatch.context() as patch:  # a kernel that writes nothing to one of them
                    patch.setattr(CallCase, "verdict", lambda *arguments, name=operand.name: spoiled(name, *arguments))
                    with pytest.raises(Refusal, match="wrong results"):
                        verify_generated(op, kernel, family, placed, library, rng)


def spoiled(name: str, case: CallCase, results: dict[str, Any]) -> numerics.Verdict:
    """The judge's word on results of which one is not as it was written."""
    return VERDICT(case, results | {name: results[name] + np.float32(1)})


def main(path: str, cubin: str) -> None:
    """All of it."""
    timed(path, cubin)
    server = Served(path)
    torch_fakes(server)
    served(server)
    replayed(server)
    refused(server)


if __name__ == "__main__":
    main(*sys.argv[1:])
