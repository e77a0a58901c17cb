"""The function of a generated program for TVM: a PrimFunc over whole tensors of any extents.

One in stages (``haotuner/codegen/multi_stage.py``) takes four arguments more: its workspace, which stage it computes,
which part of it, and of how many. Told that there are no parts, it is the program as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from haotuner.codegen.emit import AnyPlan, emit
from haotuner.codegen.multi_stage import emit_stage
from haotuner.codegen.online_softmax_emit import emit_join, emit_part
from haotuner.codegen.online_softmax_schedule import OnlinePlan
from haotuner.codegen.online_softmax_tiles import Part
from haotuner.codegen.schedule import Plan, levels_of_folds, merges
from haotuner.codegen.sibling_outputs import written
from haotuner.codegen.split_reduction import PARTIAL
from haotuner.errors import UsageError
from haotuner.graph.types import TensorType
from haotuner.microkernels.cpu.generated_program import TVM_NAMES, Buffer, Tir, lowered_extent


def program(plan: AnyPlan, symbol: str) -> Any:
    """TVM function ``symbol(inputs, beside, output)``; each tensor's last axis is contiguous, other strides are free."""
    from tvm import tirx
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    graph = plan.graph
    names = [*graph.inputs, *written(graph)]
    flat = [name for name in names if graph.types[name].rank == 0]
    if flat:
        raise UsageError(f"tensors without axes have no program: {', '.join(flat)}; give them one axis of extent 1")
    dimensions = {name: tirx.Var(name, "int64") for name in graph.dimensions}
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name(symbol)
        T.func_attr({"global_symbol": symbol, "tirx.noalias": True})  # the runtime refuses aliases
        handles = {name: T.arg(f"p{index}", T.handle()) for index, name in enumerate(names)}
        stages = _Stages.arguments(plan)
        buffers, result = {}, []
        for index, name in enumerate(names):
            t: TensorType = graph.types[name]
            shape = [lowered_extent(extent, dimensions) for extent in t.shape]
            strides = [tirx.Var(f"p{index}_stride{axis}", "int64") for axis in range(t.rank)]
            strides[-1] = tirx.IntImm("int64", 1)
            size = {"fp32": 4, "fp64": 8, "int64": 8, "int32": 4, "bool": 1}.get(t.dtype, 1)
            whole = T.match_buffer(handles[name], shape, TVM_NAMES[t.dtype], strides=strides, align=size)
            result.append((name, t, whole, strides, size))
        for name, t, whole, strides, size in result:
            flat = T.decl_buffer((tirx.IntImm("int64", 2**62),), TVM_NAMES[t.dtype], data=whole.data, align=size)
            buffers[name] = Buffer(whole, flat, strides)
        if stages is not None:
            stages.emit(plan, Tir(plan, buffers, dimensions))
        else:
            _emit(plan, buffers, dimensions, result)
    return builder.get()


class _Stages:
    """Arguments of a program in stages."""

    def __init__(self, workspace: Any, numbers: Sequence[Any]) -> None:
        self._workspace, (self._stage, self._part, self._parts) = workspace, numbers

    @staticmethod
    def arguments(plan: AnyPlan) -> _Stages | None:
        """Those of the function that is being built; None of a program that has no stages."""
        from tvm import tirx
        from tvm.script.ir_builder import tirx as T

        if plan.schedule.parts == 1:
            return None
        handle = T.arg("workspace", T.handle())
        numbers = [T.arg(name, tirx.Var(name, "int64")) for name in ("stage", "part", "parts")]
        return _Stages(T.match_buffer(handle, (tirx.Var("floats", "int64"),), TVM_NAMES["fp32"], align=4), numbers)

    def emit(self, plan: AnyPlan, machine: Tir) -> None:
        """The program as one, and each stage."""
        from tvm import tirx
        from tvm.script.ir_builder import tirx as T

        machine.brought(PARTIAL, Buffer(self._workspace, self._workspace, [tirx.IntImm("int64", 1)]), "fp32")

        stages, whole = self._emitters(plan, machine)

        def otherwise(stage: int) -> None:
            if stage == len(stages) - 1:
                stages[stage]()
                return
            with T.If(self._stage == stage):
                with T.Then():
                    stages[stage]()
                with T.Else():
                    otherwise(stage + 1)

        with T.If(self._parts == 0):
            with T.Then():
                emit(whole, machine)
            with T.Else():
                otherwise(0)

    def _emitters(self, plan: AnyPlan, machine: Tir) -> tuple[list[Callable[[], None]], AnyPlan]:
        """Emitters of each stage, and the plan as one."""
        from tvm import tirx
        from tvm.script.ir_builder import tirx as T

        values: list[Callable[[], None]]
        if isinstance(plan, OnlinePlan):
            item, none = (tirx.IntImm("int64", value) for value in (1, 0))

            def join() -> None:  # of few rows: the first part's
                with T.If(self._part == 0), T.Then():
                    emit_join(plan, machine, self._parts)

            values = [partial(emit_part, plan, machine, Part(self._part, self._parts, item, none)), join]
            return values, replace(plan, schedule=replace(plan.schedule, parts=1))
        count = len(levels_of_folds(plan)) + 1
        values = [partial(emit_stage, plan, machine, stage, self._part, self._parts) for stage in range(count)]
        return values, replace(plan, schedule=replace(plan.schedule, parts=1))


def _emit(plan: AnyPlan, buffers: dict[str, Buffer], dimensions: dict[str, Any], result: Sequence[Any]) -> None:
    """The program; of one that merges twice, first for tensors without gaps."""
    from tvm import tirx
    from tvm.script.ir_builder import tirx as T

    if not isinstance(plan, Plan) or not merges(plan):
        emit(plan, Tir(plan, buffers, dimensions))
        return
    names = [str(extent) for extent in plan.graph.types[plan.output].shape]
    with T.If(_without_gaps(result, [dimensions[name] for name in names])):
        with T.Then():
            every = tirx.IntImm("int64", 1)
            for name in names:
                every = every * dimensions[name]
            row = {name: tirx.IntImm("int64", 1) for name in names[:-1]}
            emit(plan, Tir(plan, buffers, {**row, names[-1]: every}))
        with T.Else():
            emit(plan, Tir(plan, buffers, dimensions))


def _without_gaps(tensors: Sequence[Any], extents: Sequence[Any]) -> Any:
    """True if every row of these tensors begins where the one before it ends, as an expression."""
    from tvm import tirx

    result = tirx.IntImm("bool", 1)
    for _, _, _, strides, _ in tensors:
        size = extents[-1]
        for stride, extent in zip(reversed(strides[:-1]), reversed(extents[:-1]), strict=True):
            result = tirx.And(result, tirx.EQ(stride, size))
            size = size * extent
    return result
