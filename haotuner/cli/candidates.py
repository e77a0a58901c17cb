"""`haotuner candidates`: which micro-kernels selection keeps for a device, present or not, and why it refuses the others."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer

from haotuner.cli.cache_folder import cache_folder
from haotuner.cli.devices import columns
from haotuner.cli.requested import Json, Quiet, Verbose, ops_of
from haotuner.hw_profiles.find import find_device
from haotuner.microkernels.index import families_for
from haotuner.select.funnel import Funnel, select
from haotuner.trace import traffic_of

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
    from haotuner.search.book import expectation  # the models and their libraries take a second to import

    (wanted,) = ops_of([op], None)
    target = find_device(device, cache_dir=cache_folder(os.environ))
    backend = "cpu" if target.kind == "cpu" else "cuda"
    traffic = traffic_of(shapes, wanted)
    funnels: list[Funnel] = [
        select(wanted, family, target, traffic, expectation(wanted, family, target, "cold"))
        for family in families_for(wanted, backend)
    ]
    kept = [candidate for funnel in funnels for candidate in funnel.kept]
    refused: dict[str, int] = {}
    for funnel in funnels:
        for law, count in funnel.refused.items():
            refused[law] = refused.get(law, 0) + count
    if json_output:
        document = {"device": target.id, "op": wanted.name, "kept": [c.kernel.name for c in kept], "refused": refused}
        typer.echo(json.dumps(document, indent=1))
        return
    if not quiet:
        for funnel in funnels:
            typer.echo(f"{wanted.name} on {target.id}: {funnel.line()}")
        typer.echo(columns([("refused by", "count"), *((law, str(n)) for law, n in refused.items())]))
        if verbose:
            rows = [(r.law, f"{r.asked:g}", f"{r.allowed:g}", r.kernel.name) for f in funnels for r in f.examples]
            typer.echo(columns([("law", "asked", "allowed", "kernel"), *rows]))
    shown = kept if verbose or quiet else kept[:SHOWN]
    listed = [(c.kernel.name, f"{c.score:.3f}", str(c.footprint.registers_per_thread)) for c in shown]
    typer.echo(columns([("kept", "expected share of roofline", "registers"), *listed]))
    if len(shown) < len(kept):
        typer.echo(f"... and {len(kept) - len(shown)} more; -v prints all")
