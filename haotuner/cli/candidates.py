"""`haotuner candidates`: which micro-kernels selection keeps for a device, present or not, and why it refuses the others."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from haotuner.backends.cuda.compiler import why_not_built
from haotuner.cli.devices import columns
from haotuner.cli.options import Json, Quiet, Verbose
from haotuner.cli.output import say, tell
from haotuner.errors import NothingLegal
from haotuner.host.cache_folder import cache_folder
from haotuner.hw_profiles.find import find_device
from haotuner.microkernels.cuda.conv import conv_families
from haotuner.microkernels.index import families_for, family_named
from haotuner.search.select.fit import exact_axes
from haotuner.search.select.funnel import Funnel, select
from haotuner.spec.composition import sum_parts
from haotuner.spec.demand import Expectation
from haotuner.spec.device import Device
from haotuner.spec.family import Family
from haotuner.spec.kernel import Candidate
from haotuner.spec.op import Op
from haotuner.spec.traffic import Traffic, traffic_of
from haotuner.tuning.request import ops_of

if TYPE_CHECKING:
    from haotuner.cost.vendor_level import Beside

COMPARED_ROWS = (256, 512, 1024, 2048, 4096, 8192)  # at which expected times are compared with the vendor's
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
    target = find_device(device, cache_dir=cache_folder(os.environ))
    result = [Selected.of(item, target, shapes) for item in ops_of(op, device)]
    beside = {item.op.name: times for item in result if (times := item.beside_vendor(target, shapes)) is not None}
    lacking = "" if target.kind == "cpu" else why_not_built(target)
    if json_output:
        every = [item.document() for item in result]
        refused = sum((Counter(item.refused) for item in result), Counter[str]())
        selected = [name for document in every for name in document["kept"]]
        document = {"device": target.id, **every[0], "not_built": lacking}
        if beside:
            document["vendor"] = {name: {**asdict(times), "ratio": times.ratio} for name, times in beside.items()}
        if len(every) > 1:  # of a file of several outputs
            document |= {"kept": selected, "refused": refused, "ops": every}
        say(json.dumps(document, indent=1))
        return
    for item in result:
        if not quiet:
            item.tell(target, lacking, verbose=verbose)
        shown = item.candidates if verbose or quiet else item.candidates[:SHOWN]
        listed = [(c.kernel.name, f"{c.score:.3f}", str(c.footprint.registers_per_thread)) for c in shown]
        say(columns([("kept", "expected share of roofline", "registers"), *listed]))
        if len(shown) < len(item.candidates):
            say(f"... and {len(item.candidates) - len(shown)} more; -v prints all")
        if not quiet and item.op.name in beside:
            _tell_vendor(beside[item.op.name], target)


def _tell_vendor(beside: Beside, device: Device) -> None:
    """Table of expected times of the best kernel beside the vendor's, and a warning where they are far apart."""
    rows = zip(beside.rows, beside.expected_us, beside.vendor_us, strict=True)
    table = [(str(m), f"{us:.1f}", f"{vendor:.1f}", f"{us / vendor:.2f}") for m, us, vendor in rows]
    say(columns([("rows", "best expected us", "vendor's us", "ratio"), *table]))
    if warning := beside.warning(device):
        tell(f"warning: {warning}")


@dataclass(frozen=True, slots=True)
class Selected:
    """Selection of one op: a funnel of each family with a legal point, and why the others have none."""

    op: Op
    funnels: dict[str, Funnel]
    without: dict[str, str]

    @staticmethod
    def of(op: Op, device: Device, shapes: str) -> Selected:
        """Nothing is compiled or measured; NothingLegal if no family has a point."""
        return Selected(op, *_selected(op, device, traffic_of(shapes, op)))

    @property
    def candidates(self) -> list[Candidate]:
        """Of all families, the best by expectation first."""
        return sorted(
            (c for funnel in self.funnels.values() for c in funnel.candidates), key=lambda c: (-c.score, c.kernel.name)
        )

    @property
    def refused(self) -> dict[str, int]:
        """Counts by law, of all families."""
        return dict(sum((Counter(funnel.refused) for funnel in self.funnels.values()), Counter[str]()))

    def beside_vendor(self, device: Device, shapes: str) -> Beside | None:
        """The best kernel's expected times beside the vendor's, at the traffic's ends and powers of two between."""
        from haotuner.cost.expected import least_expected_us  # the models and their libraries take a second to import
        from haotuner.cost.vendor_level import LEAST_ROWS, beside_vendor, vendor_us

        if vendor_us(device, self.op, [LEAST_ROWS]) is None:
            return None
        last = max(shape[self.op.dynamic[0]] for shape in traffic_of(shapes, self.op).shapes())
        rows = [m for m in COMPARED_ROWS if m <= last]
        kernels = {family_named(name): [c.kernel for c in f.candidates] for name, f in self.funnels.items()}
        return (
            beside_vendor(device, self.op, rows, least_expected_us(self.op, device, kernels, rows).tolist())
            if rows
            else None
        )

    def document(self) -> dict[str, Any]:
        """JSON form, for programs."""
        families = [
            {"name": name, "points": f.points, "legal": f.legal, "kept": len(f.candidates), "refused": f.refused}
            for name, f in self.funnels.items()
        ]
        selected = [c.kernel.name for c in self.candidates]
        return {"op": self.op.name, "kept": selected, "refused": self.refused, "families": families, "without": self.without}

    def tell(self, device: Device, lacking: str, *, verbose: bool) -> None:
        """The funnels and what was refused, for people; ``lacking``: why no code is built for the device."""
        for name, funnel in self.funnels.items():
            say(f"{self.op.name} on {device.id}: {name}: {funnel.line()}")
        for why in self.without.values():
            say(why)
        if lacking:
            say(f"no code is built for {device.id}: {lacking}; its kernels can be selected and predicted")
        say(columns([("refused by", "count"), *((law, str(n)) for law, n in self.refused.items())]))
        if verbose:
            examples = [refusal for funnel in self.funnels.values() for refusal in funnel.examples]
            rows = [(r.law, f"{r.requested:g}", f"{r.allowed:g}", r.kernel.name) for r in examples]
            say(columns([("law", "asked", "allowed", "kernel"), *rows]))


def _selected(op: Op, device: Device, traffic: Traffic) -> tuple[dict[str, Funnel], dict[str, str]]:
    """A funnel of each family with a legal point, and why the others have none; NothingLegal if no family has one."""
    result: dict[str, Funnel] = {}
    without: dict[str, str] = {}
    families = conv_families(op) if device.kind != "cpu" else ()
    for family in families or families_for(op, "cpu" if device.kind == "cpu" else "cuda"):
        try:
            result[family.name] = select(op, family, device, traffic, _score(op, family, device, traffic))
        except NothingLegal as error:
            without[family.name] = str(error)
    if not result:
        raise NothingLegal("\n".join(without.values()))
    return result, without


def _score(op: Op, family: Family, device: Device, traffic: Traffic) -> Expectation:
    own = family.expectation(op, device, traffic)
    if own is not None:
        return own
    from haotuner.backends.index import BACKENDS
    from haotuner.cost.expected import over_traffic  # the models and their libraries take a second to import
    from haotuner.search.observations import expectation
    from haotuner.tuning.initial_model import start_of

    start = start_of(None, device, family.name).model  # as tune would
    first = next(iter(family.points(op, device)), None)
    if first is not None and exact_axes(family.tile(first)):
        return expectation(op, family, device, "cold", start)
    owner = next((backend for backend in BACKENDS if backend.owns(device)), None)  # other makers' GPUs have none
    parts = tuple(dict.fromkeys(sum_parts(way) for way in owner.ways(op, 1, one_order=False))) if owner else (1,)
    return over_traffic(op, family, device, traffic, start, parts=parts)  # a tile serves a shape alone
