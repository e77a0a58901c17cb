"""Convolutions and products as generated kernels, by haotuner's own families, and by ONNX Runtime, in GFLOP/s.

    python -m tests.bench.generated_products --folder DIR [--budget 30s] [--only NAME …] [--page FILE]

Each subject is a file of a convolution or a matrix product with a ReLU behind it. It is tuned as the operator ``group:FILE``
(a program of the searched space, ``--budget`` for each; 0: from predictions), and as a model, whose product is one of the
library's micro-kernels. All contenders take turns in one process on one thread; results are compared with ONNX Runtime's
first. Packs that lie in the folder are raced as they are.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.backends.index import own_device
from haotuner.runtime.pack import load
from tests.bench.groups import timed, tune
from tests.bench.markdown import markdown_table

BATCHES = "b=1..4"
TOLERANCE = 2e-3  # sums of up to 4,608 products of numbers around 1, in another order


@dataclass(frozen=True, slots=True)
class Subject:
    """A convolution, ``image``: channels, rows and columns, or a product of rows of ``image[0]`` numbers; a ReLU behind."""

    name: str
    image: tuple[int, ...]
    features: int
    window: int = 1

    @property
    def is_product(self) -> bool:
        """True of a matrix product."""
        return len(self.image) == 2

    @property
    def flops(self) -> float:
        """Operations of a batch of one."""
        terms = self.image[0] * self.window**2
        points = self.image[1] if self.is_product else self.image[1] * self.image[2]
        return 2.0 * terms * points * self.features

    def x(self) -> Any:
        """Input of a batch of one."""
        shape = (1, self.image[1], self.image[0]) if self.is_product else (1, *self.image)
        return np.random.default_rng(0).standard_normal(shape).astype(np.float32)

    def model(self, *, bound: bool) -> Any:
        """The ONNX model. ``bound``: with its weight; else it is an input, as a group wants it."""
        from onnx import TensorProto, helper, numpy_helper

        draw = np.random.default_rng(1)
        if self.is_product:
            shape: tuple[int, ...] = (self.image[0], self.features)
            x: list[str | int] = ["b", self.image[1], self.image[0]]
            node = helper.make_node("MatMul", ["x", "w"], ["t"])
        else:
            pad = self.window // 2
            shape, x = (self.features, self.image[0], self.window, self.window), ["b", *self.image]
            node = helper.make_node("Conv", ["x", "w"], ["t"], pads=[pad] * 4, kernel_shape=[self.window] * 2)
        inputs = [("x", x)] if bound else [("x", x), ("w", list(shape))]
        weight = draw.standard_normal(shape).astype(np.float32) / np.float32(self.image[0] ** 0.5)
        graph = helper.make_graph(
            [node, helper.make_node("Relu", ["t"], ["y"])], "product",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, extents) for name, extents in inputs],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(weight, "w")] if bound else [],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


SUBJECTS = (
    Subject("conv3x3_64_56", (64, 56, 56), 64, 3),
    Subject("conv3x3_128_28", (128, 28, 28), 128, 3),
    Subject("conv3x3_256_14", (256, 14, 14), 256, 3),
    Subject("conv1x1_256_28", (256, 28, 28), 128),
    Subject("product_384_768", (768, 384), 768),
    Subject("product_128_512", (512, 128), 512),
)


def raced(file: Path, subject: Subject, op: Any, model: Any) -> dict[str, float]:
    """Microseconds by contender, a batch of one."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    x = subject.x()
    (exact,) = session.run(None, {"x": x})
    arrays = {name: x if name == "x" else weight for name, weight in operands(op, file, x).items()}
    for result in (op.run(**arrays), model.run({"x": x})["y"]):
        np.testing.assert_allclose(result.reshape(exact.shape), exact, rtol=TOLERANCE, atol=TOLERANCE, err_msg=subject.name)
    return timed(
        {
            "generated": lambda: op.run(**arrays),
            "library": lambda: model.run({"x": x}),
            "onnxruntime": lambda: session.run(None, {"x": x}),
        }
    )


def operands(op: Any, file: Path, x: Any) -> dict[str, Any]:
    """Arrays of a generated op's operands: the file's weights come with the call."""
    from onnx import load_model, numpy_helper

    weights = {item.name: numpy_helper.to_array(item) for item in load_model(str(file)).graph.initializer}
    return {operand.name: weights.get(operand.name, x) for operand in op.entry.inputs}


def page(rows: Sequence[tuple[Subject, dict[str, float]]], command: str, host: str) -> str:
    """The results as Markdown."""
    names = ("generated", "library", "onnxruntime")
    head = ("subject", *(f"{name}, GFLOP/s" for name in names), "generated / ONNX Runtime", "library / ONNX Runtime")
    lines = []
    for subject, us in rows:
        rate = {name: subject.flops / us[name] / 1e3 for name in names}
        ratios = (rate[name] / rate["onnxruntime"] for name in names[:2])
        lines.append((subject.name, *(f"{rate[name]:.0f}" for name in names), *(f"{ratio:.2f}" for ratio in ratios)))
    text = (
        "# Generated convolutions and products\n\n"
        f"`{command}`, {time.strftime('%Y-%m-%d')}, {host}, one thread, a batch of one.\n\n"
        "*generated*: the operator `group:FILE`, a program of the searched space. *library*: the same file as a model, by\n"
        "haotuner's own kernels of convolutions and products. A ReLU is in each. Ratios over 1: faster than ONNX Runtime.\n"
        "Rates count the products of the definition, also where an algorithm makes fewer.\n"
    )
    return "\n".join((text, *markdown_table(head, lines)))


def main() -> None:
    """Tune what has no pack, race, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--budget", default="30s", help="of each operator; 0: from predictions")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--page", type=Path)
    parser.add_argument("--tune", action="store_true", help="make the packs alone")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    measured = ("--zero-measure",) if arguments.budget == "0" else ("--budget", arguments.budget)
    rows = []
    for subject in SUBJECTS:
        if arguments.only and subject.name not in arguments.only:
            continue
        file, group = (arguments.folder / f"{kind}{subject.name}.onnx" for kind in ("", "group_"))
        file.write_bytes(subject.model(bound=True).SerializeToString())
        group.write_bytes(subject.model(bound=False).SerializeToString())
        op_pack, model_pack = (arguments.folder / f"{kind}-{subject.name}" for kind in ("generated", "library"))
        if not op_pack.exists():
            tune(["--op", f"group:{group}"], op_pack, BATCHES, measured)
        if not model_pack.exists():
            tune([str(file)], model_pack, BATCHES)
        if arguments.tune:
            continue
        with load(op_pack, threads=1) as operators, load(model_pack, threads=1) as models:
            rows.append((subject, raced(file, subject, operators.op(operators.ops[0]), models.model(subject.name))))
        print(subject.name, {name: f"{subject.flops / us / 1e3:.0f}" for name, us in rows[-1][1].items()}, flush=True)
    if not arguments.tune:
        command = f"python -m tests.bench.generated_products --folder FOLDER --budget {arguments.budget}"
        text = page(rows, command, own_device("cpu", measure=False, cache_dir=None).id)
        print(text)
        if arguments.page:
            arguments.page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
