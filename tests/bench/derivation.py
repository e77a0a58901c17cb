"""Derivation on published layers and networks: ``python -m tests.bench.derivation [--cases NAME,NAME] [--page FILE]``.

Each case is tuned twice in equal budgets, without and with ``--derive``. Then both packs race torch with oneDNN's kernels
and without, ONNX Runtime and OpenVINO, in turns on one thread. What is tuned lies in ``--folder`` and is tuned once;
``--tune`` stops there. The page has times, what the searches did, chains of rules, and a drawing. ``--busy``: it says so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.derive.model import Derivation, Form, NodeForms
from haotuner.derive.plan_forms import EXPLORATIVE
from haotuner.derive.search import Limits
from haotuner.derive.text import lines
from haotuner.graph.rewrites import DERIVED
from haotuner.host.processor import cpu_name
from haotuner.pack.manifest import read_manifest
from haotuner.runtime.pack import load
from haotuner.verify.model_check import graph_of, name_of
from tests.bench import derivation_models
from tests.bench.derivation_nets import CASES, Case, feeds, library_calls, torch_calls, written
from tests.bench.least_times import least_us
from tests.bench.markdown import markdown_table

KINDS = (".onnx", ".pt2")  # of files
PAGE, DRAWING = Path("docs/results/derivation.md"), Path("docs/images/derivation.svg")
SECONDS = 10.0  # of derivation, of a product
TOLERANCE = 1e-3  # of the largest number
OURS, DERIVES = "haotuner", "with --derive"
PEERS = ("oneDNN in torch", "torch alone", "ONNX Runtime", "OpenVINO")
HEAD = ("case", "request", OURS, DERIVES, *PEERS, "by derivation", "against the best library", "published")
DRAWN = "ResNet 3x3, 512 channels, 7x7"
TEXT = """fp32, one thread. Microseconds of the processor, of all threads of the process: the least of a call, in rounds in
which all take turns. "By derivation" is the time without over the time with it. In brackets a pack serves the model's own
form after all: the ratio is of two tunings of one thing. Published ratios are OLLIE's or EinNet's, of
GPUs: its kernels there against its own without derivation.

Plain packs have the hand-written forms of the field already. Image columns, phases of a stride, residues of a dilation and
Winograd's filtering are families of kernels. So a gain here is over those, not over a plain convolution.

Derivation is off unless it is asked for. Where a form may pay, derivation takes a part of the budget, the kernels of every
form are tuned in the rest, and a race of forms takes six seconds more. Else a twentieth of the budget is not charged. Layers
whose lanes are full, as most models have them, get nothing for it."""


SHORT = """
- A run with `--derive` and a form that may pay has less of its budget for each kernel. Where the model's own form is
  served after all, short budgets leave it worse tuned.
- FSRCNN's transposed layer at 0.77x is the model's own form in both packs: two short tunings of one thing, beside other
  programs. So are the five sizes of ResNet's 3x3, at 0.97x to 1.34x.
- CSRNet's back end is slower than ONNX Runtime and OpenVINO. Layers whose windows are dilated stay as they are: the
  kernels of residues of a dilation are as fast as any form.
- Of eighteen real models one gains: basic_pitch, 1.04x to 1.13x at three requests, from the source that reads windows
  where they are. Seven others have a form that may pay, and no pack takes one. The form of swift_f0 was raced at six
  sizes in a run of 30 s beside other programs, on 29 November. It was 0.94x to 1.02x as fast, so the model's own form is
  served.
- A drawn model of 500 operators with 213 products takes 8 s of the processor to derive, 15 s of wall time beside other
  programs. Of 71 products all lanes are full. Of the others those that differ in widths alone share a search.""".strip()


def tuned(file: Path, case: Case, folder: Path, budget_s: int, *words: str) -> Path:
    """A pack of one case in a folder; one that lies there already is kept."""
    out = folder / f"{file.stem}{''.join(words)}"
    if (out / "manifest.json").exists():
        return out
    command = [sys.executable, "-m", "haotuner", "tune", str(file), "--shapes", case.shapes, "--threads", "1"]
    command += ["--budget", f"{budget_s}s", "--peers", "none", "-q", "--out", str(out), *words]
    code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
    if code not in (0, 3):
        raise RuntimeError(f"{file.name} {' '.join(words)}: exit {code}")
    return out


def raced(file: Path, case: Case, packs: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Least microseconds of every contender at each request; answers are compared first."""
    rows = []
    for request in case.requests:
        inputs = feeds(case, request)
        loaded = {name: load(pack, threads=1) for name, pack in packs.items()}
        calls: dict[str, Callable[[], Any]] = {
            name: partial(_answer, pack.model(name_of(file)), inputs) for name, pack in loaded.items()
        }
        calls |= torch_calls(case, inputs) | library_calls(file, inputs)
        expected = np.asarray(calls["oneDNN in torch"]())
        for name, call in calls.items():
            far = np.abs(np.asarray(call()) - expected).max() / max(1.0, np.abs(expected).max())
            if far > TOLERANCE:
                raise RuntimeError(f"{file.stem}, {name}: off by {far:.1e} of the largest number")
        rows.append({"request": dict(request), "us": least_us(calls)})
        for pack in loaded.values():
            pack.close()
    return rows


def _answer(model: Any, inputs: Mapping[str, Any]) -> Any:
    (answer,) = model.run(inputs).values()
    return answer


def searched(file: Path, case: Case) -> list[dict[str, Any]]:
    """Facts of each product of a case that differs from those before: statistics, prices, the chain of rules."""
    derivation = Derivation(graph_of(file, case.shapes), list(case.requests), Limits(EXPLORATIVE, seconds=SECONDS))
    result, known = list[dict[str, Any]](), set[str]()
    for tensor in derivation.products():
        forms = derivation.forms_of(tensor)
        if forms.statistics not in known and "derived before" not in forms.statistics:
            known.add(forms.statistics)
            result.append(_facts(forms))
    return result


def _facts(forms: NodeForms) -> dict[str, Any]:
    form: Form = min(forms.others, key=lambda item: sum(item.us), default=forms.original)
    return {
        "tensor": forms.tensors[0],
        "statistics": forms.statistics,
        "us": [sum(forms.original.us), sum(form.us)],
        "before": [line for scope in forms.original.scopes for line in lines(scope)],
        "steps": [list(step) for step in form.steps],
        "after": [line for scope in form.scopes for line in lines(scope)],
    }


def word(name: str) -> str:
    """A case's name as a file's."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def packs_of(name: str, folder: Path, budget_s: int) -> tuple[Path, dict[str, Path]]:
    """A case's file and its packs, tuned where they do not lie there."""
    case = CASES[name]
    file = next((folder / f"{word(name)}{kind}" for kind in KINDS if (folder / f"{word(name)}{kind}").exists()), None)
    file = file or written(case, folder, word(name))
    return file, {OURS: tuned(file, case, folder, budget_s), DERIVES: tuned(file, case, folder, budget_s, "--derive")}


def outcome(name: str, folder: Path, budget_s: int) -> dict[str, Any]:
    """All that the page says of a case. What its searches do, and times of its race, are stored in the folder."""
    file, packs = packs_of(name, folder, budget_s)
    (plan,) = read_manifest(packs[DERIVES]).tuning["models"].values()
    served = [item for item in plan.get("rewrites", ()) if item["rule"].startswith(DERIVED)]
    stored = folder / f"{word(name)}.json"
    if not stored.exists():
        stored.write_text(json.dumps(searched(file, CASES[name])), encoding="utf-8")
    rows = folder / f"{word(name)} rows.json"
    if not rows.exists():
        rows.write_text(json.dumps(raced(file, CASES[name], packs)), encoding="utf-8")
    return {
        "rows": json.loads(rows.read_text(encoding="utf-8")),
        "served": [[item["tensor"], item["rule"].removeprefix(DERIVED)] for item in served],
        "ways": [[way["where"], way.get("form", "")] for way in plan.get("ways", ())],
        "searches": json.loads(stored.read_text(encoding="utf-8")),
    }


def measured_rows(outcomes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Ratios of every request, for the table and the bars."""
    result = []
    for name, item in outcomes.items():
        for row in item["rows"]:
            us = row["us"]
            best = min(us[peer] for peer in PEERS if peer in us)
            result.append({
                "name": name, "layer": len(CASES[name].layers) < 2, "request": row["request"], "us": us,
                "gain": us[OURS] / us[DERIVES], "library": best / us[DERIVES], "served": bool(item["served"]),
            })  # fmt: skip
    return result


def page(outcomes: Mapping[str, Any], models: Sequence[Sequence[str]], command: str, how: str) -> str:
    """The page of results."""
    rows = measured_rows(outcomes)
    text = ["# Derivation on published layers and networks", "", f"Made by `{command}`. {how}", "", TEXT, ""]
    shown = []
    for row in rows:
        times = [f"{row['us'][who]:,.0f}" if who in row["us"] else "-" for who in (OURS, DERIVES, *PEERS)]
        sizes = ", ".join(f"{key}={size}" for key, size in row["request"].items())
        gain = f"{row['gain']:.2f}x"
        ratios = [gain if row["served"] else f"({gain})", f"{row['library']:.2f}x"]
        shown.append([row["name"], sizes, *times, *ratios, CASES[row["name"]].published])
    text += markdown_table(HEAD, shown)
    text += ["## Bars", "", *markdown_table(("bar", "wanted", "reached"), _bars(rows))]
    text += ["## What is served", "", *_served(outcomes)]
    if models:
        text += ["## Real models", "", derivation_models.TEXT, "", *markdown_table(derivation_models.HEAD, models)]
    text += ["## What falls short", "", SHORT, "", "## What the searches did", ""]
    stats = [[name, item["tensor"], item["statistics"], *[f"{us:,.0f}" for us in item["us"]]]
             for name, case in outcomes.items() for item in case["searches"]]  # fmt: skip
    text += markdown_table(("case", "product", "states", "expected us, plain", "cheapest form"), stats)
    text += ["## One chain of rules, drawn", "", f"![{DRAWN}](../images/{DRAWING.name})", "", "## Chains of rules", ""]
    for name, case in outcomes.items():
        for item in case["searches"][:1]:
            text += [f"### {name}", "", "```", *item["before"]]
            for rule, detail in item["steps"]:
                text += ["      |", f"      |  {rule}: {detail}", "      v"]
            text += [*item["after"], "```", ""]
    return "\n".join(text).rstrip() + "\n"


def _bars(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    layers = sum(row["library"] >= 1.2 for row in rows if row["layer"])
    layers_served = sum(row["library"] >= 1.2 for row in rows if row["layer"] and row["served"])
    nets = sum(row["gain"] >= 1.1 for row in rows if not row["layer"] and row["served"])
    slower = sum(row["gain"] < 0.95 for row in rows)
    return [
        ["requests of layers at 1.2x the best library or more", "at least 2", str(layers)],
        ["of these in a derived form", "-", str(layers_served)],
        ["requests of networks at 1.1x by derivation or more", "at least 1", str(nets)],
        ["requests more than 5 % slower by derivation", "none", str(slower)],
    ]


def _served(outcomes: Mapping[str, Any]) -> list[str]:
    """Which form each case's pack has, and where it switches."""
    result = []
    for name, case in outcomes.items():
        rules = "; ".join(f"`{tensor}`: {rule}" for tensor, rule in case["served"])
        ways = ", ".join(f"{where}: {form}" for where, form in case["ways"] if form)
        result.append(f"- {name}: {rules or 'the model as it is'}{f' ({ways})' if ways else ''}.")
    return [*result, ""]


def drawing(item: Mapping[str, Any]) -> str:
    """A chain of rules as SVG: the expression, an arrow a rule, and what came of it."""
    boxes = [item["before"], *[[f"{rule}: {detail}"] for rule, detail in item["steps"]], item["after"]]
    width, line, gap, top = 20 + 7 * max(len(text) for box in boxes for text in box), 16, 26, 10
    parts, y = list[str](), top
    for number, box in enumerate(boxes):
        is_rule = 0 < number < len(boxes) - 1
        height = line * len(box) + 12
        if number:
            parts.append(f'<path d="M{width // 2} {y - gap}v{gap - 5}m-4-5l4 5 4-5" fill="none" stroke="#607d8b"/>')
        style = 'fill="none" stroke="none"' if is_rule else 'fill="#eceff1" stroke="#607d8b"'
        parts.append(f'<rect x="5" y="{y}" width="{width - 10}" height="{height}" rx="4" {style}/>')
        for at, text in enumerate(box):
            x, anchor = (width // 2, "middle") if is_rule else (14, "start")
            colour = "#00796b" if is_rule else "#263238"
            parts.append(
                f'<text x="{x}" y="{y + line * (at + 1)}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
            )
        y += height + gap
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" font-family="monospace" font-size="11">'
    return "\n".join([head, *parts, "</svg>", ""])


def main(words: Sequence[str] | None = None) -> None:
    """Tune, race, derive; write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="", help="parts of names, with commas between; empty: all")
    parser.add_argument("--budget", type=int, default=40, help="seconds of each tuning")
    parser.add_argument("--folder", type=Path, default=Path("derivation"), help="packs and results of cases")
    parser.add_argument("--busy", action="store_true", help="say that other programs ran")
    parser.add_argument("--tune", action="store_true", help="stop after tuning")
    parser.add_argument("--models", type=Path, help="folder of the wheels' models that tests.bench.wild downloads")
    parser.add_argument("--page", type=Path, default=PAGE)
    arguments = parser.parse_args(words)
    warnings.simplefilter("ignore")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    outcomes = {}
    for name in (name for name in CASES if any(part in name for part in arguments.cases.split(","))):
        if arguments.tune:
            packs_of(name, arguments.folder, arguments.budget)
            continue
        outcomes[name] = outcome(name, arguments.folder, arguments.budget)
        ratios = [(round(row["gain"], 2), round(row["library"], 2)) for row in measured_rows({name: outcomes[name]})]
        print(f"{name}: by derivation, against the best library: {ratios}", flush=True)
    if arguments.tune:
        return
    how = f"{cpu_name()}, {datetime.now(UTC):%d %B %Y}, {arguments.budget} s of tuning each"
    how += ", beside other programs." if arguments.busy else "."
    command = f"python -m tests.bench.derivation --budget {arguments.budget}{' --busy' if arguments.busy else ''}"
    if DRAWN in outcomes:
        DRAWING.write_text(drawing(outcomes[DRAWN]["searches"][0]), encoding="utf-8")
    models = (
        []
        if arguments.models is None
        else derivation_models.models_tried(arguments.models, arguments.folder / "models.json")
    )
    command += "" if arguments.models is None else " --models FOLDER"
    arguments.page.write_text(page(outcomes, models, command, how), encoding="utf-8")


if __name__ == "__main__":
    main()
