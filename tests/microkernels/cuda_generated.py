"""Generated CUDA programs, on the emulator, apart: ``python -m tests.microkernels.cuda_generated LIBRARY SYMBOL…``."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from haotuner.codegen.emit import AnyPlan
from haotuner.codegen.group import kinds_of
from haotuner.codegen.kinds import graph_of
from haotuner.codegen.online_softmax_emit import record
from haotuner.codegen.online_softmax_schedule import DEPTH, OnlinePlan, OnlineSchedule
from haotuner.codegen.schedule import Plan, Schedule, levels_of_folds, planned
from haotuner.graph.extents import dimension
from haotuner.graph.graph import GraphBuilder
from haotuner.microkernels.cuda.generated_text import Parts
from haotuner.microkernels.cuda.online_softmax import CudaOnline
from haotuner.spec import numerics
from haotuner.spec.limits import MAX_AXES, MAX_OPERANDS
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.emulator import build
from tests.runtime.empty_models import nowhere

WARP = 32


class Arguments(ctypes.Structure):
    """``ht_generated_args``."""

    _fields_ = [
        ("data", ctypes.c_void_p * MAX_OPERANDS),
        ("strides", (ctypes.c_int64 * MAX_AXES) * MAX_OPERANDS),
        ("sizes", ctypes.c_int64 * MAX_AXES),
        ("partial", ctypes.c_void_p),
        ("parts", ctypes.c_int),
        ("phase", ctypes.c_int),
    ]


def plan_of(
    spec: str, axis: int = -2, unroll: int = 2, cached: bool = False, rows: int = 1, masked: bool = True, lanes: int = WARP,
    packed: int = 1, peeled: bool = False, parts: int = 1,
) -> Plan:  # fmt: skip
    """The plan of an op for a warp, a part of one or a block; ``axis``: -2 for the output's last."""
    from haotuner.codegen.schedule import keepable

    op = Op.parse(spec)
    graph = graph_of(op.meaning, op.all_options())
    last = graph.types[graph.outputs[0]].rank - 1
    keep = keepable(graph)[:1] if cached else ()
    return planned(graph, Schedule(lane_axis=last if axis == -2 else axis, lanes=lanes, unroll=unroll, cached=keep,
                                   rows=rows, masked=masked, packed=packed, peeled=peeled, parts=parts))  # fmt: skip


def attention_plan(spec: str, rows: int, block: int, keys: int, parts: int = 1) -> AnyPlan:
    """Online sums of a warp, the depth along its lanes."""
    op = Op.parse(spec)
    family = CudaOnline(op.meaning)
    schedule = OnlineSchedule(lanes=WARP, along=DEPTH, rows=rows, block=block, keys=keys, out_rows=rows, parts=parts)
    plan: AnyPlan = family.plan(family.kernel_of(schedule, op))
    return plan


def product_plan(tiles: tuple[int, ...]) -> tuple[str, AnyPlan]:
    """A product behind a bias, as a kind of its own."""
    g, (m, n, k) = GraphBuilder(), map(dimension, "mnk")
    product = g.add("contract", g.input("a", (m, k)), g.input("b", (k, n)), labels="mk,kn->mn")
    (kind,) = kinds_of(g.finish(g.map("max", g.map("add", product, g.input("bias", (n,))), 0.0)), "product")
    spec = f"{kind.name}:"
    op = Op.parse(spec)
    schedule = Schedule(lane_axis=1, lanes=WARP, unroll=2, rows=4, tiles=tiles)
    return spec, planned(graph_of(op.meaning, op.all_options()), schedule)


def joined_plan() -> tuple[str, AnyPlan]:
    """A concatenation, as a kind of its own: either operand may be empty."""
    g, (m, n, k) = GraphBuilder(), map(dimension, "mnk")
    (kind,) = kinds_of(g.finish(g.add("concat", g.input("x", (m, n)), g.input("y", (m, k)), axis=1)), "joined")
    op = Op.parse(f"{kind.name}:")
    return op.name, planned(graph_of(op.meaning, op.all_options()), Schedule(lane_axis=1, lanes=8, unroll=2, packed=2))


PROGRAMS: dict[str, tuple[str, AnyPlan]] = {
    "attention_parts": ("attention:d=40,causal=end,mask=keys",
                        attention_plan("attention:d=40,causal=end,mask=keys", 2, 4, 64, parts=3)),
    "attention": ("attention:d=40", attention_plan("attention:d=40", 4, 4, 64)),
    "attention_causal": ("attention:d=64,causal=end,mask=keys",
                         attention_plan("attention:d=64,causal=end,mask=keys", 2, 1, 64)),
    "softmax": ("softmax:", plan_of("softmax:")),
    "softmax_kept": ("softmax:", plan_of("softmax:", unroll=4, cached=True)),
    "softmax_rows": ("softmax:", plan_of("softmax:", unroll=1, rows=4, masked=False)),
    "softmax_short": ("softmax:", plan_of("softmax:", unroll=1, cached=True, lanes=8)),
    "softmax_block": ("softmax:", plan_of("softmax:", unroll=1, cached=True, lanes=64)),
    "layer_norm_short": ("layer_norm:affine=scale_bias", plan_of("layer_norm:affine=scale_bias", lanes=16)),
    "layer_norm_block": ("layer_norm:affine=scale_bias", plan_of("layer_norm:affine=scale_bias", unroll=1, lanes=128)),
    "sum_block": ("reduce_sum:", plan_of("reduce_sum:", axis=-1, unroll=1, lanes=64)),
    "softmax_held": ("softmax:", plan_of("softmax:", unroll=4, lanes=8, packed=2, peeled=True)),
    "softmax_quads": ("softmax:", plan_of("softmax:", unroll=4, lanes=4, packed=4, peeled=True)),
    "softmax_held_block": ("softmax:", plan_of("softmax:", unroll=2, lanes=64, peeled=True)),
    "layer_norm_held": ("layer_norm:affine=scale_bias",
                        plan_of("layer_norm:affine=scale_bias", unroll=4, packed=4, peeled=True)),
    "add_norm_packed": ("add_layer_norm:affine=scale_bias",
                        plan_of("add_layer_norm:affine=scale_bias", unroll=8, packed=4, lanes=16)),
    "sum_held": ("reduce_sum:", plan_of("reduce_sum:", axis=-1, unroll=4, packed=4, peeled=True)),
    "pool_held": ("max_pool:kernel=3,stride=2,pad=1",
                  plan_of("max_pool:kernel=3,stride=2,pad=1", unroll=1, lanes=8, peeled=True)),
    "gelu_packed": ("gelu:", plan_of("gelu:", unroll=4, packed=4)),
    "bias_gelu_packed": ("bias_gelu:", plan_of("bias_gelu:", unroll=8, packed=4)),
    "softmax_down": ("softmax:", plan_of("softmax:", axis=0)),
    "layer_norm": ("layer_norm:affine=scale_bias", plan_of("layer_norm:affine=scale_bias", unroll=4)),
    "instance_norm": ("instance_norm:affine=scale_bias,activation=relu",
                      plan_of("instance_norm:affine=scale_bias,activation=relu")),
    "gelu": ("gelu:", plan_of("gelu:", unroll=1)),
    "bias_gelu": ("bias_gelu:", plan_of("bias_gelu:")),
    "transpose": ("transpose:", plan_of("transpose:")),
    "sum_last": ("reduce_sum:", plan_of("reduce_sum:", axis=-1, unroll=4)),
    "sum_first": ("reduce_sum:over=first", plan_of("reduce_sum:over=first")),
    "max_last": ("reduce_max:", plan_of("reduce_max:", axis=0)),
    "max_pool": ("max_pool:kernel=3,stride=2,pad=1", plan_of("max_pool:kernel=3,stride=2,pad=1")),
    "resize": ("resize:mode=linear", plan_of("resize:mode=linear")),
    "softmax_stages": ("softmax:", plan_of("softmax:", unroll=2, lanes=64, parts=4)),
    "layer_norm_stages": ("layer_norm:affine=scale_bias",
                          plan_of("layer_norm:affine=scale_bias", unroll=4, packed=4, peeled=True, parts=3)),
    "sum_parts": ("reduce_sum:", plan_of("reduce_sum:", axis=-1, unroll=2, packed=2, peeled=True, parts=4)),
    "max_parts": ("reduce_max:over=first", plan_of("reduce_max:over=first", parts=3)),
    "mean_parts": ("reduce_mean:", plan_of("reduce_mean:", axis=-1, unroll=1, lanes=64, parts=8)),
    "product": product_plan((1, 1, 0)),
    "product_blocks": product_plan((4, 1, 0)),
    "joined": joined_plan(),
}  # fmt: skip


QUICK = (
    "attention",
    "attention_parts",
    "softmax_kept",
    "softmax_quads",
    "layer_norm_held",
    "bias_gelu_packed",
    "layer_norm_block",
    "transpose",
    "sum_first",
    "max_pool",
    "product_blocks",
    "sum_parts",
    "softmax_stages",
    "layer_norm_stages",
    "mean_parts",
    "joined",
)  # a form of code each


def entries(symbols: Sequence[str]) -> str:
    """C of a launch of each program, for the emulator."""
    return "".join(
        f'extern "C" int run_{symbol}(const ht_generated_args* a, unsigned blocks, unsigned threads) {{\n'
        "  cudaLaunchConfig_t config = {};\n  config.blockDim = dim3(threads);\n"
        "  config.gridDim = dim3(blocks, a->parts);\n"
        f"  return emu::launch(config, [=] {{ {symbol}(*a); }});\n}}\n"
        for symbol in symbols
    )


def judged(library: ctypes.CDLL, symbol: str, first: int, last: int, gap: int, blocks: int, threads: int) -> str:
    """What is wrong with a call at these extents of the dynamic axes, rows so far apart; empty if nothing is."""
    spec, plan = PROGRAMS[symbol]
    op = Op.parse(spec)
    shape = Shape.of({axis: last if axis == op.dynamic[-1] else first for axis in op.dynamic})
    inputs = numerics.draw(op, shape, np.random.default_rng(0))
    out = numerics.Guarded(op.operand_shape(op.meaning.output, shape))
    arrays: list[Any] = [*(numerics.spaced(array, gap) if gap else array for array in inputs.values()), out.inner]
    arguments, extents = Arguments(), op.extents(shape)
    for index, array in enumerate(arrays):
        arguments.data[index] = array.ctypes.data if array.size else nowhere()
        for axis, stride in enumerate(array.strides):
            arguments.strides[index][axis] = stride // 4
    for index, name in enumerate(plan.graph.dimensions):
        arguments.sizes[index] = extents[name]
    error = 0
    arguments.parts, floats, stages = 1, out.inner.size, 2
    if isinstance(plan, Plan) and plan.schedule.parts > 1:
        cut = Parts.of(plan)
        arguments.parts = min(plan.schedule.parts, -(-arguments.sizes[cut.dimension_index] // cut.step))
        stages = 2 if cut.how else 1 + len(levels_of_folds(plan))
    elif isinstance(plan, OnlinePlan):
        arguments.parts, floats = plan.schedule.parts, out.inner.size // out.inner.shape[-1] * record(plan)
    partial = np.full(max(1, arguments.parts * floats), np.nan, np.float32)
    arguments.partial = partial.ctypes.data
    for phase in range(1 + stages) if arguments.parts > 1 else (0,):  # a launch of all, then those of parts
        if phase == 1:
            assert not numerics.check(op, inputs, out.inner).wrong, f"{symbol} {shape}: wrong in one launch"
            out.inner[...] = np.nan
        launched = Arguments.from_buffer_copy(arguments)
        launched.phase, launched.parts = phase, arguments.parts if phase else 1
        error = error or library[f"run_{symbol}"](ctypes.byref(launched), blocks, threads)
    verdict = numerics.check(op, inputs, out.inner)
    touched = ", wrote outside the output" if out.touched() else ""
    return f"{symbol} {shape}: error {error}, {verdict}{touched}" if error or verdict.wrong or touched else ""


def main(library: str, symbols: Sequence[str]) -> None:
    """The programs at ragged extents, by fewer warps than rows and by more."""
    ctypes.CDLL(str(build.machine()), ctypes.RTLD_GLOBAL)
    loaded = ctypes.CDLL(library)
    for symbol in symbols:
        none = ((3, 0, 0),) if symbol == "joined" else ()
        for first, last, gap in ((1, 1, 3), (3, 37, 3), (5, 131, 3), (2, 1, 0), (3, 180, 0), *none):
            lanes = PROGRAMS[symbol][1].schedule.lanes
            for blocks, threads in ((1, 32), (2, 64)) if lanes <= WARP else ((1, lanes), (2, lanes)):
                if message := judged(loaded, symbol, first, last, gap, blocks, threads):
                    print(message)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
