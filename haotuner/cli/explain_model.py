"""`haotuner explain PACK --model MODEL`: kernels of its regions, times of its steps, predictions."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from haotuner.bench.model_child import feeds_of
from haotuner.bench.models import dims_of, drawn_ends, parse_inputs, requests_of
from haotuner.cli.call_time import MOST_S
from haotuner.cli.devices import columns
from haotuner.cli.output import counted, say
from haotuner.errors import UsageError
from haotuner.graph.rewrites import DERIVED
from haotuner.pack.manifest import Manifest
from haotuner.runtime.model import Chain, Model
from haotuner.runtime.pack import Pack

LETTERS_SHOWN = 60  # letters of a kernel's primitives


def model_document(manifest: Manifest, model: str, region: str) -> dict[str, Any]:
    """Plan of a model as the pack keeps it; ``region``: a tensor of one region, empty for all. UsageError names those."""
    models = manifest.tuning.get("models", {})
    if model not in models:
        raise UsageError(f"the pack says nothing of the plan of a model {model!r}; it does of {', '.join(models) or 'none'}")
    result = dict(models[model], model=model)
    if not _is_whole(result):
        raise UsageError(f"what the pack says of the plan of a model {model!r} is not whole; restore the pack or tune again")
    if region:
        regions = [region_ for region_ in result["regions"] if region in _tensors(region_)]
        if not regions:
            every = ", ".join(sorted(name for region in result["regions"] for name in _tensors(region))[:20])
            raise UsageError(f"--region {region!r}: no kernel of {model} makes it; some that kernels make: {every}")
        result["regions"] = regions
    return result


def _is_whole(plan: dict[str, Any]) -> bool:
    """True if nothing that is printed is missing; types were checked with the manifest."""
    regions, ways = plan.get("regions", ()), plan.get("ways", ())
    kernels = [item for region in regions for who in ("chosen", "greedy") for item in region.get(who, ({},))]
    return (
        {"status", "measured", "requests", "regions"} <= plan.keys()
        and all(region.get("outputs") for region in regions)
        and all({"output", "primitives", "us"} <= kernel.keys() for kernel in kernels)
        and all({"where", "us", "requests", "one_plan_us", "own_kernels"} <= way.keys() for way in ways)
        and all({"rule", "tensor", "us", "without_us"} <= item.keys() for item in plan.get("rewrites", ()))
    )


def print_model(document: dict[str, Any], *, every: bool) -> None:
    """Regions whose plans differ; ``every``: all of them."""
    how = f"{document['measured']} kernels measured" if document["measured"] else "expected, nothing measured"
    say(f"{document['model']}: groups of {len(document['regions'])} regions, us a request, mean over {document['requests']} "
        f"({how}), {document['status']}{_totals(document.get('us', {}))}")  # fmt: skip
    for way in document.get("ways", []):
        say(f"plan for {way['where']}: {way['us']:,.0f} us of its {len(way['requests'])} requests, by the one plan "
            f"{way['one_plan_us']:,.0f}; {way['own_kernels']} kernels of its own{_form(way)}")  # fmt: skip
    for item in document.get("rewrites", []):
        us = f"{item['us']:,.1f} us, without {item['without_us']:,.1f}"
        is_derived = item["rule"].startswith(DERIVED)
        how = DERIVED if is_derived else "rewritten: "
        say(f"{how}{item['tensor']}, {item['rule'].removeprefix(DERIVED)}; its region {us}")
    apart = [
        region
        for region in document["regions"]
        if every or _kernel_summaries(region["chosen"]) != _kernel_summaries(region["greedy"])
    ]
    for region in apart:
        rows = [(who, _makes(group), f"{group['us']:.1f}", group.get("form", ""), _short(group["primitives"]))
                for who in ("chosen", "greedy") for group in region[who]]  # fmt: skip
        totals = [sum(one_group["us"] for one_group in region[who]) for who in ("chosen", "greedy")]
        say(f"\nregion of {region['outputs'][0]}: {totals[0]:.1f} us, greedily {totals[1]:.1f}")
        say(columns([("plan", "makes", "us", "form", "of"), *rows]))
    if not apart:
        say("greedy fusion has the same kernels everywhere")
    forms = Counter(group["form"] for region in document["regions"] for group in region["chosen"] if "form" in group)
    for form, count in forms.most_common():
        say(f"form of {counted(count, 'group')}: {form}")


def _form(way: dict[str, Any]) -> str:
    """The form of a plan for some sizes, and what its times are; empty where a model has no other forms."""
    return f"; {way['form']} form, times {way['times']}" if {"form", "times"} <= way.keys() else ""


def _totals(us: dict[str, float]) -> str:
    """Bound, plan and greedy plan of all groups; empty for packs that do not say them."""
    if not {"bound", "chosen", "greedy"} <= us.keys():
        return ""
    return f": {us['chosen']:,.0f} us; no plan under {us['bound']:,.0f}; greedy fusion {us['greedy']:,.0f}"


def _tensors(region: dict[str, Any]) -> set[str]:
    groups = [group for who in ("chosen", "greedy") for group in region[who]]
    return {*region["outputs"], *(name for group in groups for name in (group["output"], *group.get("beside", ())))}


def _makes(group: dict[str, Any]) -> str:
    return ", ".join((group["output"], *group.get("beside", ())))


def _kernel_summaries(kernels: list[dict[str, Any]]) -> list[Any]:
    return sorted((_makes(one_group), len(one_group["primitives"])) for one_group in kernels)


def _short(primitives: list[str]) -> str:
    text = " ".join(primitives)
    return text if len(text) <= LETTERS_SHOWN else f"{text[:LETTERS_SHOWN]}… ({len(primitives)})"


CALLS = 7  # the least time of so many, step by step; of fewer where they take longer than MOST_S
STEPS_SHOWN = 25


class StepTimes(NamedTuple):
    """Steps of a request that do something, each with the least time of ``calls`` calls; that of the least whole call."""

    rows: list[dict[str, Any]]
    call_us: float
    calls: int


def steps_document(
    pack: Path, name: str, shape: str, text: str, threads: int | None, before: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Microseconds of every step of one request, the least of some calls, the slowest first. UsageError for wrong sizes.

    ``call_us``: the least whole call, from Python and without clocks between its steps. ``before``: told what will be timed.
    """
    with Pack(pack, threads=threads) as opened:
        model = opened.model(name)
        dims = dims_of(model)
        (sizes, *_) = requests_of(shape, dims, data=[dim for dim in model.dims if dim not in dims])
        before(f"{name}, {_sizes(sizes)}: {_plan(model, sizes)}")
        rows, call_us, calls = timed_steps(model, sizes, text)
    return {
        "model": name,
        "shape": sizes,
        "call_us": call_us,
        "calls": calls,
        "us": sum(row["us"] for row in rows),
        "steps": sorted(rows, key=lambda row: -row["us"]),
    }


def _sizes(sizes: Mapping[str, int]) -> str:
    return ";".join(f"{name}={size}" for name, size in sizes.items()) or "whose sizes are fixed"


def _plan(model: Model | Chain, sizes: Mapping[str, int]) -> str:
    """Steps that serve a request, in words; of a model in segments their number, for its data tell which of them run."""
    if isinstance(model, Chain):
        return f"{counted(len(model.segments), 'segment')}, some of which run"
    way = model.schedule.way_of(sizes)
    steps = [step for step in model.schedule.steps[way.first : way.end] if step["do"] != "alias"]
    kinds = Counter("generated groups" if step["do"] == "loops" else str(step_summary(step)["what"]) for step in steps)
    return f"{counted(len(steps), 'step')}: " + ", ".join(f"{count} {what}" for what, count in kinds.most_common(12))


def timed_steps(model: Model | Chain, sizes: Mapping[str, int], text: str) -> StepTimes:
    """Times of a request's steps. After ``MOST_S`` no call is begun but the first."""
    dims = dims_of(model)
    drawn = parse_inputs(text, [end.name for end in model.inputs], dims)
    feeds = feeds_of(drawn_ends(model, drawn), sizes, 0, drawn)
    rows: list[dict[str, Any]] = []
    seed: dict[str, Any] = {"seed": 0} if isinstance(model, Chain) else {}
    whole, until, calls = math.inf, time.perf_counter() + MOST_S, 0
    for call in range(CALLS):
        if call and time.perf_counter() >= until:
            break
        calls += 1
        position, begin = 0, time.perf_counter()
        model.run(feeds, **seed)
        whole = min(whole, (time.perf_counter() - begin) * 1e6)
        for part in model.step_times(feeds, seed=0):
            for step, us in zip(part.steps, part.us, strict=True):
                if call == 0:
                    where = {"at": position, "segment": part.model.name, "sizes": part.where}
                    rows.append({**where, "us": us, **step_summary(step)})
                rows[position]["us"] = min(us, rows[position]["us"])
                position += 1
    return StepTimes([row for row in rows if row["do"] != "alias"], whole, calls)


def step_summary(step: Mapping[str, Any]) -> dict[str, Any]:
    """Summary of a step, by its words in the schedule."""
    makes = ", ".join(step["tensors"][: -step.get("outputs", 1) - 1 : -1]) if step["do"] == "loops" else step["out"]
    what = "append to a cache" if step["do"] == "append" else step.get("op") or _group_words(step)
    return {"do": step["do"], "what": what, "makes": makes}


def _group_words(step: Mapping[str, Any]) -> str:
    form = f", {step['form']}" if "form" in step else ", plain loops" if "group" in step else ""
    return f"group {step.get('group', '')}".strip() + form


def print_steps(document: Mapping[str, Any]) -> None:
    """The kinds of steps with their shares, then the slowest steps."""
    whole = max(document["us"], 1e-9)
    kinds: Counter[str] = Counter()
    for row in document["steps"]:
        kinds[row["what"] if row["do"] != "loops" else "generated groups"] += row["us"]
    total = f"{whole:,.1f} us in {len(document['steps'])} steps, each the least of {counted(document['calls'], 'call')}"
    say(f"{document['model']}, {_sizes(document['shape'])}: {total}")
    say(f"a call took {document['call_us']:,.1f} us at least; other programs and what lies between steps are in it alone")
    say(
        columns(
            [("all steps of", "us", "share"), *((k, f"{us:,.1f}", f"{us / whole:.1%}") for k, us in kinds.most_common(12))]
        )
    )
    for where in dict.fromkeys(row["sizes"] for row in document["steps"] if row["sizes"] != "any sizes"):
        say(f"by the plan for {where}")
    rows = [(row["segment"], row["what"], row["makes"][:40], f"{row['us']:,.1f}") for row in document["steps"][:STEPS_SHOWN]]
    say("\n" + columns([("slowest steps of", "what", "makes", "us"), *rows]))


KINDS = ("products", "groups", "all")


def predicted_document(manifest: Manifest, pack: Path, name: str, text: str, threads: int | None) -> dict[str, Any]:
    """Of each request that the plan was made for: predicted and measured microseconds, and the ratio of both.

    Measured is the sum of the steps, each the least of some calls. UsageError for a pack that keeps no predictions.
    """
    predictions = manifest.tuning.get("models", {}).get(name, {}).get("predicted_us", {})
    if not predictions:
        raise UsageError(f"the pack keeps no predicted times of a model {name!r}; tune it again with this haotuner")
    rows, least = [], CALLS
    with Pack(pack, threads=threads) as opened:
        model, count = opened.model(name), str(opened.threads)
        used = count if count in predictions else next(iter(predictions))
        dims = dims_of(model)
        for sizes_text, expected in predictions[used].items():
            every = {key: int(size) for key, _, size in (part.partition("=") for part in sizes_text.split(";") if part)}
            sizes = {dim: every[dim] for dim in dims}
            steps, call_us, calls = timed_steps(model, sizes, text)
            least = min(least, calls)
            measured = _measured(steps)
            rows.append({"shape": sizes, "predicted_us": expected, "measured_us": measured, "call_us": call_us,
                         "ratio": expected["all"] / max(measured["all"], 1e-9)})  # fmt: skip
    ratios = [row["ratio"] for row in rows]
    return {
        "model": name,
        "threads": int(count),
        "plan_threads": int(used),
        "rows": rows,
        "calls": least,
        "median": statistics.median(ratios),
        "within_10_percent": sum(abs(ratio - 1) <= 0.1 for ratio in ratios) / len(ratios),
    }


def _measured(steps: list[dict[str, Any]]) -> dict[str, float]:
    groups = sum(row["us"] for row in steps if row["do"] == "loops")
    whole = sum(row["us"] for row in steps)
    return {"products": whole - groups, "groups": groups, "all": whole}


def print_predicted(document: Mapping[str, Any]) -> None:
    """A line a request, then the median.

    ``timed``: the share of what is predicted of products that is of ops which were timed, at whatever shapes, not told by a
    cost model alone; ``call``: the least whole call, with what else ran here in it.
    """
    least = f"steps the least of {document['calls']} calls each"
    say(f"{document['model']}, threads {document['threads']}: predicted / measured us, {least}")
    rows: list[tuple[str, ...]] = [("request", *KINDS, "ratio", "timed", "call")]
    for row in document["rows"]:
        pairs = [f"{row['predicted_us'][kind]:,.0f} / {row['measured_us'][kind]:,.0f}" for kind in KINDS]
        where, ratio = ";".join(f"{k}={v}" for k, v in row["shape"].items()), f"{row['ratio']:.2f}"
        rows.append((where, *pairs, ratio, _timed(row["predicted_us"]), f"{row['call_us']:,.0f}"))
    say(columns(rows))
    say(f"median {document['median']:.2f}; {document['within_10_percent']:.0%} of the requests within 10 %")


def _timed(expected: Mapping[str, float]) -> str:
    """Packs of earlier versions do not say."""
    return f"{expected['timed'] / max(expected['products'], 1e-9):.0%}" if "timed" in expected else "-"
