"""Panels of a pack's whole models: graph with kernels, time by step, cost of groups, predictions."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from haotuner.cli.explain_model import step_summary
from haotuner.cli.pages.figures import COLOURS, ROOF, US, Figure, Page, Panel, bars, figure, line, points, us_text
from haotuner.cli.pages.sources import MODEL_RACE, PREDICTIONS, STEPS, PackSource, Sources
from haotuner.errors import HaotunerError
from haotuner.runtime.chain_bound import is_chain
from haotuner.runtime.model_bound import opened_model
from haotuner.runtime.schedule import ExecutionPlan
from haotuner.spec.shape import Shape

MOST_STEPS = 1200  # of a graph: more are a cloud
KERNELS_NAMED = 4  # of an op beside the pointer
FEW_STEPS = 120  # of a graph whose steps are drawn large
BEND = 0.45  # of a line between steps that lie apart, in distances of lanes
MOST_REGIONS = 40  # of the groups' costs, the dearest
_WORDS = {"loops": "generated groups", "online": "attention", "append": "caches", "input": "inputs"}
_COLOURS = {
    "input": ROOF,
    "dense": COLOURS[0],
    "conv": COLOURS[1],
    "loops": COLOURS[2],
    "online": COLOURS[4],
    "append": COLOURS[6],
}
_OTHERS = (COLOURS[5], COLOURS[3], COLOURS[7], COLOURS[8])
Step = Mapping[str, Any]


def model_page(sources: Sources) -> Page | None:
    """The page of models; None where there is none."""
    models = _models(sources)
    if not models:
        return None
    graphs, no_graph = _graphs(models)
    documents = {d["model"]: d for _, _, d in _of(sources, STEPS)}
    steps = {choice: timeline(documents[name]) for choice, (name, _) in models.items() if name in documents}
    plans = {choice: source.manifest.tuning.get("models", {}).get(name, {}) if source is not None else {}
             for choice, (name, source) in models.items()}  # fmt: skip
    groups = {choice: drawn for choice, plan in plans.items() if (drawn := group_figure(plan)) is not None}
    predictions = {choice: drawn for choice, (name, _) in models.items()
                   if (drawn := prediction_figure(name, plans[choice], sources)) is not None}  # fmt: skip
    races = {choice: drawn for choice, (name, source) in models.items()
             if (drawn := race_figure(name, sources, source.manifest.device_id if source is not None else ""))}  # fmt: skip
    names = list(models)
    pack = str(sources.packs[0].path) if sources.packs else "PACK"
    explain = f"haotuner explain {pack} --model"
    return Page(
        title="Models",
        noun="model",
        choices=names,
        panels=(
            Panel(
                title="Graph",
                about="Steps in the order of their data, each with what computes it. Names stand beside the pointer.",
                source="the model's schedule in the pack",
                figures=graphs,
                missing={name: no_graph.get(name, "no pack with this model was named") 
                         for name in names if name not in graphs},
            ),
            Panel(
                title="Time by step",
                about="One request: every step, as wide as it takes.",
                source=sources.files(STEPS) or "explain --shape --json",
                figures=steps,
                missing={n: f"no step was timed: {explain} {name} --shape SIZES --json > steps.json, then name it here, too"
                         for n, (name, _) in models.items() if n not in steps},
            ),
            Panel(
                title="Cost of the groups",
                about="Time of a request in each region, by the chosen plan and by greedy fusion.",
                source="the pack's manifest",
                figures=groups,
                missing={name: "the manifest has no plan of it" for name in names if name not in groups},
            ),
            Panel(
                title="Predicted and measured",
                about="What tuning expected of requests, and what they take.",
                source=f"the pack's manifest{', ' * bool(sources.files(PREDICTIONS))}{sources.files(PREDICTIONS)}",
                figures=predictions,
                missing={n: f"nothing was measured: {explain} {name} --predicted --json > times.json, then name it here, too"
                         for n, (name, _) in models.items()
                         if name not in {d["model"] for _, _, d in _of(sources, PREDICTIONS)}},
            ),
            Panel(
                title="Races",
                about="A request in steady state, against other libraries.",
                source=sources.files(MODEL_RACE) or "bench --model --json",
                figures=races,
                missing={n: f"no race: haotuner bench {pack} --model {name} --file MODEL.onnx --json > race.json"
                         for n, (name, _) in models.items() if n not in races},
            ),
        ),
    )  # fmt: skip


def _of(sources: Sources, kind: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    return (document for document in sources.documents if document[0] == kind)


def _models(sources: Sources) -> dict[str, tuple[str, PackSource | None]]:
    """Name and pack of each model by its choice, which names the pack where several have the model; None: of a document."""
    every = [(name, source) for source in sources.packs for name in source.manifest.models]
    shared = [name for name, count in Counter(name for name, _ in every).items() if count > 1]
    result: dict[str, tuple[str, PackSource | None]] = {
        f"{name}, {sources.label_of(source)}" if name in shared else name: (name, source) for name, source in every
    }
    names = {name for name, _ in every}
    documents = [document["model"] for kind in (STEPS, PREDICTIONS) for _, _, document in _of(sources, kind)]
    return result | {name: (name, None) for name in documents if name not in names}


def _graphs(models: Mapping[str, tuple[str, PackSource | None]]) -> tuple[dict[str, Figure], dict[str, str]]:
    """Graphs by model, and reasons where there is none."""
    graphs: dict[str, Figure] = {}
    reasons: dict[str, str] = {}
    for choice, (name, source) in models.items():
        if source is None:
            continue
        try:
            with opened_model(source.path, source.manifest, name) as files:
                if is_chain(files.schedule):
                    reasons[choice] = "its sizes depend on data: its segments are models of their own here"
                    continue
                kernels = {entry.name: entry.kernels for entry in source.manifest.ops}
                graphs[choice] = graph(ExecutionPlan.of(files.schedule, files.where), kernels)
        except HaotunerError as error:
            reasons[choice] = str(error)
    return graphs, reasons


def _colours(kinds: Iterable[str]) -> dict[str, str]:
    """Colours of kinds of steps: usual ones look alike in every figure, others differ from one another."""
    others = itertools.cycle(_OTHERS)
    return {kind: _COLOURS.get(kind) or next(others) for kind in dict.fromkeys(kinds)}


def graph(plan: ExecutionPlan, kernels: Mapping[str, Sequence[str]]) -> Figure:
    """Steps in layers: each stands behind all that it reads, from left to right. ``kernels``: of the ops, by name."""
    way = plan.ways[-1] if plan.ways else None  # of several plans that of the largest sizes
    every = plan.steps[way.first : way.end] if way is not None else plan.steps
    tensors, alias = set(plan.tensors), {str(step["out"]): str(step["of"]) for step in every if step["do"] == "alias"}
    steps = [step for step in every if step["do"] != "alias"][:MOST_STEPS]
    ends = [{"do": "input", "what": "input", "makes": end.tensor} for end in plan.inputs]
    nodes = [*ends, *({"do": step["do"], **step_summary(step)} for step in steps)]
    reads = [list[str]() for _ in ends] + [_read(step, tensors, alias) for step in steps]
    maker: dict[str, int] = {}
    depth: list[int] = []
    behind: list[list[str]] = []  # the steps that each stands behind, in words
    lanes: dict[int, int] = {}
    spots: list[tuple[int, float]] = []
    edges_x: list[float | None] = []
    edges_y: list[float | None] = []
    for index, (node, sources) in enumerate(zip(nodes, reads, strict=True)):
        makers = sorted({maker[name] for name in sources if name in maker})
        behind.append([f"reads {', '.join(str(nodes[at]['makes']) for at in makers)}"] if makers else [])
        depth.append(max((depth[at] + 1 for at in makers), default=0))
        lane = lanes[depth[-1]] = lanes.get(depth[-1], -1) + 1
        spots.append((depth[-1], (lane + 1) // 2 * (-1.0 if lane % 2 else 1.0)))
        for at in makers:
            (from_x, from_y), (to_x, to_y) = spots[at], spots[-1]
            aside = BEND if to_x - from_x > 1 else 0.0  # a straight line would run through the steps between
            edges_x += [from_x, (from_x + to_x) / 2, to_x, None]
            edges_y += [from_y, (from_y + to_y) / 2 + aside, to_y, None]
        for name in str(node["makes"]).split(", "):
            maker[name] = index
    edges = {**line("tensors", edges_x, edges_y, [], ROOF), "hoverinfo": "skip", "showlegend": False}
    edges["line"] |= {"width": 1, "shape": "spline"}
    data = [edges]
    for kind, colour in _colours(str(node["do"]) for node in nodes).items():
        own = [at for at, node in enumerate(nodes) if node["do"] == kind]
        texts = ["\n".join([nodes[at]["makes"], nodes[at]["what"], *behind[at],
                            *kernels.get(nodes[at]["what"], ())[:KERNELS_NAMED]]) for at in own]  # fmt: skip
        drawn = points(_WORDS.get(kind, kind), [spots[at][0] for at in own], [spots[at][1] for at in own], texts,
                       colour, symbol="square" if kind == "loops" else "circle")  # fmt: skip
        drawn["marker"]["size"] = 12 if len(nodes) <= FEW_STEPS else 7
        data.append(drawn)
    result = figure(data, "steps, from the inputs to the outputs", "", x_type="linear", y_type="linear", dragmode="pan")
    result["layout"]["xaxis"] |= {"showticklabels": False, "showgrid": False, "zeroline": False}
    result["layout"]["yaxis"] = {"visible": False, "fixedrange": False}
    return result


def _read(step: Step, tensors: set[str], alias: Mapping[str, str]) -> list[str]:
    """Tensors that a step names and does not make, each by the name under which a step outputs it."""
    outputs = set(str(step_summary(step)["makes"]).split(", "))
    names = [text for text in _texts(step) if text in tensors and text not in outputs]
    result = []
    for name in names:
        for _ in range(len(alias) + 1):  # a view of a view
            if name not in alias:
                break
            name = alias[name]
        result.append(name)
    return result


def _texts(value: Any) -> Iterator[str]:
    """Every text in a step, at any depth: attention names its operands inside of its views."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, Mapping)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def timeline(document: Mapping[str, Any]) -> Figure:
    """Steps one behind the other, by what they do."""
    rows = sorted(document["steps"], key=lambda row: row.get("at", 0))
    begin, spans = 0.0, []
    for row in rows:
        spans.append((begin, row))
        begin += row["us"]
    data, whole = [], max(begin, 1e-9)
    for kind, colour in _colours(row["do"] for row in rows).items():
        own = [(start, row) for start, row in spans if row["do"] == kind]
        texts = [f"{row['what']}\nmakes {row['makes']}\n{us_text(row['us'])} from {us_text(start)}" for start, row in own]
        widths = [row["us"] for _, row in own]
        label = f"{_WORDS.get(kind, kind)}, {math.fsum(widths) / whole:.0%}"
        drawn = bars(label, widths, [label] * len(own), texts, colour)
        drawn["base"] = [start for start, _ in own]
        data.append(drawn)
    where = str(Shape.of(document["shape"])) or "fixed sizes"
    return figure(data, f"time of a request, {where}", "", x_type="linear", y_type="category", x_unit=US, rows=2 * len(data),
                  barmode="overlay")  # fmt: skip


def group_figure(plan: Mapping[str, Any]) -> Figure | None:
    """Cost of each region; None of a plan without regions."""
    regions = [(region["outputs"][0], *(sum(item["us"] for item in region.get(who, ())) for who in ("chosen", "greedy")))
               for region in plan.get("regions", ()) if region.get("outputs")]  # fmt: skip
    if not regions:
        return None
    regions = sorted(regions, key=lambda row: -row[1])[:MOST_REGIONS]
    labels = [name for name, *_ in regions]
    data = []
    for index, who in enumerate(("chosen plan", "greedy fusion")):
        values = [row[1 + index] for row in regions]
        data.append(bars(who, values, labels, [f"{name}: {us_text(us)}" for name, us in zip(labels, values, strict=True)],
                         (COLOURS[0], COLOURS[1])[index]))  # fmt: skip
    return figure(data, "time of a request", "", x_type="linear", y_type="category", x_unit=US, rows=2 * len(regions))


def prediction_figure(name: str, plan: Mapping[str, Any], sources: Sources) -> Figure | None:
    """Requests as predicted, and as measured; None where neither is known."""
    data = []
    for index, (threads, known) in enumerate(plan.get("predicted_us", {}).items()):
        requests = dict(sorted(known.items(), key=lambda item: [int(size) for size in re.findall("[0-9]+", item[0])]))
        labels = [sizes or "fixed sizes" for sizes in requests]
        values = [us.get("all") for us in requests.values()]
        texts = [f"{sizes}: {us_text(us or 0)} expected" for sizes, us in zip(labels, values, strict=True)]
        data.append(bars(f"expected, threads: {threads}", values, labels, texts, COLOURS[0 if index == 0 else 5]))
    for _, _, document in _of(sources, PREDICTIONS):
        if document["model"] == name:
            labels = [str(Shape.of(row["shape"])) or "fixed sizes" for row in document["rows"]]
            values = [row["measured_us"].get("all") for row in document["rows"]]
            texts = [f"{where}: {us_text(us or 0)} measured, a call {us_text(row['call_us'])}"
                     for where, us, row in zip(labels, values, document["rows"], strict=True)]  # fmt: skip
            data.append(bars(f"measured, threads: {document.get('threads', '?')}", values, labels, texts, COLOURS[1]))
    rows = len({label for drawn in data for label in drawn["y"]})
    if not rows:
        return None
    return figure(data, "time of a request", "", x_type="linear", y_type="category", x_unit=US, rows=(1 + len(data)) * rows)


def race_figure(name: str, sources: Sources, device: str = "") -> Figure | None:
    """Requests of a race, of that device or of one that is not named; None where there was none."""
    rows = [row for row in sources.rows(MODEL_RACE, device) if row["model"] == name]
    labels = [f"{str(Shape.of(row['shape'])) or 'fixed sizes'}, threads: {row['threads']}" for row in rows]
    data = []
    for index, who in enumerate(["ours", *dict.fromkeys(peer for row in rows for peer in row["peers"])] if rows else ()):
        values = [row["steady_us"] if index == 0 else row["peers"].get(who, {}).get("steady_us") for row in rows]
        texts = [f"{label}: {us_text(us or 0)}" for label, us in zip(labels, values, strict=True)]
        data.append(bars(who, values, labels, texts, COLOURS[index % len(COLOURS)]))
    if not rows:
        return None
    return figure(
        data, "time of a request", "", x_type="linear", y_type="category", x_unit=US, rows=(1 + len(data)) * len(rows)
    )
