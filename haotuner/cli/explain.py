"""`haotuner explain`: how a shape is served, what that was expected to cost, what it costs now, and alternatives."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from haotuner.backends.index import backend_named
from haotuner.cli.call_time import call_us, why_not_timed
from haotuner.cli.devices import columns
from haotuner.cli.explain_model import (
    model_document,
    predicted_document,
    print_model,
    print_predicted,
    print_steps,
    steps_document,
)
from haotuner.cli.explain_op import (
    cell_document,
    device_document,
    placed_cell_document,
    print_cell,
    print_cell_plan,
    print_cell_times,
    print_device,
    time_cell,
)
from haotuner.cli.options import Json, PackFolder, facts_of
from haotuner.cli.output import counted, say
from haotuner.cli.terminal_plot import pack_plots
from haotuner.errors import UsageError
from haotuner.ops.groups import PREFIX
from haotuner.pack.manifest import Manifest, read_manifest
from haotuner.pack.op import LAYERS
from haotuner.plan.compose import Curve, alternatives
from haotuner.runtime.group import named_so
from haotuner.runtime.pack import Pack
from haotuner.spec.composition import Composition, share_in_words
from haotuner.spec.op import Op
from haotuner.spec.shape import AXIS_LIMIT, ShapeRange

PLOTS = 4  # thread counts that --plot draws
LOOKED_AT = 3  # of each way to share: enough for one that is not the chosen one


def predicted_us(plan: Mapping[str, Any], m: int) -> float | None:
    """Time the tuner expects at m, microseconds; beyond the table it grows like the last entries."""
    known = plan.get("predicted_us", [])
    if not known:
        return None
    return float(known[m - 1]) if m <= len(known) else float(known[-1]) * m / len(known)


def runner_up(
    plan: Mapping[str, Any],
    m: int,
    chosen: Composition,
    tile_rows: Mapping[str, int],
    is_used: Callable[[str], bool] = lambda way: True,
) -> dict[str, Any] | None:
    """The best other composition: as timed when the pack was tuned, else as the curves predict; None if there is none.

    Args:
        plan: facts of the pack about one op and thread count.
        m: rows of the call.
        chosen: what serves them.
        tile_rows: rows of a tile, by kernel.
        is_used: whether so many rows are ever shared in this way.

    Returns:
        ``composition``, ``split``, ``us``, ``from``, and ``chosen_us``: the chosen one's time from the same source, None if
        it has none there.
    """
    timed = {Composition.parse(label): float(us) for label, us in plan.get("measured_us", {}).get(str(m), {}).items()}
    own = timed.pop(chosen, None)
    if timed:
        best = min(timed, key=lambda item: (timed[item], item))
        return {"composition": best.text, "split": best.share, "us": timed[best], "chosen_us": own, "from": "measured"}
    curves = {way: [_curve(c, tile_rows) for c in item] for way, item in plan.get("curves", {}).items()}
    result = [
        (other.us, other.composition)
        for way, curve_list in curves.items()
        if is_used(way)
        for other in alternatives(curve_list, m, LOOKED_AT, way)
        if other.composition != chosen
    ]
    if not result:
        return None
    us, best = min(result)
    own = _curves_us(curves.get(chosen.share, []), chosen)
    return {"composition": best.text, "split": best.share, "us": us, "chosen_us": own, "from": "predicted"}


def _curves_us(curves: Sequence[Curve], composition: Composition) -> float | None:
    """Time of a composition by the curves, in us; None if one of its kernels has no curve."""
    by_name = {curve.kernel: curve for curve in curves}
    total = 0.0
    for index, part in enumerate(composition.parts):
        curve = by_name.get(part.kernel)
        if curve is None:
            return None
        total += curve.follow_us * part.tiles if index else float(curve.lead(np.array([part.tiles]))[0])
    return total


def _curve(stored: Mapping[str, Any], tile_rows: Mapping[str, int]) -> Curve:
    points = {int(tiles): float(us) for tiles, us in stored["lead_us"]}
    return Curve.of(stored["kernel"], tile_rows[stored["kernel"]], points, float(stored["follow_us"]))


def explain(
    pack: PackFolder,
    op: Annotated[str, typer.Option("--op", help="Name or spec of an op in the pack.")] = "",
    shape: Annotated[
        str | None, typer.Option("--shape", help="One shape, for example m=37; empty for a model without dimensions.")
    ] = None,
    only: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="A whole model: its groups; with --shape what its steps take.")
    ] = "",
    region: Annotated[str, typer.Option("--region", metavar="TENSOR", help="Of a model: the region that makes it.")] = "",
    inputs: Annotated[
        str, typer.Option("--inputs", metavar="INPUTS", help="With --model and --shape: lengths=seq;scales=0,1,0.")
    ] = "",
    expected: Annotated[
        bool, typer.Option("--predicted", help="With --model: what was expected of its requests, and what they take here.")
    ] = False,
    threads: Annotated[int | None, typer.Option("--threads", help="Thread count; default: all cores.")] = None,
    plot: Annotated[bool, typer.Option("--plot", help="Draw an op's time over its shapes instead, in letters.")] = False,
    json_output: Json = False,
) -> None:
    """Explain the choice for one shape: regions, expected and measured time, the runner-up."""
    manifest = read_manifest(pack)
    if plot:
        if only or shape is not None or json_output:
            raise UsageError("--plot goes with --op NAME alone: it draws all shapes; `haotuner report` draws models")
        groups = {entry.name: entry.output.name for entry in manifest.ops if entry.group}
        for text in pack_plots(pack, _named(op, groups) if op else "", most=PLOTS):
            say(text + "\n")
        return
    if expected and (not only or shape is not None):
        raise UsageError("--predicted goes with --model MODEL and without --shape: its requests are those of tuning")
    if only and (shape is not None or expected) and manifest.on_device:
        raise UsageError(
            f"{pack} is for {manifest.arch}, where steps are not timed one by one: leave --shape and --predicted out to see "
            f"the plan of {only}; a profiler of the GPU shows its launches by name"
        )
    if expected:
        with facts_of(pack):
            document_of = predicted_document(manifest, pack, only, inputs, threads)
        say(json.dumps(document_of, indent=1)) if json_output else print_predicted(document_of)
        return
    if only and shape is not None:
        with facts_of(pack):
            seen = steps_document(pack, only, shape, inputs, threads, (lambda _: None) if json_output else say)
        say(json.dumps(seen, indent=1)) if json_output else print_steps(seen)
        return
    if only:
        document_ = model_document(manifest, only, region)
        say(json.dumps(document_, indent=1)) if json_output else print_model(document_, every=bool(region))
        return
    name, shape = _op_and_shape(pack, op, shape, manifest)
    if manifest.on_device:
        entry = next((o for o in manifest.ops if o.name == name), None)
        if entry is None:
            raise UsageError(f"the pack has no op {name}; it has {', '.join(o.name for o in manifest.ops)}")
        extents = _extents(shape, [axis.name for axis in entry.dynamic])
        layer = entry.kind in LAYERS
        with facts_of(pack):
            document = (
                device_document(manifest, entry, extents["m"]) if layer else placed_cell_document(manifest, entry, extents)
            )
        say(json.dumps(document, indent=1)) if json_output else (print_device if layer else print_cell)(document)
        return
    with Pack(pack, threads) as opened:
        dense = opened.op(name)
        entry = next(o for o in opened.manifest.ops if o.name == name)
        extents = _extents(shape, [axis.name for axis in entry.dynamic])
        if entry.kind != "dense":
            with facts_of(pack):
                document = cell_document(opened, entry, extents)
            if not json_output:
                print_cell_plan(document)  # before anything is timed: a large call takes a while
            document = time_cell(opened, entry, extents, document)
            say(json.dumps(document, indent=1)) if json_output else print_cell_times(document)
            return
        m = extents["m"]
        count = entry.threads[opened.plan_index(entry)]
        composition = dense.composition(m)
        tile_rows = dict(zip(entry.kernels, entry.tile_rows, strict=True))
        with facts_of(pack):
            weights = str(opened.manifest.tuning["weights"])
            cache = int(opened.manifest.document["device"].get("l3_bytes") or 0)
            plan = entry.facts.get("plans", {}).get(str(count), {})
            predicted = predicted_us(plan, m)
            backend = backend_named(str(opened.manifest.document["device"].get("kind", "cpu")))
            op_asked = Op.parse(name)
            second = runner_up(plan, m, composition, tile_rows, lambda way: backend.rows_of(way, op_asked, count, m) >= m)
        facts: dict[str, Any] = {
            "op": name,
            "shape": {"m": m},
            "threads": count,
            "split": composition.share,
            "weights": weights,
            "unverified": opened.manifest.unverified,
            "in_range": entry.first_m <= m <= entry.last_m,
            "regions": [
                _region(region.kernel, {axis: list(span) for axis, span in region.box.items()})
                for region in composition.boxes(tile_rows.__getitem__, {"m": m, "n": entry.n})
            ],
            "predicted_us": predicted,
        }
        if not json_output:
            _print_plan(facts)  # before anything is timed: a large call takes a while
        not_timed = why_not_timed(entry, m, predicted)
        measured = None if not_timed else call_us(opened, entry, m, weights, cache)
    facts |= {"measured_us": measured, "not_timed": not_timed, "runner_up": second}
    if json_output:
        say(json.dumps(facts, indent=1))
    else:
        _print_times(facts)


def _op_and_shape(pack: Path, op: str, shape: str | None, manifest: Manifest) -> tuple[str, str]:
    """The op that is asked for, by name, and its shape; a pack's only one needs no ``--op``."""
    names = [entry.name for entry in manifest.ops]
    if not shape or not (op or len(names) == 1):
        sizes = ";".join(f"{axis.name}={axis.first}" for axis in manifest.ops[0].dynamic) if names else ""
        ways = [f'an op and a shape, --op {names[0]} --shape "{sizes}"'] if names else []
        ways += [f"a whole model, --model {model}" for model in sorted(manifest.models)[:1]]
        raise UsageError(f"name {', or '.join(ways)}; {pack} has {', '.join([*names, *sorted(manifest.models)])}")
    return _named(op or names[0], {entry.name: entry.output.name for entry in manifest.ops if entry.group}), shape


def _named(op: str, groups: Mapping[str, str]) -> str:
    """The name of an op; of a group its own name does, or its file: the hash at the end is found."""
    stem = op.partition(":")[2]
    result = named_so(groups, f"{PREFIX}_{Path(stem).stem}" if op.startswith(f"{PREFIX}:") else op)
    if len(result) > 1:
        raise UsageError(f"--op {op} has several outputs; name one of {', '.join(result)}")
    return result[0] if result else op if op in groups else Op.parse(op).name


def _extents(shape: str, axes: Sequence[str]) -> dict[str, int]:
    if len(axes) == 1 and re.fullmatch(r"[0-9]{1,10}", shape.strip()):
        shape = f"{axes[0]}={shape.strip()}"
    spans = dict(ShapeRange.parse(shape).spans)
    if set(spans) != set(axes) or any(len(span) != 1 or span.last > AXIS_LIMIT for span in spans.values()):
        example = ";".join(f"{axis}=37" for axis in axes)
        raise UsageError(f"--shape {shape!r}: give one extent for each of {', '.join(axes)}, for example {example}")
    return {axis: span.first for axis, span in spans.items()}


def _region(kernel: str, box: dict[str, list[int]]) -> dict[str, Any]:
    """``m`` and ``n`` stand beside the box, as they did before there were boxes."""
    return {"kernel": kernel, "box": box, **{axis: box[axis] for axis in ("m", "n") if axis in box}}


def _print_plan(document: dict[str, Any]) -> None:
    m = document["shape"]["m"]
    where = "" if document["in_range"] else " (outside the tuned range: the nearest plan is extended)"
    plan = f"plan for {counted(document['threads'], 'thread')}, {share_in_words(document['split'])}"
    say(f"{document['op']} m={m}, {plan}{where}")
    rows = [(r["kernel"], f"{r['m'][0]}..{r['m'][1] - 1}", f"{r['n'][0]}..{r['n'][1] - 1}") for r in document["regions"]]
    say(columns([("kernel", "rows", "columns"), *rows]))


def _print_times(document: dict[str, Any]) -> None:
    grown = "" if document["in_range"] else " (that of the nearest tuned shape, grown to this one)"
    expected = f"expected {_us(document['predicted_us'])}{grown}"
    if document["not_timed"]:
        say(f"{expected}; not timed now: {document['not_timed']}")
    else:
        say(f"{expected}, measured now {_us(document['measured_us'])} (weights {document['weights']})")
    if document["unverified"]:
        say("unverified: nothing was measured when the pack was made, the plan and the expected time are predictions")
    second: dict[str, Any] | None = document["runner_up"]
    if second is None:
        say("no other composition of the kept kernels covers this shape")
        return
    how = (
        "measured while tuning"
        if second["from"] == "measured"
        else "by the kernels' curves alone, which the expected time corrects,"
    )
    say(f"runner-up: {second['composition']}, {share_in_words(second['split'])}")
    remark = _remark(second, document["in_range"])
    say(f"  {how} it takes {_us(second['us'])}, the chosen one {_us(second['chosen_us'])}{remark}")


def _remark(second: dict[str, Any], in_range: bool) -> str:
    """Reason that the chosen one may look slower than what came second; else empty."""
    if second["chosen_us"] is None:
        return " (of which there is no such time: do not compare it with the times above)"
    if second["us"] >= second["chosen_us"]:
        return ""
    if not in_range:
        return "; the plan was made for other shapes: tune for these, too"
    if second["from"] == "measured":
        return "; single times err by more than this, so the plan also weighs the curves, and fewer tiles where they tie"
    return "; curves err, and the plan corrects them by what was measured at other shapes"


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} us"
