"""What is replayed, as plain text and numbers: the one file of these tests that imports haotuner.

Whoever moves the library's insides mends this file and nothing else. Every function gives fields by name: a text, a
number, a list of texts or a list of numbers.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from unittest import mock

from typer.testing import CliRunner

from haotuner.backends.cpu.pack_source import PackedAny, pack_data
from haotuner.backends.cpu.packing import packed
from haotuner.cli import candidates
from haotuner.cli.app import app_for
from haotuner.cost.features import features
from haotuner.cost.model import Analytic
from haotuner.cost.roofline import roofline_us
from haotuner.errors import NothingLegal
from haotuner.graph.graph import Graph
from haotuner.hw_profiles.find import find_device
from haotuner.measure.measurer import GoesOn, Measurer
from haotuner.microkernels.cuda.families import CUDA_FAMILIES
from haotuner.microkernels.index import families_for, family_named
from haotuner.partition.executable import source_of
from haotuner.plan import cover
from haotuner.search.select.funnel import Funnel
from haotuner.spec.bytecode import words_of
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Failed, Record, Timed, Trial
from haotuner.spec.shape import Shape
from haotuner.spec.traffic import arrivals_of, traffic_of
from haotuner.tuning import plan_facts, session
from haotuner.tuning.initial_model import start_of
from haotuner.tuning.request import Request
from haotuner.tuning.strategies import Task, Tuned, tune
from tests.microkernels.cuda_library import cuda_source
from tests.replay.answers import Answers, Asked
from tests.replay.cases import Ask, Case

Fields = dict[str, Any]
ENDLESS_S = 1e9
_LIBRARY = re.compile(r"lib/[0-9a-f]{16}\.so: \"[0-9a-f]{64}\"")  # named by the bytes that the host's compiler made


def kernel_module(name: str) -> Fields:
    """The TVM module of one micro-kernel, as script."""
    kernel = MicroKernel.parse(name)
    return {"module": family_named(kernel.family).schedule(kernel, "dense").script().splitlines()}


def kernel_cuda(name: str, arch: str) -> Fields:
    """The whole CUDA C++ file of one micro-kernel."""
    kernel = MicroKernel.parse(name)
    family = next(family for family in CUDA_FAMILIES if family.name == kernel.family)
    return {"source": cuda_source({"dense": (family, kernel)}, arch).splitlines()}


def space(family: str, op: str, device: str) -> Fields:
    """Every point of a family for an op."""
    points = family_named(family).points(Op.parse(op), device_of(device))
    return {"points": [point.name for point in points]}


def device_of(name: str) -> Device:
    """A device with records, or a profile; never this host."""
    if name.startswith("cpu-"):
        return Device(**Answers(name).device)
    return find_device(name, measure=False)


def plan(case: Case) -> tuple[Fields, Fields]:
    """Tune an op on records: what was chosen, and the text of its pack."""
    tuned, lab = _tuned(case)
    return {**_chosen(tuned), "asked": lab.asked}, {"text": pack_data([_packed(tuned, lab)]).splitlines()}


def pack_of(cases: Sequence[Case]) -> Fields:
    """The text of one pack of several ops."""
    return {"text": pack_data([_packed(*_tuned(case)) for case in cases]).splitlines()}


def _tuned(case: Case) -> tuple[Tuned, RecordsLab]:
    op, lab = Op.parse(case.op), RecordsLab(Answers(case.device), known=case.resumed)
    family = families_for(op, "cpu")[0]
    start = start_of("none" if case.cold else None, lab.device, family.name, seed=case.seed)
    task = Task(op=op, traffic=traffic_of(case.shapes, op), threads=case.threads, cache=case.weights, budget_s=ENDLESS_S,
                seed=case.seed, one_order=case.one_order)  # fmt: skip
    seen = itertools.count()
    # The solver's limit is of the clock: without it a loaded machine would keep other kernels.
    with mock.patch.object(cover, "SOLVE_LIMIT_S", ENDLESS_S):
        tuned = tune(task, lab.as_lab(), family, lambda phase, record: next(seen) < case.stop_after, start.model)
    return tuned, lab


def _packed(tuned: Tuned, lab: RecordsLab) -> PackedAny:
    return packed(plan_facts.choice_of(tuned), lab.device)


def _chosen(tuned: Tuned) -> Fields:
    funnel, kernel_cover = tuned.funnel, tuned.cover
    assert kernel_cover is not None
    fields: Fields = {
        "funnel": _funnel(funnel),
        "candidates": [candidate.kernel.name for candidate in funnel.candidates],
        "scores": [candidate.score for candidate in funnel.candidates],
        "stopped": f"{tuned.stopped}, {tuned.measured} measured, {tuned.timings} timings",
        "model": [value for _, value in sorted(tuned.model.items())],
        "kept": [kernel.name for kernel in tuned.kernels],
        "cover": [kernel_cover.objective_us, kernel_cover.unlimited_us, kernel_cover.regret],
    }
    places = {kernel.name: str(at) for at, kernel in enumerate(tuned.kernels)}
    for table in tuned.row_tables:
        name = f"{table.threads} threads"
        chosen = [planned.composition for planned in table.entries]
        entries = [composition.label for composition in chosen]
        users = ["+".join(places[kernel] for kernel, _ in c.parts) + f"@{c.share}" for c in chosen]
        fields[f"{name}, table"] = entries
        fields[f"{name}, kept kernels by rows"] = _runs(users)
        fields[f"{name}, us"] = [planned.us for planned in table.entries]
        fields[f"{name}, timed"] = [f"{m} {composition.label}" for m, us in table.measured.items() for composition in us]
        fields[f"{name}, timed us"] = [us for by in table.measured.values() for us in by.values()]
        fields[f"{name}, regret"] = [table.regret_mean, table.regret_max]
        fields[f"{name}, curves us"] = [
            us for curves in table.curves.values() for c in curves for us in (*(us for _, us in c.lead_us), c.follow_us)
        ]
    return fields


def _runs(entries: Iterable[str], most: int = 24) -> str:
    """Equal neighbours together: ``1 4@serial, 2..7 0@serial``."""
    runs, last = [], 0
    for entry, group in itertools.groupby(entries):
        first, last = last + 1, last + sum(1 for _ in group)
        runs.append(f"{first}..{last} {entry}" if last > first else f"{first} {entry}")
    return ", ".join(runs[:most]) + (f", and {len(runs) - most} more" if len(runs) > most else "")


class RecordsLab:
    """Stands in for a ``DeviceMeasurer``: every answer comes from files, at once."""

    def __init__(self, answers: Answers, *, known: bool) -> None:
        self.device = Device(**answers.device)
        self.failures: dict[str, int] = {}
        self.asked: list[str] = []  # in order
        self._answers, self._resumed = answers, known
        self._known: dict[str, Record] = {}

    def as_lab(self) -> Measurer:
        return cast(Measurer, self)

    def prepare(self, names: Sequence[str], goes_on: GoesOn = lambda _: True) -> None:
        self.asked.append(f"prepare {' '.join(names)}")

    def gather(self, names: Sequence[str]) -> None:
        self.asked.append(f"gather {' '.join(names)}")

    def renew(self) -> None:
        self.asked.append("renew")

    def known(self, trial: Trial) -> Record | None:
        """What was measured; of a session taken up again also what an earlier run may have left: kernels at even m."""
        words = _asked(trial)
        before = self._resumed and not trial.repeat and "*" not in trial.kernel and trial.shape["m"] % 2 == 0
        if before and str(words) not in self._known:
            self._known[str(words)] = self._record(trial, words)
        return self._known.get(str(words))

    def measure(self, trials: Iterable[Trial], goes_on: GoesOn = lambda _: True) -> list[Record]:
        records = []
        for trial in trials:
            record, words = self.known(trial), _asked(trial)
            if record is None:
                if not goes_on(None):
                    break
                self.asked.append(str(words))
                record = self._known[str(words)] = self._record(trial, words)
            records.append(record)
            goes_on(record)
        return records

    def _record(self, trial: Trial, words: Asked) -> Record:
        us = self._answers.us(words)
        if us is None:
            self.failures["crash"] = self.failures.get("crash", 0) + 1
        outcome = Failed(stage="verify", reason="crash", detail="scripted") if us is None else Timed(samples_us=(us,))
        device = self.device.id
        return Record(trial=trial, outcome=outcome, device_id=device, fingerprint="replay", session="replay", when=0.0)


def _asked(trial: Trial) -> Asked:
    return Asked(trial.op.name, trial.kernel, trial.shape["m"], trial.threads, trial.weights, trial.split, trial.repeat)


def prediction(ask: Ask) -> Fields:
    """What is expected of every so many points of a family: the analysis, the features, the shipped models."""
    op, device = Op.parse(ask.op), device_of(ask.device).with_units(ask.threads)
    family = families_for(op, "cpu")[0]
    points = list(family.points(op, device))
    kernels = points[:: max(1, len(points) // ask.kernels)]
    pairs = [(kernel, Shape.of(m=m)) for kernel in kernels for m in ask.rows]
    frame = features(device, family, op, pairs, weights=ask.weights)
    start = start_of(None, device, family.name)
    footprints = [family.footprint(kernel) for kernel in kernels]
    return {
        "kernels": [kernel.name for kernel in kernels],
        "footprints": [f"{f.registers_per_thread} {f.shared_bytes} {f.threads} 0" for f in footprints],
        "roofline us": [float(us) for us in roofline_us(device, op, [Shape.of(m=m) for m in ask.rows])],
        "analytic": [float(score) for score in Analytic().predict(frame)],
        "features": list(frame.columns),
        "features, column by column": [float(value) for name in frame.columns for value in frame[name]],
        "start": start.words,
        "shipped": [float(score) for score in start.model.predict(frame)] if start.model else [],
    }


def selection(op: str, device: str, shapes: str) -> Fields:
    """What `haotuner candidates` keeps, by family."""
    parsed = Op.parse(op)
    try:
        funnels, without = candidates._selected(parsed, device_of(device), traffic_of(shapes, parsed))
    except NothingLegal:
        return {"without": "every family"}
    fields: Fields = {"without": " ".join(sorted(without))}
    for name, funnel in funnels.items():
        fields[f"{name}, funnel"] = _funnel(funnel)
        fields[f"{name}, kept"] = [f"{c.kernel.name} {c.footprint.registers_per_thread}" for c in funnel.candidates]
        fields[f"{name}, scores"] = [candidate.score for candidate in funnel.candidates]
        fields[f"{name}, refused"] = [f"{r.kernel.name} {r.law} {r.requested:.8g} {r.allowed:.8g}" for r in funnel.examples]
    return fields


def _funnel(funnel: Funnel) -> str:
    return f"{funnel.points} points, {funnel.legal} legal, refused {json.dumps(funnel.refused, sort_keys=True)}"


def _command(*words: str) -> str:
    answer = CliRunner().invoke(app_for(words), list(words))
    if answer.exit_code not in (0, 3):
        raise RuntimeError(f"haotuner {' '.join(words)}: {answer.exit_code}: {answer.output}") from answer.exception
    return str(answer.stdout)


def documents(device: str, ops: Sequence[str], shapes: str, explained: Sequence[str]) -> Fields:
    """Manifest, report and explanations of a pack that was made without measuring, less what differs between runs."""
    with tempfile.TemporaryDirectory() as folder:
        pack = Path(folder) / "pack"
        request = Request(ops=tuple(map(Op.parse, ops)), arrivals=arrivals_of(shapes), device=device, threads=(1, 2),
                          out=pack, zero_measure=True, environment=dict(os.environ))  # fmt: skip
        report = session.produce(request)
        result: Fields = {
            "report": _lines(report.document),
            "manifest": [
                _LIBRARY.sub("lib/HASH", line) for line in _lines(json.loads(_command("inspect", str(pack), "--json")))
            ],
            "files": sorted(path.name for path in pack.iterdir()),
        }
        for words in explained:
            op, _, shape = words.partition(" ")
            result[f"explain {words}"] = _lines(
                json.loads(_command("explain", str(pack), "--op", op, "--shape", shape, "--threads", "1", "--json"))
            )
    return result


def model(name: str) -> Fields:
    """Schedule, bytecode and text of the groups of a whole model, with loops for all that it computes and with layers."""
    from tests.runtime.model_packs import planned

    fields: Fields = {}
    for how, tuned in (("loops", False), ("layers", True)):
        models, chains, ops = planned({name: _graph(name)}, 8, tuned=tuned, exact=False)
        every = [*models, *chains]
        fields[f"{how}, schedule"] = [line for executable in every for line in _lines(executable.document)]
        fields[f"{how}, bytecode"] = [str(word) for model in models for word in words_of(model.bytecode or b"")]
        fields[f"{how}, weights"] = [hashlib.sha256(executable.weights).hexdigest() for executable in every]
        fields[f"{how}, groups"] = source_of(every).splitlines()
        fields[f"{how}, ops"] = [op.name for op in ops]
    return fields


def _graph(name: str) -> Graph:
    """A graph that the tests of serving build without any file."""
    from tests.runtime import chain_graphs, empty_models, test_models, test_models_c

    graphs = {**test_models.GRAPHS, "beside": test_models.BESIDE, "small encoder": test_models_c.GRAPH["encoder"]}
    for module, graph in ((chain_graphs, name), (empty_models, "cached")):
        if name not in graphs and hasattr(module, graph):
            graphs[name] = getattr(module, graph)()
    return graphs[name]


# By the clock, the folder, the host or the compiler, not by what was chosen.
PASSING = {"seconds", "pack", "path", "session", "fingerprint", "toolchain", "haotuner", "sha256", "measured_us",
           "verification"}  # fmt: skip


def _lines(document: Any) -> list[str]:
    """A line a value: ``ops.0.name: "dense"``, floats rounded to eight digits."""

    def walk(value: Any, path: str) -> Iterator[str]:
        if isinstance(value, Mapping):
            for key in value:
                if key not in PASSING:
                    yield from walk(value[key], f"{path}.{key}")
        elif isinstance(value, list):
            for at, item in enumerate(value):
                yield from walk(item, f"{path}.{at}")
        else:
            yield f"{path[1:]}: {f'{value:.8g}' if isinstance(value, float) else json.dumps(value)}"

    return list(walk(document, ""))
