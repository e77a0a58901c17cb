"""Schedule: how a graph's program runs, by decisions of three kinds.

Tensors that a program reads along another axis than its lanes', so that squares of elements are worth turning.

Asked of loops and expressions alone; ``register_transpose.py`` makes the program.

Schedule: how a graph's program runs. Its decisions are of three kinds, as IntelliGen names them (arXiv 2307.04995).

*Parallel*: which axis of the output becomes vector lanes, and how many lanes; threads share the other axes.
*Movement*: which intermediate tensors are kept (in the row of the output that is being made) instead of computed again.
*Computation*: how many vectors and rows an iteration computes, of each reduction as well, whose accumulators they are; how
the end of an axis is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from haotuner.codegen.access import Accesses
from haotuner.codegen.cache_read import COLUMNS, CacheRead, cache_read, copy_name, floats, reading, sources
from haotuner.codegen.cache_read import MOST_FLOATS as MOST_COPIED
from haotuner.codegen.expressions import Apply, Expression, Fold, Load, Variable, free_variables, parts, slope
from haotuner.codegen.rfactor import joined
from haotuner.codegen.sibling_outputs import SiblingOutput, sibling_outputs
from haotuner.errors import UsageError
from haotuner.graph.extents import Extent, same
from haotuner.graph.graph import Graph

Loops = Sequence[tuple[Variable, Extent]]


@dataclass(frozen=True, slots=True)
class TransposedLoad:
    """``row``: the loop whose elements lie next to each other in ``loads``; the last loop's do in the output."""

    row: tuple[Variable, Extent]
    column: tuple[Variable, Extent]
    loads: tuple[Load, ...]


def transposed_load_of(loops: Loops, value: Expression, indices: Sequence[Expression]) -> TransposedLoad:
    """The turn of a program: over the axis along which most loads have neighbours.

    UsageError where it folds, writes other than along its lanes, reads nothing across them, or reads what no vector takes.
    """
    *outer, column = loops
    lanes, every = column[0].name, list(parts(value))
    refused = "squares are turned where tensors are read across the lanes and written along them: "
    if any(isinstance(item, Fold) for item in every):
        raise UsageError(refused + "this program folds")
    if not indices or indices[-1] != column[0]:
        raise UsageError(refused + "this one writes across them")
    loads = [item for item in every if isinstance(item, Load) and lanes in free_variables(item) and item.dtype != "bool"]
    result = [TransposedLoad(row, column, tuple(load for load in loads if _across(load, row[0].name, lanes)))
             for row in outer if not same(row[1], 1)]  # fmt: skip
    best = max(result, key=lambda item: len(item.loads), default=None)
    if best is None or not best.loads:
        raise UsageError(refused + "this one reads none so")
    left = (item for item in every if isinstance(item, Load) and lanes in free_variables(item) and item not in best.loads)
    for item in left:
        if not _even(item, lanes):
            raise UsageError(refused + f"what this one reads of {item.tensor} are no neighbours along any axis")
    return best


def _even(load: Load, name: str) -> bool:
    """True if elements lie next to each other along a loop."""
    return slope(load.indices[-1], name) == 1 and not any(name in free_variables(index) for index in load.indices[:-1])


def _across(load: Load, row: str, lanes: str) -> bool:
    return bool(load.indices) and _even(load, row) and lanes not in free_variables(load.indices[-1])


FOLDS = ("reduce", "arg_reduce", "contract")  # primitives that combine many elements into one
MOST_FLOATS = 1 << 14  # of a tile's sums: 64 KiB of a thread's stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """``lane_axis``: of the output, -1 for none (lanes in reductions alone); ``lanes``: elements of a vector.

    ``unroll``: vectors an iteration; ``folds``: the same of each fold, in the graph's order, where it is not the program's;
    ``rows``: points of the axis around the lanes that an iteration writes, which share what does not depend on it;
    ``masked``: whether the last vector leaves lanes out, else elements are computed one by one;
    ``cached``: tensors that lie in the output's row while the program goes on.
    On machines whose lanes are threads: ``packed``, how many neighbours a lane takes at a time, of as many vectors;
    ``peeled``: whether each pass over an axis has its first iteration, masked, outside of the loop, so that what it loads
    stays in registers from pass to pass.
    ``parts``: of the axis that the output is one fold over, which workers fold side by side (``split_reduction.py``;
    Ansor's rule 6). ``tiles``: of a fold whose operands are used again, blocks of rows and of vectors in a tile of the
    cache, and terms at a time, 0 for all (``multi_level_tiling.py``; Ansor's rule 3); empty: one level, in registers. Of a
    program that folds nothing, squares of elements in a tile that are turned in registers: along the axis that loads
    follow, along the lanes, and 0 (``register_transpose.py``). ``cache_read``: operands of tiles that are copied, as bits
    (``cache_read.py``).
    """

    lane_axis: int
    lanes: int
    unroll: int
    cached: tuple[str, ...] = ()
    folds: tuple[int, ...] = ()
    rows: int = 1
    masked: bool = True
    packed: int = 1
    peeled: bool = False
    parts: int = 1
    tiles: tuple[int, ...] = ()
    cache_read: int = 0

    @property
    def step(self) -> int:
        """Elements of a folded axis that an iteration takes: parts begin at multiples."""
        return self.lanes * self.unroll if self.lane_axis < 0 else 1

    def pitch(self, vectors: int) -> int:
        """Elements from lane to lane in an iteration of so many vectors."""
        return self.packed if vectors % self.packed == 0 else 1

    @property
    def loads_first(self) -> bool:
        """True if an iteration loads everything before it computes."""
        return self.packed > 1 or self.peeled


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedRow:
    """A tensor that is written to the output's memory while the first folds read it."""

    tensor: str
    axes: tuple[tuple[Variable, Extent], ...]  # all but those of the loops around it
    indices: tuple[Expression, ...]
    value: Expression


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A graph and a schedule, worked out: loops of the output, its element, what is kept, and where folds belong."""

    graph: Graph
    schedule: Schedule
    loops: tuple[tuple[Variable, Extent], ...]  # the lanes' axis last
    indices: tuple[Expression, ...]  # of the output's element
    value: Expression
    keeps: tuple[CachedRow, ...]
    first: dict[Fold, Expression]  # folds that run with a keep: their values, computed from what is being kept
    beside: tuple[SiblingOutput, ...] = ()  # other outputs that it writes
    reads: tuple[CacheRead, ...] = ()  # copies that its tiles read, that of the columns first

    @property
    def output(self) -> str:
        """The tensor whose points the loops are."""
        return self.graph.outputs[0]

    @property
    def turns(self) -> bool:
        """True if its tiles are of squares that are turned in registers."""
        return bool(self.schedule.tiles) and not any(isinstance(part, Fold) for part in parts(self.value))

    def values(self) -> tuple[Expression, ...]:
        """Every expression that the program computes."""
        others = (sibling.value for sibling in self.beside)
        copies = (read.value for read in self.reads)
        return (self.value, *others, *(keep.value for keep in self.keeps), *self.first.values(), *copies)


def merges(plan: Plan) -> bool:
    """True if a program may take all axes as one where no tensor has gaps: nothing but maps of tensors of one shape."""
    graph = plan.graph
    shape = graph.types[plan.output].shape
    alike = all(graph.types[name].shape == shape for name in (*graph.inputs, *graph.outputs))
    free = len(set(map(str, shape))) == len(shape) == len(graph.dimensions) > 1
    maps = all(node.primitive == "map" for node in graph.nodes)
    return maps and alike and free and plan.schedule.lane_axis == len(shape) - 1


def merged_sizes(plan: Plan, sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes of a program's dimensions where no tensor has gaps: of one that merges, all but the last are 1."""
    if not merges(plan):
        return dict(sizes)
    *outer, last = (str(extent) for extent in plan.graph.types[plan.output].shape)
    return {**dict.fromkeys(outer, 1), last: prod(sizes[name] for name in (*outer, last))}


def describe(plan: Plan) -> dict[str, str]:
    """A plan's decisions in words, by their kind."""
    schedule, graph = plan.schedule, plan.graph
    axes = [str(extent) for extent in graph.types[plan.output].shape]
    along = "the last axis of each reduction" if schedule.lane_axis < 0 else f"axis {axes[schedule.lane_axis]}"
    vectors = "1 vector" if schedule.unroll == 1 else f"{schedule.unroll} vectors"
    merged = "all axes as one where no tensor has gaps, else " if merges(plan) else ""
    rows = f" in {schedule.rows} rows" if schedule.rows > 1 else ""
    folds = f", {'/'.join(map(str, schedule.folds))} of the reductions" if schedule.folds else ", of reductions too"
    end = "masked" if schedule.masked else "computed element by element"
    near = f", {schedule.packed} of them neighbours" if schedule.packed > 1 else ""
    shared = [f"parts of {axis} (joined by {how})" for axis, how in joined(graph).items()]
    maps = {node.output: f"{node.output} ({node.attributes['function']})" for node in graph.nodes if node.primitive == "map"}
    lines = [f"{maps[tensor]} kept in the output's row" for tensor in schedule.cached]
    lines += ["what a row's first iteration loads stays in registers"] if schedule.peeled else []
    again = [words for tensor, words in maps.items() if tensor not in schedule.cached and len(graph.readers(tensor)) > 1]
    if plan.turns:
        high, wide = (squares * schedule.lanes for squares in schedule.tiles[:2])
        end += f"; tiles of {high} x {wide} elements, of squares that are turned in registers"
    elif schedule.tiles:
        high, wide = schedule.tiles[0] * schedule.rows, schedule.tiles[1] * schedule.lanes * schedule.unroll
        terms = f"{schedule.tiles[2]} terms at a time" if schedule.tiles[2] else "all terms at once"
        end += f"; tiles of {high} x {wide} elements, {terms}"
        lines += [f"what a tile reads of {read.name.removeprefix('copy of ')} is copied first" for read in plan.reads]
    if schedule.parts > 1:
        levels = () if shareable(graph, schedule.lane_axis) else levels_of_folds(plan)
        end += f"; workers fold {schedule.parts} parts" + (f" of a row, in {len(levels) + 1} stages" if levels else "")
    beside = [sibling.tensor + " once a row" * (sibling.axes < len(axes)) for sibling in plan.beside]
    return {
        "parallel": merged + "; threads may share ".join([f"{schedule.lanes} lanes along {along}", *shared]),
        "movement": "; ".join([*lines, *([f"{', '.join(again)} computed where it is read"] if again else [])])
        or "nothing is kept",
        "computation": f"{vectors} an iteration{near}{rows}{folds}; the end of an axis is {end}",
    } | ({"written beside it": ", ".join(beside)} if beside else {})  # fmt: skip


def keepable(graph: Graph) -> tuple[str, ...]:
    """Intermediate tensors of the output's shape and type that a reduction reads: what may lie in the output's rows."""
    out = graph.outputs[0]
    target = graph.types[out]
    result: list[str] = []
    if len(graph.outputs) > 1:
        return ()
    for node in graph.nodes:
        t = graph.types[node.output]
        if node.output == out or node.primitive != "map" or t.dtype != target.dtype or t.rank != target.rank:
            continue
        alike = all(same(extent, other) for extent, other in zip(t.shape, target.shape, strict=True))
        if alike and any(reader.primitive in ("reduce", "arg_reduce") for reader in graph.readers(node.output)):
            result.append(node.output)
    return tuple(result)


def shareable(graph: Graph, lane_axis: int) -> bool:
    """True if workers may share the output's fold: it is one, and lanes lie next to each other in a part's results."""
    after = graph.types[graph.outputs[0]].shape[lane_axis + 1 :] if lane_axis >= 0 else ()
    return len(graph.outputs) == 1 and all(same(extent, 1) for extent in after) and bool(joined(graph))


def levels_of_folds(plan: Plan) -> tuple[tuple[Fold, ...], ...]:
    """Folds of a row by how many others each waits for; none where some are not along the row that the lanes write.

    Such rows may be cut (``multi_stage.py``), as the output's own axis is that of all folds.
    """
    (lanes, extent), written = plan.loops[-1], [plan.value, *(sibling.value for sibling in plan.beside)]
    result = list(dict.fromkeys(part for value in written for part in parts(value) if isinstance(part, Fold)))
    known = plan.schedule.lane_axis == len(plan.loops) - 1 and str(extent) in plan.graph.dimensions
    if not known or not result or plan.keeps or any(sibling.axes < len(plan.loops) - 1 for sibling in plan.beside):
        return ()
    levels: dict[Fold, int] = {}
    for fold in result:  # inner ones come first
        alike = len(fold.axes) == 1 and same(fold.axes[0][1], extent) and fold.dtype == "fp32"
        if not alike or lanes.name in free_variables(fold):
            return ()
        levels[fold] = 1 + max((levels[sibling] for sibling in parts(fold.value) if isinstance(sibling, Fold)), default=-1)
    return tuple(tuple(fold for fold, own in levels.items() if own == level) for level in range(max(levels.values()) + 1))


def tiled_fold(plan: Plan) -> Fold:
    """The one fold that the tiles of a plan are of. UsageError where the output is not made of one that has tiles."""
    schedule, out = plan.schedule, plan.output
    folds = [part for part in parts(plan.value) if isinstance(part, Fold)]
    if schedule.lane_axis < 0 or len(plan.loops) < 2 or schedule.cached or schedule.loads_first:
        raise UsageError(f"tiles of {out} want lanes along an axis of it, another axis, and nothing that is kept")
    if len(folds) != 1 or not free_variables(folds[0]) & {plan.loops[-1][0].name}:
        raise UsageError(f"tiles are of one fold that differs from lane to lane; {out} is made of {len(folds)}")
    rows, columns, terms = schedule.tiles
    if terms and rows * schedule.rows * columns * schedule.lanes * schedule.unroll > MOST_FLOATS:
        raise UsageError(f"a tile's sums are more than the {MOST_FLOATS} that scratch memory has: ask for smaller tiles")
    return folds[0]


def _check_transpose(plan: Plan) -> None:
    """UsageError where there is nothing to turn, or the schedule wants what squares do not have."""
    schedule = plan.schedule
    plain = (schedule.unroll, schedule.rows, schedule.packed, schedule.tiles[2]) == (1, 1, 1, 0) and schedule.masked
    square = schedule.lanes > 1 and not schedule.lanes & (schedule.lanes - 1) and min(schedule.tiles[:2]) > 0
    if not plain or not square or schedule.peeled or schedule.cached or schedule.lane_axis < 0:
        raise UsageError(f"squares of {plan.output} are of one masked vector a row, a power of two of lanes, and no terms")
    transposed_load_of(plan.loops, plan.value, plan.indices)  # refuses what is not worth turning


def turnable(graph: Graph, lane_axis: int) -> bool:
    """True if programs with lanes along an axis may turn squares."""
    try:
        return planned(graph, Schedule(lane_axis=lane_axis, lanes=2, unroll=1, tiles=(1, 1, 0))).turns
    except UsageError:
        return False


def stageable(graph: Graph, lane_axis: int) -> bool:
    """True if rows may be cut although their folds are read again, with lanes along an axis."""
    try:
        return bool(levels_of_folds(planned(graph, Schedule(lane_axis=lane_axis, lanes=2, unroll=1))))
    except UsageError:
        return False


def tileable(graph: Graph, lane_axis: int) -> bool:
    """True if programs with lanes along an axis may have tiles of two levels."""
    try:
        planned(graph, Schedule(lane_axis=lane_axis, lanes=2, unroll=1, tiles=(1, 1, 1)))
    except UsageError:
        return False
    return True


def planned(graph: Graph, schedule: Schedule) -> Plan:
    """The plan of a schedule. UsageError where a kept tensor is read at other places than where it is written.

    Of several outputs the first is the program's own, the others are written beside it (``sibling_outputs.py``).
    """
    if len(graph.outputs) > 1 and (schedule.cached or schedule.tiles):
        raise UsageError(f"a program that writes {', '.join(graph.outputs)} keeps no tensor and has no tiles")
    if len(schedule.cached) > 1:
        raise UsageError(f"one tensor fits the output's rows, asked were {', '.join(schedule.cached)}")
    out = graph.outputs[0]
    shared = schedule.parts > 1 and shareable(graph, schedule.lane_axis)
    if schedule.parts > 1 and schedule.cached:
        raise UsageError(f"workers cannot share the folds of {out} while a tensor is kept in its rows")
    accesses = Accesses(graph, dict.fromkeys(schedule.cached, out), inverts=True)
    shape = graph.types[out].shape
    variables = tuple(accesses.variable("i") for _ in shape)
    value = accesses.computed(out, variables)
    loops = tuple((variables[axis], shape[axis]) for axis in range(len(shape)) if axis != schedule.lane_axis)
    lanes = (
        (variables[schedule.lane_axis], shape[schedule.lane_axis])
        if schedule.lane_axis >= 0
        else (accesses.variable("i"), 1)
    )
    loops = (*loops, lanes)
    keeps: tuple[CachedRow, ...] = ()
    first: dict[Fold, Expression] = {}
    if schedule.cached:
        keep, first = _cached_rows(accesses, schedule, variables, value)
        keeps = (keep,)
    beside = sibling_outputs(accesses, schedule.lane_axis, variables)
    plan = Plan(graph=graph, schedule=schedule, loops=loops, indices=variables, value=value, keeps=keeps, first=first,
                beside=beside)  # fmt: skip
    if plan.turns:
        _check_transpose(plan)
    elif schedule.tiles:
        plan = _with_copies(_rows_by_reuse(plan, tiled_fold(plan)))  # refuses what has no tiles
    if schedule.parts > 1 and not shared and (schedule.tiles or not levels_of_folds(plan)):
        raise UsageError(f"{out} is neither one fold nor rows that are folded along their own axis: workers cannot share it")
    return plan


def _rows_by_reuse(plan: Plan, fold: Fold) -> Plan:
    """The plan with the axis next to the lanes along which most operands are used again; of equal axes the last."""
    *outer, column = plan.loops
    loads = [part for part in parts(fold.value) if isinstance(part, Load) and column[0].name in free_variables(part)]
    apart = [sum(variable.name in free_variables(load) for load in loads) for variable, _ in outer]
    row = max(range(len(outer)), key=lambda axis: (not same(outer[axis][1], 1), -apart[axis], axis))
    return replace(plan, loops=(*outer[:row], *outer[row + 1 :], outer[row], column))


def _with_copies(plan: Plan) -> Plan:
    """The plan with the copies that the schedule asks for. UsageError where an operand cannot be copied."""
    graph, schedule, bits = plan.graph, plan.schedule, plan.schedule.cache_read
    if not bits:
        return plan
    (row, _), (column, _) = plan.loops[-2:]
    copy_names = {tensor: copy_name(tensor) for tensor in sources(graph, tiled_fold(plan).tensor)}
    probe = replace(plan, value=Accesses(graph, stored=copy_names).computed(plan.output, plan.indices))
    tensors = {bit: tensor for bit, tensor in reading(graph, tiled_fold(probe), row, column).items() if bit & bits}
    if sum(tensors) != bits:
        raise UsageError(f"tiles of {plan.output} read no operand that could be copied so ({bits}): ask for other copies")
    accesses = Accesses(graph, stored={tensor: copy_name(tensor) for tensor in tensors.values()})
    plan = replace(plan, value=accesses.computed(plan.output, plan.indices))
    high, wide = schedule.tiles[0] * schedule.rows, schedule.tiles[1] * schedule.lanes * schedule.unroll
    tiles = {bit: (column, wide) if bit == COLUMNS else (row, high) for bit in tensors}
    fold = tiled_fold(plan)
    reads = [cache_read(accesses, fold, plan.value, tensors[bit], tiles[bit][0]) for bit in sorted(tensors)]
    if floats(reads, [tiles[bit][1] for bit in sorted(tensors)]) > MOST_COPIED:
        raise UsageError(f"a tile's copies are more than the {MOST_COPIED} elements that they may be; ask for smaller tiles")
    return replace(plan, reads=tuple(reads))


def _cached_rows(
    accesses: Accesses, schedule: Schedule, variables: tuple[Variable, ...], value: Expression
) -> tuple[CachedRow, dict[Fold, Expression]]:
    graph, tensor = accesses.graph, schedule.cached[0]
    out, shape = graph.outputs[0], graph.types[tensor].shape
    folds = [part for part in parts(value) if isinstance(part, Fold)]
    readers = [fold for fold in folds if any(_reads(part, out) for part in parts(fold.value, into_folds=False))]
    if not readers:
        raise UsageError(f"no reduction reads {tensor}, so keeping it is of no use")
    width = len(readers[0].axes)
    outer, refused = variables[: len(variables) - width], UsageError(f"{tensor} cannot lie in the output's rows")
    if 0 <= schedule.lane_axis < len(outer):
        raise refused
    for fold in readers:
        own = (*outer, *(variable for variable, _ in fold.axes))
        for part in parts(fold.value, into_folds=False):
            if _reads(part, out) and part.indices != own:  # type: ignore[union-attr]
                raise refused
    for part in parts(value, into_folds=False):
        if _reads(part, out) and part.indices != variables:  # type: ignore[union-attr]
            raise refused
    inner = tuple(accesses.variable("k") for _ in range(width))
    indices = (*outer, *inner)
    keep = CachedRow(
        tensor=tensor,
        axes=tuple(zip(inner, shape[len(shape) - width :], strict=True)),
        indices=indices,
        value=accesses.computed(tensor, indices),
    )
    later = {fold for fold in folds if any(part in readers for part in parts(fold.value) if part is not fold)}
    first: dict[Fold, Expression] = {}
    for fold in readers:
        if fold in later:
            continue
        own = (*outer, *(variable for variable, _ in fold.axes))
        first[fold] = _replaced(fold.value, out, accesses.computed(tensor, own))
    return keep, first


def _reads(part: Expression, tensor: str) -> bool:
    return isinstance(part, Load) and part.tensor == tensor


def _replaced(e: Expression, tensor: str, value: Expression) -> Expression:
    """The expression with every load of a tensor replaced."""
    if _reads(e, tensor):
        return value
    if isinstance(e, Apply):
        return Apply(e.function, tuple(_replaced(argument, tensor, value) for argument in e.arguments), e.dtype)
    return e
