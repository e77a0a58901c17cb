"""``Needed``: the ops of a model with the shapes that its layers saw, as a trace that ``haotuner tune`` takes."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from haotuner.errors import UsageError
from haotuner.spec.shape import Shape
from haotuner.spec.trace import FORMATS

Call = tuple[str, str, Shape]  # name of a layer, op spec, shape


class Needed(dict[str, int]):
    """``{--op spec: times}``, the most frequent first, and the calls that were counted.

    The sum of two has the calls of both: of small and large images, say. A pack that is tuned for their trace serves each op
    over the whole range between its least and its largest sizes.
    """

    def __init__(self, counts: Mapping[str, int], calls: Mapping[Call, int] | None = None) -> None:
        super().__init__(Counter(counts).most_common())
        self.calls: Mapping[Call, int] = dict(calls or {})  # how often; none where the model did not run

    @property
    def layers(self) -> Mapping[str, tuple[str, ...]]:
        """Name of a layer -> the shapes that it saw, as ``--shapes`` writes them: ``b=1;h=16;w=16``."""
        shapes: dict[str, list[str]] = {}
        for layer, _, shape in self.calls:
            shapes.setdefault(layer, []).append(str(shape))
        return {layer: tuple(dict.fromkeys(each)) for layer, each in shapes.items()}

    def __add__(self, other: object) -> Needed:
        if not isinstance(other, Needed):
            return NotImplemented
        return Needed(Counter(self) + Counter(other), Counter(self.calls) + Counter(other.calls))

    def write_trace(self, path: str | Path) -> Path:
        """Write ``path``, a ``.jsonl`` file of (op, shape, how often), for ``haotuner tune --shapes``.

        UsageError: no example was run, or another suffix.
        """
        file = Path(path)
        if file.suffix.lower() != FORMATS[1]:
            raise UsageError(f"write_trace({str(path)!r}): a trace of several ops ends in {FORMATS[1]}; name it so")
        if not self.calls:
            raise UsageError("write_trace: no layer was called; give ops_of the arguments of a run: ops_of(model, x)")
        rows: Counter[tuple[str, Shape]] = Counter()
        for (_, spec, shape), times in self.calls.items():
            rows[spec, shape] += times
        lines = [json.dumps({"op": spec, **shape.as_dict(), "weight": times}) for (spec, shape), times in rows.items()]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return file


def row_shape(x: Any) -> Shape | None:
    """Shape that a linear sees of ``x`` (..., k): its rows; None without rows."""
    return _shape(m=math.prod(x.shape[:-1]))


def image_shape(x: Any, sides: int) -> Shape | None:
    """Shape that a convolution of so many sides sees of ``x`` ([b,] c, [h,] w); None without elements."""
    spatial = dict(zip(("h", "w")[-sides:], x.shape[-sides:], strict=True))
    return _shape(b=math.prod(x.shape[: -sides - 1]), **spatial)


def _shape(**extents: int) -> Shape | None:
    return Shape.of(extents) if all(extents.values()) else None
