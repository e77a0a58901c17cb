"""Summary: what a transfer report found, a screen of it: every target, what was held against it, and what was chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from haotuner.cli.devices import columns
from haotuner.cli.output import counted
from tests.bench.markdown import markdown_table
from tests.bench.transfer_study.across_devices import KEY, SCRATCH
from tests.bench.transfer_study.started_mode import GUIDED

_HEAD = {
    "device": "device out",
    "architecture": "whole architecture out",
    "device-and-configs": "device and half of the configurations out",
}


@dataclass(frozen=True, slots=True)
class Part:
    """A table with its title; the first row is its head."""

    title: str
    rows: list[tuple[str, ...]]
    notes: list[str]


def summary(document: Mapping[str, Any]) -> str:
    """Lines of text: a table a family and split, then the learning curves."""
    lines = [what(document)]
    for part in parts(document):
        lines += ["", part.title, columns(part.rows), *part.notes]
    return "\n".join(lines)


def in_short(document: Mapping[str, Any]) -> Iterator[str]:
    """The same as a section of a page of Markdown."""
    yield from ("## In short", "", f"{what(document)}.", "")
    for part in parts(document):
        yield from (f"### {part.title}", "", *markdown_table(part.rows[0], part.rows[1:]))
        for note in part.notes:
            yield from (f"{note[0].upper()}{note[1:]}.", "")


def what(document: Mapping[str, Any]) -> str:
    """What the figures are."""
    return f"{KEY}: means over {counted(document['seeds'], 'seed')}; in brackets 90 % intervals of the mean over targets"


def parts(document: Mapping[str, Any]) -> Iterator[Part]:
    """A table a family and split, and the learning curves of each family."""
    counts = [str(count) for count in document["counts"]]
    for family, facts in document["families"].items():
        for split, reports in facts["splits"].items():
            rows = [*_rows(reports, facts["across"][split], counts)]
            yield Part(f"{family}, {_HEAD[split]}", rows, [*_settings(reports)])
        title = f"{family}, zero-shot by the number of source devices (mean over sets of sources)"
        yield Part(title, [*_curves(facts.get("learning_curves", {}))], [])


def _rows(reports: Mapping[str, Any], across: Mapping[str, Any], counts: list[str]) -> Iterator[tuple[str, ...]]:
    sampled = [count for count in counts if count != "0"]
    yield (
        "target",
        *counts,
        "best alone",
        "",
        "ahead",
        *(f"{SCRATCH} {n}" for n in sampled),
        *(f"{GUIDED} {n}" for n in sampled),
    )
    for target, report in reports.items():
        single = across["single"].get(target)
        yield (
            target,
            *(f"{report['chosen'][count][KEY]:.3f}" if count in report["chosen"] else "" for count in counts),
            *((single["name"], f"{single['reached']:.3f}", f"{single['ahead']:+.3f}") if single else ("", "", "")),
            *(f"{report['modes'][name][count][KEY]:.3f}" for name in (SCRATCH, GUIDED) for count in sampled),
        )
    singles = across["single"].values()
    reached = sum(single["reached"] for single in singles) / len(singles) if singles else None
    yield (
        "mean",
        *(_with_interval(across["chosen"][count]) for count in counts),
        "oracle of opinions",
        "" if reached is None else f"{reached:.3f}",
        f"{max(single['ahead'] for single in singles):+.3f} at most" if singles else "",
        *(f"{across[name][count]['mean']:.3f}" for name in (SCRATCH, GUIDED) for count in sampled),
    )
    yield ("worst", *(f"{across['chosen'][count]['least']:.3f}" for count in counts), *([""] * (3 + 2 * len(sampled))))


def _settings(reports: Mapping[str, Any]) -> Iterator[str]:
    """What the folds inside chose for whom, and how many they were."""
    by_choice: dict[str, list[str]] = {}
    for target, report in reports.items():
        by_choice.setdefault(report["settings"]["chosen"], []).append(f"{target} ({len(report['settings']['folds'])} folds)")
    for choice, targets in by_choice.items():
        yield f"settings chosen inside, {choice}: {', '.join(targets)}"


def _with_interval(result: Mapping[str, Any]) -> str:
    low, high = result["interval"]
    return f"{result['mean']:.3f} [{low:.3f}, {high:.3f}]"


def _curves(curves: Mapping[str, Mapping[str, list[float]]]) -> Iterator[tuple[str, ...]]:
    sizes = sorted({int(size) for curve in curves.values() for size in curve})
    yield ("target", *map(str, sizes))
    for target, curve in curves.items():
        means = {size: sum(values) / len(values) for size, values in curve.items()}
        yield (target, *(f"{means[str(size)]:.3f}" if str(size) in means else "" for size in sizes))
