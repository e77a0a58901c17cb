"""ONNX's own cases through a pack: plain loops in C give what the cases expect."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("onnx")
from tests.bench.onnx_nodes import Imported, by_packs, cases_of, imported  # noqa: E402, after the skip

FAMILIES = ("Softmax", "GatherND", "Gelu", "Reshape", "Pow", "Mod")


@pytest.mark.slow
def test_onnx_own_cases_pass_in_one_pack():
    with warnings.catch_warnings():  # of onnx's own references
        warnings.simplefilter("ignore")
        read = [imported(case, op) for op in FAMILIES for case in cases_of(op)]
    assert sum(isinstance(one, Imported) and one.runs for one in read) > len(FAMILIES)
    assert [one for one in by_packs(read) if one.why] == []
