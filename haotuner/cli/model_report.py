"""Models on the command line of `haotuner tune`: what they are made of, before and after tuning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haotuner.cli.output import tell
from haotuner.spec.device import Device
from haotuner.spec.op import Op
from haotuner.spec.traffic import Arrivals

if TYPE_CHECKING:
    from haotuner.partition.ilp_partition import PartitionReport
    from haotuner.partition.tasks import ModelTask
    from haotuner.tuning.session import Report


@dataclass(frozen=True, slots=True)
class ModelReport:
    """Models with the ops to tune for them and their traffic."""

    models: tuple[ModelTask, ...]
    ops: tuple[Op, ...]
    arrivals: Arrivals
    derived_s: float = 0.0  # what derivation took

    def table(self, report: Report) -> str:
        """Table of what the models run, and what requests are expected to take, in words."""
        return "\n".join(_table(model) + _expected(model, report) for model in report.models)

    def document(self, report: Report) -> Mapping[str, Any]:
        """The JSON form: ``model`` is the first, ``models`` are all."""
        from haotuner.partition.cost_estimate import predicted_us

        every = [
            {
                **_document(model, self.ops, report),
                "predicted_us": {
                    str(count): predicted_us(model, report.tuned, report.device, count) for count in report.threads
                },
            }
            for model in report.models
        ]
        return {"model": every[0], "models": every}


def _table(model: ModelTask) -> str:
    steps, groups = _steps(model), len(model.written.functions)
    programs = _programs(model)
    beside = f"{programs} by programs of the searched space, " if programs else ""
    loops = "launches of generated kernels" if model.on_device else "plain loops"
    return (
        f"\nmodel {model.written.name}: {sum(steps.values())} steps; {steps['Product']} by {len(model.uses)} "
        f"tuned ops, {beside}{steps['Loops'] - programs} by {loops} ({groups} different ones); "
        f"{sum(len(part.weights) for part in model.parts):,} bytes of weights{_cuts(model)}\n{_orchestration(model)}"
    )


def _programs(model: ModelTask) -> int:
    """Number of groups that programs of the searched space compute."""
    return sum(getattr(step, "form", None) is not None for step in model.steps)


def _expected(model: ModelTask, report: Report) -> str:
    """A line for each thread count: the shortest and the longest of some requests; none where products have no times."""
    from haotuner.partition.cost_estimate import predicted_us

    lines = []
    for count in report.threads:
        times_us = predicted_us(model, report.tuned, report.device, count)
        ends = sorted((us["all"], sizes) for sizes, us in times_us.items())
        text = " to ".join(f"{_ms(us)} ms ({sizes})" for us, sizes in dict.fromkeys((*ends[:1], *ends[-1:])))
        if text:
            lines.append(f"\na request is expected to take {text}, threads: {count}")
    return "".join(lines)


def _ms(us: float) -> str:
    return f"{us / 1e3:.3g}" if us < 1e5 else f"{us / 1e3:,.0f}"


def _document(model: ModelTask, ops: Sequence[Op], report: Report) -> dict[str, Any]:
    graph, uses, steps, report_ = model.graph, model.uses, _steps(model), model.report
    seconds = {row["name"]: row["seconds"] for row in report.document["ops"]}
    return {
        "name": model.written.name,
        "inputs": {name: str(graph.types[name]) for name in graph.inputs},
        "outputs": {name: str(graph.types[name]) for name in graph.outputs},
        "dims": {name: str(span) for name, span in model.spans.items()},
        "tasks": [
            {"name": op.name, "weight": uses[op.name], "steps": uses[op.name], "seconds": seconds.get(op.name)}
            for op in ops
            if uses[op.name]
        ],
        "steps": sum(steps.values()),
        "plain_loops": steps["Loops"] - _programs(model),
        "programs": _programs(model),
        "orchestration": {
            "windows": report_.windows,
            "candidates": report_.candidates,
            "measured": report_.measured,
            "status": report_.status,
            "bound": report_.bound_us,
            "longest_window_s": report_.longest_s,
            "greedy_us": report_.greedy_us,
            "chosen_us": report_.chosen_us,
            "ways": report_.ways,
        },
    }


def _cuts(model: ModelTask) -> str:
    return f"; {len(model.parts)} segments, cut where sizes depend on data" if len(model.parts) > 1 else ""


def _orchestration(model: ModelTask) -> str:
    """Text on how the groups were chosen."""
    report = model.report
    return (
        f"groups: {report.status} of {report.candidates} candidates in {report.windows} windows, the slowest solved in "
        f"{report.longest_s:.2f} s: {report.chosen_us:,.0f} us by their prices (no plan of them under "
        f"{report.bound_us:,.0f}; greedy fusion {report.greedy_us:,.0f}); "
        f"{report.measured or 'none'} of them measured{_ways(report)}"
    )


def _ways(report: PartitionReport) -> str:
    """Plans by region of sizes, where there are several."""
    return f"; {len(report.ways)} plans: {', '.join(str(way['where']) for way in report.ways)}" if report.ways else ""


def _steps(model: ModelTask) -> Counter[str]:
    from haotuner.tuning.model_session import steps_of

    return steps_of(model)


def read_models(
    files: Sequence[Path],
    shapes: Sequence[str],
    serves: Callable[[Op], bool] | None = None,
    device: Device | None = None,
    *,
    quiet: bool,
    derive_s: float = 0.0,
    with_zeros: bool = True,
    subgraphs: bool = False,
) -> ModelReport:
    """The models of files, each with its own shapes or all with the same. UsageError says what in them is wrong.

    ``serves``: of a device, whether it has kernels for an op; ``device``: the CPU that they are tuned for, otherwise.
    ``derive_s``, ``with_zeros``, ``subgraphs``: as of ``model_session.read_models``.
    """
    from haotuner.tuning import model_session

    read = model_session.read_models(
        files, shapes, serves, device, derive_s=derive_s, with_zeros=with_zeros, subgraphs=subgraphs,
        watch=(lambda _: None) if quiet else tell,
    )  # fmt: skip
    return ModelReport(read.models, read.ops, read.arrivals, read.derived_s)
