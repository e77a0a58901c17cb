"""Real models that derivation is tried on: what it expects of each, and times of both packs where they differ."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from haotuner.bench.model_child import feeds_of
from haotuner.bench.models import parse_inputs
from haotuner.derive.plan_forms import FULL, DerivedForms
from haotuner.graph.rewrites import DERIVED
from haotuner.partition.form_choice import FormPlans
from haotuner.partition.ilp_partition import IlpPartitioner
from haotuner.partition.tasks import Laid, ModelTask
from haotuner.runtime.pack import load
from haotuner.tuning.request import cpu_named
from haotuner.verify.model_check import model_of, name_of
from tests.bench.least_times import least_us
from tests.bench.wild_models import EVERY, Wild

RACED = 3  # requests, both ends of the range first
SECONDS = 300.0  # of derivation at most, on a host with other work
HEAD = (
    "model",
    "primitives",
    "products",
    "of full lanes",
    "seconds of derivation",
    "forms that may pay",
    "most that one is expected to save at a request",
    "by derivation",
)
TEXT = """Models of wheels, which nobody trained for this. A product has full lanes where no form can save 15 % of it at any
request: its multiplications at the full rate take nearly as long as its kernel. Seconds are of the processor. Forms "may
pay" that are expected to save 15 % of their product at a request. The saving is of the whole request, less the margin of
40 % of the product that expectations alone must save. "By derivation" is
the time without over the time with it, at three requests, of packs of predictions (`tune --zero-measure --derive`).
Where it is "same pack", expectations take no form."""


def models_tried(folder: Path, stored: Path) -> list[list[str]]:
    """Rows of real models in a folder, by ``HEAD``. Rows that are stored stay; packs lie beside them."""
    rows: dict[str, list[str]] = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else {}
    for wild in EVERY:
        wheel = folder / wild.wheel.replace("==", "-")
        file = next(iter(sorted(wheel.glob(f"**/{wild.file}"))), None)
        if file is not None and wild.name not in rows:
            rows[wild.name] = _row(wild, file, stored.parent)
            stored.write_text(json.dumps(rows), encoding="utf-8")
            print(*rows[wild.name], flush=True)
    return list(rows.values())


def _row(wild: Wild, file: Path, folder: Path) -> list[str]:
    forms = TimedForms(SECONDS)
    model = model_of(file, wild.shapes, device=cpu_named("cpu"), forms=forms)
    gains = [1 - min(others) / own for item in model.forms for own, *others in zip(*item.us, strict=True)]
    counts = len(model.graph.nodes), sum(1 for _ in model.products), forms.count[FULL]
    has_form = any(row["rule"].startswith(DERIVED) for row in model.report.rewrites)
    ratios = _ratios(wild, file, model, folder) if has_form else []
    race = f"{min(ratios):.2f}x to {max(ratios):.2f}x" if ratios else "same pack"
    most = f"{max([0.0, *gains]):.0%}"
    return [wild.name, *map(str, counts), f"{forms.cpu_s:.1f}", str(forms.count["candidates"]), most, race]


class TimedForms(DerivedForms):
    """Derivation whose seconds of the processor are counted."""

    cpu_s: float = 0.0

    def __call__(self, plan: IlpPartitioner, laid_out: IlpPartitioner, laid: Laid) -> FormPlans:
        begin = time.process_time()
        result = super().__call__(plan, laid_out, laid)
        self.cpu_s += time.process_time() - begin
        return result


def _ratios(wild: Wild, file: Path, model: ModelTask, folder: Path) -> list[float]:
    """Times without derivation over those with it, of packs of predictions, at some requests."""
    packs = {"own": _pack(wild, file, folder), "derived": _pack(wild, file, folder, "--derive")}
    loaded = {name: load(pack, threads=1) for name, pack in packs.items()}
    result = []
    for request in model.prices.requests[:RACED]:
        us = least_us({name: _call(pack, file, request, wild.given) for name, pack in loaded.items()})
        result.append(us["own"] / us["derived"])
    for pack in loaded.values():
        pack.close()
    return result


def _pack(wild: Wild, file: Path, folder: Path, *words: str) -> Path:
    out = folder / f"{wild.name}{''.join(words)}"
    if not (out / "manifest.json").exists():
        command = [sys.executable, "-m", "haotuner", "tune", str(file), "--shapes", wild.shapes, "--threads", "1"]
        command += ["--zero-measure", "--peers", "none", "-q", "--out", str(out), *words]
        code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
        if code not in (0, 3):
            raise RuntimeError(f"{wild.name} {' '.join(words)}: exit {code}")
    return out


def _call(pack: Any, file: Path, request: Mapping[str, int], elements: str) -> Callable[[], Any]:
    model = pack.model(name_of(file))
    inputs = [{"name": end.name, "dtype": end.dtype.name, "shape": list(end.shape)} for end in model.inputs]
    arguments = parse_inputs(elements, [end.name for end in model.inputs], list(request))
    return partial(model.run, feeds_of(inputs, request, 0, arguments))
