"""Typed micro-kernels on AMX tiles: by the instructions where the host has them, and everywhere in plain C."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.backends.cpu.compile import way_here
from haotuner.cost.families import demand
from haotuner.cost.roofline import expected_us, roofline_us
from haotuner.microkernels.cpu import typed_source
from haotuner.microkernels.cpu.typed import WORDS, CpuTyped, program_of
from haotuner.microkernels.cpu.typed_source import NATIVE, Ways, source
from haotuner.microkernels.index import families_for
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.cost.cost_examples import BIG_CORE
from tests.microkernels.typed_errors import typed_errors
from tests.run_folder import toolchain

RUNTIME = Path(__file__).resolve().parents[2] / "haotuner" / "runtime" / "native"
WITH_TILES = replace(BIG_CORE, tensor_tflops=BIG_CORE.compute_units * 2.5)
WAYS: tuple[Ways, ...] = ("emulated", "all")  # as packs have it: on a host with tiles by them, elsewhere in SIMD parts
# Terms: under a step of the type, one and a tail of a broken word, several and a tail. n (of ``verify``) ends within a tile.
OPS = (
    "dense:n=50,k=5,dtype=bf16",
    "dense:n=50,k=131,dtype=bf16,epilogue=bias+gelu+residual,out=fp32",
    "dense:n=50,k=64,dtype=int8",
    "dense:n=50,k=79,dtype=int8,epilogue=scale+bias+residual,out=int8",
    "dense:n=50,k=131,dtype=int8,in=int8",
)
# Rows, vectors, vectors of a panel, words ahead: registers of the weight shared or not, part of a register, two of them.
TILES = ((1, 6, 6, 32), (7, 2, 1, 0), (24, 2, 2, 64))


def _kernels(spec: str) -> tuple[Op, list[MicroKernel]]:
    op = Op.parse(spec)
    family = CpuTyped(op.dtype)
    return op, [family.typed(op, (mr, nv * 16, pv * 16, 1, 16, pf), on_tiles=True) for mr, nv, pv, pf in TILES]


@pytest.mark.isa("avx512f", "avx512vl")
@pytest.mark.parametrize(
    ("way", "spec"),
    [  # both ways of both types; the other epilogues and depths of the way without tiles are further variants
        *(pytest.param("all", spec, id=f"all-{spec}") for spec in OPS),
        *(pytest.param("emulated", spec, id=f"emulated-{spec}") for spec in (OPS[0], OPS[2])),
        *(pytest.param("emulated", spec, marks=pytest.mark.long, id=f"emulated-{spec}") for spec in (OPS[1], *OPS[3:])),
    ],
)
def test_every_tile_is_right(way: Ways, spec: str, tmp_path: Path) -> None:
    op, kernels = _kernels(spec)
    for error in typed_errors(op, kernels, "x86-64-v4", way, tmp_path / "tiles.so", 96):
        assert error <= 1


class Tile(ctypes.Structure):
    """ht_typed_tile."""

    _fields_ = (
        ("x", ctypes.c_void_p), ("x_stride", ctypes.c_int64), ("w", ctypes.c_void_p), ("panel", ctypes.c_int64),
        ("sums", ctypes.c_void_p), ("stride", ctypes.c_int64), ("k", ctypes.c_int64), ("tiles", ctypes.c_int64),
        ("groups", ctypes.c_int64), ("first", ctypes.c_void_p), ("add", ctypes.c_int32), ("across", ctypes.c_int32),
        ("finish", ctypes.c_void_p), ("given", ctypes.c_void_p), ("lines", ctypes.c_int64), ("line", ctypes.c_int64),
    )  # fmt: skip


class Part(ctypes.Structure):
    """ht_typed_part."""

    _fields_ = (
        ("sums", ctypes.POINTER(ctypes.c_float)), ("stride", ctypes.c_int64), ("row", ctypes.c_int64),
        ("rows", ctypes.c_int64), ("column", ctypes.c_int64), ("columns", ctypes.c_int64),
    )  # fmt: skip


@pytest.mark.isa("avx512f", "avx512vl")
@pytest.mark.parametrize("kind", ["tiles", "vectors"])
def test_tiles_are_finished_in_either_order(kind: str, tmp_path: Path) -> None:
    op = Op.parse(OPS[1])
    kernel = CpuTyped("bf16").typed(op, (7, 32, 16, 1, 16, 0), on_tiles=kind == "tiles")
    rng, terms = np.random.default_rng(4), 75
    x = (rng.standard_normal((14, terms)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    panel = (rng.standard_normal((4, (terms + 1) // 2 * 16 * 2)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    text, code = tmp_path / "program.c", tmp_path / "program.so"
    shown = "#pragma GCC visibility push(default)\n"
    text.write_text(shown + source([("program", program_of(kernel), 2)], 16, ways="emulated"))
    flags = ("-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mfma", "-mf16c", "-shared")
    toolchain().object(text, [NATIVE, RUNTIME], tmp_path / "program.o", flags)
    toolchain().link([tmp_path / "program.o"], [], [], code)
    program, expected = ctypes.CDLL(str(code)).program, np.zeros((14, 64), np.float32)
    args = (x.ctypes.data, terms * 2, panel.ctypes.data, panel.shape[1] * 2, expected.ctypes.data, 64, terms, 2, 2, None, 0)
    program(ctypes.byref(Tile(*args)))
    orders: list[list[tuple[int, int]]] = [[], []]
    for across, order in enumerate(orders):
        output = np.zeros_like(expected)

        def finish(_: int, parts: Any, output: Any = output, order: Any = order) -> None:
            part = parts[0]
            block = np.ctypeslib.as_array(part.sums, (part.rows, part.stride))[:, : part.columns]
            output[part.row : part.row + part.rows, part.column : part.column + part.columns] += block
            order.append((part.row, part.column))

        callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Part))(finish)
        program(ctypes.byref(Tile(*args[:-1], 0, across, ctypes.cast(callback, ctypes.c_void_p), None)))
        assert output.tobytes() == expected.tobytes()
    down = {"tiles": [(0, 0), (7, 0), (0, 32), (7, 32)], "vectors": [(0, 0), (0, 32)]}  # vectors: both tiles together
    along = {"tiles": [(0, 0), (0, 32), (7, 0), (7, 32)], "vectors": [(0, 0), (7, 0)]}
    assert orders == [down[kind], along[kind]]
    in_runs, at = np.zeros_like(expected), args[:4]
    program(ctypes.byref(Tile(*at, expected.ctypes.data, 64, 64, 2, 2)))
    program(ctypes.byref(Tile(*at, in_runs.ctypes.data, 64, 32, 2, 2, lines=2, line=64)))
    assert in_runs.tobytes() == expected.tobytes()


@pytest.mark.isa("avx512f", "avx512vl")
def test_the_plain_c_has_the_bits_of_the_instructions_and_sums_go_on(tmp_path: Path) -> None:
    _, (_, kernel, _) = _kernels(OPS[1])
    if way_here(kernel) != "tiles":
        pytest.skip("amx: this host has no tiles")
    rng, terms, outputs = np.random.default_rng(3), 75, []
    x = (rng.standard_normal((14, terms)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    panel = (rng.standard_normal((4, (terms + 1) // 2 * 16 * 2)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    ways: tuple[Ways, ...] = ("tiles", "emulated")
    for way in ways:
        text, code = tmp_path / f"{way}.c", tmp_path / f"{way}.so"
        shown = "#pragma GCC visibility push(default)\n"
        text.write_text(shown + source([("program", program_of(kernel), 2)], 16, ways=way))
        flags = ("-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mfma", "-mf16c", "-shared")
        toolchain().object(text, [NATIVE, RUNTIME], tmp_path / f"{way}.o", flags)
        toolchain().link([tmp_path / f"{way}.o"], [], [], code)
        sums = np.ones((14, 64), np.float32)
        tile = Tile(x.ctypes.data, terms * 2, panel.ctypes.data, panel.shape[1] * 2, sums.ctypes.data, 64, terms, 2, 2,
                    None, 1)  # fmt: skip
        ctypes.CDLL(str(code)).program(ctypes.byref(tile))
        outputs.append(sums)
    assert np.array_equal(outputs[0].view(np.int32), outputs[1].view(np.int32)) and not (outputs[0] == 1).any()


@pytest.mark.long
def test_programs_on_tiles_multiply_in_tiles_and_leave_them(tmp_path: Path) -> None:
    programs = []
    for spec in (OPS[0], OPS[2], OPS[4]):
        op, kernels = _kernels(spec)
        programs += [(program_of(kernel).name, kernel, WORDS[op.dtype].terms) for kernel in kernels]
    text, out = tmp_path / "tiles.c", tmp_path / "tiles.s"
    text.write_text(source(programs, 16, ways="all"))
    flags = ("-S", "-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mavx512cd", "-mavx2", "-mfma", "-mf16c")
    try:
        toolchain().object(text, [NATIVE, RUNTIME], out, flags)
    except RuntimeError as error:
        pytest.skip(f"cc: does not know the instructions: {str(error)[:200]}")
    bodies = re.findall(r"^(\w+_tiles):\n(.*?)\.cfi_endproc", out.read_text(), re.S | re.M)
    assert len(bodies) == len(programs)
    for name, body in bodies:
        instruction = "tdpbf16ps" if "bf16" in name else "tdpbssd" if "sg1" in name else "tdpbusd"
        assert instruction in body and body.count("ldtilecfg") == 1 and "tilerelease" in body, name


@pytest.mark.parametrize("kind", ["batch_matmul:k=64,layout=nt", "conv2d:c=64,f=64,r=3,s=3,pad=1"])
@pytest.mark.parametrize("dtype", WORDS)
def test_products_and_convolutions_are_offered_tiles_too(kind: str, dtype: str) -> None:
    op = Op.parse(f"{kind},dtype={dtype}{',out=bf16' if dtype == 'fp32' else ''}")
    family = families_for(op, "cpu")[0]
    assert not any(map(typed_source.on_tiles, family.points(op, BIG_CORE)))
    kernels = [kernel for kernel in family.points(op, WITH_TILES) if typed_source.on_tiles(kernel)]
    assert {kernel["pw"] for kernel in kernels} == ({16} if dtype in typed_source.TYPES else set())
    for kernel in kernels:
        assert family.footprint(kernel).registers_per_thread <= typed_source.REGISTERS
        assert kernel["mr"] * kernel["nr"] <= 2048  # HT_TYPED_TILE
    shape = Shape.of({axis: 128 for axis in op.dynamic})
    device, plain = WITH_TILES.with_units(1), [kernel for kernel in family.points(op, BIG_CORE) if kernel["mr"] == 5][-1]
    if kernels:
        tall = next(kernel for kernel in kernels if (kernel["mr"], kernel["nr"]) == (32, 32))
        on_tiles, in_vectors = expected_us(
            device, demand(device, family, op, [(tall, shape), (plain, shape)], weights="hot")
        )
        assert on_tiles < in_vectors / 2 and family.layout(tall) != family.layout(plain) or dtype == "int8"


@pytest.mark.parametrize("dtype", typed_source.TYPES)
def test_only_devices_with_tiles_are_offered_them(dtype: str) -> None:
    op, family = Op.parse(f"dense:n=768,k=768,dtype={dtype}"), CpuTyped(dtype)
    assert not any(map(typed_source.on_tiles, family.points(op, BIG_CORE)))
    kernels = [kernel for kernel in family.points(op, WITH_TILES) if typed_source.on_tiles(kernel)]
    assert {kernel["mr"] for kernel in kernels} == set(typed_source.TILE_ROWS) and len(set(kernels)) == len(kernels)
    for kernel in kernels:
        used = set(
            map(
                int,
                re.findall(r"(\d+)\)", typed_source.lists(kernel)["TILE(ONE)"] + typed_source.lists(kernel)["ROWS(ONE)"]),
            )
        )
        assert max(used) < typed_source.REGISTERS and family.footprint(kernel).registers_per_thread <= typed_source.REGISTERS
        small = typed_source.in_vectors(kernel)
        assert kernel["mr"] % small["mr"] == kernel["nr"] % small["nr"] == small["nr"] % small["pw"] == 0
        assert small["mr"] * small["nr"] // 16 + small["nr"] // 16 < 32
    assert not any(map(typed_source.on_tiles, CpuTyped("fp16").points(Op.parse("dense:n=768,k=768,dtype=fp16"), WITH_TILES)))


def test_one_plan_of_bf16_has_one_order_of_sums() -> None:
    op, (kernel, *_) = _kernels(OPS[0])
    plain = CpuTyped("bf16").typed(op, (1, 96, 96, 1, 16, 32))
    assert CpuTyped("bf16").layout(kernel) != CpuTyped("bf16").layout(plain)
    _, (kernel, *_) = _kernels(OPS[2])
    assert CpuTyped("int8").layout(kernel) == (96,)  # whole numbers are exact


@pytest.mark.parametrize(("dtype", "share"), [("bf16", 1.0), ("int8", 2.0)])
def test_tiles_are_priced_by_their_own_peak(dtype: str, share: float) -> None:
    op, family, shape = Op.parse(f"dense:n=1024,k=1024,dtype={dtype}"), CpuTyped(dtype), Shape.of(m=4096)
    device = WITH_TILES.with_units(1)
    tall, plain = family.typed(op, (32, 32, 32, 1, 16, 0), on_tiles=True), family.typed(op, (5, 64, 64, 1, 16, 0))
    demands = demand(device, family, op, [(tall, shape), (plain, shape)], weights="hot")
    flops = op.flops(shape)
    assert demands.work.flops["tensor"].tolist() == [flops / share, 0] and demands.work.flops["simd"].tolist() == [0, flops]
    on_tiles, in_vectors = expected_us(device, demands)
    (least,) = roofline_us(device, op, [shape])
    assert least == pytest.approx(flops / share / 2.5e6, rel=1e-6) and least < on_tiles < in_vectors / 2
    (fp16,) = roofline_us(device, Op.parse("dense:n=1024,k=1024,dtype=fp16"), [shape])
    assert fp16 == pytest.approx(flops / (device.peak_gflops or 1) / 1e3)
