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
    assert sum(isinstance(case, Imported) and case.runs for case in read) > len(FAMILIES)
    assert [case for case in by_packs(read) if case.why] == []
