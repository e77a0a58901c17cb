"""`haotuner explain` of an op by cells: the kernel of a shape, its program, and what else was timed."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np

from haotuner.cli.call_time import median_us, too_large, too_long
from haotuner.cli.devices import columns
from haotuner.cli.output import counted, say, tell
from haotuner.codegen.space import SLICES
from haotuner.cost.vendor_level import LEAST_ROWS, WARN, vendor_us
from haotuner.microkernels.cpu.conv_lines import LINES
from haotuner.microkernels.cpu.conv_pixel_major import TURNED
from haotuner.microkernels.cpu.generated import CpuGenerated
from haotuner.microkernels.cuda.conv import transposed
from haotuner.microkernels.cuda.direct import DIRECT_FAMILIES
from haotuner.microkernels.cuda.families import WINDOW_FAMILIES
from haotuner.microkernels.index import family_named
from haotuner.ops.convolution import filter_axes, lies_as_columns, windows
from haotuner.ops.dtypes import DTYPES
from haotuner.ops.minimal_filtering import terms
from haotuner.pack.manifest import Manifest
from haotuner.pack.op import PackOp
from haotuner.runtime.pack import Pack
from haotuner.spec import numerics
from haotuner.spec.cold import state_of
from haotuner.spec.composition import SERIAL, Composition, share_in_words, sum_parts
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.limits import FOLD_LEAST
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape, ShapeRange
from haotuner.verify.pack_groups import meaning_of


def program_document(
    kernel: str, op: Op, shape: Shape, device: Device, share: str = SERIAL, threads: int = 1
) -> dict[str, Any] | None:
    """Decisions and bytes of a kernel's program for a whole call; None of a kernel that is not generated.

    ``share``: what ``threads`` share. Bytes are one thread's, or all parts' where threads share a folded axis.
    """
    parsed = MicroKernel.parse(kernel)
    try:
        family = family_named(parsed.family)
    except KeyError:  # a backend may have its own families
        return None
    if not isinstance(family, CpuGenerated):
        return None
    stages = family.stages(parsed)
    parts = stages.parts if stages is not None else SLICES * threads if share in family.joins(parsed) else 1
    return {
        "decisions": family.decisions(parsed),
        "parts": parts,
        "bytes": family.bytes_by_level(parsed, op.extents(shape), device, parts),
    }


def share_of_call(kernel: str, op: Op, shape: Shape, share: str, threads: int) -> str:
    """Axis that threads share in a call: a cell's way, or the terms of the only row, as the runtime does (``sliced.c``)."""
    parsed = MicroKernel.parse(kernel)
    try:
        family = family_named(parsed.family)
    except KeyError:
        return share
    if not isinstance(family, CpuGenerated) or threads < 2 or share == SERIAL:
        return share
    extents, tile, joins = op.extents(shape), family.tile(parsed), family.joins(parsed)
    if share in joins or extents[share] > tile.extent.get(share, 1):
        return share
    return next((axis for axis in reversed(list(op.meaning.axes)) if axis in joins and extents[axis] >= FOLD_LEAST), share)


def print_program(document: Mapping[str, Any]) -> None:
    """Printed form, for people."""
    for kind, words in document["decisions"].items():
        say(f"{kind}: {words}")
    rows = [(level, f"{count:,}") for level, count in document["bytes"].items()]
    of = "one thread" if document["parts"] == 1 else f"{document['parts']} parts of the folds"
    say(columns([(f"moved, {of}", "bytes"), *rows]))


PARTIAL_BYTES = 4  # partial sums are fp32
WHY_NOT_TIMED = "calls on a device are timed by `haotuner bench`"


def device_document(manifest: Manifest, entry: PackOp, m: int) -> dict[str, Any]:
    """JSON form of what serves one shape, with the keys that a dense op's has, and ``considered``."""
    (count,) = entry.threads
    cells = entry.facts["plans"][str(count)]["cells"]
    (bounds,) = cells["bounds"].values()
    at = min(bisect_left(bounds, m), len(bounds) - 1)
    considered = list(cells.get("considered", [[]] * len(bounds))[at])
    composition = Composition.parse(cells["entries"][at])
    rows = dict(zip(entry.kernels, entry.tile_rows, strict=True))
    regions = composition.boxes(rows.__getitem__, {"m": m, "n": entry.n})
    chosen, *others = considered or [None]
    parts = sum_parts(composition.share)
    device = Device(**manifest.document["device"])
    vendor = vendor_us(device, Op.parse(entry.name), [bounds[at]]) if bounds[at] >= LEAST_ROWS else None
    shown = [_region(r.kernel, {axis: list(span) for axis, span in r.box.items()}, parts) for r in regions
             if r.box["m"][0] < m]  # fmt: skip
    return {
        "op": entry.name,
        "shape": {"m": m},
        "threads": count,
        "split": composition.share,
        "weights": str(manifest.tuning["weights"]),
        "unverified": manifest.unverified,
        "in_range": entry.first_m <= m <= entry.last_m,
        "cell": [bounds[at - 1] + 1 if at else 1, bounds[at]],
        "regions": shown,
        **_launched(entry, m, composition.parts[0].kernel, len(shown), parts),
        "predicted_us": chosen["us"] if chosen else None,
        **({} if vendor is None else {"vendor_us": round(float(vendor[0]), 3)}),
        "measured_us": None,
        "not_timed": WHY_NOT_TIMED,
        "runner_up": _device_runner_up(chosen, others),
        "considered": considered,
    }  # fmt: skip


def _launched(entry: PackOp, m: int, first: str, launched: int, parts: int) -> dict[str, Any]:
    """Launches of a call, its workspace, and of groups of rows how many there are and the row tiles of the worst cut."""
    whole = parts == 1
    result: dict[str, Any] = {"launches": launched if whole else 2 * launched}  # a sum of the parts behind each
    result["workspace_bytes"] = 0 if whole else PARTIAL_BYTES * parts * m * entry.n
    if entry.kind == "grouped":
        groups = entry.axis("g").extent or 1
        filled = min(m, groups)
        rows = dict(zip(entry.kernels, entry.tile_rows, strict=True))[first]
        result |= {"groups": groups, "row_tiles": filled + (m - filled) // rows}
    return result


def _region(kernel: str, box: dict[str, list[int]], parts: int) -> dict[str, Any]:
    return {"kernel": kernel, "box": box, "m": box["m"], "n": box["n"], "sum_parts": parts}


def _device_runner_up(chosen: Mapping[str, Any] | None, others: list[dict[str, Any]]) -> dict[str, Any] | None:
    if chosen is None or not others:
        return None
    best = min(others, key=lambda item: float(item["us"]))
    composition = Composition.parse(best["composition"])
    return {"composition": composition.text, "split": composition.share, "us": best["us"], "chosen_us": chosen["us"],
            "from": best["from"], "way": best["way"]}  # fmt: skip


def print_device(document: Mapping[str, Any]) -> None:
    """Printed form, for people."""
    m, (first, last) = document["shape"]["m"], document["cell"]
    where = "" if document["in_range"] else " (outside the tuned range: the nearest cell serves it)"
    split = document["split"]
    how = f", {share_in_words(split)}, added in a fixed order" if sum_parts(split) > 1 else ""
    say(f"{document['op']} m={m}, cell of {first}..{last} rows{how}{where}")
    rows = [(r["kernel"], f"{r['m'][0]}..{r['m'][1] - 1}", f"{r['n'][0]}..{r['n'][1] - 1}") for r in document["regions"]]
    say(columns([("kernel", "rows", "columns"), *rows]))
    if "groups" in document:
        most = f"blocks for {document['row_tiles']} row tiles, the most of any cut"
        say(f"one launch for {document['groups']} groups of rows, with {most}; planned for even groups; no workspace")
    elif document["workspace_bytes"]:
        say(f"{document['launches']} launches; workspace of partial sums: {document['workspace_bytes']} bytes")
    if document["unverified"]:
        say("unverified: nothing was measured when the pack was made, the plan and all times are predictions")
    considered = document["considered"]
    if not considered:
        return
    table = [("weighed", "us", "from", "composition", "")]
    for index, considered_row in enumerate(considered):
        table.append(
            (
                considered_row["way"],
                f"{considered_row['us']:.2f}",
                considered_row["from"],
                considered_row["composition"],
                _why(index, considered_row, considered[0]),
            )
        )
    say(columns(table))
    say(f"times are of {last} rows, the most of the cell, weights {document['weights']}; {document['not_timed']}")
    if "vendor_us" in document:
        ratio = float(considered[0]["us"]) / document["vendor_us"]
        say(f"the vendor's GEMM takes {document['vendor_us']:.2f} us there, by others' measurements: ratio {ratio:.2f}")
        if ratio >= WARN:
            tell("warning: no family here uses what this device is fastest with; prefer the vendor's library there")


def _why(index: int, considered: Mapping[str, Any], chosen: Mapping[str, Any]) -> str:
    if index == 0:
        return "kept"
    behind = float(considered["us"]) / float(chosen["us"]) - 1
    if behind > 0:
        return f"{behind:.1%} behind"
    if considered["from"] != chosen["from"]:
        return f"only {considered['from']}, the kept one is {chosen['from']}: the two do not compare"
    return "within noise of it: one launch goes before parts of a sum, these before two regions"


def cell_document(pack: Pack, entry: PackOp, extents: Mapping[str, int]) -> dict[str, Any]:
    """JSON form of what serves one shape, with the keys that a dense op's has. Nothing is timed: see ``time_cell``."""
    op, shape = meaning_of(entry), Shape.of(extents)
    served = pack.op(entry.name)
    count = entry.threads[pack.plan_index(entry)]
    plan = entry.facts.get("plans", {}).get(str(count), {})
    label = plan["cells"]["entries"][served.cell(extents)]
    chosen = Composition.parse(label)
    share = share_of_call(chosen.parts[0].kernel, op, shape, chosen.share, count)
    return _cell(pack.manifest, entry, shape, chosen, count) | {
        "split": share,
        "program": program_document(
            chosen.parts[0].kernel, op, shape, Device(**pack.manifest.document["device"]), share, count
        ),
        "not_timed": _why_not_timed(op, shape, _expected_us(plan, op, shape, chosen)),
    }


def _cell(manifest: Manifest, entry: PackOp, shape: Shape, chosen: Composition, count: int) -> dict[str, Any]:
    """Document of what serves one shape by cells, on any device."""
    op, extents, kernel = meaning_of(entry), shape.as_dict(), chosen.parts[0].kernel
    full = op.extents(shape)
    return {
        "op": entry.name,
        "shape": extents,
        "threads": count,
        "split": chosen.share,
        "weights": state_of(op, str(manifest.tuning["weights"])),
        "unverified": manifest.unverified,
        "in_range": all(axis.first <= extents[axis.name] <= axis.last for axis in entry.dynamic),
        "regions": [{"kernel": kernel, "box": {axis: [0, full[axis]] for axis in op.parallel}}],
        "program": None,
        "predicted_us": None,
        "measured_us": None,
        "not_timed": WHY_NOT_TIMED,
        "runner_up": _runner_up(entry.facts.get("plans", {}).get(str(count), {}), extents, chosen),
    }


def time_cell(pack: Pack, entry: PackOp, extents: Mapping[str, int], document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the time of a call now, where it says no reason against that."""
    if document["not_timed"]:
        return dict(document)
    return {**document, "measured_us": _call_us(pack, meaning_of(entry), Shape.of(extents))}


def placed_cell_document(manifest: Manifest, entry: PackOp, extents: Mapping[str, int]) -> dict[str, Any]:
    """JSON form of an op on a device, read from the pack alone: no device is needed, and nothing is timed."""
    op, shape = meaning_of(entry), Shape.of(extents)
    (count,) = entry.threads
    plan = entry.facts["plans"][str(count)]
    index = 0
    for axis in op.dynamic:  # the manifest's own order is the alphabet's
        bounds = plan["cells"]["bounds"][axis]
        index = index * len(bounds) + min(bisect_left(bounds, extents[axis]), len(bounds) - 1)
    chosen = Composition.parse(plan["cells"]["entries"][index])
    document = _cell(manifest, entry, shape, chosen, count)
    return document | (
        {"writes": [operand.name for operand in entry.written], "apart": entry.apart} if entry.output_indices else {}
    )


def _launches(name: str, kernel: str) -> str:
    if MicroKernel.parse(kernel).family in {family.name for family in WINDOW_FAMILIES}:
        return "two launches, the weight turned, then windows and products in one"
    if "conv" not in name.split("_")[0]:
        return "one launch"
    op = Op.parse(name)
    if lies_as_columns(op.kind, dict(op.static), op.all_options()):
        return "one launch where pixels are evenly apart, else two, image columns and products"
    if any(family.serves(op) for family in DIRECT_FAMILIES):
        return "one launch"
    return "two launches, " + ("products and what gathers them" if transposed(op) else "image columns and products")


def print_cell(document: Mapping[str, Any]) -> None:
    """Printed form, for people."""
    print_cell_plan(document)
    print_cell_times(document)


def print_cell_plan(document: Mapping[str, Any]) -> None:
    """Printed form of what serves a shape, for people."""
    shape = " ".join(f"{axis}={extent}" for axis, extent in document["shape"].items())
    where = "" if document["in_range"] else " (outside the tuned range: the nearest cell of the plan serves it)"
    placed = document["not_timed"] == WHY_NOT_TIMED
    how = (
        _launches(document["op"], document["regions"][0]["kernel"])
        if placed
        else f"plan for {counted(document['threads'], 'thread')}, {share_in_words(document['split'])}"
    )
    say(f"{document['op']} {shape}, {how}{where}")
    rows = [
        (r["kernel"], " ".join(f"{axis} {a}..{b - 1}" for axis, (a, b) in r["box"].items())) for r in document["regions"]
    ]
    say(columns([("kernel", "computes"), *rows]))
    tile = dict(MicroKernel.parse(document["regions"][0]["kernel"]).params).get("wt", 0)
    if tile == TURNED:
        say("rows of the tile are pixels: windows and results are turned")
    elif tile == LINES:
        say("windows are read from padded lines of the image, which is copied once")
    elif tile:
        op = Op.parse(document["op"])
        axes = filter_axes(windows(op.kind, dict(op.static), op.all_options()))
        down, across = (axis.outputs(tile) for axis in axes)
        plain = down * across * prod(axis.taps for axis in axes)
        say(f"minimal filtering: {down} x {across} outputs from {terms(tile, axes)} products a channel, not {plain}")
    call = "launch" if placed else "call"
    if len(document.get("writes", ())) > 1:
        say(f"one {call} writes {', '.join(document['writes'])}")
    if document.get("apart"):
        say(f"{document['writes'][0]} has a {call} of its own, {document['apart']}")
    if document["program"] is not None:
        print_program(document["program"])


def print_cell_times(document: Mapping[str, Any]) -> None:
    """Printed form of a call's time, for people, and of what else was compared."""
    if document["not_timed"]:
        say(f"not timed now: {document['not_timed']}")
    else:
        say(f"measured now {document['measured_us']:.1f} us, the call from Python included (operands in cache)")
    if document["unverified"]:
        say("unverified: nothing was measured when the pack was made, the plan is a prediction")
    second = document["runner_up"]
    if second is None:
        say("no other micro-kernel or way to share was compared near this shape")
        return
    say(f"runner-up: {second['composition']}, {share_in_words(second['split'])}")
    timed = second["from"] == "measured"
    near = f"at {second['at']}, the nearest shape that was {'timed' if timed else 'compared'} while tuning"
    say(f"{near}: {second['us']:.1f} us against {second['chosen_us']:.1f} us{'' if timed else ', expected, not timed'}")


def _why_not_timed(op: Op, shape: Shape, expected_us: float | None) -> str:
    return too_large("the operands", _bytes(op, shape), op.flops(shape)) or too_long(expected_us)


def _bytes(op: Op, shape: Shape) -> int:
    return sum(math.prod(op.operand_shape(o, shape)) * DTYPES[op.dtype_of(o)].size for o in op.meaning.operands)


def _expected_us(plan: Mapping[str, Any], op: Op, shape: Shape, chosen: Composition) -> float | None:
    """Estimated time of a call, in us: that of the nearest shape with a time of the kernel, grown as work and bytes grow."""
    timed: Mapping[str, Mapping[str, float]] = {**plan.get("expected_us", {}), **plan.get("measured_us", {})}
    own = {text: times[chosen.label] for text, times in timed.items() if chosen.label in times}
    shapes = {text: Shape.of({axis: span.first for axis, span in ShapeRange.parse(text).spans}) for text in own}
    near = [(abs(math.log(_bytes(op, other) / _bytes(op, shape))), text) for text, other in shapes.items()]
    if not near:
        return None
    _, text = min(near)
    return own[text] * max(_bytes(op, shape) / _bytes(op, shapes[text]), op.flops(shape) / max(1, op.flops(shapes[text])))


def _call_us(pack: Pack, op: Op, shape: Shape) -> float:
    inputs = numerics.draw(op, shape, np.random.default_rng(0))
    served = pack.op(op.name)
    made = {
        operand.name: np.empty(op.operand_shape(operand, shape), numerics.numpy_dtype(op.dtype_of(operand)))
        for operand in op.meaning.written
    }
    outs = tuple(made[operand.name] for operand in pack.op_entry(op.name).in_file_order)
    out = outs if len(outs) > 1 else outs[0]
    if hasattr(served, "bind"):
        constants = {name: inputs[name] for name, axes in op.epilogue_operands.items() if len(axes) == 1}
        more = {name: inputs[name] for name in op.epilogue_operands if name not in constants}
        return median_us([partial(served.bind(inputs["weight"], **constants), inputs["x"], out, **more)])
    return median_us([partial(served.run, out=out, **inputs)])


def _runner_up(plan: Mapping[str, Any], extents: Mapping[str, int], chosen: Composition) -> dict[str, Any] | None:
    """The next best composition at the nearest shape at which the chosen one was compared, too: timed or expected."""
    near: tuple[float, str] | None = None
    timed: Mapping[str, Mapping[str, float]] = plan.get("measured_us", {})
    guessed: Mapping[str, Mapping[str, float]] = plan.get("expected_us", {})
    compared = {text: {**guessed.get(text, {}), **timed.get(text, {})} for text in {**timed, **guessed}}
    for text, times in compared.items():
        shape = {axis: span.first for axis, span in ShapeRange.parse(text).spans}
        if chosen.label in times and len(times) > 1 and set(shape) == set(extents):
            apart = sum(math.log(shape[axis] / extents[axis]) ** 2 for axis in extents)
            near = min(near or (math.inf, ""), (apart, text))
    if near is None:
        return None
    times = compared[near[1]]
    us, label = min((us, label) for label, us in times.items() if label != chosen.label)
    other = Composition.parse(label)
    both = label in timed.get(near[1], {}) and chosen.label in timed.get(near[1], {})
    return {"composition": other.text, "split": other.share, "us": us, "chosen_us": times[chosen.label], "at": near[1],
            "from": "measured" if both else "predicted"}  # fmt: skip
