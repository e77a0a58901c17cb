"""Programs made from formulas: right on any extents and strides, whatever the vector width and the accumulators."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm.target import Target

from haotuner import judge
from haotuner.microkernels.cpu.loops import CpuLoops, inner_axis
from haotuner.ops.dense import DENSE
from haotuner.ops.formula import Load, Reduce
from haotuner.ops.kind import OpKind, plain
from haotuner.words.kernel import MicroKernel
from tests.content.cpu_loop_kinds import LOOP_KINDS
from tests.judgement.cost_examples import BIG_CORE

POINTS = ((1, 1), (4, 1), (4, 8))  # four lanes: any x86-64 runs them


def built(kind: OpKind, lanes: int, vectors: int) -> Any:
    family = CpuLoops(kind)
    kernel = MicroKernel(family.name, (("vl", lanes), ("u", vectors)))
    module = tvm.compile(family.schedule(kernel, "program"), target=Target({"kind": "llvm", "mcpu": "x86-64"}))
    return module.mod["program"]


@pytest.mark.parametrize("kind", LOOP_KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("lanes, vectors", POINTS)
def test_a_program_computes_its_formula_on_any_extents_and_strides(kind: OpKind, lanes: int, vectors: int) -> None:
    program, rng = built(kind, lanes, vectors), np.random.default_rng(0)
    for sizes in product((1, 3), (1, 5, 35, 71)):
        extents = {axis: sizes[-1] if axis == inner_axis(kind) else sizes[0] for axis in kind.axes}
        inputs = {o.name: rng.standard_normal(o.shape(extents, {}), dtype=np.float32) for o in kind.inputs}
        apart = {name: judge.spaced(values, 3) for name, values in inputs.items()}
        output = judge.Guarded(kind.output.shape(extents, {}))
        program(*(tvm_ffi.from_dlpack(values) for values in (*apart.values(), output.inner)))
        wide = {name: values.astype(np.float64) for name, values in inputs.items()}
        want = kind.result(wide, {})
        verdict = judge.compare(output.inner, want, kind.tolerance(wide, {}) * 2.0**-23)
        assert verdict.wrong == 0 and not output.touched(), (extents, str(verdict))


def test_kinds_that_cannot_be_made_into_loops_are_known() -> None:
    assert all(CpuLoops.covers(kind) for kind in LOOP_KINDS)
    assert not CpuLoops.covers(DENSE)
    down = OpKind(
        name="column_sum", meaning="", axes={"m": "reduction", "n": "spatial"},
        operands=(plain("x", "input", "m", "n"), plain("y", "output", "n")),
        flops=lambda e: e["m"] * e["n"], formula=Reduce("sum", "m", Load("x")), tolerance=lambda inputs, options: 1.0,
    )  # fmt: skip
    assert not CpuLoops.covers(down), "its reduction is not over the innermost axis"
    with pytest.raises(ValueError, match="dense has no formula"):
        CpuLoops(DENSE)


@pytest.mark.parametrize("kind", LOOP_KINDS, ids=lambda kind: kind.name)
def test_points_are_scalar_code_and_the_devices_vectors(kind: OpKind) -> None:
    from haotuner.words.op import Op

    family = CpuLoops(kind)
    points = list(family.points(Op(kind="dense", static=()), BIG_CORE))
    assert len(points) == 5 and {point["vl"] for point in points} == {1, BIG_CORE.wave_width}
    for point in points:
        tile = family.tile(point)
        assert set(tile.extent) | set(tile.step) == set(kind.axes) and MicroKernel.parse(point.name) == point
