"""Request: what to tune and where to put it. Light to import, so that a wrong request is answered at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from haotuner.backends.backend import Backend
from haotuner.backends.index import backend_for, backend_named, check_served, own_device
from haotuner.errors import NothingLegal, UsageError
from haotuner.ops.groups import PREFIX
from haotuner.pack.write import check_destination
from haotuner.search.policies.names import NAMES
from haotuner.search.task_objectives import Objective
from haotuner.search.task_scheduler import GRADIENT, STRATEGIES
from haotuner.spec.device import Device
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.spec.traffic import Arrivals, Traffic, arrivals_of
from haotuner.spec.workloads import DEFAULT, workload

if TYPE_CHECKING:
    from haotuner.codegen.template import Template
    from haotuner.partition.tasks import ModelTask

BUDGET_PER_OP_S = 50.0  # four ops, the report and a fresh environment then end within five minutes on two busy cores
BUDGET_OF_MODELS_S = 600.0  # at most, whatever models have ops
LEAST_LEFT = 0.5  # of a budget, for measuring
DERIVING, DERIVING_LEAST_S, DERIVING_MOST_S = 0.05, 5.0, 60.0  # of a budget, for derived forms of a model's products


DEFAULT_DEVICE = "cpu"
SEED_MOST = 2**31 - 1  # what every library that draws takes


def derivation_s(budget_s: float | None) -> float:
    """Seconds for derivation out of a budget of models; None: the usual one."""
    return min(DERIVING_MOST_S, max(DERIVING_LEAST_S, DERIVING * (budget_s or BUDGET_OF_MODELS_S)))


def ops_of(text: str, device: str = "cpu") -> tuple[Op, ...]:
    """The op of a spec or a name; of ``group:FILE``, an ONNX file of primitives, one for each of its outputs.

    Outputs that one kernel writes are one op.

    UsageError says what is wrong with the file, EnvironmentMissing that the package onnx is not there.
    """
    kind, _, file = text.partition(":")
    if kind.strip() != PREFIX:
        return (Op.parse(text),)
    if not file.strip():
        raise UsageError(f"--op {text}: name the file behind it, for example --op {PREFIX}:softmax.onnx")
    from haotuner.codegen.group import kinds_of
    from haotuner.frontends.onnx.read import read

    path = Path(file.strip())
    serves = serves_on(device) or _served_by(backend_named("cpu"))
    kinds = kinds_of(read(path), path.stem, lambda kind: serves(Op.parse(kind.name)))
    return tuple(Op.parse(kind.name) for kind in kinds)


def ops_asked(
    ops: Sequence[str | Op] | None, workload_name: str | None, arrivals: Arrivals, device: str = "cpu"
) -> tuple[Op, ...]:
    """The ops to tune: those named; else those of the workload named; else those a trace names; else the default ones."""
    if ops is not None:
        return tuple(op_ for op in ops for op_ in ((op,) if isinstance(op, Op) else ops_of(op, device)))
    if workload_name is None and arrivals.ops:
        return tuple(map(Op.parse, arrivals.ops))
    return workload(workload_name or DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Tuning request: what to tune and where to put it; checked by ``check`` before anything is measured."""

    ops: tuple[Op, ...]
    arrivals: Arrivals = field(default_factory=lambda: arrivals_of("dynamic"))  # what --shapes says
    device: str = DEFAULT_DEVICE
    threads: tuple[int, ...] = ()  # 0: all cores; empty: one, and all cores
    budget_s: float | None = None
    spent_s: float = 0.0  # by the derivation of other forms of its models
    out: Path = Path("pack")
    db: str | None = None
    seed: int = 0
    resume: bool = False
    weights: str = "cold"
    batch_invariant: bool = False  # promise that a row's result does not depend on how many rows come with it
    search: str = ""  # the policy that explores the schedules of generated kernels; empty: all that selection kept race
    template: Template | None = None  # values that the schedules of generated kernels may have; None: all
    model: str | None = None  # a file to start from, "none" for a start from cold; None: the nearest shipped model
    zero_measure: bool = False  # measure nothing: the pack's plans are predictions, and it says so
    cache: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)  # of the measuring processes
    models: tuple[ModelTask, ...] = ()  # whole models that the pack serves with these ops
    objective: str = "sum"  # what their budget is spent for (search/task_objectives.py)
    strategy: str = GRADIENT  # how it is shared among their tasks
    early_stopping: int = 0  # turns without a better time, after which a task gets no more; 0: never

    @property
    def goal(self) -> Objective:
        """Objective of the budget of models; UsageError where ``objective`` says none."""
        return Objective.parse(self.objective)

    @property
    def shapes(self) -> str:
        """Shapes asked for, printable: of a range its text, of a trace its name."""
        return self.arrivals.text if self.arrivals.text.isprintable() else ascii(self.arrivals.text)[1:-1]

    @property
    def seconds(self) -> float:
        """The budget, less what derivation spent of it.

        Where no form may pay, a share of ``DERIVING`` is not charged: the kernels have the time that they have without it.
        """
        usual = BUDGET_PER_OP_S * len(self.ops)
        whole = self.budget_s or (min(BUDGET_OF_MODELS_S, usual) if self.models else usual)
        free_s = 0.0 if any(model.open_forms for model in self.models) else DERIVING * whole
        return max(LEAST_LEFT * whole, whole - max(0.0, self.spent_s - free_s))

    @property
    def times_groups(self) -> bool:
        """True if kernels of generated groups are timed: on a CPU as it is, with all of its instruction set."""
        return self.device == "cpu" and not self.zero_measure

    @property
    def records(self) -> str:
        """The URL of the record store: the one asked for, or one beside the pack."""
        return self.db or f"sqlite:///{quote(os.fsencode(self.out))}.records.db"

    def traffic(self, op: Op) -> Traffic:
        """The traffic of one of the ops."""
        return self.arrivals.traffic(op)

    def check_memory(self, device: Device) -> None:
        """UsageError for an op whose operands the device can never hold: the weight, and packed once more, for one call."""
        for op in self.ops:
            least = op.least_bytes(Shape.of({axis: 1 for axis in op.dynamic}))
            if device.memory_bytes is not None and 2 * least > device.memory_bytes:
                raise UsageError(
                    f"{op.name}: its weight takes {least / (1 << 30):,.1f} GiB and is packed beside it, {device.id} has "
                    f"{device.memory_bytes / (1 << 30):,.1f} GiB; give a smaller op"
                )

    def check_models(self, device: Device) -> None:
        """UsageError for models that were read for another kind of device than this one, or for another CPU."""
        wrong = [model.written.name for model in self.models if model.on_device != (device.kind != "cpu")]
        if wrong:
            raise UsageError(
                f"{', '.join(wrong)}: planned for another kind of device than {device.id}; read the file for it"
            )
        for model in self.models:
            programs = model.prices.programs
            if programs is not None and programs.device.arch != device.arch:
                raise UsageError(
                    f"{model.written.name}: --device {self.device} is {programs.device.id} on this host, where the model "
                    f"was read, and {device.id} in the fleet; tune on a host with that CPU, or name a --device of both"
                )

    def check(self) -> None:
        """UsageError for what can be known to be wrong without looking at the device."""
        if not self.ops and not self.models:  # a model of generated kernels alone has no op
            raise UsageError("no op to tune; name one with --op dense:n=2304,k=768 or a --workload")
        if len({op.name for op in self.ops}) != len(self.ops):
            raise UsageError("an op is named twice; name each once")
        if self.budget_s is not None and not 0 < self.budget_s < float("inf"):
            raise UsageError(f"--budget {self.budget_s:g}s leaves no time to measure; give for example --budget 60s")
        if self.weights not in ("cold", "hot"):
            raise UsageError(f"--cache-state {self.weights!r}: write cold or hot")
        if self.zero_measure and self.resume:
            raise UsageError(
                "--zero-measure and --resume exclude each other: one uses no measurements, the other earlier ones"
            )
        if self.search and self.search not in NAMES:
            raise UsageError(f"--search {self.search!r}: write one of {', '.join(NAMES)}")
        if self.template is not None and not self.search:
            raise UsageError("a template is for a search: name the policy that explores it, for example --search template")
        if self.search and self.zero_measure:
            raise UsageError("--search and --zero-measure exclude each other: a policy learns from measurements")
        if self.strategy not in STRATEGIES:
            raise UsageError(f"--strategy {self.strategy!r}: write one of {', '.join(STRATEGIES)}")
        if self.early_stopping < 0:
            raise UsageError(f"--early-stopping {self.early_stopping}: give a number of turns, or 0 for never")
        self.goal.check(max(1, len(self.models)))
        names = [name for model in self.models for name in model.executables]
        if len(set(names)) < len(names):
            raise UsageError(f"two models are called {max(names, key=names.count)}; rename one of the files")
        if not 0 <= self.seed <= SEED_MOST:
            raise UsageError(f"--seed {str(self.seed)[:40]}: give a whole number in 0..{SEED_MOST}")
        for op in self.ops:
            self.arrivals.traffic(op)
            check_served(op)
        check_destination(self.out)


def serves_on(text: str) -> Callable[[Op], bool] | None:
    """Test that the backend of the device called so has kernels for an op; None of CPUs. UnknownDevice: there is none."""
    if text.partition(":")[0] == "cpu":
        return None
    device = own_device(text, measure=False, cache_dir=None)
    return None if device.kind == "cpu" else _served_by(backend_for(device, text))


def cpu_named(text: str) -> Device | None:
    """The CPU called so, unmeasured; None of other devices. UnknownDevice: there is none."""
    if text.partition(":")[0] != "cpu":
        return None
    return own_device(text, measure=False, cache_dir=None)


def _served_by(backend: Backend) -> Callable[[Op], bool]:
    def serves(op: Op) -> bool:
        try:
            return bool(backend.families(op))
        except NothingLegal:
            return False

    return serves
