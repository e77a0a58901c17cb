"""Panels of a pack's whole models: graph with kernels, time by step, cost of groups, predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from haotuner.cli.explain_model import step_summary
from haotuner.cli.pages.figures import COLOURS, ROOF, Figure, Page, Panel, bars, figure, line, points, us_text
from haotuner.cli.pages.sources import MODEL_RACE, PREDICTIONS, STEPS, PackSource, Sources
from haotuner.errors import HaotunerError
from haotuner.runtime.chain_bound import is_chain
from haotuner.runtime.model_bound import opened_model
from haotuner.runtime.schedule import ExecutionPlan
from haotuner.spec.shape import Shape

MOST_STEPS = 1200  # of a graph: more are a cloud
KERNELS_NAMED = 4  # of an op beside the pointer
MOST_REGIONS = 40  # of the groups' costs, the dearest
_KINDS = {"loops": COLOURS[2], "append": COLOURS[6], "conv": COLOURS[1], "attention": COLOURS[4]}
Step = Mapping[str, Any]


def model_page(sources: Sources) -> Page | None:
    """The page of models; None where there is none."""
    models = [(source, name) for source in sources.packs for name in source.manifest.models]
    names = list(dict.fromkeys(name for _, name in models))
    names += [name for kind in (STEPS, PREDICTIONS) for _, _, document in _of(sources, kind)
              if (name := document["model"]) not in names]  # fmt: skip
    if not names:
        return None
    graphs, no_graph = _graphs(models)
    steps = {d["model"]: timeline(d) for _, _, d in _of(sources, STEPS)}
    plans = {name: plan for source in sources.packs for name, plan in source.manifest.tuning.get("models", {}).items()}
    groups = {name: panel_figure for name, plan in plans.items() if (panel_figure := group_figure(plan)) is not None}
    predictions = {
        name: panel_figure
        for name in names
        if (panel_figure := prediction_figure(name, plans.get(name, {}), sources)) is not None
    }
    races = {name: panel_figure for name in names if (panel_figure := race_figure(name, sources)) is not None}
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
                missing={n: f"no step was timed: {explain} {n} --shape SIZES --json > steps.json, then name it here, too"
                         for n in names if n not in steps},
            ),
            Panel(
                title="Cost of the groups",
                about="Microseconds of a request in each region, by the chosen plan and by greedy fusion.",
                source="the pack's manifest",
                figures=groups,
                missing={name: "the manifest has no plan of it" for name in names if name not in groups},
            ),
            Panel(
                title="Predicted and measured",
                about="What tuning expected of requests, and what they take.",
                source=f"the pack's manifest{', ' * bool(sources.files(PREDICTIONS))}{sources.files(PREDICTIONS)}",
                figures=predictions,
                missing={n: f"nothing was measured: {explain} {n} --predicted --json > times.json, then name it here, too"
                         for n in names if n not in {d["model"] for _, _, d in _of(sources, PREDICTIONS)}},
            ),
            Panel(
                title="Races",
                about="A request in steady state, against other libraries.",
                source=sources.files(MODEL_RACE) or "bench --model --json",
                figures=races,
                missing={n: f"no race: haotuner bench {pack} --model {n} --file MODEL.onnx --json > race.json"
                         for n in names if n not in races},
            ),
        ),
    )  # fmt: skip


def _of(sources: Sources, kind: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    return (document for document in sources.documents if document[0] == kind)


def _graphs(models: Sequence[tuple[PackSource, str]]) -> tuple[dict[str, Figure], dict[str, str]]:
    """Graphs by model, and reasons where there is none."""
    graphs: dict[str, Figure] = {}
    reasons: dict[str, str] = {}
    for source, name in models:
        try:
            with opened_model(source.path, source.manifest, name) as files:
                if is_chain(files.schedule):
                    reasons[name] = "its sizes depend on data: its segments are models of their own here"
                    continue
                kernels = {entry.name: entry.kernels for entry in source.manifest.ops}
                graphs[name] = graph(ExecutionPlan.of(files.schedule, files.where), kernels)
        except HaotunerError as error:
            reasons[name] = str(error)
    return graphs, reasons


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
    lanes: dict[int, int] = {}
    spots: list[tuple[int, float]] = []
    edges_x: list[float | None] = []
    edges_y: list[float | None] = []
    for index, (node, sources) in enumerate(zip(nodes, reads, strict=True)):
        makers = sorted({maker[name] for name in sources if name in maker})
        depth.append(max((depth[at] + 1 for at in makers), default=0))
        lane = lanes[depth[-1]] = lanes.get(depth[-1], -1) + 1
        spots.append((depth[-1], (lane + 1) // 2 * (-1.0 if lane % 2 else 1.0)))
        for at in makers:
            edges_x += [spots[at][0], spots[-1][0], None]
            edges_y += [spots[at][1], spots[-1][1], None]
        for name in str(node["makes"]).split(", "):
            maker[name] = index
    edges = {**line("tensors", edges_x, edges_y, [], ROOF), "hoverinfo": "skip", "showlegend": False}
    edges["line"]["width"] = 1
    data = [edges]
    for kind in dict.fromkeys(node["do"] for node in nodes):
        own = [at for at, node in enumerate(nodes) if node["do"] == kind]
        texts = ["\n".join([nodes[at]["makes"], nodes[at]["what"], *kernels.get(nodes[at]["what"], ())[:KERNELS_NAMED]])
                 for at in own]  # fmt: skip
        colour = ROOF if kind == "input" else _KINDS.get(str(kind), COLOURS[0])
        words = {"loops": "generated groups", "input": "inputs"}.get(str(kind), str(kind))
        data.append(points(words, [spots[at][0] for at in own], [spots[at][1] for at in own], texts, colour,
                           symbol="square" if kind == "loops" else "circle"))  # fmt: skip
    hidden = {"visible": False, "fixedrange": False}
    result = figure(data, "depth", "", x_type="linear", y_type="linear", dragmode="pan")
    result["layout"]["yaxis"] = hidden
    return result


def _read(step: Step, tensors: set[str], alias: Mapping[str, str]) -> list[str]:
    """Tensors that a step names and does not make, each by the name under which a step outputs it."""
    outputs = set(str(step_summary(step)["makes"]).split(", "))
    names = []
    for value in step.values():
        texts = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else [value]
        names += [text for text in texts if isinstance(text, str) and text in tensors and text not in outputs]
    result = []
    for name in names:
        for _ in range(len(alias) + 1):  # a view of a view
            if name not in alias:
                break
            name = alias[name]
        result.append(name)
    return result


def timeline(document: Mapping[str, Any]) -> Figure:
    """Steps one behind the other, by what they do."""
    rows = sorted(document["steps"], key=lambda row: row.get("at", 0))
    begin, spans = 0.0, []
    for row in rows:
        spans.append((begin, row))
        begin += row["us"]
    data = []
    for kind in dict.fromkeys(row["do"] for row in rows):
        own = [(start, row) for start, row in spans if row["do"] == kind]
        texts = [f"{row['what']}\nmakes {row['makes']}\n{us_text(row['us'])} from {us_text(start)}" for start, row in own]
        words = {"loops": "generated groups"}.get(kind, kind)
        widths = [row["us"] for _, row in own]
        drawn = bars(words, widths, ["steps"] * len(own), texts, _KINDS.get(kind, COLOURS[0]))
        drawn["base"] = [start for start, _ in own]
        data.append(drawn)
    where = str(Shape.of(document["shape"])) or "fixed sizes"
    result = figure(data, f"microseconds, {where}", "", x_type="linear", y_type="category", rows=4, barmode="overlay")
    result["layout"]["yaxis"]["showticklabels"] = False
    return result


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
    return figure(data, "microseconds a request", "", x_type="linear", y_type="category", rows=2 * len(regions))


def prediction_figure(name: str, plan: Mapping[str, Any], sources: Sources) -> Figure | None:
    """Requests as predicted, and as measured; None where neither is known."""
    data = []
    for index, (threads, requests) in enumerate(plan.get("predicted_us", {}).items()):
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
    return figure(data, "microseconds", "", x_type="linear", y_type="category", rows=(1 + len(data)) * rows)


def race_figure(name: str, sources: Sources) -> Figure | None:
    """Requests of a race; None where there was none."""
    rows = [row for row in sources.rows(MODEL_RACE) if row["model"] == name]
    labels = [f"{str(Shape.of(row['shape'])) or 'fixed sizes'}, threads: {row['threads']}" for row in rows]
    data = []
    for index, who in enumerate(["ours", *dict.fromkeys(peer for row in rows for peer in row["peers"])] if rows else ()):
        values = [row["steady_us"] if index == 0 else row["peers"].get(who, {}).get("steady_us") for row in rows]
        texts = [f"{label}: {us_text(us or 0)}" for label, us in zip(labels, values, strict=True)]
        data.append(bars(who, values, labels, texts, COLOURS[index % len(COLOURS)]))
    if not rows:
        return None
    return figure(data, "microseconds", "", x_type="linear", y_type="category", rows=(1 + len(data)) * len(rows))
