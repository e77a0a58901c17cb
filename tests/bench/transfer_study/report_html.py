"""Pages of a transfer report in the form of ``haotuner report``: a tab a family, a choice a target under a split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from haotuner.cli.pages.figures import COLOURS, EVERY, ROOF, Figure, Page, Panel, Table, bars, figure, line, points
from tests.bench.transfer_study.across_devices import KEY
from tests.bench.transfer_study.report_summary import Part, parts, what

_BASELINES = ("copy", "plain", "analytic", "random")
_MEANING = "Best throughput of the ten highest-ranked over the best of all"
_WITHOUT = {
    "copy": "copy of the best source",
    "plain": "one forest of all sources",
    "analytic": "analytic model",
    "random": "random order",
}
_DASHED = {
    "copy": (COLOURS[7], "dash"),
    "plain": (COLOURS[8], "dot"),
    "analytic": (COLOURS[2], "dashdot"),
    "random": (ROOF, "longdash"),
}
_SOURCE = "python -m tests.bench.transfer_study report"


def report_pages(document: Mapping[str, Any]) -> list[Page]:
    """The summary, then a page for each family of what ``report`` found."""
    return [_summary(document), *(_family(name, facts, document) for name, facts in document["families"].items())]


def _summary(document: Mapping[str, Any]) -> Page:
    count = str(document["counts"][0])
    drawn = Panel(
        title="Transfer without measurements" if count == "0" else f"Transfer after {count} measurements",
        about=f"{_MEANING}, the mean over targets. Each target is left out of what is learned from.",
        source=_SOURCE,
        figures={EVERY: _means(document, count)},
    )
    tables = [_table(part, what(document)) for part in parts(document) if len(part.rows) > 1]
    return Page(title="Transfer", panels=[drawn, *tables])


def _means(document: Mapping[str, Any], count: str) -> Figure:
    """Bars by family and split: what transfer chose, and every baseline."""
    means: dict[str, dict[str, float]] = {name: {} for name in ("chosen", *_BASELINES)}
    for family, facts in document["families"].items():
        for split, reports in facts["splits"].items():
            for name, by_label in means.items():
                known = [report["chosen"].get(count) if name == "chosen" else report["baselines"].get(name)
                         for report in reports.values()]  # fmt: skip
                if scores := [point[KEY] for point in known if point is not None]:
                    by_label[f"{family}, {split} left out"] = sum(scores) / len(scores)
    data = []
    for at, (name, by_label) in enumerate(means.items()):
        texts = [f"{label}: {score:.3f}" for label, score in by_label.items()]
        words = "transfer, as chosen" if name == "chosen" else _WITHOUT[name]
        data.append(
            bars(words, list(by_label.values()), list(by_label), texts, _colour(at) if at == 0 else _DASHED[name][0])
        )
    labels = max((len(by_label) for by_label in means.values()), default=0)
    return figure(data, KEY, "", x_type="linear", y_type="category", rows=(1 + len(data)) * labels)


def _table(part: Part, about: str) -> Panel:
    notes = "".join(f" {note[0].upper()}{note[1:]}." for note in part.notes)
    unit = "samples" if "best alone" in part.rows[0] else "sources"
    head = [f"{cell} {unit}" if cell.isdigit() else cell for cell in part.rows[0]]
    return Panel(title=part.title, about=f"{about}.{notes}", source=_SOURCE, tables={EVERY: Table(head, part.rows[1:])})


def _family(name: str, facts: Mapping[str, Any], document: Mapping[str, Any]) -> Page:
    reports = {
        f"{target}, {split} left out": report
        for split, by_target in facts["splits"].items()
        for target, report in by_target.items()
    }
    samples = [int(count) for count in document["counts"]]
    curves = {target: _learning(target, curve) for target, curve in facts.get("learning_curves", {}).items() if curve}
    of_targets = {choice: curves[target] for choice in reports if (target := choice.partition(",")[0]) in curves}
    nothing = {
        choice: "its target has no learning curve: two devices were measured" for choice in reports.keys() - of_targets
    }
    return Page(
        title=name,
        noun="target",
        choices=list(reports),
        panels=(
            Panel(
                title="Regret after measurements",
                about="Loss against the best kernel after so many measurements on the target; lower is better.",
                source=_SOURCE,
                figures={choice: _regret(report) for choice, report in reports.items()},
            ),
            Panel(
                title=f"{KEY} by samples of the target",
                about=f"{_MEANING}. Dashed: without samples.",
                source=_SOURCE,
                figures={choice: _scores(report, samples) for choice, report in reports.items()},
            ),
            Panel(
                title="By the number of source devices",
                about="Zero-shot, the mean over sets of so many sources.",
                source=_SOURCE,
                figures=of_targets,
                missing=nothing,
            ),
        ),
    )


def _colour(at: int) -> str:
    return COLOURS[at % len(COLOURS)]


def _regret(report: Mapping[str, Any]) -> Figure:
    names = sorted(report["regret"], key=lambda mode: mode != "chosen")
    data = []
    for at, mode in enumerate(names):
        numbers = [(int(n), 100 * regret) for n, regret in report["regret"][mode].items()]
        texts = [f"{n} measurements: {regret:.1f} % lost" for n, regret in numbers]
        xs, ys = [n for n, _ in numbers], [regret for _, regret in numbers]
        data.append(line(mode, xs, ys, texts, _colour(at), dash="solid" if mode == "chosen" else "dot"))
    data[0]["zorder"] = 1  # the chosen one lies on those that go the same way
    return figure(data, "measurements on the target", "per cent of the best throughput lost", y_type="linear")


def _scores(report: Mapping[str, Any], samples: Sequence[int]) -> Figure:
    rankings = {"chosen": report["chosen"], **report["modes"]}
    data = []
    for at, (name, by_count) in enumerate(rankings.items()):
        known = sorted((int(count), point[KEY]) for count, point in by_count.items())
        texts = [f"{count} samples: {score:.3f}" for count, score in known]
        data.append(points(name, [n for n, _ in known], [s for _, s in known], texts, _colour(at), joined=True))
    for name in _BASELINES:
        if name in report["baselines"]:
            score = report["baselines"][name][KEY]
            ends = [min(samples), max(samples)]
            colour, dash = _DASHED[name]
            data.append(line(_WITHOUT[name], ends, [score] * 2, [f"{_WITHOUT[name]}: {score:.3f}"] * 2, colour, dash=dash))
    return figure(data, "samples of the target", KEY, x_type="linear", y_type="linear")


def _learning(target: str, curve: Mapping[str, Sequence[float]]) -> Figure:
    means = {int(size): sum(values) / len(values) for size, values in sorted(curve.items(), key=lambda item: int(item[0]))}
    texts = [f"{size} sources: {mean:.3f}, over {len(curve[str(size)])} sets of them" for size, mean in means.items()]
    data = [points("zero-shot", list(means), list(means.values()), texts, _colour(0), joined=True)]
    return figure(data, f"source devices of {target}", KEY, x_type="linear", y_type="linear")
