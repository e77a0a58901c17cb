"""Micro-kernels in bf16, fp16 and int8 against float64: on every instruction set of the host, in every way to multiply."""

from __future__ import annotations

from pathlib import Path

import pytest

from haotuner.backends.cpu.typed_library import typed_object, way_here
from haotuner.backends.toolchain import Toolchain
from haotuner.microkernels.cpu.typed import CpuTyped
from haotuner.microkernels.cpu.typed_source import Ways
from haotuner.microkernels.index import families_for
from haotuner.words.op import Op
from tests.content.test_cpu_dense_results import TARGETS
from tests.content.typed_errors import typed_errors

OPS = (
    "dense:n=50,k=37,dtype=bf16",
    "dense:n=50,k=37,dtype=bf16,epilogue=bias+gelu+residual,out=fp32",
    "dense:n=50,k=131,dtype=fp16,epilogue=residual+relu",
    "dense:n=50,k=37,dtype=int8",
    "dense:n=50,k=38,dtype=int8,epilogue=scale+bias+relu,out=uint8",
    "dense:n=50,k=39,dtype=int8,epilogue=scale+bias+residual,out=int8",
)
TILES = ((1, 3, 1, 1, 0), (4, 2, 2, 2, 16))  # rows, vectors, vectors of a panel, unroll, words ahead


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("way", ("dot", "wide"))
def test_every_type_is_right(target: tuple[str, int], way: Ways, tmp_path: Path) -> None:
    mcpu, lanes = target
    seen = 0
    for place, spec in enumerate(OPS):
        op = Op.parse(spec)
        (family,) = families_for(op, "cpu")
        assert isinstance(family, CpuTyped)
        kernels = [family.typed(op, (mr, nv * lanes, pv * lanes, ku, lanes, pf)) for mr, nv, pv, ku, pf in TILES]
        if way == "dot" and way_here(kernels[0]) not in ("dot", "tiles"):
            continue  # the host multiplies no whole words of this type
        if way == "wide" and place not in (0, 3):
            continue  # what follows the sums is the same
        for error in typed_errors(op, kernels, mcpu, way, tmp_path / f"{place}.so", 64):
            assert error <= 1
            seen += 1
    assert seen or way == "dot"


@pytest.mark.parametrize("unknown", ["_tiles(", "_dot("])
def test_an_old_compiler_leaves_what_it_knows(unknown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def compiled(self: Toolchain, source: Path, *rest: object) -> None:
        tried.append(source.read_text())
        if unknown in tried[-1]:
            raise RuntimeError("cc: unknown option")

    monkeypatch.setattr(Toolchain, "object", compiled)
    op = Op.parse(OPS[0])
    (family,) = families_for(op, "cpu")
    assert isinstance(family, CpuTyped)
    kernels = [family.typed(op, (1, 16, 16, 1, 16, 0)), family.typed(op, (16, 32, 16, 1, 16, 0), on_tiles=True)]
    whole: tuple[Ways, ...] = ("all", "tiles")
    for ways in whole:
        tried.clear()
        typed_object(kernels, "x86-64-v4", tmp_path / "out.o", ways=ways)
        assert [unknown in text for text in tried] == ([True, False] if unknown == "_tiles(" else [True, True, False])
        assert ("_dot(" in tried[-1]) == (unknown == "_tiles("), "no more is lost than the compiler does not know"
    with pytest.raises(ValueError, match="typed kernels are built for"):
        typed_object([family.typed(op, (1, 16, 16, 1, 16, 0))], "znver5", tmp_path / "out.o")
