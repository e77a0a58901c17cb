"""Typed micro-kernels against float64: on every instruction set of the host, in every way to multiply."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

from haotuner.backends.cpu.compile import typed_object, way_here
from haotuner.backends.toolchain import Toolchain
from haotuner.hw_profiles.isa import ISAS
from haotuner.microkernels.cpu.typed import CpuTyped, program_of
from haotuner.microkernels.cpu.typed_source import NATIVE, Ways, store_symbol, stores
from haotuner.microkernels.index import families_for
from haotuner.spec.op import Op
from tests.microkernels.test_cpu_dense_results import TARGETS
from tests.microkernels.typed_errors import typed_errors
from tests.run_folder import toolchain

RUNTIME = Path(__file__).resolve().parents[2] / "haotuner" / "runtime" / "native"

OPS = (
    "dense:n=50,k=37,dtype=bf16",
    "dense:n=50,k=37,dtype=bf16,epilogue=bias+gelu+residual,out=fp32",
    "dense:n=50,k=131,dtype=fp16,epilogue=residual+relu",
    "dense:n=50,k=37,dtype=int8",
    "dense:n=50,k=38,dtype=int8,epilogue=scale+bias+relu,out=uint8",
    "dense:n=50,k=39,dtype=int8,epilogue=scale+bias+residual,out=int8",
    "dense:n=50,k=37,epilogue=bias+gelu+residual,out=bf16",
)
TILES = ((1, 3, 1, 1, 0), (4, 2, 2, 2, 16))  # rows, vectors, vectors of a panel, unroll, words ahead


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("way", ("dot", "wide"))
def test_every_type_is_right(target: tuple[str, int], way: Ways, tmp_path: Path) -> None:
    mcpu, lanes = target
    seen = 0
    for index, spec in enumerate(OPS):
        op = Op.parse(spec)
        (family,) = families_for(op, "cpu")
        assert isinstance(family, CpuTyped)
        kernels = [family.typed(op, (mr, nv * lanes, pv * lanes, ku, lanes, pf)) for mr, nv, pv, ku, pf in TILES]
        if way == "dot" and way_here(kernels[0]) not in ("dot", "tiles"):
            continue  # the host multiplies no whole words of this type
        if way == "wide" and index not in (0, 3, 6):
            continue  # what follows the sums is the same
        for error in typed_errors(op, kernels, mcpu, way, tmp_path / f"{index}.so", 64):
            assert error <= 1
            seen += 1
    assert seen or way == "dot"


@pytest.mark.isa("avx512f", "avx512vl", "avx512dq")
def test_bf16_rounded_by_the_cpu_has_the_bits_of_bf16_rounded_in_steps(tmp_path: Path) -> None:
    rng, outputs = np.random.default_rng(6), []
    bits = rng.integers(0, 1 << 32, (5, 70), np.uint32) | 0x00800000  # NaN of every kind among them, no denormal
    bits[1, :64] = np.float32(1e-39).view(np.uint32)  # a denormal, which the instruction takes for zero
    bits[2] = [*range(0x3F807FF0, 0x3F807FF0 + 70)]  # ties and what lies beside them
    bits[3, :4] = [0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x7F800001]
    assert len({row.tobytes() for row in bits}) == 5
    ways: tuple[Ways, ...] = ("dot", "wide")
    for way in ways:
        text, code = tmp_path / f"{way}.c", tmp_path / f"{way}.so"
        text.write_text("#pragma GCC visibility push(default)\n" + stores(16, ways=way))
        flags = ("-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mfma", "-mf16c", "-shared")
        try:
            toolchain().object(text, [NATIVE, RUNTIME], tmp_path / f"{way}.o", flags)
        except RuntimeError as error:
            pytest.skip(f"cc: does not know the instruction: {str(error)[:200]}")
        toolchain().link([tmp_path / f"{way}.o"], [], [], code)
        store = getattr(ctypes.CDLL(str(code)), store_symbol("bf16", 16))
        for rows in ([0, 2, 3, 4], [0, 1, 2, 3, 4]):  # without denormals, and with some
            inputs, stored = np.ascontiguousarray(bits[rows]), np.zeros((len(rows), 70), np.uint16)
            store(*(ctypes.c_void_p(value.ctypes.data) if isinstance(value, np.ndarray) else ctypes.c_int64(value)
                    for value in (inputs, 70, stored, 140, len(rows), 70)))  # fmt: skip
            outputs.append(stored)
    assert outputs[0].tobytes() == outputs[2].tobytes() and outputs[1].tobytes() == outputs[3].tobytes()
    assert outputs[3][1, 0] == 0x000B and outputs[3][2, 0] == 0x3F80 and outputs[3][2, 17] == 0x3F81


@pytest.mark.parametrize("target", TARGETS)
def test_rows_of_any_width_are_stored_and_no_byte_beside_them(target: tuple[str, int], tmp_path: Path) -> None:
    """Each width has the bits of the same elements in wider rows; denormals and NaN among them."""
    mcpu, lanes = target
    level = next(isa for isa in ISAS if isa.arch == mcpu)
    flags = (*level.compile_flags, *(("-mf16c",) if "f16c" in level.flags else ()), "-shared")
    text = tmp_path / "store.c"
    text.write_text("#pragma GCC visibility push(default)\n" + stores(lanes))
    toolchain().object(text, [NATIVE, RUNTIME], tmp_path / "store.o", flags)
    toolchain().link([tmp_path / "store.o"], [], [], tmp_path / "store.so")
    library, rows, most = ctypes.CDLL(str(tmp_path / "store.so")), 3, 4 * lanes + 3
    rng = np.random.default_rng(8)
    for out, size in (("fp32", 4), ("bf16", 2), ("fp16", 2), ("int32", 4), ("int8", 1), ("uint8", 1)):
        sums = (rng.standard_normal((rows, most + 5)) * 40).astype(np.float32)
        sums[:, ::7], sums[:, 1::9] = 1e-39, np.nan
        wide = np.zeros((rows, most * size), np.uint8)
        for columns in range(most, 0, -1):
            stored = np.full((rows, most * size + 9), 0xA5, np.uint8)
            getattr(library, store_symbol(out, lanes))(
                ctypes.c_void_p(sums.ctypes.data), ctypes.c_int64(most + 5), ctypes.c_void_p(stored.ctypes.data),
                ctypes.c_int64(stored.shape[1]), ctypes.c_int64(rows), ctypes.c_int64(columns),
            )  # fmt: skip
            if columns == most:
                wide = stored[:, : most * size].copy()
            assert np.array_equal(stored[:, : columns * size], wide[:, : columns * size]), (out, columns)
            assert (stored[:, columns * size :] == 0xA5).all(), (out, columns)


@pytest.mark.parametrize("unknown", ["_tiles(", "_dot("])
def test_an_old_compiler_leaves_what_it_knows(unknown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def compiled(self: Toolchain, source: Path, *rest: object, keep: bool = False) -> None:
        tried.append(source.read_text())
        if unknown in tried[-1]:
            raise RuntimeError("cc: unknown option")

    monkeypatch.setattr(Toolchain, "object", compiled)
    monkeypatch.setattr(Toolchain, "merge", lambda *_: None)
    op = Op.parse(OPS[0])
    (family,) = families_for(op, "cpu")
    assert isinstance(family, CpuTyped)
    kernels = [family.typed(op, (1, 16, 16, 1, 16, 0)), family.typed(op, (16, 32, 16, 1, 16, 0), on_tiles=True)]
    whole: tuple[Ways, ...] = ("all", "tiles")
    for ways in whole:
        tried.clear()
        typed_object(kernels, "x86-64-v4", tmp_path / "out.o", ways=ways)
        refused = [True] if unknown == "_tiles(" else [True, True]
        assert [unknown in text for text in tried] == [*refused, False, False], "programs, then what stores"
        assert ("_dot(" in tried[-1]) == (unknown == "_tiles("), "no more is lost than the compiler does not know"
    with pytest.raises(ValueError, match="typed kernels are built for"):
        typed_object([family.typed(op, (1, 16, 16, 1, 16, 0))], "znver5", tmp_path / "out.o")


def test_what_stores_sums_is_compiled_once_whatever_programs_are_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    run = Toolchain._run

    def noted(self: Toolchain, words: list[str], timeout_s: float) -> None:
        compiled.extend(Path(word).name for word in words if word.endswith(".c"))
        run(self, words, timeout_s)

    monkeypatch.setattr(Toolchain, "_run", noted)
    op = Op.parse(OPS[3])
    (family,) = families_for(op, "cpu")
    assert isinstance(family, CpuTyped)
    for rows in (1, 2):
        kernels = [family.typed(op, (rows, 4, 4, 1, 4, 0))]
        typed_object(kernels, "x86-64-v2", tmp_path / f"{rows}.o", ways="wide", objects=tmp_path / "objects")
    assert compiled == ["typed.c", "stores.c", "typed.c"]
    symbols = subprocess.run(["nm", str(tmp_path / "2.o")], capture_output=True, text=True, check=True).stdout
    assert f" T {store_symbol('int8', 4)}\n" in symbols and f" T {program_of(kernels[0]).name}\n" in symbols
