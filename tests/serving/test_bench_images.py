"""Convolutions in a race: who is told what, and which results are let through."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from haotuner.bench.compare import contest_of
from haotuner.bench.contender import Setting
from haotuner.bench.field import ANY, CONVOLUTION, GPU, HOST
from haotuner.bench.images import ConvAttributes, draw_image, error_share
from haotuner.bench.inputs import draw_weights
from haotuner.bench.peers.ours import Ours
from haotuner.bench.rotation import resting_bytes
from haotuner.errors import UsageError
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.serving.conv_packs import conv_pack
from tests.serving.packs import LANES, best_level
from tests.standin import ROOT

SPECS = ("conv2d:c=6,f=8,r=3,s=3,pad=1,groups=2", "conv1d:c=5,f=7,s=3,dilation=2,layout=nwc")
TRANSPOSED = (
    "conv_transpose2d:c=6,f=8,r=3,s=3,pad=1,groups=2,stride=2,opad=1",
    "conv_transpose1d:c=5,f=7,s=4,stride=2,pad=1,layout=nwc",
)


def test_what_can_be_raced():
    for spec in (*SPECS, *TRANSPOSED):
        assert HOST.side(Op.parse(spec)) == CONVOLUTION and GPU.side(Op.parse(spec)) == ANY
    for spec in ("conv2d:c=6,f=8,r=3,s=3,pad=1.0.0.1", "conv_transpose1d:c=5,f=7,s=3,pad=1.0"):
        assert HOST.side(Op.parse(spec)) == ANY
    told = ConvAttributes.of(Op.parse("conv2d:c=6,f=8,r=3,s=3,pad=1.2,stride=2,layout=nhwc"))
    assert (told.pad, told.stride, told.last, told.flat) == ((1, 2), (2, 2), True, False)


@pytest.mark.parametrize("spec", (*SPECS, *TRANSPOSED))
def test_right_results_pass_and_wrong_ones_do_not(spec):
    op = Op.parse(spec)
    shape = Shape.of({axis: 9 if axis != "b" else 2 for axis in op.dynamic})
    weights, x = draw_weights(op, 2, 0), draw_image(op, shape, 0)
    assert resting_bytes(op, shape) == weights[0].nbytes and not np.array_equal(weights[0], weights[1])
    right = numerics.reference(op, {"x": x, "weight": weights[0]}).astype(np.float32)
    assert error_share(op, x, weights[0], right) < 1
    assert error_share(op, x, weights[1], right) > 1
    nudged = right.copy()
    nudged.flat[3] += np.float32(1e-3)
    for wrong in (nudged, np.sort(right, axis=-1), right[::-1].copy()):
        assert error_share(op, x, weights[0], wrong) > 1
    rough = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)  # as bf16
    assert error_share(op, x, weights[0], numerics.reference(op, {"x": rough, "weight": weights[0]}).astype(np.float32)) > 1
    assert error_share(op, x, weights[0], right[..., :-1]) == math.inf


def test_a_pack_of_convolutions_is_raced_as_it_is_served(tmp_path):
    pack = conv_pack(tmp_path / "pack", SPECS, LANES[best_level()])
    contest = contest_of(pack, environment={}, against=None)
    assert set(contest.peers) == {"torch", "onednn", "openvino", "onnxruntime"}
    assert [op.kind for op in contest.ops] == ["conv2d"]  # one race has shapes of the same axes
    assert all(set(shape.as_dict()) == {"b", "h", "w"} for shape in contest.shapes)
    with pytest.raises(UsageError, match="does not give exactly b, h, w"):
        contest_of(pack, environment={}, shapes=[Shape.of(m=1)])
    ours, op = Ours(Setting(threads=1, pack=str(pack))), contest.ops[0]
    weights, x = draw_weights(op, 2, 0), draw_image(op, Shape.of(b=2, h=5, w=7), 0)
    ours.prepare(op, weights)
    assert len(ours.aim(x, 2)) == 2 and error_share(op, x, weights[1], ours.result(1)) < 1
    assert ours.plan({"b": 2, "h": 5, "w": 7}) == "cell 1" and ours.overhead_ns(0.0) is None


@pytest.mark.long
@pytest.mark.parametrize("peer", ["torch_eager:TorchEager", "onnxruntime_cpu:OnnxruntimeCpu", "openvino_cpu:OpenvinoCpu"])
def test_peers_compute_what_they_are_told(peer: str):
    module = peer.partition(":")[0]
    pytest.importorskip({"torch_eager": "torch", "onnxruntime_cpu": "onnxruntime", "openvino_cpu": "openvino"}[module])
    command = [sys.executable, "-m", "tests.serving.peer_convolutions", peer, *SPECS, *TRANSPOSED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
