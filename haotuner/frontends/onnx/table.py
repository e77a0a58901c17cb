"""Table of the rule of every operator, and the words for operators that have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from haotuner.errors import UsageError
from haotuner.frontends.onnx.contrib_ops import MICROSOFT
from haotuner.frontends.onnx.convolutions import CONVOLUTIONS, DEFORMED
from haotuner.frontends.onnx.data_dependent import BOUNDS, DATA
from haotuner.frontends.onnx.elementwise import ELEMENTWISE
from haotuner.frontends.onnx.fourier import SPECTRA
from haotuner.frontends.onnx.grid_sample import SAMPLED
from haotuner.frontends.onnx.indexing import INDEXING, REARRANGED
from haotuner.frontends.onnx.integers import INTEGERS
from haotuner.frontends.onnx.layout import LAYOUT
from haotuner.frontends.onnx.node_context import Rule
from haotuner.frontends.onnx.object_detection import BOXES, REGIONS
from haotuner.frontends.onnx.pooling import POOLING
from haotuner.frontends.onnx.products import PRODUCTS
from haotuner.frontends.onnx.quantised import QUANTISED, moving_bytes
from haotuner.frontends.onnx.recurrent import RECURRENT
from haotuner.frontends.onnx.reductions import NORMS, REDUCTIONS
from haotuner.frontends.onnx.resize import RESIZE
from haotuner.frontends.onnx.tensor_sequences import TENSOR_SEQUENCES

SHOWN = 3  # places named of each operator


def refuse(where: Mapping[str, Sequence[str]], advice: str) -> None:
    """UsageError if any operator is there, the commonest first. ``where``: of each operator the nodes that call it."""
    if where:
        text = "; ".join(
            f"{name}: {len(places)} ({', '.join(places[:SHOWN])}{', …' if len(places) > SHOWN else ''})"
            for name, places in sorted(where.items(), key=lambda item: -len(item[1]))
        )
        raise UsageError(f"operators without a rule: {text}. {advice}")


_RULES: Mapping[str, Rule] = {
    **ELEMENTWISE,
    **REDUCTIONS,
    **LAYOUT,
    **BOUNDS,  # in the place of the rules of layouts, which they call where bounds are known
    **PRODUCTS,
    **CONVOLUTIONS,
    **DEFORMED,
    **POOLING,
    **NORMS,
    **RESIZE,
    **SAMPLED,
    **SPECTRA,
    **REGIONS,
    **REARRANGED,
    **INDEXING,
    **RECURRENT,
    **DATA,
    **BOXES,
    **QUANTISED,
    **TENSOR_SEQUENCES,
    **INTEGERS,  # in the place of the rules of real products, which they call where bytes do not fit
}
RULES: Mapping[str, Rule] = {**_RULES, **moving_bytes(_RULES)}
MAIN = ("", "ai.onnx")  # the domain of ONNX's own operators, in both spellings


def rule_of(domain: str, op: str) -> Rule | None:
    """The rule of an operator of ONNX's own domain or of com.microsoft, which ONNX Runtime's optimisers write."""
    if domain in MAIN:
        return RULES.get(op)
    return MICROSOFT.get(op) if domain == "com.microsoft" else None
