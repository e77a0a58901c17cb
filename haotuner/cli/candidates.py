"""`haotuner candidates`: which micro-kernels selection keeps for a device, present or not, and why it refuses the others."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer

from haotuner.backends.cuda.toolkit import why_not_built
from haotuner.cli.cache_folder import cache_folder
from haotuner.cli.devices import columns
from haotuner.cli.output import say
from haotuner.cli.requested import Json, Quiet, Verbose
from haotuner.errors import NothingLegal
from haotuner.hw_profiles.find import find_device
from haotuner.microkernels.cuda.conv import conv_families
from haotuner.microkernels.index import families_for
from haotuner.request import ops_of
from haotuner.select.funnel import Funnel, select
from haotuner.select.geometry import exact_axes
from haotuner.trace import traffic_of
from haotuner.words.composition import sum_parts
from haotuner.words.demand import Expectation
from haotuner.words.device import Device
from haotuner.words.family import Family
from haotuner.words.op import Op
from haotuner.words.traffic import Traffic

SHOWN = 20  # candidates printed for people without -v


def candidates(
    op: Annotated[str, typer.Option("--op", metavar="SPEC", help="For example dense:n=2304,k=768.")],
    shapes: Annotated[str, typer.Option("--shapes", help="dynamic, ranges, or a trace file.")] = "dynamic",
    device: Annotated[
        str, typer.Option("--device", help="A device of this host, or a profile: see `haotuner devices`.")
    ] = "cpu",
    json_output: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Select micro-kernels for an op on a device; nothing is compiled or measured."""
    wanted = ops_of(op)[0]
    target = find_device(device, cache_dir=cache_folder(os.environ))
    funnels, without = _selected(wanted, target, traffic_of(shapes, wanted))
    kept = sorted((c for funnel in funnels.values() for c in funnel.kept), key=lambda c: (-c.score, c.kernel.name))
    refused: dict[str, int] = {}
    for funnel in funnels.values():
        for law, count in funnel.refused.items():
            refused[law] = refused.get(law, 0) + count
    lacking = "" if target.kind == "cpu" else why_not_built(target)
    if json_output:
        families = [
            {"name": name, "points": f.points, "legal": f.legal, "kept": len(f.kept), "refused": f.refused}
            for name, f in funnels.items()
        ]
        document = {
            "device": target.id, "op": wanted.name, "kept": [c.kernel.name for c in kept], "refused": refused,
            "families": families, "without": without, "not_built": lacking,
        }  # fmt: skip
        say(json.dumps(document, indent=1))
        return
    if not quiet:
        for name, funnel in funnels.items():
            say(f"{wanted.name} on {target.id}: {name}: {funnel.line()}")
        for why in without.values():
            say(why)
        if lacking:
            say(f"no code is built for {target.id}: {lacking}; its kernels can be selected and predicted")
        say(columns([("refused by", "count"), *((law, str(n)) for law, n in refused.items())]))
        if verbose:
            examples = [refusal for funnel in funnels.values() for refusal in funnel.examples]
            rows = [(r.law, f"{r.asked:g}", f"{r.allowed:g}", r.kernel.name) for r in examples]
            say(columns([("law", "asked", "allowed", "kernel"), *rows]))
    shown = kept if verbose or quiet else kept[:SHOWN]
    listed = [(c.kernel.name, f"{c.score:.3f}", str(c.footprint.registers_per_thread)) for c in shown]
    say(columns([("kept", "expected share of roofline", "registers"), *listed]))
    if len(shown) < len(kept):
        say(f"... and {len(kept) - len(shown)} more; -v prints all")


def _selected(op: Op, device: Device, traffic: Traffic) -> tuple[dict[str, Funnel], dict[str, str]]:
    """A funnel of each family with a legal point, and why the others have none; NothingLegal if no family has one."""
    found: dict[str, Funnel] = {}
    without: dict[str, str] = {}
    families = conv_families(op) if device.kind != "cpu" else ()
    for family in families or families_for(op, "cpu" if device.kind == "cpu" else "cuda"):
        try:
            found[family.name] = select(op, family, device, traffic, _score(op, family, device, traffic))
        except NothingLegal as error:
            without[family.name] = str(error)
    if not found:
        raise NothingLegal("\n".join(without.values()))
    return found, without


def _score(op: Op, family: Family, device: Device, traffic: Traffic) -> Expectation:
    own = family.expectation(op, device, traffic)
    if own is not None:
        return own
    from haotuner.backends.index import BACKENDS
    from haotuner.cost.expected import over_traffic  # the models and their libraries take a second to import
    from haotuner.initial_model import start_of
    from haotuner.search.book import expectation

    start = start_of(None, device, family.name).model  # as tune would
    first = next(iter(family.points(op, device)), None)
    if first is not None and exact_axes(family.tile(first)):
        return expectation(op, family, device, "cold", start)
    owner = next((backend for backend in BACKENDS if backend.owns(device)), None)  # other makers' GPUs have none
    parts = tuple(dict.fromkeys(sum_parts(way) for way in owner.ways(op, 1, one_order=False))) if owner else (1,)
    return over_traffic(op, family, device, traffic, start, parts=parts)  # a tile serves a shape alone
