"""`haotuner explain PACK --model MODEL`: the kernels of each region of a model, with times, beside greedy fusion's."""

from __future__ import annotations

from typing import Any

from haotuner.cli.devices import columns
from haotuner.cli.output import say
from haotuner.errors import UsageError
from haotuner.pack.manifest import Manifest

SHOWN = 60  # letters of a kernel's primitives


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
    )


def print_model(document: dict[str, Any], *, every: bool) -> None:
    """Regions whose plans differ; ``every``: all of them."""
    how = f"{document['measured']} kernels measured" if document["measured"] else "expected, nothing measured"
    say(f"{document['model']}: groups of {len(document['regions'])} regions, us a request, mean over {document['requests']} "
        f"({how}), {document['status']}{_totals(document.get('us', {}))}")  # fmt: skip
    for way in document.get("ways", []):
        say(f"plan for {way['where']}: {way['us']:,.0f} us of its {len(way['requests'])} requests, by the one plan "
            f"{way['one_plan_us']:,.0f}; {way['own_kernels']} kernels of its own")  # fmt: skip
    apart = [
        region
        for region in document["regions"]
        if every or _kernel_summaries(region["chosen"]) != _kernel_summaries(region["greedy"])
    ]
    for region in apart:
        rows = [(who, _makes(one_group), f"{one_group['us']:.1f}", _short(one_group["primitives"]))
                for who in ("chosen", "greedy") for one_group in region[who]]  # fmt: skip
        totals = [sum(one_group["us"] for one_group in region[who]) for who in ("chosen", "greedy")]
        say(f"\nregion of {region['outputs'][0]}: {totals[0]:.1f} us, greedily {totals[1]:.1f}")
        say(columns([("plan", "makes", "us", "of"), *rows]))
    if not apart:
        say("greedy fusion has the same kernels everywhere")


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
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(primitives)})"
