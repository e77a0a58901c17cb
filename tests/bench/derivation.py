"""Derivation on the published layers: ``python -m tests.bench.derivation [--cases NAME,NAME] [--measure] [--out FILE]``.

Writes docs/results/derivation.md: of each layer what the search did, what is expected of the plain layer and of its
cheapest derived form, whether ``tune --derive`` takes one, and the chain of rules. With ``--measure`` both are tuned from
predictions, and raced with ONNX Runtime on one thread. Published ratios are OLLIE's on an A100, from its artefact's logs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from haotuner.derive.model import Derivation, Form, NodeForms
from haotuner.derive.plan_forms import DerivedForms
from haotuner.derive.search import Limits
from haotuner.derive.text import lines
from haotuner.graph.rewrites import DERIVED
from haotuner.runtime.pack import load
from haotuner.verify.model_check import model_of
from tests.bench.generated import timed
from tests.bench.markdown import markdown_table

PAGE = Path("docs/results/derivation.md")
SECONDS = 60.0  # of derivation, of a layer
TOLERANCE = 1e-3  # of the largest number


HEAD = ("layer", "expected us, plain", "cheapest derived", "ratio", "taken by a plan", "measured us, plain", "with --derive",
        "ONNX Runtime", "published, A100")  # fmt: skip
TEXT = """fp32, one thread. Expected: greedy fusion's plan by expected prices.
A plan also counts what a form's neighbours save or lose. Not measured: -."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A published layer: ONNX operator, the weight's shape, attributes, sizes of one request, and OLLIE's ratio."""

    operator: str
    weight: tuple[int, int, int, int]
    attributes: Mapping[str, Any]
    sizes: Mapping[str, int]
    published: str

    @property
    def channels(self) -> int:
        """Channels of the input."""
        return self.weight[0 if self.operator == "ConvTranspose" else 1]


def _side(batch: int, height: int) -> dict[str, int]:
    return {"n": batch, "h": height, "w": height}


def _transposed(pad: int, stride: int) -> dict[str, Any]:
    return {"pads": [pad] * 4, "strides": [stride] * 2}


LAYERS: Mapping[str, Layer] = {
    "ResNet 3x3, 7x7 images": Layer("Conv", (512, 512, 3, 3), {"pads": [1] * 4}, _side(1, 7), "2.6"),
    "SRCNN 5x5, one feature": Layer("Conv", (1, 32, 5, 5), {"pads": [2] * 4}, _side(1, 224), "1.6"),
    "FSRCNN 5x5, one channel": Layer("Conv", (56, 1, 5, 5), {"pads": [2] * 4}, _side(1, 32), "-"),
    "FSRCNN 9x9 transposed": Layer("ConvTranspose", (56, 1, 9, 9), _transposed(4, 3), _side(1, 32), "-"),
    "InfoGAN 4x4 transposed": Layer("ConvTranspose", (256, 448, 4, 4), _transposed(1, 2), _side(16, 2), "5.1"),
    "DCGAN 4x4 transposed": Layer("ConvTranspose", (512, 256, 4, 4), _transposed(1, 2), _side(1, 4), "-"),
    "CSRNet 3x3, dilation 2": Layer("Conv", (512, 512, 3, 3), {"pads": [2] * 4, "dilations": [2, 2]}, _side(1, 14), "-"),
}  # fmt: skip


def written(layer: Layer, file: Path) -> None:
    """The layer as an ONNX file, with named dimensions."""
    weight = (np.random.default_rng(0).normal(size=layer.weight) * 0.1).astype(np.float32)
    node = helper.make_node(layer.operator, ["x", "weight"], ["y"], **layer.attributes)
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", layer.channels, "h", "w"]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph([node], "layer", ends[:1], ends[1:], [numpy_helper.from_array(weight, "weight")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Forms of a layer; the chain that a plan took, empty for none, and seconds of planning; measured us by contender."""

    forms: NodeForms
    taken: str
    seconds: float
    us: Mapping[str, float]

    @property
    def shown(self) -> Form:
        """The cheapest derived form, else the original."""
        return min(self.forms.others, key=lambda form: form.us[0], default=self.forms.original)


def outcome(layer: Layer, file: Path, measures: bool) -> Outcome:
    """What derivation does with a layer."""
    shapes = ";".join(f"{name}={size}" for name, size in layer.sizes.items())
    plan = DerivedForms(SECONDS)
    model = model_of(file, shapes, rewrites=plan)
    rules = [item["rule"] for item in model.report.rewrites if item["rule"].startswith(DERIVED)]
    derivation = Derivation(model.graph, [layer.sizes], Limits(explorative=2, seconds=SECONDS))
    products = derivation.products()
    forms = [derivation.forms_of(tensor) for tensor in products]
    longest = max(forms, key=lambda item: item.original.us[0])
    taken = "; ".join(rule.removeprefix(DERIVED) for rule in rules)
    return Outcome(longest, taken, plan.total, measured(layer, file, shapes) if measures else {})


def tuned(file: Path, shapes: str, *words: str) -> Path:
    """A pack from predictions beside the file."""
    out = file.with_name(f"{file.stem}{''.join(words)}")
    command = [sys.executable, "-m", "haotuner", "tune", str(file), "--shapes", shapes, "--zero-measure", "--threads", "1"]
    code = subprocess.run(
        [*command, "--peers", "none", "-q", "--out", str(out), *words], stdout=subprocess.DEVNULL
    ).returncode
    if code not in (0, 3):
        raise RuntimeError(f"{file.name} {' '.join(words)}: exit {code}")
    return out


def onnxruntime_call(file: Path, feeds: Mapping[str, Any]) -> tuple[Callable[[], Any], Any]:
    """A call of ONNX Runtime on one thread, and its answer."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    (answer,) = session.run(None, dict(feeds))
    return lambda: session.run(None, dict(feeds)), answer


def measured(layer: Layer, file: Path, shapes: str) -> dict[str, float]:
    """Median microseconds of the plain layer, of ``tune --derive``, and of ONNX Runtime, which take turns."""
    x = np.random.default_rng(1).normal(size=[layer.sizes["n"], layer.channels, *list(layer.sizes.values())[1:]])
    feeds = {"x": x.astype(np.float32)}
    call, expected = onnxruntime_call(file, feeds)
    calls = {"ONNX Runtime": call}
    with load(tuned(file, shapes), threads=1) as plain, load(tuned(file, shapes, "--derive"), threads=1) as other:
        models = {"plain": plain.model(file.stem), "derived": other.model(file.stem)}
        for name, model in models.items():
            far = np.abs(model.run(feeds)["y"] - expected).max() / max(1.0, np.abs(expected).max())
            if far > TOLERANCE:
                raise RuntimeError(f"{file.stem}, {name}: off by {far:.1e} of the largest number")
            calls[name] = partial(model.run, feeds)
        return timed(calls)


def drawing(outcome_: Outcome) -> list[str]:
    """The chain of rules as text: the expression, a rule a line, and what came of it."""
    form = outcome_.shown
    parts = [*(line for scope in outcome_.forms.original.scopes for line in lines(scope))]
    for rule, detail in form.steps:
        parts += ["      |", f"      |  {rule}: {detail}", "      v"]
    return ["```", *parts, *(line for scope in form.scopes for line in lines(scope)), "```", ""]


def page(outcomes: Mapping[str, Outcome], command: str) -> str:
    """The page of results."""
    rows, stats = [], []
    for name, item in outcomes.items():
        plain, best = item.forms.original.us[0], item.shown.us[0]
        times = [f"{item.us[who]:,.0f}" if item.us else "-" for who in ("plain", "derived", "ONNX Runtime")]
        rows.append([name, f"{plain:,.0f}", f"{best:,.0f}", f"{plain / best:.2f}x", item.taken or "no", *times,
                     LAYERS[name].published])  # fmt: skip
        stats.append([name, item.forms.statistics, f"{item.seconds:.1f}"])
    text = ["# Derivation on the published layers", "", f"Made by `{command}`.", "", TEXT, ""]
    text += markdown_table(HEAD, rows)
    text += ["## What the searches did", "", *markdown_table(["layer", "states", "seconds of a plan"], stats)]
    text += ["## Chains of rules", ""]
    for name, item in outcomes.items():
        text += [f"### {name}", "", *drawing(item)]
    return "\n".join(text).rstrip() + "\n"


def main(words: Sequence[str] | None = None) -> None:
    """Derive, race if asked, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="", help="parts of names, with commas between; empty: all")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--out", type=Path, default=PAGE)
    arguments = parser.parse_args(words)
    warnings.simplefilter("ignore")
    chosen = [name for name in LAYERS if any(part in name for part in arguments.cases.split(","))]
    outcomes = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(chosen):
            file = Path(folder) / f"layer{number}.onnx"
            written(LAYERS[name], file)
            outcomes[name] = outcome(LAYERS[name], file, arguments.measure)
            print(f"{name}: {outcomes[name].taken or 'as it is'}", flush=True)
    command = "python -m tests.bench.derivation" + (" --measure" if arguments.measure else "")
    arguments.out.write_text(page(outcomes, command), encoding="utf-8")


if __name__ == "__main__":
    main()
