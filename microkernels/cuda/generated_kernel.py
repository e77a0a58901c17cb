"""Kernels of generated programs: their units, which include nothing, so that nvcc and NVRTC take them as they are.

A kernel whose row blocks share says beside its program what the other launches of a call do, by the phase that its argument
names: parts and their join, or a stage for each level of folds.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from haotuner.codegen.emit import AnyPlan, emit
from haotuner.codegen.multi_stage import emit_stage
from haotuner.codegen.online_softmax_emit import emit_join, emit_part
from haotuner.codegen.online_softmax_schedule import ON_UNITS, OnlinePlan
from haotuner.codegen.online_softmax_tensor import resident
from haotuner.codegen.online_softmax_tiles import Part
from haotuner.codegen.schedule import Plan, levels_of_folds, shareable
from haotuner.errors import UsageError
from haotuner.microkernels.cuda.device_calls import DEVICE
from haotuner.microkernels.cuda.generated_program import FLAT, WARP, CudaText
from haotuner.microkernels.cuda.generated_text import PART, Code, prologue
from haotuner.microkernels.cuda.online_softmax_tensor import join_lines, tensor_body

WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)  # lanes of a vector: part of a warp, a warp, or a block
ARGUMENTS = Path(__file__).parents[2] / "runtime" / "native" / "cuda" / "ht_cuda_generated.h"
FUNCTIONS = DEVICE / "short.cuh", DEVICE / "generated.cuh"


def _stages(plan: Plan, kept_as: str) -> list[list[str]]:
    """Statements of each stage of rows that blocks share."""
    result = []
    for stage in range(len(levels_of_folds(plan)) + 1):
        machine = CudaText(replace(plan, schedule=replace(plan.schedule, packed=1)), kept_as)  # single vectors
        emit_stage(plan, machine, stage, Code("blockIdx.y"), Code("a.parts"))
        result.append(machine.lines)
    return result


def shared_text() -> str:
    """Beginning of every unit of such programs."""
    return "".join(item.read_text() for item in (ARGUMENTS, *FUNCTIONS))


def kernel_text(symbol: str, plan: AnyPlan, threads: int = 256, kept_as: str = "fp32") -> str:
    """One kernel ``extern "C" __global__ void SYMBOL(ht_generated_args)`` behind ``shared_text``, of any grid.

    Blocks are of any whole number of warps up to ``threads``; of as many threads as a vector has lanes where it has more
    than a warp. Memory keeps floats as ``kept_as``. UsageError for vectors of other widths, or for a step that has no
    words in C.
    """
    keeps = isinstance(plan, Plan) and bool(plan.keeps)
    if keeps and kept_as != "fp32":
        raise UsageError(f"{symbol}: a tensor kept in the output's rows would be rounded to {kept_as}")
    if isinstance(plan, Plan) and keeps and plan.schedule.peeled:
        raise UsageError(f"{symbol}: rows whose loads stay in registers keep no tensor beside")
    if isinstance(plan, OnlinePlan) and plan.schedule.along in ON_UNITS:
        return _tensor_text(symbol, plan, kept_as)
    lanes = plan.schedule.lanes
    if lanes not in WIDTHS:
        raise UsageError(f"{symbol}: vectors of {lanes}; on a GPU they are {', '.join(map(str, WIDTHS))} threads")
    alone: AnyPlan = plan
    shared, stages = None, list[list[str]]()  # what phases but that of all say
    if isinstance(plan, Plan) and plan.schedule.parts > 1:
        alone = replace(plan, schedule=replace(plan.schedule, parts=1))
        shared = plan if shareable(plan.graph, plan.schedule.lane_axis) else None
        stages = [] if shared else _stages(plan, kept_as)
    machine = CudaText(plan, kept_as, in_parts=shared is not None)
    if isinstance(plan, OnlinePlan) and plan.schedule.parts > 1:
        leaves, writes = (Code(f"(a.phase {sign} {PART})") for sign in ("==", "!="))
        emit_part(plan, machine, Part(Code("blockIdx.y"), Code("a.parts"), leaves, writes))
        stages = [[], _join(plan, kept_as)]
    else:
        emit(alone, machine)
    apart = [
        line
        for phase, lines in enumerate(stages, 1)
        if lines
        for line in (f"if (a.phase == {phase}) {{", *(f"  {line}" for line in lines), "  return;", "}")
    ]
    end, even, flat = len(machine.tensors) - 1, machine.even(), machine.flat()
    whole = f"((1u << {lanes}) - 1u) << (threadIdx.x % {WARP} / {lanes} * {lanes})" if lanes < WARP else "0xffffffffu"
    begin = prologue(shared, [machine.element(name) for name in machine.tensors], machine.request_extent) if shared else []
    body = [
        *(f"HT_ASSUME({size} >= 0);" for size in machine.sizes.values() if even and not stages),
        f"const int ht_lane = threadIdx.x % {lanes};",
        f"const unsigned ht_mask = {whole};",
        f"const long long ht_group = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / {lanes};",
        f"const long long ht_groups = (long long)gridDim.x * blockDim.x / {lanes};",
        *_pointers(machine),
        *([f"float* const ht_t{end} = (float*)a.data[{end}];"] if shared and kept_as != "fp32" else []),
        *machine.lane_offsets(2 if even else 1),
        *machine.memory(max(1, threads // lanes)),
        *apart,
        *machine.lines,
    ]
    limit = max(threads, lanes) if lanes <= WARP else lanes
    name = "given" if shared else "a"
    head = f'extern "C" __global__ void __launch_bounds__({limit}) {symbol}(const ht_generated_args {name}) {{'
    if not even:
        return "\n".join([head, *_inside([*begin, *body]), "}\n"])
    # More than once, so that each way knows its places.
    names = ["a", *(["given"] if shared else [])]
    inputs = ", ".join(f"const ht_generated_args& {name}" for name in names)
    call = f"{symbol}_of<%d>({', '.join(names)});"
    ways = [*([(f"{even} && {flat}", FLAT)] if flat else []), (even, 1)]
    chosen = [f"{'else ' * bool(at)}if ({way_}) {call % way}" for at, (way_, way) in enumerate(ways)]
    chosen.append(f"else {call % 0}")
    return "\n".join([
        "template <int ht_way>", f"__device__ __forceinline__ void {symbol}_of({inputs}) {{", *_inside(body), "}",
        head, *_inside([*begin, *chosen]), "}\n",
    ])  # fmt: skip


def _inside(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _join(plan: OnlinePlan, kept_as: str) -> list[str]:
    try:
        return join_lines(plan, kept_as)
    except UsageError:  # the output is more than the weighted sum over the total
        last = CudaText(plan, kept_as)
        emit_join(plan, last, Code("a.parts"))
        return last.lines


def _pointers(machine: CudaText) -> list[str]:
    result = []
    for index, name in enumerate(machine.tensors):
        const = "const " if name not in machine.plan.graph.outputs else ""
        dtype = machine.element(name)
        result.append(f"{const}{dtype}* __restrict__ const t{index} = ({const}{dtype}*)a.data[{index}];")
    return result


def _tensor_text(symbol: str, plan: OnlinePlan, kept_as: str) -> str:
    """A kernel on tensor cores: every block has so many threads, no more and no less."""
    threads = plan.schedule.threads
    lines = [*_pointers(CudaText(plan, kept_as)), *tensor_body(plan, kept_as)]
    text = "\n".join(f"  {line}" for line in lines)
    limits = f"{threads}, {resident(plan)}"
    return f'extern "C" __global__ void __launch_bounds__({limits}) {symbol}(const ht_generated_args a) {{\n{text}\n}}\n'
