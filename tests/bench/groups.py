"""Drawn groups inside a model, as operators of their own, and in ONNX Runtime.

    python -m tests.bench.groups [--count 40] [--seed 0] [--page FILE] [--folder DIR]

Each group is a file of a few nodes over a matrix ``x`` (m, n). All are tuned twice with ``--zero-measure``: as models of one
pack, whose groups have a form each, and as the operators ``group:FILE`` of another. All contenders take turns in one
process, on one thread, at three shapes; results are compared with ONNX Runtime's first. Ratios are medians of rounds; a kind
has their geometric mean. Packs that lie in the folder are raced as they are, so that a quiet machine is taken for the race
alone.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.runtime.pack import load
from tests.bench.generated import timed
from tests.bench.markdown import markdown_table

SHAPES = ((384, 1024), (512, 64), (7, 2000))
RANGES = "m=1..512;n=64..2048"
UNARY = ("Exp", "Log", "Tanh", "Sigmoid", "Erf", "Sin", "Cos", "Softplus", "Mish", "Gelu", "Sqrt", "Abs", "Neg", "Elu",
         "HardSwish", "Softsign", "Asinh", "Atan")  # fmt: skip
Node = tuple[str, tuple[str, ...], Mapping[str, Any]]
TOLERANCE = 2e-4


def elementwise(draw: random.Random) -> list[Node]:
    """Up to three functions, perhaps times x."""
    nodes: list[Node] = [(draw.choice(UNARY), ("",), {})]
    nodes += [(draw.choice(UNARY), ("",), {}) for _ in range(draw.randrange(2))]
    return [("Abs", ("x",), {}), *nodes, *([("Mul", ("", "x"), {})] if draw.random() < 0.5 else [])]


def rows(draw: random.Random) -> list[Node]:
    """A softmax or a norm over the rows, a function before or behind it."""
    norm: Node = draw.choice([("Softmax", ("",), {"axis": -1}), ("LogSoftmax", ("",), {"axis": -1}),
                              ("LpNormalization", ("",), {"axis": -1, "p": 2})])  # fmt: skip
    around: list[Node] = [("Tanh", ("",), {})] if draw.random() < 0.5 else []
    return [("Neg", ("x",), {}), *around, norm]


def reductions(draw: random.Random) -> list[Node]:
    """A reduction along one axis."""
    how = draw.choice(["ReduceSum", "ReduceMax", "ReduceMean", "ReduceLogSumExp", "ReduceL2"])
    return [(draw.choice(["Abs", "Tanh", "Exp"]), ("x",), {}), (how, ("", draw.choice(["first", "last"])), {"keepdims": 1})]


def transposed(draw: random.Random) -> list[Node]:
    """A function, transposed."""
    return [(draw.choice(["Relu", "Tanh", "Neg"]), ("x",), {}), ("Transpose", ("",), {"perm": [1, 0]})]


KINDS: Mapping[str, Callable[[random.Random], list[Node]]] = {
    "elementwise": elementwise, "rows": rows, "reductions": reductions, "transposed": transposed,
}  # fmt: skip


def model_of(nodes: Sequence[Node]) -> Any:
    """The ONNX model; an operand "" is the result of the node before."""
    from onnx import TensorProto, helper, numpy_helper

    axes = [numpy_helper.from_array(np.array([axis]), name) for name, axis in (("first", 0), ("last", 1))]
    made, last = [], "x"
    for index, (kind, operands, attributes) in enumerate(nodes):
        output = "y" if index == len(nodes) - 1 else f"t{index}"
        inputs = [last if operand == "" else operand for operand in operands]
        made.append(helper.make_node(kind, inputs, [output], **attributes))
        last = output
    used = {operand for _, operands, _ in nodes for operand in operands}
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", ["m", "n"]), ("y", None))
    ]
    graph = helper.make_graph(made, "group", ends[:1], ends[1:], [axis for axis in axes if axis.name in used])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def tune(words: Sequence[str], out: Path) -> None:
    """A pack from predictions, whose exit code is 3."""
    command = [sys.executable, "-m", "haotuner", "tune", *words, "--shapes", RANGES, "--zero-measure", "--threads", "1"]
    code = subprocess.run([*command, "--peers", "none", "-q", "--out", str(out)], stdout=subprocess.DEVNULL).returncode
    if code not in (0, 3):
        raise RuntimeError(f"{' '.join(words)}: exit {code}")


def raced(file: Path, op: Any, model: Any, shape: tuple[int, int]) -> dict[str, float]:
    """Microseconds of the model, the operator and ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    (exact,) = session.run(None, {"x": x})
    out = np.empty_like(exact)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "cpu", 0, np.float32, exact.shape, out.ctypes.data)
    for result in (op.run(x), model.run({"x": x})["y"]):
        np.testing.assert_allclose(result.reshape(exact.shape), exact, rtol=TOLERANCE, atol=TOLERANCE, err_msg=file.stem)
    return timed(
        {
            "model": lambda: model.run({"x": x}),
            "operator": lambda: op.run(x),
            "onnxruntime": lambda: session.run_with_iobinding(binding),
        }
    )


def main() -> None:
    """Draw, tune, race, print; a line a group as it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--folder", type=Path, help="files and packs, kept; packs that are there are not tuned again")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    draw = random.Random(arguments.seed)
    groups = [(kind, KINDS[kind](draw)) for kind in [*KINDS] * math.ceil(arguments.count / len(KINDS))][: arguments.count]
    lines, ratios = [], dict[str, list[tuple[float, float]]]()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or scratch
        files = [Path(folder) / f"g{index}.onnx" for index in range(len(groups))]
        for file, (_, nodes) in zip(files, groups, strict=True):
            file.write_bytes(model_of(nodes).SerializeToString())
        op_pack, models_pack = Path(folder) / "operators", Path(folder) / "models"
        if not op_pack.exists():
            tune([word for file in files for word in ("--op", f"group:{file}")], op_pack)
        if not models_pack.exists():
            tune([str(file) for file in files], models_pack)
        with load(op_pack, threads=1) as operators, load(models_pack, threads=1) as models:
            for file, (kind, nodes) in zip(files, groups, strict=True):
                op = operators.op(next(name for name in operators.ops if name.startswith(f"group_{file.stem}_")))
                model = models.model(file.stem)
                for m, n in SHAPES:
                    us = raced(file, op, model, (m, n))
                    ratio = us["model"] / us["operator"], us["onnxruntime"] / us["model"]
                    ratios.setdefault(kind, []).append(ratio)
                    times = (f"{us[name]:.1f}" for name in ("onnxruntime", "operator", "model"))
                    steps = " ".join(step for step, _, _ in nodes)
                    lines.append((kind, steps, f"{m} x {n}", *times, *(f"{value:.2f}" for value in ratio)))
                    print(*lines[-1], sep=" | ", flush=True)
    means = [
        (kind, str(len(values)), *(f"{statistics.geometric_mean(column):.2f}" for column in zip(*values, strict=True)))
        for kind, values in ratios.items()
    ]
    names = ("ONNX Runtime, us", "operator, us", "model, us", "model / operator", "ONNX Runtime / model")
    text = [*markdown_table(("kind", "rows", *names[3:]), means), *markdown_table(("kind", "group", "shape", *names), lines)]
    print("\n".join(text))
    if arguments.page:
        arguments.page.write_text("# Groups inside models\n\n" + "\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
