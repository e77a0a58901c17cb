"""Every kind of product in every type on every instruction set that this CPU runs: older ones widen bf16, fp16 and bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from haotuner.backends.cpu.pack_source import pack_library
from haotuner.host.processor import missing_flags
from haotuner.pack.write import write_pack
from haotuner.verify.pack_check import verify
from tests.run_folder import toolchain
from tests.runtime.conv_packs import packed_conv
from tests.runtime.packs import LANES, document, packed_op
from tests.runtime.product_packs import packed_product
from tests.runtime.typed_packs import typed_op

KINDS = (
    "dense:n=21,k=19{}",
    "batch_matmul:k=19,layout=nt{}",
    "batch_matmul:layout=nn{}",
    "batch_matmul:k=19,layout=tn{}",
    "conv1d:c=6,f=5,s=3,pad=1{}",
    "conv2d:c=6,f=10,r=3,s=2,pad=1,groups=2,layout=nhwc{}",
    "conv2d:c=6,f=6,r=3,s=3,pad=1,groups=6{}",
    "conv_transpose1d:c=4,f=6,s=4,stride=2,layout=nwc{}",
    "conv_transpose2d:c=4,f=6,r=3,s=3,stride=2,opad=1,groups=2{}",
)
TYPES = {  # an epilogue where sums are not the result; products side by side have one of steps that read nothing
    "fp32": ("", ",epilogue=bias+gelu"),
    "fp32 to others": (",out=fp16", ",out=bf16,epilogue=scale+bias+silu"),
    "bf16": (",dtype=bf16", ",dtype=bf16,out=fp32,epilogue=scale+bias+silu"),
    "fp16": (",dtype=fp16", ",dtype=fp16,epilogue=bias+hardswish"),
    "int8": (",dtype=int8", ",dtype=int8,out=uint8,epilogue=scale+bias+relu"),
    "signed int8": (",dtype=int8,in=int8", ",dtype=int8,in=int8,out=int8,epilogue=scale+clamp"),
}
LEVELS = [level for level in LANES if not missing_flags(level)]


def packed(spec: str, lanes: int) -> Any:
    if spec.startswith("dense"):
        return typed_op(spec, lanes) if "dtype" in spec or "out" in spec else packed_op(spec, lanes, 2 * lanes)
    return (packed_product if spec.startswith("batch") else packed_conv)(spec, lanes)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("level", LEVELS)
def test_every_kind_is_right_in_every_type(tmp_path: Path, level: str, dtype: str) -> None:
    plain, followed = TYPES[dtype]
    specs = [kind.format(plain) for kind in KINDS] + [kind.format(followed) for kind in KINDS if "batch" not in kind]
    specs += [f"{kind.format(plain)},epilogue=silu+relu6" for kind in KINDS if "batch" in kind]
    ops = [packed(spec, LANES[level]) for spec in specs]
    library = tmp_path / "pack.so"
    pack_library(ops, level, toolchain(), library)
    write_pack(tmp_path / "pack", library, document(ops, level), lambda _: None)
    assert verify(tmp_path / "pack", most_flops=1e4) == []
