"""Every kind that programs are generated for, in one pack, on a CUDA device: ``python -m tests.runtime.cuda_kinds PACK``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  tells numpy of bf16
import numpy as np

import haotuner
from haotuner.frontends.onnx.read import read
from haotuner.graph.interpret import interpret
from haotuner.ops.dtypes import DTYPES
from haotuner.ops.groups import GROUPS as OF_FILES
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.verify.pack_groups import learn_from
from tests.runtime.cuda_memory import Device
from tests.runtime.test_group import drawn

EXTENTS = (7, 1)  # of every dynamic axis: ends of vectors, and one of everything
GROUPS = ("biased", "two", "looked-up", "greatest", "product", "padded")


class Kinds:
    """The pack on device 0."""

    def __init__(self, path: str) -> None:
        learn_from(Path(path))
        self.device, self.pack = Device(), haotuner.load(path, device="cuda:0")
        self.stream = self.device.stream()

    def out(self, shape: tuple[int, ...], dtype: str) -> Any:
        return self.device.upload(np.full(shape, -7, dtype))

    def served(self, name: str, extent: int) -> None:
        """One op at one shape against the judge."""
        op = Op.parse(name)
        shape = Shape.of(dict.fromkeys(op.dynamic, extent))
        inputs = numerics.draw(op, shape, np.random.default_rng(extent))
        dtype = DTYPES[op.dtype_of(op.meaning.output)].numpy
        size = op.operand_shape(op.meaning.output, shape)
        y = self.out(size, dtype) if 0 not in size else self.device.empty(size, dtype)
        self.pack.op(name).run(*map(self.device.upload, inputs.values()), out=y, stream=self.stream)
        self.device.wait(self.stream)
        if 0 in size:  # no window fits: nothing to launch
            return
        verdict = numerics.check(op, inputs, self.device.download(y, dtype))
        assert not verdict.wrong, f"{name} {shape}: {verdict}"

    def group(self, file: Path, m: int, n: int) -> None:
        """A group of a file by its own name, all its outputs at once, against the interpreter."""
        inputs = drawn(file.stem if file.stem in ("biased", "two", "looked-up") else "biased", m, n)
        if file.stem == "product":
            inputs["b"] = np.outer(inputs["b"], inputs["x"][0, :3])
        if file.stem in ("greatest", "padded"):
            del inputs["b"]
        expected = list(interpret(read(file), inputs).values())
        outs = [self.out(np.shape(value), "float32") for value in expected]
        op = self.pack.op(f"group_{file.stem.replace('-', '_')}")
        placed = []
        for value in inputs.values():
            placed.append(self.device.empty(value.shape, str(value.dtype)))
            self.device.put(placed[-1], value)
        op.run(*placed, out=outs[0] if len(outs) == 1 else tuple(outs), stream=self.stream)
        self.device.wait(self.stream)
        for tensor, reference in zip(outs, expected, strict=True):
            np.testing.assert_allclose(self.device.download(tensor, "float32"), reference, rtol=2e-5, atol=2e-6)


def main(path: str) -> None:
    """All of it."""
    kinds = Kinds(path)
    for name in kinds.pack.ops:
        if Op.parse(name).kind not in OF_FILES:
            for extent in EXTENTS:
                kinds.served(name, extent)
    for group in GROUPS:
        for m, n in ((1, 1), (3, 17), (37, 5)):
            kinds.group(Path(path).parent / f"{group}.onnx", m, n)
    stats = kinds.pack.stats()
    silent = [name for name in kinds.pack.ops if not stats[name]["calls"]]
    assert not silent, f"nothing called {silent}"


if __name__ == "__main__":
    main(sys.argv[1])
