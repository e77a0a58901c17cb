"""Traffic: which shapes arrive at run time, and how often; traces of real traffic from a file.

Traces: real traffic from a CSV or JSON Lines file with a header of axis names, optional ``op`` and ``weight``.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from io import TextIOWrapper
from pathlib import Path

from haotuner.errors import UsageError
from haotuner.host.files import open_regular
from haotuner.spec.op import Op
from haotuner.spec.shape import AXIS_LIMIT, Shape, ShapeRange, Span

_PRIMES = (2, 3, 5, 7, 11, 13)  # bases of a Halton sequence, one an axis


@dataclass(frozen=True, slots=True)
class Traffic:
    """Shapes with the weight each has in the objective; weights sum to 1."""

    weighted: tuple[tuple[Shape, float], ...]

    @staticmethod
    def of_range(shapes: ShapeRange, samples: int = 101) -> Traffic:
        """Log-uniform traffic over a range (weight 1/extent), represented by at most ``samples`` shapes in all.

        Each sampled extent stands for the extents nearest to it, so its weight is their share. Of several axes whose
        combinations are more, the shapes are the smallest, the largest, and points of a Halton sequence (Halton, 1960) in
        the axes' own shares. All of them count the same.
        """
        sampled = [(axis, span, span.sample(samples)) for axis, span in shapes.spans]
        axes = [(axis, extents, _of_span(span, extents)) for axis, span, extents in sampled]
        if math.prod(len(extents) for _, extents, _ in axes) <= samples:
            points: list[tuple[dict[str, int], float]] = [({}, 1.0)]
            for axis, extents, shares in axes:
                points = [({**p, axis: e}, w * s) for p, w in points for e, s in zip(extents, shares, strict=True)]
        else:
            points = [({axis: extents[end] for axis, extents, _ in axes}, 1.0) for end in (0, -1)]
            for index in range(1, samples - 1):
                drawn = {
                    axis: _at_share(extents, shares, _halton(index, base))
                    for (axis, extents, shares), base in zip(axes, _PRIMES, strict=False)
                }
                points.append((drawn, 1.0))
        return Traffic.of((Shape.of({**p, **{a: p[b] for a, b in shapes.tied}}), w) for p, w in points)

    @staticmethod
    def of(weighted: Iterable[tuple[Shape, float]]) -> Traffic:
        """Traffic from shapes and weights of any scale; equal shapes are merged."""
        merged: dict[Shape, float] = {}
        for shape, weight in weighted:
            if not (weight >= 0 and math.isfinite(weight)):
                raise UsageError(f"traffic: shape {shape} has weight {weight}; weights must be finite numbers from 0 up")
            merged[shape] = merged.get(shape, 0.0) + weight
        largest = max(merged.values(), default=0.0)
        if largest <= 0:
            raise UsageError("traffic: no shape with a positive weight; give a range such as m=1..2048 or a trace with rows")
        total = sum(weight / largest for weight in merged.values())  # the plain sum of huge weights is infinite
        return Traffic(
            tuple((shape, weight / largest / total) for shape, weight in sorted(merged.items(), key=lambda p: p[0].axes))
        )

    def shapes(self) -> tuple[Shape, ...]:
        """The shapes alone."""
        return tuple(shape for shape, _ in self.weighted)

    def __iter__(self) -> Iterator[tuple[Shape, float]]:
        """Pairs of shape and weight."""
        return iter(self.weighted)

    def __len__(self) -> int:
        """Number of distinct shapes."""
        return len(self.weighted)


def _shares(extents: tuple[int, ...], *, step: int | None) -> list[float]:
    """Weight of each extent under 1/extent; ``step`` is that of the span a sample was thinned from, None for all of it."""
    if step is None:
        return [1.0 / extent for extent in extents]
    # A thinned sample stands for its neighbourhood: integrate 1/x between the midpoints, half a step beyond the ends.
    edges = [max(extents[0] - step / 2, 0.5)]
    edges += [(a * b) ** 0.5 for a, b in zip(extents, extents[1:], strict=False)]
    edges += [extents[-1] + step / 2]
    return [math.log(high / low) for low, high in zip(edges, edges[1:], strict=False)]


def _of_span(span: Span, extents: tuple[int, ...]) -> list[float]:
    return _shares(extents, step=span.step if len(extents) < len(span) else None)


def _halton(index: int, base: int) -> float:
    """Point ``index`` of the van der Corput sequence in a base, in 0..1."""
    value, share = 0.0, 1.0
    while index:
        index, digit = divmod(index, base)
        share /= base
        value += digit * share
    return value


def _at_share(extents: tuple[int, ...], shares: list[float], at: float) -> int:
    """The extent at a quantile of the shares."""
    left = at * sum(shares)
    for extent, share in zip(extents, shares, strict=True):
        left -= share
        if left < 0:
            return extent
    return extents[-1]


SIZE_LIMIT_BYTES = 1 << 30  # a billion bytes are ten million requests; sample a longer trace
FORMATS = (".csv", ".jsonl")
_EXTENT = re.compile(r"0{0,20}[0-9]{1,10}")  # ASCII, and short enough to convert


def is_trace(text: str) -> bool:
    """True if ``--shapes`` names a trace file rather than ranges."""
    return text.lower().endswith(FORMATS)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Value of ``--shapes``, read once: a range, which any op may have, or the rows of a trace by op ("": of any)."""

    text: str
    shapes: ShapeRange | None
    rows: Mapping[str, Mapping[Shape, float]]
    own: Mapping[str, ShapeRange] = field(default_factory=dict)  # of ops of a workload that the range does not fit
    own_first: bool = False  # whether they come before a range that fits, too
    others: tuple[ShapeRange, ...] = ()  # ranges of other axes, for the ops that have them

    def with_own(self, shapes: Mapping[str, str], *, first: bool = False) -> Arrivals:
        """Copy with shapes of each op's own, as ``--shapes`` has them. ``first``: also where the range fits the op."""
        return replace(self, own={name: ShapeRange.parse(text) for name, text in shapes.items()}, own_first=first)

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops that a trace names, in the order in which they first come; none of a range."""
        return tuple(name for name in self.rows if name)

    def traffic(self, op: Op) -> Traffic:
        """Traffic of one op; rows of other ops are left out. UsageError: none, other axes, or no result."""
        result = self._traffic(op)
        for shape in result.shapes():
            _has_result(op, shape, self.text)
        return result

    def _traffic(self, op: Op) -> Traffic:
        if self.shapes is not None:
            if op.name in self.own and (self.own_first or set(self.shapes.axes()) != set(op.dynamic)):
                return Traffic.of_range(self.own[op.name])
            for other in self.others:
                if set(other.axes()) == set(op.dynamic):
                    return Traffic.of_range(other)
            _same_axes(op, set(self.shapes.axes()), self.text)
            return Traffic.of_range(self.shapes)
        weights: dict[Shape, float] = {}
        for name in ("", op.name):
            for shape, weight in self.rows.get(name, {}).items():
                weights[shape] = weights.get(shape, 0.0) + weight
        if not weights:
            names = f" (it names {', '.join(self.ops[:5])})" if self.ops else ""
            raise UsageError(
                f"trace {self.text} has no row for {op.name}{names}; its column op must name it, or be left out"
            )
        for shape in weights:
            _same_axes(op, set(shape.as_dict()), self.text)
        return Traffic.of(weights.items())


def arrivals_of(text: str, *more: str) -> Arrivals:
    """Read ``--shapes``: a range, or a trace, whose file is read to its end. UsageError says what is wrong with it.

    ``more``: ranges of other axes; each op takes the range that has its own.
    """
    if more and any(map(is_trace, (text, *more))):
        raise UsageError("--shapes is given twice, one of them a trace; a trace may give each op shapes of its own")
    if not is_trace(text):
        ranges = [ShapeRange.parse(text_) for text_ in (text, *more)]
        axes = [tuple(sorted(text_.axes())) for text_ in ranges]
        if twice := [text_ for text_ in axes if axes.count(text_) > 1]:
            raise UsageError(f"--shapes is given twice for the axes {', '.join(twice[0])}; an op has one range")
        return Arrivals(" and ".join((text, *more)), ranges[0], {}, others=tuple(ranges[1:]))
    rows: dict[str, dict[Shape, float]] = {}  # merged as it is read: a long trace has few different shapes
    for name, shape, weight in read_trace(Path(text)):
        of_op = rows.setdefault(name, {})
        of_op[shape] = of_op.get(shape, 0.0) + weight
    return Arrivals(text, None, rows)


def traffic_of(text: str, op: Op) -> Traffic:
    """Traffic of one op from ``--shapes``. Where there are several ops, read it once: ``arrivals_of``."""
    return arrivals_of(text).traffic(op)


def _same_axes(op: Op, inputs: set[str], text: str) -> None:
    if not op.dynamic:
        raise UsageError(
            f"{op.name} leaves no axis to run time, and shapes are of such axes: leave one out of the op and give it in "
            f"--shapes, as in {op.axes[0]}={op[op.axes[0]]}"
        )
    if inputs != set(op.dynamic):
        raise UsageError(
            f"shapes {text!r} give the axes {', '.join(sorted(inputs))}; {op.name} needs exactly {', '.join(op.dynamic)}. "
            "Ops of other axes have a --shapes of their own"
        )


def _has_result(op: Op, shape: Shape, text: str) -> None:
    """No kernel computes nothing: UsageError where a window is larger than its padded image."""
    extents = op.extents(shape)
    for axis in op.meaning.derived:
        if extents[axis] < 1:
            raise UsageError(
                f"shapes {text!r} hold {shape}, where {op.name} has no result (its axis {axis} would be {extents[axis]}): "
                "the window is larger than the padded image; ask for larger images"
            )


def read_trace(path: Path) -> Iterator[tuple[str, Shape, float]]:
    """Rows as (op name or "", shape, weight). UsageError names the file and the line."""
    try:
        # "-sig": spreadsheets put a byte order mark first
        with TextIOWrapper(open_regular(path, SIZE_LIMIT_BYTES), encoding="utf-8-sig", newline="") as lines:
            rows = _csv_rows(path, lines) if path.suffix.lower() == ".csv" else _json_rows(path, lines)
            for line, row in rows:
                yield _row(path, line, row)
    except OSError as error:
        raise UsageError(f"trace {path}: {error.strerror}; write the requests to a file, or sample a larger one") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"trace {path} is not UTF-8 text ({error.reason})") from error


def _csv_rows(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, Mapping[str, object]]]:
    reader = csv.DictReader(lines, restkey="", strict=True)
    try:
        header = [name.strip() for name in reader.fieldnames or ()]
        if len(set(header)) != len(header):
            raise UsageError(f"trace {path}: the header names a column twice: {','.join(header)[:200]}")
        for row in reader:
            if "" in row or None in row.values():
                raise UsageError(f"trace {path}, line {reader.line_num}: the header has {len(header)} columns")
            yield reader.line_num, row
    except csv.Error as error:
        raise UsageError(f"trace {path}, line {reader.reader.line_num}: {error}") from error


def _json_rows(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, Mapping[str, object]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"trace {path}, line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise UsageError(f'trace {path}, line {number}: expected an object such as {{"m": 37}}')
        yield number, row


def _row(path: Path, line: int, row: Mapping[str, object]) -> tuple[str, Shape, float]:
    axes = {str(key).strip(): value for key, value in row.items()}
    name, weight = str(axes.pop("op", "") or "").strip(), axes.pop("weight", 1)
    try:
        share = float(str(weight))
    except ValueError:
        share = math.nan
    if not (math.isfinite(share) and share >= 0):
        raise UsageError(f"trace {path}, line {line}: weight {str(weight)[:80]!r} is not a number from 0 up")
    extents = {}
    for axis, value in axes.items():
        digits = str(value).strip()
        if not (_EXTENT.fullmatch(digits) and 1 <= int(digits) <= AXIS_LIMIT):
            raise UsageError(f"trace {path}, line {line}: {axis}={str(value)[:80]!r} is not a whole number in 1..2^31-1")
        extents[axis] = int(digits)
    try:
        return (Op.parse(name).name if name else ""), Shape.of(extents), share
    except UsageError as error:
        raise UsageError(f"trace {path}, line {line}: {error}") from error
