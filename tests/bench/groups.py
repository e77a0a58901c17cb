"""Drawn groups inside a model, as operators of their own, and in ONNX Runtime.

    python -m tests.bench.groups [--count 40] [--seed 0] [--page FILE] [--folder DIR] [--tune] [--seconds S]

Each group is a file of a few nodes over a matrix ``x`` (m, n); three functions that libraries have are raced alone, too. All
are tuned twice with ``--zero-measure``: as models, whose groups have a form each, and as the operators ``group:FILE``. All
contenders take turns in one process, on one thread, at three shapes; results are compared with ONNX Runtime's first. Times
are the least of rounds; a kind has geometric means. Packs that lie in the folder are raced as they are, and rows that it has
are not raced again: ``--tune`` makes packs, and a quiet machine is taken for the race alone, in shares of ``--seconds``.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.backends.index import own_device
from haotuner.runtime.pack import load
from tests.bench.markdown import markdown_table

SHAPES = ((384, 1024), (512, 64), (7, 2000))
RANGES = "m=1..512;n=64..2048"
UNARY = ("Exp", "Log", "Tanh", "Sigmoid", "Erf", "Sin", "Cos", "Softplus", "Mish", "Gelu", "Sqrt", "Abs", "Neg", "Elu",
         "HardSwish", "Softsign", "Asinh", "Atan")  # fmt: skip
Node = tuple[str, tuple[str, ...], Mapping[str, Any]]
TOLERANCE = 2e-4
BLOCK_S, ROUNDS = 0.002, 60
SHARE = 10  # groups of a pack: a run that is cut loses the packs of one share


@dataclass(frozen=True, slots=True)
class Row:
    """Times of a group at a shape, in microseconds by contender."""

    kind: str
    steps: str
    shape: tuple[int, int]
    us: Mapping[str, float]

    @property
    def over_operator(self) -> float:
        """Time of the model over that of the operator."""
        return self.us["model"] / self.us["operator"]

    @property
    def over_onnxruntime(self) -> float:
        """Time of ONNX Runtime over that of the model."""
        return self.us["onnxruntime"] / self.us["model"]


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


# Behind the drawn ones: what libraries have a kernel of their own for.
ALONE: Sequence[tuple[str, list[Node]]] = [
    ("alone", [(function, ("x",), {"axis": -1} if function == "Softmax" else {})]) for function in ("Softmax", "Exp", "Tanh")
]


def model_of(nodes: Sequence[Node]) -> Any:
    """The ONNX model; an operand "" is the result of the node before."""
    from onnx import TensorProto, helper, numpy_helper

    axes = [numpy_helper.from_array(np.array([axis]), name) for name, axis in (("first", 0), ("last", 1))]
    protos, last = [], "x"
    for index, (kind, operands, attributes) in enumerate(nodes):
        output = "y" if index == len(nodes) - 1 else f"t{index}"
        inputs = [last if operand == "" else operand for operand in operands]
        protos.append(helper.make_node(kind, inputs, [output], **attributes))
        last = output
    used = {operand for _, operands, _ in nodes for operand in operands}
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", ["m", "n"]), ("y", None))
    ]
    graph = helper.make_graph(protos, "group", ends[:1], ends[1:], [axis for axis in axes if axis.name in used])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def tune(words: Sequence[str], out: Path, ranges: str = RANGES, measured: Sequence[str] = ("--zero-measure",)) -> None:
    """A pack; one from predictions is exit code 3."""
    command = [sys.executable, "-m", "haotuner", "tune", *words, "--shapes", ranges, *measured, "--threads", "1"]
    code = subprocess.run([*command, "--peers", "none", "-q", "--out", str(out)], stdout=subprocess.DEVNULL).returncode
    if code not in (0, 3):
        raise RuntimeError(f"{' '.join(words)}: exit {code}")


def timed(calls: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Least microseconds of each call over rounds in which all take turns: what runs beside them only adds."""
    counts, least = dict[str, int](), dict.fromkeys(calls, math.inf)
    for name, call in calls.items():
        call()
        begin = time.perf_counter()
        call()
        counts[name] = max(1, int(BLOCK_S / max(time.perf_counter() - begin, 1e-7)))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begin = time.perf_counter()
            for _ in range(counts[name]):
                call()
            least[name] = min(least[name], (time.perf_counter() - begin) / counts[name] * 1e6)
    return least


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


def packs(files: Sequence[Path], folder: Path) -> list[tuple[Path, Path]]:
    """Folders of the packs of each share of the files, of operators and of models, tuned where they are not there."""
    pairs = []
    for begin in range(0, len(files), SHARE):
        share, number = files[begin : begin + SHARE], begin // SHARE
        pair = folder / f"operators-{number}", folder / f"models-{number}"
        words = [word for file in share for word in ("--op", f"group:{file}")], list(map(str, share))
        for out, arguments in zip(pair, words, strict=True):
            if not out.exists():
                tune(arguments, out)
                print(f"tuned {out.name}", flush=True)
        pairs.append(pair)
    return pairs


def race(groups: Sequence[tuple[str, Sequence[Node]]], files: Sequence[Path], folder: Path, until: float) -> list[Row]:
    """Rows of all groups and shapes; those that the folder has are not raced again, and none begins after ``until``."""
    stored = folder / "rows.json"
    times: dict[str, dict[str, float]] = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else {}
    for number, (op_pack, model_pack) in enumerate(packs(files, folder)):
        share = range(number * SHARE, min((number + 1) * SHARE, len(files)))
        missing = [index for index in share if any(_key(files[index], shape) not in times for shape in SHAPES)]
        if not missing or time.monotonic() > until:
            continue
        with load(op_pack, threads=1) as operators, load(model_pack, threads=1) as models:
            for index in missing:
                op = operators.op(next(name for name in operators.ops if name.startswith(f"group_{files[index].stem}_")))
                for shape in SHAPES:
                    key = _key(files[index], shape)
                    if key not in times and time.monotonic() <= until:
                        times[key] = raced(files[index], op, models.model(files[index].stem), shape)
                        stored.write_text(json.dumps(times, indent=0), encoding="utf-8")
                        print(key, {name: round(us, 1) for name, us in times[key].items()}, flush=True)
    return [
        Row(kind, " ".join(step for step, _, _ in nodes), shape, times[_key(file, shape)])
        for file, (kind, nodes) in zip(files, groups, strict=True)
        for shape in SHAPES
        if _key(file, shape) in times
    ]


def _key(file: Path, shape: tuple[int, int]) -> str:
    return f"{file.stem} {shape[0]}x{shape[1]}"


def tables(rows: Sequence[Row]) -> str:
    """Geometric means of kinds, and every row, as Markdown."""
    kinds = list(dict.fromkeys(row.kind for row in rows))
    means = []
    for kind in (*kinds, "all"):
        own = [row for row in rows if kind in (row.kind, "all")]
        columns = [[row.over_operator for row in own], [row.over_onnxruntime for row in own]]
        worst = f"{max(columns[0]):.2f}", f"{min(columns[1]):.2f}"
        means.append((kind, str(len(own)), *(f"{statistics.geometric_mean(column):.2f}" for column in columns), *worst))
    names = ("ONNX Runtime, us", "operator, us", "model, us", "model / operator", "ONNX Runtime / model")
    lines = [
        (row.kind, row.steps, f"{row.shape[0]} x {row.shape[1]}",
         *(f"{row.us[name]:.1f}" for name in ("onnxruntime", "operator", "model")),
         f"{row.over_operator:.2f}", f"{row.over_onnxruntime:.2f}") for row in rows
    ]  # fmt: skip
    head = ("kind", "rows", *names[3:], "most of the former", "least of the latter")
    return "\n".join((*markdown_table(head, means), *markdown_table(("kind", "group", "shape", *names), lines)))


def page(rows: Sequence[Row], command: str, host: str, busy: bool) -> str:
    """The results as Markdown. ``busy``: whether other programs ran beside the race."""
    lead = (
        f"`{command}`, {time.strftime('%Y-%m-%d')}, {host}, one thread, packs of predictions: nothing was timed for them. "
        "The contenders take turns in one process. Times are the least of 60 rounds of 2 ms, means are geometric. "
        "*model / operator* over 1: the group takes longer inside a model. *ONNX Runtime / model* over 1: the model is "
        "faster. ONNX Runtime writes into a bound output; the others make theirs."
        f"{' Other programs ran on the host beside the race.' if busy else ''}"
    )
    return f"# Groups inside models\n\n{textwrap.fill(lead, 125, break_on_hyphens=False)}\n\n{tables(rows)}"


def main() -> None:
    """Draw, tune what has no pack, race what has no row, print; a line a row as it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", type=Path, help="written once every row is there")
    parser.add_argument("--folder", type=Path, help="files, packs and rows, kept; what is there is not made again")
    parser.add_argument("--tune", action="store_true", help="make the packs alone")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no row later")
    parser.add_argument("--busy", action="store_true", help="say on the page that other programs ran beside")
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.seconds
    warnings.simplefilter("ignore")
    draw = random.Random(arguments.seed)
    groups = [(kind, KINDS[kind](draw)) for kind in [*KINDS] * math.ceil(arguments.count / len(KINDS))][: arguments.count]
    groups += ALONE
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / f"g{index}.onnx" for index in range(len(groups))]
        for file, (_, nodes) in zip(files, groups, strict=True):
            file.write_bytes(model_of(nodes).SerializeToString())
        if arguments.tune:
            packs(files, folder)
            return
        rows = race(groups, files, folder, until)
    print(tables(rows))
    if len(rows) < len(files) * len(SHAPES):
        print(f"{len(rows)} of {len(files) * len(SHAPES)} rows so far; the same command goes on")
    elif arguments.page:
        drawn = f"--count {arguments.count} --seed {arguments.seed}"
        command = f"python -m tests.bench.groups {drawn} --page {arguments.page}"
        host = own_device("cpu", measure=False, cache_dir=None).id
        arguments.page.write_text(page(rows, command, host, arguments.busy), encoding="utf-8")


if __name__ == "__main__":
    main()
