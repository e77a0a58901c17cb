"""Page: a survey as Markdown, every figure with its baselines and intervals beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from haotuner.transfer.ablation import SEEDS
from haotuner.transfer.bars import bars, gaps
from haotuner.transfer.judging import KEYS
from haotuner.transfer.modes import GUIDED, MODES
from haotuner.transfer.objectives import SAMPLES

_SPLITS: Mapping[str, str] = {
    "device": "Device out: the sources are all configurations of the other devices, the target is scored on all of its own",
    "device-and-configs": "Device and configurations out: the sources are a random half of the configurations (another half "
    "each seed; those that differ only in parameters they do not use fall into the same half), the target is scored on the "
    "other half, where copying cannot work",
}
_BASELINES: Mapping[str, str] = {
    "copy": "copy, nearest source",
    "copy-mean": "copy, mean of sources",
    "plain": "plain LightGBM",
    "analytic": "analytic",
    "random": "random",
}
Report = Mapping[str, Any]


def page(document: Mapping[str, Any], command: str, plots: Mapping[tuple[str, str], str]) -> str:
    """Markdown of a survey; ``plots`` gives the link of each (family, split)'s picture."""
    return "\n".join(_page(document, command, plots)) + "\n"


def _page(document: Mapping[str, Any], command: str, plots: Mapping[tuple[str, str], str]) -> Iterator[str]:
    counts = ["0", *(str(count) for count in document["counts"] if count)]  # baselines need no sample
    yield "# Transfer: known devices' models on a new one"
    yield ""
    yield f"Made by `{command}`"
    yield f"in {document['work_s'] / 60:.1f} min of one core's time; {document['seeds']} seeds."
    yield "Every figure is a mean over seeds (forests, folds, random samples), in brackets its 90 % bootstrap interval."
    yield "*best@k*: best throughput among the k highest-ranked over the best of all, target samples counted as found."
    yield "*pairwise*: share of pairs of unmeasured kernels in the right order."
    yield "*chosen*: the mode that the gauge picks from the target's samples alone. *Nearest*: by profile."
    yield "*from-scratch*: the first samples by chance, later ones by the model of those before. *guided*: the same,"
    yield "samples chosen as *chosen* does, the analysis the only opinion: what *chosen* is ahead is owed to sources."
    yield "Baselines (in italics) need no model but *plain LightGBM*, one forest over all sources: the figure to begin from."
    yield "Curves count target samples, then the walk down the ranking."
    yield ""
    yield "## Bars"
    yield ""
    yield from _table(
        ("family", "split", "bar", "found", "met"),
        [(bar.family, bar.split, bar.text, bar.found, "yes" if bar.met else "**no**") for bar in bars(document)],
    )
    for family, facts in document["families"].items():
        yield f"## {family}"
        yield ""
        yield from _table(
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
                yield from _scores(reports, key, counts)
            yield from _reach(reports)
            yield from _regret(reports)
        yield from _extras(family, facts)


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
        for mode in (*MODES, GUIDED):
            if mode in report["modes"]:
                by = report["modes"][mode]
                rows.append(("", mode, *(f"{by[c][key]:.3f}" if c in by else "" for c in counts)))
        for name, said in _BASELINES.items():
            if name in report["baselines"]:
                rows.append(("", f"*{said}*", f"{report['baselines'][name][key]:.3f}", *("" for _ in counts[1:])))
    yield f"#### {key}, by target samples"
    yield ""
    yield from _table(("target", "ranking", *counts), rows)


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
    yield from _table(("target", "mode", "95 %", "97 %", "99 %", "from scratch over it, 97 %"), rows)


def _regret(reports: Mapping[str, Report]) -> Iterator[str]:
    at = ("1", "4", "16", "32", "64", "128", "256")
    rows = [
        (device, mode, *(f"{100 * regret[n]:.1f}" for n in at))
        for device, report in reports.items()
        for mode, regret in report["regret"].items()
        if mode in ("chosen", "copy", "from-scratch", GUIDED)
    ]
    yield "#### Regret after n measurements, per cent of the best throughput"
    yield ""
    yield from _table(("target", "mode", *at), rows)


def _extras(family: str, facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {family}: ablation, permutation test, funnel"
    yield ""
    yield "Ablation, zero-shot on a device that training never saw, mean over devices: what resource features add."
    yield f"Ablation and permutation test are means over {SEEDS} seeds of the forests; the funnel has none."
    yield ""
    means = facts["ablate"]["means"]
    yield from _table(
        ("what the model may see", *KEYS),
        [(name, *(f"{scores[key]:.3f}" for key in KEYS)) for name, scores in means.items()],
    )
    yield "Regression of log(throughput / roofline) against LightGBM's ranking objectives, trees and features alike: learnt"
    yield f"from the other devices (program features, near ones first), or from {SAMPLES} random rows of its own."
    yield ""
    yield from _table(
        ("learnt from", "objective", *KEYS),
        [
            (source, objective, *(f"{by[source][key]:.3f}" for key in KEYS))
            for source in ("device out", "own samples")
            for objective, by in facts["ablate"]["objectives"].items()
        ],
    )
    permuted = facts["permute"]
    low, high = permuted["interval"]
    yield f"Permutation test: swapping two devices' profiles costs {permuted['mean_cost']:.3f} of pairwise accuracy"
    yield f"(90 % interval {low:.3f} to {high:.3f})."
    yield ""
    yield from _table(
        ("swapped", "target", "true profiles", "swapped", "cost"),
        [
            (" and ".join(s["swapped"]), s["target"], f"{s['true']:.3f}", f"{s['pairwise']:.3f}", f"{s['cost']:+.3f}")
            for s in permuted["swaps"]
        ],
    )
    yield "Funnel with the real profiles: laws, then the best by expectation; nothing measured takes part."
    yield ""
    laws = list(facts["funnel"][0]["refused"])
    yield from _table(
        ("device", "measured", *(f"refused: {law}" for law in laws), "kept", "best kept / best of all"),
        [
            (
                f["device"],
                str(f["measured"]),
                *(str(f["refused"][law]) for law in laws),
                str(f["kept"]),
                f"{f['best_kept']:.3f}",
            )
            for f in facts["funnel"]
        ],
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""
