"""Bars: what transfer has to reach, held against a survey; each bar with what was found, met or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench.transfer_study.report_page import Report, gaps
from tests.bench.transfer_study.started_mode import GUIDED

SLACK = 0.01  # by which the chosen mode may be behind the best that hindsight could pick


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One requirement on one family."""

    family: str
    split: str
    text: str
    found: str
    met: bool


def bars(document: Mapping[str, Any]) -> Iterator[Bar]:
    """Every bar on every family and split of a survey."""
    for family, facts in document["families"].items():
        for split, reports in facts["splits"].items():
            yield _chosen(family, split, reports)
            for text, count, key, least in (
                ("zero-shot best@10, mean over devices", "0", "best@10", 0.97),
                ("32 samples, chosen, best@1", "32", "best@1", 0.92),
                ("32 samples, chosen, best@10", "32", "best@10", 0.98),
                ("32 samples, chosen, pairwise", "32", "pairwise", 0.90),
            ):
                if all(count in report["chosen"] for report in reports.values()):
                    value = sum(_at(report, count, key) for report in reports.values()) / len(reports)
                    yield Bar(
                        family=family, split=split, text=f"{text} >= {least}", found=f"{value:.3f}", met=value >= least
                    )
            if all("zero-shot" in report["modes"] for report in reports.values()):
                yield _improved(family, split, reports)
            for rival, words in (("from-scratch", "from scratch"), (GUIDED, "from scratch guided by the analysis")):
                if all({"chosen", rival} <= report["measurements_to"].keys() for report in reports.values()):
                    yield _fewer(family, split, reports, rival, words)
        yield _hardware(family, facts)
        yield _funnel(family, facts)


def _at(report: Report, count: str, key: str) -> float:
    return float((report["modes"]["zero-shot"] if count == "0" else report["chosen"])[count][key])


def _chosen(family: str, split: str, reports: Mapping[str, Report]) -> Bar:
    chosen = [
        (gap, device, count, best)
        for device, report in reports.items()
        for count, (gap, best) in gaps(report, "best@10").items()
    ]
    gap, device, count, best = max(chosen)
    within = sum(entry[0] <= SLACK for entry in chosen)
    text = f"chosen within {SLACK} of the best mode, copy and from scratch (best@10)"
    worst = f"{within} of {len(chosen)}; widest gap {max(gap, 0.0):.3f} ({device}, {count} samples, {best})"
    return Bar(family=family, split=split, text=text, found=worst, met=gap <= SLACK)


def _improved(family: str, split: str, reports: Mapping[str, Report]) -> Bar:
    first = _mean(reports.values(), lambda r: float(r["baselines"]["plain"]["best@10"]))
    ours = _mean(reports.values(), lambda r: float(r["modes"]["zero-shot"]["0"]["best@10"]))
    share = (ours - first) / (1.0 - first) if first < 1.0 else 0.0
    return Bar(
        family=family,
        split=split,
        text="zero-shot best@10 takes a third of the gap to 1 that a plain LightGBM leaves",
        found=f"{share:.2f} of it ({first:.3f} -> {ours:.3f})",
        met=share >= 1.0 / 3.0 or ours == 1.0,
    )


def _fewer(family: str, split: str, reports: Mapping[str, Report], rival: str, words: str) -> Bar:
    ours = _mean(reports.values(), lambda r: float(r["measurements_to"]["chosen"]["0.97"]))
    scratch = _mean(reports.values(), lambda r: float(r["measurements_to"][rival]["0.97"]))
    return Bar(
        family=family,
        split=split,
        text=f"2.5x fewer measurements than {words} to 97 %",
        found=f"{scratch / ours:.1f}x ({ours:.0f} against {scratch:.0f})",
        met=scratch >= 2.5 * ours,
    )


def _hardware(family: str, facts: Mapping[str, Any]) -> Bar:
    low, high = facts["permute"]["interval"]
    return Bar(
        family=family,
        split="device",
        text="swapping two devices' profiles costs pairwise accuracy",
        found=f"{facts['permute']['mean_cost']:.3f} (90 % interval {low:.3f} to {high:.3f})",
        met=bool(facts["permute"]["uses_hardware"]),
    )


def _funnel(family: str, facts: Mapping[str, Any]) -> Bar:
    worst = min(facts["funnel"], key=lambda entry: float(entry["best_kept"]))
    return Bar(
        family=family,
        split="",
        text="survivors of every device's funnel hold >= 0.97 of the best",
        found=f"least {worst['best_kept']:.3f} ({worst['device']}, {worst['kept']} of {worst['measured']})",
        met=worst["best_kept"] >= 0.97,
    )


def _mean(reports: Any, of: Callable[[Report], float]) -> float:
    values: Sequence[float] = [of(report) for report in reports]
    return sum(values) / len(values)
