"""CUDA C++ of online softmax on tensor cores: a call of ``ht_attend`` (device/attention.cuh) for each tile of rows.

On Hopper also of ``ht_attend_wide`` (device/attention_wide.cuh), by wgmma.

What a score is beside its product, and how many keys a row sees, are written from the graph, as of every generated program.
"""

from __future__ import annotations

from collections.abc import Mapping

from haotuner.codegen.expressions import Expression
from haotuner.codegen.online_softmax_emit import record
from haotuner.codegen.online_softmax_schedule import GROUP_ROWS, GROUP_WARPS, TENSOR, WIDE, OnlinePlan
from haotuner.codegen.online_softmax_tensor import Rows, check, factor, rows_of
from haotuner.codegen.values import Frame, Values
from haotuner.errors import UsageError
from haotuner.microkernels.cuda.generated_program import WARP, CudaText
from haotuner.microkernels.cuda.generated_text import PART, Code

ROW, KEY, PRODUCT = Code("(long long)ht_row"), Code("(long long)ht_key"), Code("ht_x")


def tensor_body(plan: OnlinePlan, kept_as: str) -> list[str]:
    """Statements of a kernel whose tensors have their pointers; UsageError for a graph without the form, or for floats."""
    if kept_as == "fp32":
        raise UsageError("tensor units multiply numbers of 16 bits; fp32 would lose digits")
    check(plan.sums)
    sums, s = plan.sums, plan.schedule
    machine = CudaText(plan, kept_as)
    parts = s.parts > 1
    outer = _names(plan)
    known = factor(sums)
    row, key, column = (axis[0].name for axis in (sums.row, sums.key, sums.column))
    matrices = [
        rows_of(sums.left, row, sums.depth[0].name), rows_of(sums.right, key, sums.depth[0].name),
        rows_of(sums.weight, key, column),
    ]  # fmt: skip
    rows, keys = machine.size(sums.row[1]), machine.size(sums.key[1])
    operands = [
        _matrix(machine, plan, matrix, outer, "const ", of) for matrix, of in zip(matrices, (rows, keys, keys), strict=True)
    ]
    element = machine.stored_as
    number = machine.number(1.0 if known is None else known, "fp32")
    return [
        *(
            [f"if (a.phase == {PART + 1}) {{", *(f"  {line}" for line in join_lines(plan, kept_as)), "  return;", "}"]
            * parts
        ),
        f"const long long ht_tiles = ({rows} + {s.rows - 1}) / {s.rows};",
        f"const long long ht_items = {' * '.join(['ht_tiles', *(machine.size(extent) for _, extent in sums.outer)])};",
        *_rounds(plan, element, number, [
            *_tile_position(machine, plan, outer),
            *(f"const ht_rows<const {element}> ht_{name}({text});" for name, text in zip("qkv", operands, strict=True)),
            f"const ht_rows<{element}> ht_y({_output(machine, plan, outer, rows)});",
            "const auto ht_score = [&](int ht_row, int ht_key, float ht_x) {",
            *(f"  {line}" for line in _score(plan, kept_as, outer, known)),
            "};",
            "const auto ht_seen = [&](int ht_row) {",
            *(f"  {line}" for line in _seen(plan, kept_as, outer)),
            "};",
            "const auto ht_record = [&](int ht_row) {",
            f"  return {_record(machine, plan, outer) if parts else '0ll'};",
            "};",
        ]),
    ]  # fmt: skip


def _rounds(plan: OnlinePlan, element: str, number: str, lines: list[str]) -> list[str]:
    """The loop over a block's tiles of rows, whose names are set by ``lines``; where warps bring for others, one of each."""
    s, sums = plan.schedule, plan.sums
    form, base = f"{s.keys}, {s.stages}, {sums.depth[1]}, {sums.column[1]}", f"(int)ht_tile * {s.rows}"

    def loop(call: str) -> list[str]:
        head = "for (long long ht_item = blockIdx.x; ht_item < ht_items; ht_item += gridDim.x) {"
        return [head, *(f"  {line}" for line in lines), f"  {call};", "}"]

    if s.along == TENSOR:
        left = f"a.phase == {PART} ? a.partial : nullptr" if s.parts > 1 else "(float*)nullptr"
        return loop(
            f"ht_attend<{s.warps}, {s.out_rows}, {form}>(ht_q, ht_k, ht_v, ht_y, {base}, (int)blockIdx.y, "
            f"{'a.parts' if s.parts > 1 else '1'}, {number}, ht_score, ht_seen, {left}, ht_record)"
        )
    if s.along == WIDE:
        return loop(f"ht_attend_wide<{form}>(ht_q, ht_k, ht_v, ht_y, {base}, {number}, ht_score, ht_seen)")
    brings = loop(f"ht_at.bring(ht_q, ht_k, ht_v, {base}, ht_seen)")
    multiplies = loop(f"ht_at.attend(ht_q, ht_k, ht_y, {base}, {number}, ht_score, ht_seen)")
    return [
        f"ht_fed<{s.rows // GROUP_ROWS}, {form}, {element}> ht_at;",
        f"if (ht_warp() < {GROUP_WARPS}) {{",
        "  ht_at.brings();",
        *(f"  {line}" for line in brings),
        "} else {",
        "  ht_at.multiplies();",
        *(f"  {line}" for line in multiplies),
        "}",
    ]


def join_lines(plan: OnlinePlan, kept_as: str) -> list[str]:
    """The launch behind those of parts: a warp a row. UsageError where the graph has not the form, or for more parts."""
    check(plan.sums)
    machine, outer = CudaText(plan, kept_as), _names(plan)
    if plan.schedule.parts > WARP:
        raise UsageError(f"{plan.schedule.parts} parts; each is a lane's where they are joined, so {WARP} at most")
    sums, rows = plan.sums, machine.size(plan.sums.row[1])
    count = " * ".join([rows, *(machine.size(extent) for _, extent in sums.outer)])
    at, _, stride = _output(machine, plan, outer, rows).rpartition(",")[0].rpartition(", ")
    return [
        f"ht_join<{sums.column[1]}, {machine.stored_as}>(a.partial, {count}, a.parts, [&](long long ht_line) {{",
        f"  long long ht_left = ht_quotient(ht_line, {rows});",
        f"  const long long ht_row = ht_line - ht_left * {rows};",
        *(f"  {line}" for line in _outer(machine, plan, outer)),
        f"  return {at} + ht_row * {stride};",
        "});",
    ]


def _tile_position(machine: CudaText, plan: OnlinePlan, outer: Mapping[str, Code]) -> list[str]:
    """Code for a block's tile of rows, and its point of the outer axes. Rows that see the most keys come first."""
    if plan.sums.last is None:
        lines = [
            "long long ht_left = ht_quotient(ht_item, ht_tiles);",
            "const long long ht_tile = ht_item - ht_left * ht_tiles;",
        ]
    else:
        lines = [
            "const long long ht_round = ht_quotient(ht_item, ht_items / ht_tiles);",
            "const long long ht_tile = ht_tiles - 1 - ht_round;",
            "long long ht_left = ht_item - ht_round * (ht_items / ht_tiles);",
        ]
    return lines + _outer(machine, plan, outer)


def _names(plan: OnlinePlan) -> dict[str, Code]:
    return {variable.name: Code(f"ht_o{index}") for index, (variable, _) in enumerate(plan.sums.outer)}


def _outer(machine: CudaText, plan: OnlinePlan, outer: Mapping[str, Code]) -> list[str]:
    """The point of the outer axes whose number is ``ht_left``."""
    lines: list[str] = []
    for variable, extent in reversed(plan.sums.outer):
        name, size = outer[variable.name], machine.size(extent)
        lines += [
            f"const long long {name} = ht_left - ht_quotient(ht_left, {size}) * {size};",
            f"ht_left = ht_quotient(ht_left, {size});",
        ]
    return lines


def _matrix(machine: CudaText, plan: OnlinePlan, rows: Rows, outer: Mapping[str, Code], const: str, count: str) -> str:
    """Start of a matrix, how far apart its rows are, how many there are."""
    tensor, at = rows.load.tensor, machine.tensors.index(rows.load.tensor)
    frame = Frame(variables=dict(outer))
    parts = [f"t{at}"]
    for axis, index in enumerate(rows.load.indices[:-1]):
        if axis != rows.axis:
            parts.append(f"{_inline(machine, index, frame)} * a.strides[{at}][{axis}]")
    assert tensor in plan.graph.inputs, "operands lie in memory"
    return f"{' + '.join(parts)}, a.strides[{at}][{rows.axis}], {count}"


def _inline(machine: CudaText, e: Expression, frame: Frame) -> Code:
    before = len(machine.lines)
    result: Code = Values(machine).evaluate(e, frame)
    if len(machine.lines) != before:
        raise UsageError("tensor units read operands at the outer axes' own points")
    return result


def _output(machine: CudaText, plan: OnlinePlan, outer: Mapping[str, Code], rows: str) -> str:
    at, sums = machine.tensors.index(plan.output), plan.sums
    names = [getattr(index, "name", "") for index in sums.indices]
    parts = [f"{outer[name]} * a.strides[{at}][{axis}]" for axis, name in enumerate(names[:-2])]
    return f"{' + '.join([f't{at}', *parts])}, a.strides[{at}][{len(names) - 2}], {rows}"


def _score(plan: OnlinePlan, kept_as: str, outer: Mapping[str, Code], known: float | None) -> list[str]:
    if known is not None:  # the factor goes into the exponent
        return [f"return {PRODUCT};"]
    machine, sums = CudaText(plan, kept_as), plan.sums
    frame = Frame(variables={**outer, sums.row[0].name: ROW, sums.key[0].name: KEY}, folds={sums.product: PRODUCT})
    result = Values(machine, plan.graph).evaluate(sums.seen, frame)
    return [*machine.lines, f"return {result};"]


def _seen(plan: OnlinePlan, kept_as: str, outer: Mapping[str, Code]) -> list[str]:
    machine, sums = CudaText(plan, kept_as), plan.sums
    keys = machine.size(sums.key[1])
    if sums.last is None:
        return [f"return (int){keys};"]
    frame = Frame(variables={**outer, sums.row[0].name: ROW})
    last = Values(machine, plan.graph).evaluate(sums.last, frame)
    return [*machine.lines, f"return (int)ht_max<long long>(ht_min<long long>({last} + 1, {keys}), 0);"]


def _record(machine: CudaText, plan: OnlinePlan, outer: Mapping[str, Code]) -> str:
    """Start of a part's record of a row: parts outermost, then the outer axes, as the join reads them."""
    line = "(long long)blockIdx.y"
    for variable, extent in plan.sums.outer:
        line = f"({line} * {machine.size(extent)} + {outer[variable.name]})"
    return f"({line} * {machine.size(plan.sums.row[1])} + ht_row) * {record(plan)}"
