"""Page: a report as Markdown, every figure with its baselines and intervals beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tests.bench.markdown import markdown_table
from tests.bench.transfer_study.calibrate import KEYS
from tests.bench.transfer_study.modes import MODES
from tests.bench.transfer_study.report_summary import in_short
from tests.bench.transfer_study.started_mode import GUIDED, STARTED

_SPLITS: Mapping[str, str] = {
    "device": "Device out: the sources are all configurations of the other devices, the target is scored on all of its own",
    "architecture": "Architecture out: as above, but no device of the target's whole architecture is a source",
    "device-and-configs": "Device and configurations out: the sources are a random half of the configurations (another half "
    "each seed; those that differ only in parameters they do not use fall into the same half), the target is scored on the "
    "other half, where copying cannot work",
}
_BASELINES: Mapping[str, str] = {
    "copy": "copy, nearest source",
    "copy-mean": "copy, mean of sources",
    "plain": "plain LightGBM",
    "analytic": "analytic",
    "start": "started, before any sample",
    "random": "random",
}
Report = Mapping[str, Any]
Plots = Mapping[tuple[str, str], str]  # the link of the picture of each (family, split)


def page(document: Mapping[str, Any], command: str) -> str:
    """Markdown of what ``report`` found; ``command`` says how it was made."""
    lines = [*header(document, command), *in_short(document)]
    for family, facts in document["families"].items():
        lines += family_page(family, facts, document["counts"])
    return "\n".join(lines) + "\n"


def header(document: Mapping[str, Any], command: str) -> Iterator[str]:
    """What the page is, and what its words mean."""
    yield "# Transfer: known devices' models on a new one"
    yield ""
    yield f"Made by `{command}`"
    yield f"in {document['work_s'] / 60:.1f} min of one core's time; {document['seeds']} seeds."
    yield "Every figure is a mean over seeds (forests, folds, random samples), in brackets its 90 % bootstrap interval."
    yield ""
    yield "- *best@k*: best throughput among the k highest-ranked over the best of all, target samples counted as found."
    yield "- *pairwise*: share of pairs of unmeasured kernels in the right order."
    yield "- *chosen*: the mode that the target's samples choose. *Nearest*: by profile."
    yield f"- *{STARTED}*: what `haotuner tune` runs: models of the near sources, put right by the samples of *chosen*."
    yield "- *from-scratch*: the first samples by chance, later ones by the model of those before."
    yield f"- *{GUIDED}*: from scratch, its samples chosen as those of *chosen* are, the analysis the only opinion."
    yield "- Baselines (in italics) need no sample. *Plain LightGBM* is one forest over all sources."
    yield "- Curves count target samples, then the walk down the ranking."
    yield ""


def family_page(
    family: str, facts: Mapping[str, Any], counts: Sequence[int], plots: Plots = MappingProxyType({})
) -> Iterator[str]:
    """Devices of a family, then scores, measurements and regret of every target under each split."""
    columns = ["0", *(str(count) for count in counts if count)]  # baselines need no sample
    yield f"## {family}"
    yield ""
    yield from markdown_table(
        ("device", "kernels measured", "best over roofline"),
        [(name, str(d["rows"]), f"{d['best_share_of_roofline']:.2f}") for name, d in facts["devices"].items()],
    )
    for split, reports in facts["splits"].items():
        yield f"### {family}: {split}"
        yield ""
        yield f"{_SPLITS[split]}."
        yield ""
        if (family, split) in plots:
            yield f"![latency over measurements]({plots[family, split]})"
            yield ""
        for key in KEYS:
            yield from _scores(reports, key, columns)
        yield from _reach(reports)
        yield from _regret(reports)


def gaps(report: Report, key: str) -> dict[str, tuple[float, str]]:
    """By sample count: how far the chosen mode is behind the best of all modes and copying, and which that is."""
    result = {}
    copies = {name: scores for name, scores in report["baselines"].items() if name.startswith("copy")}
    for count, chosen in report["chosen"].items():
        rivals = {mode: by[count][key] for mode, by in report["modes"].items() if count in by}
        if count == "0":
            rivals |= {name: scores[key] for name, scores in copies.items()}
        best = max(rivals, key=lambda name: rivals[name])
        result[count] = (rivals[best] - chosen[key], best)
    return result


def _scores(reports: Mapping[str, Report], key: str, counts: Sequence[str]) -> Iterator[str]:
    """One metric: the chosen mode, the best with hindsight, each mode for best@10 and pairwise, the baselines."""
    rows: list[tuple[str, ...]] = []
    for device, report in reports.items():
        chosen, behind = report["chosen"], gaps(report, key)
        cells = [_interval(chosen, report["intervals"]["chosen"], count, key) for count in counts]
        rows.append((f"**{device}**", "**chosen**", *cells))
        modes = [f"{chosen[count]['mode']}" if count in chosen else "" for count in counts]
        rows.append(("", "picked most often", *modes))
        best = [f"{behind[count][0]:+.3f} {behind[count][1]}" if count in behind else "" for count in counts]
        rows.append(("", "best of all, less chosen", *best))
        for mode in (*MODES, STARTED, GUIDED):
            if mode in report["modes"]:
                by = report["modes"][mode]
                rows.append(("", mode, *(f"{by[c][key]:.3f}" if c in by else "" for c in counts)))
        for name, item in _BASELINES.items():
            if name in report["baselines"]:
                rows.append(("", f"*{item}*", f"{report['baselines'][name][key]:.3f}", *("" for _ in counts[1:])))
    yield f"#### {key}, by target samples"
    yield ""
    yield from markdown_table(("target", "ranking", *counts), rows)


def _interval(chosen: Report, intervals: Report, count: str, key: str) -> str:
    if count not in chosen:
        return ""
    low, high = intervals[count][key]
    return f"**{chosen[count][key]:.3f}** [{low:.3f}, {high:.3f}]"


def _reach(reports: Mapping[str, Report]) -> Iterator[str]:
    rows = []
    for device, report in reports.items():
        limit = report["measurements_limit"]
        for mode, to in report["measurements_to"].items():
            cells = [f"{n:.0f}" if n < limit else f"{limit} or more" for n in to.values()]
            scratch = report["measurements_to"].get("from-scratch")  # without samples nothing learns from scratch
            rows.append((device, mode, *cells, f"{scratch['0.97'] / to['0.97']:.1f}x" if scratch else ""))
    yield "#### Measurements until the best found reaches a share of the best"
    yield ""
    yield from markdown_table(("target", "mode", "95 %", "97 %", "99 %", "from scratch over it, 97 %"), rows)


def _regret(reports: Mapping[str, Report]) -> Iterator[str]:
    at = ("1", "4", "16", "32", "64", "128", "256")
    rows = [
        (device, mode, *(f"{100 * regret[n]:.1f}" for n in at))
        for device, report in reports.items()
        for mode, regret in report["regret"].items()
        if mode in ("chosen", "copy", "from-scratch", STARTED, GUIDED)
    ]
    yield "#### Regret after n measurements, per cent of the best throughput"
    yield ""
    yield from markdown_table(("target", "mode", *at), rows)
