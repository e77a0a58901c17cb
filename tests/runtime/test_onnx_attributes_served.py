"""Attributes of operators through a pack: plain loops in C give what the interpreter gives."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("onnx")
from tests.bench.onnx_attributes import variants  # noqa: E402, after the skip
from tests.bench.onnx_nodes import Imported, by_packs, imported, interpreted  # noqa: E402, after the skip

OPS = ("BitShift", "Clip", "ConvTranspose", "CumSum", "GRU", "Hardmax", "LRN", "LpPool", "Mod", "ReduceLogSumExp", "Softmax")
MOST = 10  # variants of one operator


@pytest.mark.slow
def test_attributes_in_one_pack() -> None:
    read = []
    with warnings.catch_warnings():  # of numpy, where a variant is infinite
        warnings.simplefilter("ignore")
        for op in OPS:
            cases = [case for case in map(lambda each: imported(each, each.op), variants(op)) if isinstance(case, Imported)]
            for case in [case for case in cases if case.runs][:MOST]:
                outputs = interpreted(case)
                if not isinstance(outputs, str):
                    read.append(replace(case, expected=[np.asarray(outputs[name]) for name in case.graph.outputs]))
    assert len(read) > 5 * len(OPS)
    assert [case for case in by_packs(list(read)) if case.why] == []
