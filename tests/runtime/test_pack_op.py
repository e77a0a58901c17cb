"""An entry of a manifest as a value: its operator is made once, and only where somebody asks for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from haotuner.errors import UsageError
from haotuner.pack.op import PackOp
from haotuner.spec.op import Op

ENTRY = PackOp(name="dense_n8_k4_kn_bias_relu", kind="dense", axes=(), operands=(), kernels=(), tiles=(), threads=(1,))


def test_the_operator_of_an_entry_is_made_once() -> None:
    assert ENTRY.op == Op.parse("dense:n=8,k=4,weight=kn,epilogue=bias+relu") and ENTRY.op is ENTRY.op
    assert replace(ENTRY, name="dense_n8_k4").op == Op.parse("dense:n=8,k=4")
    assert replace(ENTRY) == ENTRY, "what was made beside the fields is no part of the value"


def test_a_kind_that_is_not_known_here_can_be_listed() -> None:
    entry = replace(ENTRY, name="no_such_kind_n8", kind="no_such_kind")
    assert entry.dynamic == ()
    with pytest.raises(UsageError, match="unknown op kind 'no'"):
        _ = entry.op
