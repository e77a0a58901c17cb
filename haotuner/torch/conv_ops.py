"""Convolutions of a pack under ``torch.ops.haotuner``."""

from __future__ import annotations

import torch

from haotuner.runtime.convolution import AFTER, ConvOp
from haotuner.runtime.pack import Pack
from haotuner.words.op import Op


def define(library: torch.library.Library, pack: Pack, op: ConvOp) -> None:
    """``torch.ops.haotuner.<op>(x, packed, bias=None)`` and ``.out(…, out=y)``, which returns nothing."""
    call, setting = pack.entry(op.entry)
    name, meaning = op.name, Op.parse(op.name)
    dims = op.entry.operands[0].dims
    sides, channels = op.windows(), dims.index("c")
    tags = (torch.Tag.pt2_compliant_tag,)
    library.define(f"{name}(Tensor x, Tensor packed, Tensor? bias=None) -> Tensor", tags=tags)
    library.define(f"{name}.out(Tensor x, Tensor packed, Tensor? bias=None, *, Tensor(a!) out) -> ()", tags=tags)

    def size(x: torch.Tensor) -> list[int]:
        wanted = (
            f"{name}: x must be ({', '.join(dims)}), with {meaning['c']} channels and an image that the window fits into"
        )
        torch._check(x.dim() == len(dims) and x.shape[channels] == meaning["c"], lambda: wanted)
        extents = dict(zip(dims, x.shape, strict=True))
        found = {after: sides[of].out(extents[of]) for of, after in AFTER if of in sides}
        for extent in found.values():
            torch._check(extent >= 1, lambda: wanted)
        known = {"b": x.shape[0], "f": meaning["f"], **found}
        return [known[axis] for axis in op.entry.output.dims]

    def into(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None, *, out: torch.Tensor) -> None:
        if torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad)):
            raise ValueError(f"{name}: an input requires grad; a pack only infers: call it under torch.inference_mode()")
        image = x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()  # torch's own ops take any strides
        call(setting, image, packed, out, *(() if bias is None else (bias,)))

    def fresh(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        out = x.new_empty(size(x), dtype=kind)
        into(x, packed, bias, out=out)
        return out

    def shape(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return x.new_empty(size(x), dtype=kind)

    def nothing(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None, *, out: torch.Tensor) -> None:
        size(x)

    library.impl(name, fresh, "CPU")
    library.impl(f"{name}.out", into, "CPU")
    torch.library.register_fake(f"haotuner::{name}", shape, lib=library)
    torch.library.register_fake(f"haotuner::{name}.out", nothing, lib=library)
