"""Schedules of online softmax, and their space as points that a policy searches.

*Parallel*: rows of the output along the lanes, or the depth of the products where rows are few; threads share rows. On units
for small matrices a block of warps has the rows of a tile (``online_tensor.py``).
*Movement*: a tile of scores, the rows' operand and the sums so far lie in scratch memory near the core; nothing else does.
*Computation*: vectors and keys whose scores are summed at once, keys of a tile, rows and vectors of the second product.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from haotuner.codegen.online_softmax import OnlineSoftmax
from haotuner.codegen.space import SLICES, STRUCTURE, Hole, Point, Space
from haotuner.errors import UsageError
from haotuner.graph.graph import Graph

ROWS, DEPTH = "rows", "depth"  # what runs along the lanes while scores are summed
TENSOR = "tensor"  # nothing does: units for small matrices sum them
WIDE = "wide"  # nor here: four warps multiply 64 rows together
FED = "fed"  # the same, and four warps more bring keys and values
TOGETHER = (WIDE, FED)
ON_UNITS = (TENSOR, *TOGETHER)
ALONG = (ROWS, DEPTH, TENSOR, WIDE, FED)  # as a micro-kernel numbers them
MOST_SCRATCH = 192 << 10  # bytes of a thread's stack, or of what a block shares
MOST_WIDE = 227 << 10  # of what a block shares, of units that take 64 rows
PIECE = 16  # rows and terms of one product of tensor units
MOST_COLUMNS = 256  # of an operand that four warps multiply with
GROUP_WARPS, GROUP_ROWS, PANEL = 4, 64, 64  # that multiply together; rows of them; columns that lie side by side for them
FED_ROWS = (128, 192)  # of two or three such groups
MEETING_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineSchedule:
    """``along``: one of ``ALONG``. ``rows``: vectors of rows; rows of a tile where nothing of them is along the lanes.

    ``block``: keys whose scores are summed at once; ``keys``: of a tile; ``out_rows``: rows of the second product at once,
    of tensor units a warp's; ``parts``: of the keys, which blocks of a device take side by side
    (``online_softmax_emit.py``); ``stages``: tiles of keys in shared memory at a time, of tensor units.
    """

    lanes: int
    along: str
    rows: int
    block: int
    keys: int
    out_rows: int
    parts: int = 1
    stages: int = 0

    @property
    def tile_rows(self) -> int:
        """Rows of a tile."""
        return self.rows * (self.lanes if self.along == ROWS else 1)

    @property
    def warps(self) -> int:
        """Of tensor units: those of a block."""
        return self.rows // self.out_rows

    @property
    def threads(self) -> int:
        """Of tensor units: those of a block, of a warp the lanes."""
        return self.lanes * (self.warps + (GROUP_WARPS if self.along == FED else 0))

    @property
    def lane_axis(self) -> int:
        """None of the output's axes alone."""
        return -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlinePlan:
    """Online softmax and a schedule."""

    sums: OnlineSoftmax
    schedule: OnlineSchedule

    @property
    def graph(self) -> Graph:
        """Graph that is computed."""
        return self.sums.graph

    @property
    def output(self) -> str:
        """The tensor that the program writes."""
        return self.graph.outputs[0]

    @property
    def operand_bytes(self) -> int:
        """Memory of the operand of a tile's rows, which every block of keys reads."""
        assert isinstance(self.sums.depth[1], int), "the rule asks for known extents"
        return 4 * self.sums.depth[1] * self.schedule.tile_rows

    @property
    def scratch_bytes(self) -> int:
        """Memory of a thread's stack that a call takes; of tensor units shared memory of a block."""
        if self.schedule.along in ON_UNITS:
            return shared_bytes(self)
        rows, depth, column = self.schedule.tile_rows, self.sums.depth[1], self.sums.column[1]
        assert isinstance(depth, int) and isinstance(column, int), "the rule asks for known extents"
        packed = depth * rows if self.schedule.along == ROWS else 0
        return 4 * (packed + rows * self.schedule.keys + rows * padded(column, self.schedule.lanes) + 3 * rows)


def padded(extent: int, lanes: int) -> int:
    """An extent in whole vectors."""
    return -(-extent // lanes) * lanes


def shared_bytes(plan: OnlinePlan) -> int:
    """Bytes that a block on tensor units stages in 16 bits: its rows, and the ring of tiles of keys and of what they weigh.

    As ``ht_attend`` of device/attention.cuh lays it out: rows 16 bytes longer than a multiple of 32, for the banks' sake.
    """
    depth, column, s = plan.sums.depth[1], plan.sums.column[1], plan.schedule
    assert isinstance(depth, int) and isinstance(column, int), "the rule asks for known extents"
    if s.along in TOGETHER:  # as ``ht_panels``: whole panels, no gaps
        pitch, other = (padded(extent, PANEL) for extent in (depth, column))
    else:
        pitch, other = (padded(extent, PIECE) + PIECE // 2 for extent in (depth, column))
    meetings = MEETING_BYTES * (4 * s.stages + 2) if s.along == FED else 0
    return 2 * (s.rows * max(pitch, other) + s.stages * s.keys * (pitch + other)) + meetings


def online_plan(sums: OnlineSoftmax, schedule: OnlineSchedule) -> OnlinePlan:
    """The plan of a schedule. UsageError where its parts do not fit each other, or not a thread's stack."""
    plan = OnlinePlan(sums=sums, schedule=schedule)
    for extent in (sums.depth[1], sums.column[1]):
        if not isinstance(extent, int):
            raise UsageError(f"{extent} must be known, since tiles of scratch memory have its extent")
    if schedule.tile_rows % schedule.out_rows:
        raise UsageError(f"tiles of {schedule.tile_rows} rows are not whole groups of {schedule.out_rows}")
    if schedule.keys % schedule.lanes:
        raise UsageError(f"tiles of {schedule.keys} keys are no whole vectors of {schedule.lanes}")
    if schedule.along in ON_UNITS:
        _check_pieces(plan)
    if schedule.parts > 1 and (schedule.along == ROWS or str(sums.key[1]) not in sums.graph.dimensions):
        raise UsageError(f"parts of {sums.key[1]} are of programs without rows along the lanes, and of one dimension")
    most = MOST_WIDE if schedule.along in TOGETHER else MOST_SCRATCH
    if plan.scratch_bytes > most:
        raise UsageError(f"the tiles take {plan.scratch_bytes} bytes of scratch memory, more than {most}")
    return plan


def _check_pieces(plan: OnlinePlan) -> None:
    s, sums = plan.schedule, plan.sums
    if s.keys % PIECE or s.out_rows % PIECE or s.rows % s.out_rows or s.stages < 2:
        raise UsageError(
            f"tensor units take {PIECE} rows and keys at once, and two stages: not {s.rows} rows, {s.out_rows} a warp, "
            f"{s.keys} keys in {s.stages} stages"
        )
    rows = FED_ROWS if s.along == FED else (GROUP_ROWS,)
    together = s.along in TOGETHER
    if together and (s.rows not in rows or s.out_rows != PIECE or s.keys > MOST_COLUMNS or s.parts > 1):
        raise UsageError(
            f"four warps take {GROUP_ROWS} rows together, {PIECE} each, a block {rows}, and up to {MOST_COLUMNS} keys, "
            f"without parts: not {s.rows} rows, {s.out_rows} a warp, {s.keys} keys in {s.parts} parts"
        )
    for _, extent in (sums.depth, sums.column):
        if isinstance(extent, int) and together and extent > MOST_COLUMNS:
            raise UsageError(f"four warps multiply up to {MOST_COLUMNS} columns together, not {extent}")
        if isinstance(extent, int) and extent % (PIECE // 2):
            raise UsageError(f"tensor units read {PIECE // 2} elements at once; {extent} is no multiple of it")


def describe_online_softmax(plan: OnlinePlan) -> dict[str, str]:
    """A plan's decisions in words, by their kind."""
    schedule, sums = plan.schedule, plan.sums
    row, key, depth = str(sums.row[1]), str(sums.key[1]), str(sums.depth[1])
    outer = " x ".join([*(str(extent) for _, extent in sums.outer), row])
    skips = f"; tiles of {key} beyond the last one that a row sees are skipped" if sums.last is not None else ""
    if schedule.along in ON_UNITS:
        return _describe_tensor(plan, row, key, outer, skips)
    lanes = f"{row}" if schedule.along == ROWS else f"{depth} of the first product, {key} of the exponentials"
    rows = f"{schedule.rows} vectors of {row}" if schedule.along == ROWS else f"{schedule.rows} of {row}"
    turned = "their operand, turned, " if schedule.along == ROWS else ""
    parts = f"; workers share {key} in {schedule.parts} parts, joined by their maxima" if schedule.parts > 1 else ""
    return {
        "parallel": f"{schedule.lanes} lanes along {lanes}, and along {sums.column[1]} of the second product; "
        f"threads share {outer}{parts}",
        "movement": f"scores in tiles of {schedule.tile_rows} x {schedule.keys}, the sums of a tile's rows and {turned}"
        f"in {plan.scratch_bytes:,} bytes of the stack; no tensor of {row} x {key}",
        "computation": f"online: the maximum so far, sums rescaled once a tile; {rows} x {schedule.block} keys of the first "
        f"product at once, {schedule.out_rows} rows of the second{skips}",
    }


def _describe_tensor(plan: OnlinePlan, row: str, key: str, outer: str, skips: str) -> dict[str, str]:
    s = plan.schedule
    parts = f"; blocks share {key} in {s.parts} parts, joined by their maxima" if s.parts > 1 else ""
    four = f", four multiply {GROUP_ROWS} rows together" if s.along in TOGETHER else ""
    four += ", four more bring keys" if s.along == FED else ""
    return {
        "parallel": f"{s.warps} warps with {s.out_rows} rows each, on units for small matrices{four}; "
        f"blocks share {outer}{parts}",
        "movement": f"{s.stages} tiles of {s.keys} {key} and a tile of {s.rows} {row} in {plan.scratch_bytes:,} bytes of "
        f"shared memory, a block; scores and sums in registers; no tensor of {row} x {key}",
        "computation": "online: the maximum so far, sums rescaled once a tile"
        f"{', exponentials of a tile while its neighbours are multiplied' if s.along in TOGETHER else ''}; "
        f"exponentials are rounded to 16 bits where they enter the second product{skips}",
    }


def in_parts(sums: OnlineSoftmax, among: Iterable[OnlineSchedule], parts: int) -> list[OnlineSchedule]:
    """Those of some schedules whose keys may be cut, so cut."""
    result = []
    for item in among:
        try:
            result.append(online_plan(sums, replace(item, parts=parts)).schedule)
        except UsageError:
            continue
    return result


def schedules(sums: OnlineSoftmax, lanes: int) -> Iterator[OnlineSchedule]:
    """Every schedule of the space that has a plan, in a fixed order."""
    wide = lanes >= 16  # twice as many registers come with such vectors
    blocks = {1: (8, 12) if wide else (6, 8), 2: (8, 12) if wide else (4, 6), 3: (6, 8) if wide else (3, 4)}
    for along, rows, keys, out in (
        *((ROWS, many, of, out) for many in (1, 2, 3) for of in (64, 128) for out in (4, 8 if many < 3 else 6)),
        *((DEPTH, many, of, many) for many in (1, 2, 4) for of in (64, 256)),
    ):
        for block in blocks[rows] if along == ROWS else (1, 4):
            try:
                schedule = OnlineSchedule(lanes=lanes, along=along, rows=rows, block=block, keys=keys, out_rows=out)
                yield online_plan(sums, schedule).schedule
            except UsageError:
                continue


@dataclass(frozen=True)
class OnlineSpace(Space):
    """All schedules of an online softmax for vectors of so many lanes. A point without a plan is no point."""

    sums: OnlineSoftmax

    @cached_property
    def _every(self) -> frozenset[OnlineSchedule]:
        usual = list(schedules(self.sums, self.lanes))
        return frozenset(usual + (in_parts(self.sums, usual, SLICES * self.workers) if self.workers > 1 else []))

    @cached_property
    def holes(self) -> tuple[Hole, ...]:
        """Free choices: what runs along the lanes first, then tiles, then what an iteration computes."""
        first, second = self.sums.product.tensor, self.graph.outputs[0]

        def hole(name: str, node: str) -> Hole:
            return Hole(name, node, tuple(sorted({getattr(item, name) for item in self._every})))

        along = Hole("along", STRUCTURE, (0, 1))  # rows, depth
        return (along, hole("rows", STRUCTURE), hole("keys", STRUCTURE), hole("block", first), hole("out_rows", second),
                hole("parts", second))  # fmt: skip

    def _canonical(self, point: Sequence[int]) -> Point | None:
        return tuple(point) if self.schedule(tuple(point)) in self._every else None

    def schedule(self, point: Point) -> Any:
        """The schedule of a point."""
        value = {hole.name: hole.choices[at] for hole, at in zip(self.holes, point, strict=True)}
        return OnlineSchedule(lanes=self.lanes, along=ALONG[value.pop("along")], **value)
