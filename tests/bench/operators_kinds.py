"""Convolutions and batched products in bf16 and int8 against torch (oneDNN) on one thread, inside one process."""

from __future__ import annotations

import tempfile
from typing import Any

from haotuner.spec.op import Op
from tests.bench.operators_inside import paired, text, tuned_pack

TITLE = "Convolutions and batched products in bf16 and int8"
_IMAGES = "b=1..4;h=7..57;w=h"
_TOKENS = "b=12..48;m=1..256;n=m"
OPS = (
    ("conv2d:c=64,f=64,r=3,s=3,pad=1,dtype=bf16,layout=nhwc", _IMAGES),
    ("conv2d:c=64,f=64,r=3,s=3,pad=1,dtype=bf16", _IMAGES),
    ("conv2d:c=256,f=64,r=1,s=1,dtype=bf16,layout=nhwc", _IMAGES),
    ("conv2d:c=72,f=72,r=3,s=3,pad=1,groups=72,dtype=bf16,layout=nhwc", _IMAGES),
    ("conv2d:c=64,f=64,r=3,s=3,pad=1,dtype=int8,layout=nhwc,epilogue=scale+bias+relu,out=uint8", _IMAGES),
    ("batch_matmul:k=64,layout=nt,dtype=bf16", _TOKENS),
)
IMAGES, TOKENS = ((1, 7), (1, 28), (4, 14), (1, 57)), ((12, 16), (12, 128), (48, 256))


def section(command: str, args: Any) -> str:
    """Tune, then a row an op and size."""
    import torch

    import haotuner

    torch.set_num_threads(int(args.threads))
    rows = []
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        paths, where = tuned_pack([op for op, _ in OPS], [shapes for _, shapes in OPS], args, folder)
        packs = [haotuner.load(path, threads=int(args.threads)) for path in paths]
        for spec, _ in OPS:
            name = Op.parse(spec).name
            pack = next(item for item in packs if name in item.ops)
            for size in TOKENS if spec.startswith("batch") else IMAGES:
                ours, other, flops = (_product if spec.startswith("batch") else _image)(torch, pack, name, size)
                us, ratio, low, high = paired(ours, other)
                rows.append(
                    f"| {name} | {size} | {us:.1f} | {flops / us / 1e3:.0f} | {ratio:.2f}x | {low:.2f}..{high:.2f} |"
                )
    head = "op | b and side, or b and tokens | ours us | GFLOP/s | torch over ours | quartiles"
    return text(
        TITLE, command, head, rows, f"{where} Peer: torch {torch.__version__} (oneDNN; int8: its quantized kernels)."
    )


def _product(torch: Any, pack: Any, name: str, size: tuple[int, int]) -> tuple[Any, Any, float]:
    b, m = size
    x, w = (torch.randn(b, m, 64).bfloat16() for _ in range(2))
    y, run, turned = torch.empty(b, m, m, dtype=torch.bfloat16), pack.op(name).run, w.transpose(1, 2)
    return lambda: run(x, w, out=y), lambda: torch.bmm(x, turned, out=y), 2.0 * b * m * m * 64


def _image(torch: Any, pack: Any, name: str, size: tuple[int, int]) -> tuple[Any, Any, float]:
    op, (b, side) = Op.parse(name), size
    c, f, r, groups = op["c"], op["f"], op["r"], int(op.option("groups"))
    last, weight = op.option("layout") == "nhwc", torch.randn(f, c // groups, r, r)
    x = torch.randn(b, c, side, side)
    flops = 2.0 * b * side * side * f * (c // groups) * r * r
    memory = torch.channels_last if last else torch.contiguous_format
    if op.dtype == "int8":
        scale, bias = torch.full((f,), 0.001), torch.zeros(f)
        served = pack.op(name).bind((weight * 20).clamp(-127, 127).to(torch.int8), bias=bias, scale=scale)
        pixels = torch.quantize_per_tensor(x, 0.02, 128, torch.quint8).contiguous(memory_format=memory)
        weights = torch.quantize_per_channel(weight, torch.full((f,), 0.02).double(), torch.zeros(f).long(), 0, torch.qint8)
        packed = torch.ops.quantized.conv2d_prepack(weights, bias, [1, 1], [r // 2, r // 2], [1, 1], groups)
        image = pixels.int_repr().permute(0, 2, 3, 1).contiguous()
        y = torch.empty(b, side, side, f, dtype=torch.uint8)
        return lambda: served(image, out=y), lambda: torch.ops.quantized.conv2d_relu(pixels, packed, 0.1, 0), flops
    layer = torch.nn.Conv2d(c, f, r, padding=r // 2, groups=groups, bias=False).bfloat16().to(memory_format=memory)
    layer.weight.copy_(weight)
    served, image = pack.op(name).bind(layer.weight.contiguous()), x.bfloat16().contiguous(memory_format=memory)
    mine = image.permute(0, 2, 3, 1) if last else image
    y = torch.empty((b, side, side, f) if last else (b, f, side, side), dtype=torch.bfloat16)
    return lambda: served(mine, out=y), lambda: layer(image), flops
