"""The rule of every operator."""

from __future__ import annotations

from collections.abc import Mapping

from haotuner.importing.contrib_ops import MICROSOFT
from haotuner.importing.convolutions import CONVOLUTIONS
from haotuner.importing.curves import CURVES
from haotuner.importing.data_dependent import DATA
from haotuner.importing.deform_conv import DEFORMED
from haotuner.importing.dynamic_slices import BOUNDS
from haotuner.importing.elementwise import ELEMENTWISE
from haotuner.importing.fourier import SPECTRA
from haotuner.importing.grid_sample import SAMPLED
from haotuner.importing.indexing import INDEXING
from haotuner.importing.integers import INTEGERS
from haotuner.importing.layout import LAYOUT
from haotuner.importing.moved_bytes import moving_bytes
from haotuner.importing.node_context import Rule
from haotuner.importing.non_max_suppression import BOXES
from haotuner.importing.norms import NORMS
from haotuner.importing.pooling import POOLING
from haotuner.importing.products import PRODUCTS
from haotuner.importing.quantised import QUANTISED
from haotuner.importing.rearranged import REARRANGED
from haotuner.importing.recurrent import RECURRENT
from haotuner.importing.reductions import REDUCTIONS
from haotuner.importing.resize import RESIZE
from haotuner.importing.roi_align import REGIONS
from haotuner.importing.tensor_sequences import TENSOR_SEQUENCES

_RULES: Mapping[str, Rule] = {
    **ELEMENTWISE,
    **CURVES,
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
