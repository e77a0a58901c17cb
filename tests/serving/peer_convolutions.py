"""A peer's convolutions held against ours: ``python -m tests.serving.peer_convolutions MODULE:CLASS SPEC …``.

In a process of its own, as in a race: ONNX Runtime's thread pools are made once a process.
"""

from __future__ import annotations

import importlib
import sys

from haotuner.bench.contender import Setting
from haotuner.bench.images import draw_image, error_share
from haotuner.bench.inputs import draw_weights
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape


def main(peer: str, *specs: str) -> None:
    """AssertionError names the convolution that the peer computes wrong."""
    module, _, name = peer.partition(":")
    contender = getattr(importlib.import_module(f"haotuner.bench.peers.{module}"), name)(Setting(threads=1))
    for spec in specs:
        op = Op.parse(spec)
        shape = Shape.of({axis: 9 if axis != "b" else 2 for axis in op.dynamic})
        weights, x = draw_weights(op, 2, 0), draw_image(op, shape, 0)
        contender.prepare(op, weights)
        contender.aim(x, 2)
        assert error_share(op, x, weights[1], contender.result(1)) < 1, spec


if __name__ == "__main__":
    main(*sys.argv[1:])
