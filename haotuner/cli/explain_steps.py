"""`haotuner explain PACK --model MODEL --shape SIZES`: where the time of one request goes, step by step."""

from __future__ import annotations

import math
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
from haotuner.runtime.chain import Chain
from haotuner.runtime.model import Model
from haotuner.runtime.pack import Pack

CALLS = 7  # the least time of so many, step by step; of fewer where they take longer than MOST_S
SHOWN = 25


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
    kinds = Counter("generated groups" if step["do"] == "loops" else str(_step_summary(step)["what"]) for step in steps)
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
                    rows.append({"segment": part.model.name, "sizes": part.where, "us": us, **_step_summary(step)})
                rows[position]["us"] = min(us, rows[position]["us"])
                position += 1
    return StepTimes([row for row in rows if row["do"] != "alias"], whole, calls)


def _step_summary(step: Mapping[str, Any]) -> dict[str, Any]:
    """Summary of a step, by its words in the schedule."""
    makes = ", ".join(step["tensors"][: -step.get("outputs", 1) - 1 : -1]) if step["do"] == "loops" else step["out"]
    return {"do": step["do"], "what": step.get("op") or f"group {step.get('group', '')}".strip(), "makes": makes}


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
    rows = [(row["segment"], row["what"], row["makes"][:40], f"{row['us']:,.1f}") for row in document["steps"][:SHOWN]]
    say("\n" + columns([("slowest steps of", "what", "makes", "us"), *rows]))
