"""Tuning of whole models from their files: read, with the ops that they need, and `haotuner.tune_model`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from haotuner.errors import UsageError
from haotuner.partition.tasks import ModelTask, arrivals_of_models, ops_of
from haotuner.spec.device import Device
from haotuner.spec.op import Op
from haotuner.spec.traffic import Arrivals
from haotuner.tuning.guessed_shapes import guessed_shapes
from haotuner.tuning.op_tasks import Watch
from haotuner.tuning.request import DEFAULT_DEVICE, Request, cpu_named, derivation_s, serves_on
from haotuner.tuning.session import Report, produce
from haotuner.tuning.subgraph_tasks import subgraph_shapes
from haotuner.verify.model_check import model_of


@dataclass(frozen=True, slots=True)
class Models:
    """Models that were read, the ops to tune for them, and their traffic."""

    models: tuple[ModelTask, ...]
    ops: tuple[Op, ...]
    arrivals: Arrivals
    derived_s: float = 0.0  # what derivation took


def read_models(
    files: Sequence[Path],
    shapes: Sequence[str],
    serves: Callable[[Op], bool] | None = None,
    device: Device | None = None,
    *,
    derive_s: float = 0.0,
    with_zeros: bool = True,
    subgraphs: bool = False,
    watch: Callable[[str], None] = lambda _: None,
) -> Models:
    """The models of files, each with its own shapes or all with the same. UsageError says what in them is wrong.

    ``serves``: of a device, whether it has kernels for an op; ``device``: the CPU that they are tuned for, otherwise.
    ``derive_s``: seconds for derived forms of products, all models together; 0: none are derived. ``with_zeros``: those
    that add zeros take part.
    ``subgraphs``: of files with operators that have no rule, the parts between these. ``watch``: gets a line for each model.
    """
    if len(shapes) not in (1, len(files)):
        raise UsageError(
            f"{len(shapes)} times --shapes for {len(files)} models; give it once, or once a model in their order"
        )
    derived = None
    if derive_s:
        from haotuner.derive.plan_forms import DerivedForms

        derived = DerivedForms(derive_s, with_zeros)
    result: list[ModelTask] = []
    for file, shape in zip(files, [*shapes] * (1 if len(shapes) > 1 else len(files)), strict=True):
        parts: list[tuple[int | None, str]] = [*subgraph_shapes(file, shape).items()] if subgraphs else []
        for subgraph, text in parts or [(None, shape)]:
            groups = sum(len(model.written.functions) for model in result)
            model = model_of(file, text, groups, serves=serves, device=device, forms=derived, subgraph=subgraph)
            result.append(model)
            steps = steps_of(model)
            watch(
                f"{file.name if subgraph is None else model.written.name}: {len(model.graph.nodes)} primitives, "
                f"{steps['Product']} products in {len(model.uses)} ops, {steps['Loops']} groups of the rest"
            )
    if derived is not None:
        watch(str(derived))
    return Models(
        tuple(result), ops_of(result), arrivals_of_models(result, "; ".join(shapes)),
        0.0 if derived is None else derived.total,
    )  # fmt: skip


def steps_of(model: ModelTask) -> Counter[str]:
    """Steps by kind; a tensor that is another one in memory is no step."""
    result = Counter(type(step).__name__ for step in model.steps)
    del result["Alias"]
    return result


def tune_model(
    file: str | Path | Sequence[str | Path],
    shapes: str | Sequence[str] | None = None,
    *,
    device: str = DEFAULT_DEVICE,
    budget_s: float | None = None,
    out: str | Path = "pack",
    threads: int | Sequence[int] = (),
    db: str | None = None,
    seed: int = 0,
    resume: bool = False,
    weights: str = "cold",
    model: str | Path | None = None,
    zero_measure: bool = False,
    search: str = "",
    objective: str = "sum",
    derive: bool = False,
    subgraphs: bool = False,
    cache: str | Path | None = None,
    watch: Watch = lambda *_: True,
) -> Report:
    """Tune whole models for ranges of sizes and write a pack; the Python form of `haotuner tune MODEL.onnx`.

    ``file``: an ONNX file or a ``.pt2`` of ``torch.export``, or several for one pack. ``shapes``: as the command line has
    it, once or once a model; None: guessed from the file's dimensions (``guessed_shapes``).
    ``derive``: look for derived forms of products, too. ``subgraphs``: as of ``read_models``. ``cache``: a folder of
    measured rates and compiled objects. ``watch``: see ``haotuner.tuning.op_tasks.Watch``. All others: ``haotuner.tune``.

    Raises UsageError, UnknownDevice, NothingLegal, EnvironmentMissing or RecordsUnusable, each with what to do.
    """
    files = [Path(file)] if isinstance(file, (str, Path)) else [Path(each) for each in file]
    if not files:
        raise UsageError("no model to tune; name an ONNX file or a .pt2 of torch.export")
    ranges = [guessed_shapes(each) for each in files] if shapes is None else [shapes] if isinstance(shapes, str) else shapes
    derive_s = derivation_s(budget_s) if derive else 0.0
    read = read_models(files, ranges, serves_on(device), cpu_named(device), derive_s=derive_s, subgraphs=subgraphs)
    request = model_request(
        read, device=device, budget_s=budget_s, out=Path(out), db=db, seed=seed, resume=resume, weights=weights,
        threads=(threads,) if isinstance(threads, int) else tuple(threads), model=None if model is None else str(model),
        zero_measure=zero_measure, search=search, objective=objective, cache=None if cache is None else Path(cache),
        environment=dict(os.environ),
    )  # fmt: skip
    return produce(request, watch)


def model_request(read: Models, **more: Any) -> Request:
    """Request to tune models that were read; ``more``: further fields of ``Request``."""
    return Request(ops=read.ops, models=read.models, arrivals=read.arrivals, spent_s=read.derived_s, **more)
