"""Table of the rule of every operator."""

from __future__ import annotations

from collections.abc import Mapping

from haotuner.frontends.onnx.contrib_ops import MICROSOFT
from haotuner.frontends.onnx.convolutions import CONVOLUTIONS
from haotuner.frontends.onnx.data_dependent import DATA
from haotuner.frontends.onnx.deform_conv import DEFORMED
from haotuner.frontends.onnx.dynamic_slices import BOUNDS
from haotuner.frontends.onnx.elementwise import ELEMENTWISE
from haotuner.frontends.onnx.fourier import SPECTRA
from haotuner.frontends.onnx.grid_sample import SAMPLED
from haotuner.frontends.onnx.indexing import INDEXING
from haotuner.frontends.onnx.integers import INTEGERS
from haotuner.frontends.onnx.layout import LAYOUT
from haotuner.frontends.onnx.moved_bytes import moving_bytes
from haotuner.frontends.onnx.node_context import Rule
from haotuner.frontends.onnx.non_max_suppression import BOXES
from haotuner.frontends.onnx.norms import NORMS
from haotuner.frontends.onnx.pooling import POOLING
from haotuner.frontends.onnx.products import PRODUCTS
from haotuner.frontends.onnx.quantised import QUANTISED
from haotuner.frontends.onnx.rearranged import REARRANGED
from haotuner.frontends.onnx.recurrent import RECURRENT
from haotuner.frontends.onnx.reductions import REDUCTIONS
from haotuner.frontends.onnx.resize import RESIZE
from haotuner.frontends.onnx.roi_align import REGIONS
from haotuner.frontends.onnx.tensor_sequences import TENSOR_SEQUENCES

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
