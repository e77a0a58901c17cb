"""Bits taken as another type in a pack: C computes what numpy's view of the memory is, of halves, too."""

from __future__ import annotations

import numpy as np
import pytest

import haotuner
from haotuner.frontends.onnx.read import graph_of
from tests.runtime.model_packs import model_pack

pytest.importorskip("onnx")
from onnx import helper  # noqa: E402, after the skip

from tests.frontends.test_importing_runtime import PAIRS, REALS, model  # noqa: E402


def test_packs_take_bits_as_another_type(tmp_path):
    requests, graphs = {}, {}
    for real, whole in PAIRS:
        values = np.tile(REALS.astype(real), 5)
        for stored, target in ((values, whole), (values.view(whole), real)):
            name = f"{stored.dtype}_as_{target}"
            code = helper.np_dtype_to_tensor_dtype(np.dtype(target))
            graphs[name] = graph_of(model(f"y0 = BitCast<to={code}>(x)", {"x": stored}, {}, 26, 1), None, {})
            requests[name] = stored, stored.view(target)
    with haotuner.load(model_pack(tmp_path / "pack", graphs, tuned=False, exact=False), threads=1) as pack:
        for name, (stored, expected) in requests.items():
            np.testing.assert_array_equal(pack.model(name).run({"x": stored})["y0"], expected, err_msg=name)
