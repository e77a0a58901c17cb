"""Generated programs: right on any extents and strides, whatever the lanes, the vectors, the axis and what is kept."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from haotuner.backends.script_parser import shallow
from haotuner.codegen.group import kinds_of
from haotuner.codegen.kinds import has_graph
from haotuner.codegen.schedule import Schedule, planned
from haotuner.graph.extents import dimension
from haotuner.graph.graph import GraphBuilder
from haotuner.microkernels.cpu.generated import CpuGenerated
from haotuner.microkernels.cpu.online_softmax import CpuOnline
from haotuner.ops.index import KINDS
from haotuner.ops.kind import OpKind, Options
from haotuner.ops.products import DENSE
from haotuner.spec import numerics
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from tests.codegen.formula_kinds import FORMULA_KINDS
from tests.codegen.tvm_programs import compiled
from tests.cost.cost_examples import BIG_CORE
from tests.runtime.empty_models import guarded
from tests.standin.apart import failure_of

GENERATED = {
    kind.name: kind
    for kind in (*FORMULA_KINDS, *(kind for kind in KINDS.values() if has_graph(kind) and not CpuOnline.covers(kind)))
}

NUMBERS = {"kernel": "3", "stride": "2.1", "pad": "1", "scale": "3"}


def defaults(kind: OpKind) -> dict[str, str]:
    return {name: option.default for name, option in kind.options.items()}


def variants(kind: OpKind) -> list[dict[str, str]]:
    """The defaults, and another value of every option."""
    other = {name: option.choices[-1] if option.choices else NUMBERS[name] for name, option in kind.options.items()}
    return [defaults(kind), other] if other else [{}]


def kernels(kind: OpKind, options: Options) -> list[MicroKernel]:
    """Scalar code, and four lanes (any x86-64 runs them) along every axis, with everything that may be kept; squares."""
    family = CpuGenerated(kind)
    params = family._option_params(options)
    candidates = [family._kernel(4, 2, axis, keep, params) for axis in (0, 1, 2, 4) for keep in range(2)]
    rank = len((kind.variant(options) if kind.variant else kind).output.axes({}))
    candidates.append(
        family._kernel(4, 1, rank, 0, (("tr", 2), ("tv", 1), ("tt", 0), *params))
    )  # where squares can be turned
    fits = [kernel for kernel in candidates if kernel["ax"] <= rank and family._plan(kernel) is not None]
    return [family._kernel(1, 1, rank, 0, params), *fits]


def built(kind: OpKind, chosen: list[MicroKernel]) -> dict[str, Any]:
    """Functions by the names of the kernels, as they are written: what an optimiser makes of them packs' own tests run."""
    family = CpuGenerated(kind)
    functions = compiled(
        shallow(lambda: [family.schedule(kernel, kernel.name) for kernel in chosen]), settings={"opt-level": 0}
    )
    return {kernel.name: functions[kernel.name] for kernel in chosen}


@pytest.mark.long
@pytest.mark.parametrize("name", GENERATED)
def test_a_program_computes_its_kind_on_any_extents_and_strides(name: str) -> None:
    rng = np.random.default_rng(0)
    for options in variants(GENERATED[name]):
        chosen = kernels(GENERATED[name], options)
        general = GENERATED[name]
        kind = general.variant(options) if general.variant else general
        programs = built(general, chosen)
        for first, last in product((1, 3), (1, 5, 19 if len(kind.axes) > 3 else 35)):
            extents = {axis: last if axis == list(kind.axes)[-1] else first for axis in kind.axes}
            extents = kind.complete(extents, options)
            inputs = {o.name: rng.standard_normal(o.shape(extents, {}), dtype=np.float32) for o in kind.inputs}
            apart = {operand: numerics.spaced(values, 3) for operand, values in inputs.items()}
            wide = {operand: values.astype(np.float64) for operand, values in inputs.items()}
            expected = kind.result(wide, options)
            allowed = np.broadcast_to(kind.tolerance(wide, options), expected.shape) * 2.0**-23
            for kernel in chosen:
                output = numerics.Guarded(kind.output.shape(extents, {}))
                programs[kernel.name](*(tvm_ffi.from_dlpack(values) for values in (*apart.values(), output.inner)))
                verdict = numerics.compare(output.inner, expected, allowed)
                assert verdict.wrong == 0 and not output.touched(), (kernel.name, extents, str(verdict))


def test_tiles_of_a_product_are_right_on_any_extents_and_strides() -> None:
    g, (m, n, k) = GraphBuilder(), map(dimension, "mnk")
    product = g.add("contract", g.input("a", (m, k)), g.input("b", (k, n)), labels="mk,kn->mn")
    (kind,) = kinds_of(g.finish(g.map("max", g.map("add", product, g.input("bias", (n,))), 0.0)), "tiled")
    family, op = CpuGenerated(kind), Op.parse(f"{kind.name}:")
    every = list(family.points(op, BIG_CORE))
    tiled = [point for point in every if "tt" in dict(point.params)]
    assert {point["tt"] for point in tiled} == {0, 256} and all(MicroKernel.parse(point.name) == point for point in tiled)
    schedules = [replace(planned(family._graph({}), Schedule(lane_axis=1, lanes=4, unroll=2, rows=2)).schedule, tiles=tiles)
                 for tiles in ((2, 1, 0), (2, 2, 5))]  # fmt: skip
    chosen, rng = [family.kernel_of(schedule, op) for schedule in schedules], np.random.default_rng(0)
    programs = built(kind, chosen)
    for extents in ({"m": 1, "n": 1, "k": 1}, {"m": 7, "n": 35, "k": 13}, {"m": 4, "n": 16, "k": 10}):
        inputs = {o.name: rng.standard_normal(o.shape(extents, {}), dtype=np.float32) for o in kind.inputs}
        apart = [numerics.spaced(values, 3) for values in inputs.values()]
        expected = np.maximum(inputs["a"].astype(np.float64) @ inputs["b"] + inputs["bias"], 0)
        for kernel in chosen:
            output = numerics.Guarded(expected.shape)
            programs[kernel.name](*(tvm_ffi.from_dlpack(values) for values in (*apart, output.inner)))
            np.testing.assert_allclose(output.inner, expected, rtol=1e-5, atol=1e-5, err_msg=kernel.name)
            assert not output.touched()


def test_what_is_empty_is_not_read() -> None:
    g, (m, n, k) = GraphBuilder(), map(dimension, "mnk")
    (kind,) = kinds_of(g.finish(g.add("concat", g.input("x", (m, n)), g.input("y", (m, k)), axis=1)), "joined")
    family, op = CpuGenerated(kind), Op.parse(f"{kind.name}:")
    schedules = [Schedule(lane_axis=axis, lanes=lanes, unroll=2) for axis, lanes in ((1, 1), (0, 4), (1, 4))]
    chosen = [family.kernel_of(planned(family._graph({}), schedule).schedule, op) for schedule in schedules]
    programs, rng = built(kind, chosen), np.random.default_rng(0)

    def called() -> None:
        for sizes in ((3, 9), (3, 0), (0, 9)):
            arrays = {name: rng.standard_normal((5, size), dtype=np.float32) for name, size in zip("xy", sizes, strict=True)}
            for kernel in chosen:
                output = numerics.Guarded((5, sum(sizes)))
                arguments = (*guarded(arrays).values(), output.inner)
                programs[kernel.name](*(tvm_ffi.from_dlpack(values) for values in arguments))
                assert np.array_equal(output.inner, np.concatenate(list(arrays.values()), axis=1)), (kernel.name, sizes)
                assert not output.touched()

    assert not failure_of(called)


@pytest.mark.parametrize(
    "name",
    [
        *("softmax", "reduce_max", "gelu"),
        *(pytest.param(name, marks=pytest.mark.long) for name in ("reduce_sum", "silu", "gelu_tanh")),
    ],
)
def test_rows_of_infinity_and_nan_come_out_as_numpy_has_them(name: str) -> None:
    rows = np.zeros((5, 9), np.float32)
    rows[0], rows[1, 4], rows[2, 2], rows[3] = -np.inf, np.nan, np.inf, 3e38
    kind = GENERATED[name]
    chosen = kernels(kind, defaults(kind))
    programs = built(kind, chosen)
    with np.errstate(all="ignore"):
        expected = kind.result({"x": rows.astype(np.float64)}, defaults(kind)).astype(np.float32)
    for kernel in chosen:
        output = np.zeros(expected.shape, np.float32)
        programs[kernel.name](tvm_ffi.from_dlpack(rows), tvm_ffi.from_dlpack(output))
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6, err_msg=kernel.name)


def test_kinds_without_a_graph_are_known() -> None:
    assert all(CpuGenerated.covers(kind) for kind in GENERATED.values())
    assert not CpuGenerated.covers(DENSE)
    with pytest.raises(ValueError, match="dense has neither a formula nor a graph"):
        CpuGenerated(DENSE)


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "reduce_sum", "transpose", "bias_gelu"])
def test_points_parse_back_and_their_tiles_name_the_axes_of_the_kind(name: str) -> None:
    kind = GENERATED[name]
    family = CpuGenerated(kind)
    points = list(family.points(Op(kind=name, static=()), BIG_CORE))
    assert len(points) > 4 and {point["vl"] for point in points} == {1, BIG_CORE.wave_width}
    for point in points:
        tile = family.tile(point)
        assert set(tile.extent) <= set(kind.axes) and set(tile.step) <= set(kind.axes)
        assert MicroKernel.parse(point.name) == point


def test_options_travel_in_the_name_of_a_kernel() -> None:
    kind = GENERATED["layer_norm"]
    family = CpuGenerated(kind)
    op = Op.parse("layer_norm:affine=scale_bias,eps=1e-12")
    assert Op.parse(op.name) == op and op.name == "layer_norm_scalebias_1em12"
    assert [operand.name for operand in op.meaning.inputs] == ["x", "scale", "bias"]
    for point in family.points(op, BIG_CORE):
        assert family._options(point) == {"affine": "scale_bias", "eps": "1e-12"}
