"""Row of the table of doors: what one model takes behind one door, beside the same server without haotuner."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model behind one door. A figure that a door does not have is None.

    ``cold_ms``: from the start of the process to a server that answers. ``first_ms``: the first call of a new shape.
    ``p50_us``, ``p99_us``: of a request at a time. ``throughput``: requests a second. ``memory_mb``: resident, at the end.
    ``beside``: the same figures of the server without haotuner, by the names above; empty where there is no such server.
    ``server``: the name and version of that server's own choice.
    """

    door: str
    model: str
    cold_ms: float | None = None
    first_ms: float | None = None
    p50_us: float | None = None
    p99_us: float | None = None
    throughput: float | None = None
    memory_mb: float | None = None
    beside: dict[str, float | None] | None = None
    server: str = ""


FIGURES = tuple(field.name for field in fields(Row) if field.name not in ("door", "model", "beside", "server"))
MORE_IS_BETTER = frozenset({"throughput"})


def ratio(row: Row, figure: str) -> float | None:
    """Times that haotuner is better in one figure: over 1 where it is; None where one of both is not known."""
    own, other = getattr(row, figure), (row.beside or {}).get(figure)
    if not own or not other:
        return None
    return float(own / other if figure in MORE_IS_BETTER else other / own)


def cells(row: Row) -> list[str]:
    """The row's cells: each figure, that of the other server, and the ratio."""
    result = [row.model, row.server]
    for figure in FIGURES:
        own, other, better = getattr(row, figure), (row.beside or {}).get(figure), ratio(row, figure)
        text = " / ".join(_number(value) for value in (own, other))
        result.append("" if own is None and other is None else f"{text} ({better:.2f}x)" if better else text)
    return result


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"
