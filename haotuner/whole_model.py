"""From a model's file to a request, and the check of a new pack's model against the reference.

``python -m haotuner.whole_model PACK MODEL.onnx SHAPES`` checks in a process of its own: code that crashes must not take the
tuner along.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.errors import HaotunerError, PackInvalid
from haotuner.graph.extents import evaluate, product
from haotuner.graph.interpret import interpret
from haotuner.graph.types import FLOATS, numpy_dtype
from haotuner.importing.exported import SUFFIX, read_exported
from haotuner.importing.read import read
from haotuner.orchestrate.tasks import AskedModel, asked_model, requests
from haotuner.orchestrate.written import WrittenModel
from haotuner.runtime.pack import Pack

TOLERANCE = 1e-3  # of the largest result: fp32 sums in other orders, through some hundred steps
CHECKED_ELEMENTS = 3e6  # of all tensors of a checked request: numpy then takes seconds
CHECKS = 3
SEED = 0  # of random numbers in a checked model
CHECK_LIMIT_S = 300.0


def model_of(path: str | Path, shapes: str, first_group: int = 0, measure_s: float = 0.0) -> AskedModel:
    """The model of an ONNX file, or of one that torch.export saved (.pt2), ready to be tuned; errors as of the readers."""
    place = Path(path)
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", place.stem)[:60].lstrip(".-") or "model"
    return asked_model(
        name, (read_exported if place.suffix == SUFFIX else read)(place), shapes, place, first_group, measure_s
    )


def check_apart(pack: Path, file: Path, shapes: str, environment: Mapping[str, str]) -> None:
    """``check_model`` in a process of its own. PackInvalid with its words."""
    command = [sys.executable, "-m", "haotuner.whole_model", str(pack), str(file), shapes]
    answer = subprocess.run(
        command, capture_output=True, text=True, env=dict(environment) or None, timeout=CHECK_LIMIT_S, check=False
    )
    if answer.returncode != 0:
        said = answer.stderr.strip()[-1500:] or f"status {answer.returncode}"
        raise PackInvalid(f"the model of the new pack did not pass its check and was not published: {said}")


def drawn_inputs(model: AskedModel, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Any]:
    """Inputs of a request: normal numbers, whole ones small enough to be indices, masks of ones."""
    draw = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for name in model.graph.inputs:
        kind = model.graph.types[name]
        shape = [evaluate(extent, sizes) for extent in kind.shape]
        if kind.dtype in FLOATS:
            found[name] = draw.standard_normal(shape).astype(numpy_dtype(kind.dtype))
        else:
            found[name] = draw.integers(0, 2, shape).astype(numpy_dtype(kind.dtype))
    return found


def check_model(pack: Path, model: AskedModel) -> None:
    """PackInvalid unless the pack's model computes what the reference does, at the smallest requests of its range."""
    small = sorted(requests(model.spans), key=lambda sizes: _elements(model, sizes))
    chosen = [sizes for sizes in small if _elements(model, sizes) <= CHECKED_ELEMENTS][-CHECKS:] or small[:1]
    whole = False
    for sizes in chosen:
        given = drawn_inputs(model, sizes)
        values = {**interpret(model.graph, given, SEED, _between(model)), **given}
        for threads in (1, None):
            with Pack(pack, threads) as opened:
                for part in model.parts:
                    _check_part(opened, part, values, sizes)
                if len(model.parts) > 1:
                    found = opened.model(model.written.name).run(given, seed=SEED)
                    whole |= all(difference(found[name], values[name]) <= TOLERANCE for name in model.graph.outputs)
    if len(model.parts) > 1 and not whole:  # rounding may change a size that the data tell, but hardly always
        raise PackInvalid(f"model {model.written.name}: its segments together compute something else")


def _between(model: AskedModel) -> list[str]:
    """Tensors that go from one segment into another."""
    made = {node.output for node in model.graph.nodes}
    ends = [one["name"] for part in model.parts for kind in ("inputs", "outputs") for one in part.document[kind]]
    return [one for one in dict.fromkeys(ends) if one in made]


def _check_part(opened: Pack, part: WrittenModel, values: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    found = opened.model(part.name).run({one["name"]: values[one["name"]] for one in part.document["inputs"]})
    for output, computed in found.items():
        far = difference(computed, values[output])
        if far > TOLERANCE:
            raise PackInvalid(
                f"model {part.name}, {dict(sizes)}: output {output} is {far:.2g} away from the reference; "
                "the pack was not published"
            )


def difference(found: Any, want: Any) -> float:
    """The largest error over the largest number that was expected; infinite for other shapes or not-a-numbers."""
    if found.shape != want.shape:
        return float("inf")
    one, other = np.asarray(found, np.float64), np.asarray(want, np.float64)
    if not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return float("inf")
    keep = np.isfinite(one)
    return float(np.max(np.abs(one - other), initial=0, where=keep) / max(1.0, np.max(np.abs(other), initial=0, where=keep)))


def _elements(model: AskedModel, sizes: Mapping[str, int]) -> float:
    held = {node.output for node in model.graph.nodes}
    return float(sum(evaluate(product(kind.shape), sizes) for name, kind in model.graph.types.items() if name in held))


def main(pack: str, file: str, shapes: str) -> int:
    """Check one pack's model; says what is wrong."""
    try:
        check_model(Path(pack), model_of(file, shapes))
    except HaotunerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
