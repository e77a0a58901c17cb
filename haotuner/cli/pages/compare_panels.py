"""Panels of a comparison: what one pack, store or race gains and loses against another, by shape."""

from __future__ import annotations

import math
from collections.abc import Iterator

from haotuner.cli.pages.figures import COLOURS, EVERY, ROOF, TIMES, Figure, Page, Panel, Table, figure, points, us_text
from haotuner.cli.pages.op_panels import OpPlan, plans_of
from haotuner.cli.pages.sources import MODEL_RACE, RACE, Sources
from haotuner.cli.pages.store_panels import position, shape_of
from haotuner.spec.shape import Shape

Times = dict[tuple[str, str, str], dict[Shape, float]]  # op, conditions, source of the times -> by shape
PLANNED, TIMED, RACED, STORED = "as planned", "timed while tuning", "as raced", "best of the records"
SAME = 0.01  # a difference of less is noise
NAMED = 20  # ops that only one of both has
WORST = 25  # rows of the table


def compare_page(own: Sources, other: Sources, own_name: str, other_name: str) -> Page:
    """The page of gains and losses; a ratio over 1 means that ``own`` is faster."""
    several = any(len({pack.manifest.device_id for pack in side.packs}) > 1 for side in (own, other))
    mine, theirs = _times(own, several), _times(other, several)
    figures: dict[str, Figure] = {}
    ratios: list[tuple[float, str, str, Shape, float, float]] = []
    by_op: dict[str, list[tuple[str, dict[Shape, float]]]] = {}
    for key in sorted(mine.keys() & theirs.keys()):
        op, conditions, kind = key
        shared = {shape: theirs[key][shape] / us for shape, us in mine[key].items() if theirs[key].get(shape) and us > 0}
        if shared:
            by_op.setdefault(f"{op}, {conditions}", []).append((kind, shared))
            ratios += [(ratio, f"{op}, {conditions}", kind, shape, mine[key][shape], theirs[key][shape])
                       for shape, ratio in shared.items()]  # fmt: skip
    for choice, lines in by_op.items():
        figures[choice] = _figure(choice.partition(",")[0], lines)
    rows = []
    for kind in dict.fromkeys(of for _, _, of, *_ in ratios):
        known = [ratio for ratio, _, of, *_ in ratios if of == kind]
        if known:
            mean = math.exp(math.fsum(map(math.log, known)) / len(known))
            gains, losses = (sum(ratio > 1 + SAME for ratio in known), sum(ratio < 1 - SAME for ratio in known))
            rows.append((kind, f"{mean:.3f}x", str(gains), str(losses), str(len(known) - gains - losses)))
    worst = sorted(ratios, key=lambda row: row[0])
    ends = (*worst[:WORST], *worst[max(WORST, len(worst) - WORST) :])
    table = [
        (f"{ratio:.3f}x", op, str(shape), kind, us_text(us), us_text(before)) for ratio, op, kind, shape, us, before in ends
    ]
    about = f"How many times as fast {own_name} is as {other_name}. Below 1x it is slower."
    ops, other_ops = ({op for op, *_ in times} for times in (mine, theirs))
    left_out = ((own_name, ops - other_ops), (other_name, other_ops - ops))
    only = [f"only in {name}: {', '.join(sorted(left)[:NAMED])}" for name, left in left_out if left]
    nothing = "both have no time of one op, thread count and shape in common; race both with haotuner bench --json"
    source = f"{own_name}, {other_name}"
    return Page(
        title="Compare",
        noun="operator",
        choices=list(figures),
        panels=(
            Panel(
                title="Summary",
                about=about,
                source="; ".join((source, *only)),
                tables={EVERY: Table(("times", "geometric mean", "faster", "slower", "the same"), rows)} if rows else {},
                missing={} if rows else {EVERY: nothing},
            ),
            Panel(title="Gains and losses by shape", about=about, source=source, figures=figures,
                  missing={} if figures else {EVERY: nothing}),
            Panel(
                title="Most lost, most gained",
                about=about,
                source=source,
                tables={EVERY: Table(("ratio", "operator", "shape", "times", own_name, other_name), table)} if table else {},
                missing={} if table else {EVERY: nothing},
            ),
        ),
    )  # fmt: skip


def _times(sources: Sources, several: bool) -> Times:
    """Times of one side; ``several``: of more than one device, whose packs or levels are compared with their like."""
    times: Times = {}
    for plan in plans_of(sources):
        device = f", {plan.source.manifest.device_id}" if several else ""
        for kind, known in _of_plan(plan):
            times[plan.entry.name, f"threads: {plan.threads}{device}", kind] = known
    for row in sources.rows(RACE):
        if row["ours_us"]:
            kind = f"{RACED}{'' if row['weights'] == 'cold' else ', hot'}{', contended' * bool(row.get('contended'))}"
            key = row["op"], f"threads: {row['threads']}", kind
            times.setdefault(key, {})[Shape.of(row["shape"])] = row["ours_us"]
    for row in sources.rows(MODEL_RACE):
        times.setdefault((row["model"], f"threads: {row['threads']}", RACED), {})[Shape.of(row["shape"])] = row["steady_us"]
    for store in sources.stores:
        for best in store.statistics.summary.best:
            if (shape := shape_of(best.shape)) is not None:
                key = str(best.op), f"{best.device}, threads: {best.threads}, {best.cache}", STORED
                times.setdefault(key, {})[shape] = best.us
    return times


def _of_plan(plan: OpPlan) -> Iterator[tuple[str, dict[Shape, float]]]:
    yield PLANNED, {shape: us for shape in plan.expected if (us := plan.time(shape)) is not None}
    yield TIMED, {shape: min(labels.values()) for shape, labels in plan.measured.items() if labels}


def _figure(op: str, lines: list[tuple[str, dict[Shape, float]]]) -> Figure:
    data, titles = [], set()
    for index, (kind, ratios) in enumerate(lines):
        rows = []
        for shape, ratio in ratios.items():
            title, x = position(op, shape) if shape.axes else ("request", 1.0)
            titles.add(title)
            rows.append((x, ratio, f"{shape}: {ratio:.3f}x"))
        rows.sort()
        xs, ys, texts = zip(*rows, strict=True)
        data.append(points(kind, xs, ys, texts, COLOURS[index % len(COLOURS)], joined=True))
    equal = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": {"color": ROOF, "dash": "dash"}}
    return figure(data, " or ".join(sorted(titles)), "times as fast", y_unit=TIMES, shapes=[equal])
