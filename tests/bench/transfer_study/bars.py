"""Bars: what transfer has to reach, held against a survey; each bar with its figure, met or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench.markdown import markdown_table
from tests.bench.transfer_study.report_page import Report, gaps
from tests.bench.transfer_study.started_mode import GUIDED

SLACK = 0.01  # by which the chosen mode may be behind the best that hindsight could pick
BASELINES = ("plain", "copy", "copy-mean", "analytic")  # zero-shot rankings that anybody could have
Need = tuple[str, str, str, bool, float]  # words, samples, score, whether of the worst device, at least
OF_PRODUCTS: tuple[Need, ...] = (
    ("zero-shot best@1, mean", "0", "best@1", False, 0.90),
    ("zero-shot best@10, mean", "0", "best@10", False, 0.96),
    ("zero-shot best@10, worst device", "0", "best@10", True, 0.90),
    ("16 samples, best@10, mean", "16", "best@10", False, 0.98),
    ("32 samples, best@10, mean", "32", "best@10", False, 0.99),
)
OF_OTHERS: tuple[Need, ...] = (
    ("zero-shot best@10, mean", "0", "best@10", False, 0.93),
    ("zero-shot best@10, worst device", "0", "best@10", True, 0.75),
    ("32 samples, best@10, mean", "32", "best@10", False, 0.97),
)
NEEDS = {"clblast_xgemm": OF_PRODUCTS, "cpu_dense_fp32": OF_PRODUCTS}  # of any other family: ``OF_OTHERS``


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One requirement on one family."""

    family: str
    split: str
    text: str
    reached: str
    met: bool


def bars(document: Mapping[str, Any]) -> Iterator[Bar]:
    """Every bar on every family and split of a survey."""
    for family, facts in document["families"].items():
        for split, reports in facts["splits"].items():
            yield _chosen(family, split, reports)
            for text, count, key, worst, least in NEEDS.get(family, OF_OTHERS):
                if all(count in report["chosen"] for report in reports.values()):
                    values = [_at(report, count, key) for report in reports.values()]
                    value = min(values) if worst else sum(values) / len(values)
                    text_ = f"{text} >= {least:.2f}"
                    yield Bar(family=family, split=split, text=text_, reached=f"{value:.3f}", met=value >= least)
            if all("0" in report["chosen"] for report in reports.values()):
                yield _behind_baselines(family, split, reports)
            if all("zero-shot" in report["modes"] for report in reports.values()):
                yield _improved(family, split, reports)
            for rival, words in (("from-scratch", "from scratch"), (GUIDED, "from scratch guided by the analysis")):
                if all({"chosen", rival} <= report["measurements_to"].keys() for report in reports.values()):
                    yield _fewer(family, split, reports, rival, words)
        if "permute" in facts:
            yield _hardware(family, facts)
        if "funnel" in facts:
            yield _funnel(family, facts)


def bars_table(document: Mapping[str, Any]) -> Iterator[str]:
    """Lines of Markdown: every bar, and by target the zero-shot ranking beside what anybody could have."""
    yield "## Bars"
    yield ""
    rows = [(bar.family, bar.split, bar.text, bar.reached, "yes" if bar.met else "**no**") for bar in bars(document)]
    yield from markdown_table(("family", "split", "bar", "reached", "met"), rows)
    heads = ("family", "left out", "target", "zero-shot best@1", "best@10", "plain", "copy", "copy-mean", "analytic",
             "16 samples", "32 samples")  # fmt: skip
    yield from markdown_table(heads, list(_targets(document)))


def _targets(document: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for family, facts in document["families"].items():
        for split, reports in facts["splits"].items():
            for target, report in reports.items():
                first = report["modes"]["zero-shot"].get("0")
                if first is None:
                    continue
                known = [report["baselines"].get(name) for name in BASELINES]
                samples = [report["chosen"].get(count) for count in ("16", "32")]
                scores = [f"{first['best@1']:.3f}"]
                scores += ["-" if item is None else f"{item['best@10']:.3f}" for item in (first, *known, *samples)]
                yield (family, split, target, *scores)


def _behind_baselines(family: str, split: str, reports: Mapping[str, Report]) -> Bar:
    reached = []
    for device, report in reports.items():
        known = {name: report["baselines"][name]["best@10"] for name in BASELINES if name in report["baselines"]}
        best = max(known, key=lambda name: known[name])
        reached.append((known[best] - _at(report, "0", "best@10"), device, best))
    gap, device, best = max(reached)
    within = sum(item[0] <= SLACK for item in reached)
    text = f"zero-shot within {SLACK} of plain LightGBM, copies and analysis (best@10)"
    words = f"{within} of {len(reached)} devices; widest gap {max(gap, 0.0):.3f} ({device}, {best})"
    return Bar(family=family, split=split, text=text, reached=words, met=gap <= SLACK)


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
    return Bar(family=family, split=split, text=text, reached=worst, met=gap <= SLACK)


def _improved(family: str, split: str, reports: Mapping[str, Report]) -> Bar:
    first = _mean(reports.values(), lambda r: float(r["baselines"]["plain"]["best@10"]))
    ours = _mean(reports.values(), lambda r: float(r["modes"]["zero-shot"]["0"]["best@10"]))
    share = (ours - first) / (1.0 - first) if first < 1.0 else 0.0
    return Bar(
        family=family,
        split=split,
        text="zero-shot best@10 takes a third of the gap to 1 that a plain LightGBM leaves",
        reached=f"{share:.2f} of it ({first:.3f} -> {ours:.3f})",
        met=share >= 1.0 / 3.0 or ours == 1.0,
    )


def _fewer(family: str, split: str, reports: Mapping[str, Report], rival: str, words: str) -> Bar:
    ours = _mean(reports.values(), lambda r: float(r["measurements_to"]["chosen"]["0.97"]))
    scratch = _mean(reports.values(), lambda r: float(r["measurements_to"][rival]["0.97"]))
    return Bar(
        family=family,
        split=split,
        text=f"2.5x fewer measurements than {words} to 97 %",
        reached=f"{scratch / ours:.1f}x ({ours:.0f} against {scratch:.0f})",
        met=scratch >= 2.5 * ours,
    )


def _hardware(family: str, facts: Mapping[str, Any]) -> Bar:
    low, high = facts["permute"]["interval"]
    return Bar(
        family=family,
        split="device",
        text="swapping two devices' profiles costs pairwise accuracy",
        reached=f"{facts['permute']['mean_cost']:.3f} (90 % interval {low:.3f} to {high:.3f})",
        met=bool(facts["permute"]["uses_hardware"]),
    )


def _funnel(family: str, facts: Mapping[str, Any]) -> Bar:
    worst = min(facts["funnel"], key=lambda entry: float(entry["best_kept"]))
    return Bar(
        family=family,
        split="",
        text="survivors of every device's funnel hold >= 0.97 of the best",
        reached=f"least {worst['best_kept']:.3f} ({worst['device']}, {worst['kept']} of {worst['measured']})",
        met=worst["best_kept"] >= 0.97,
    )


def _mean(reports: Any, of: Callable[[Report], float]) -> float:
    values: Sequence[float] = [of(report) for report in reports]
    return sum(values) / len(values)
