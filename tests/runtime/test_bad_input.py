"""Every bad call is refused in words that name the argument, what was expected and what was found; nothing is written."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from haotuner.errors import UsageError
from tests.runtime.conftest import DENSE, rows

torch: Any = pytest.importorskip("torch") if __import__("importlib").util.find_spec("torch") else None
needs_torch = pytest.mark.skipif(torch is None, reason="torch: not installed")


def test_wrong_dtype_of_x(linear):
    for dtype in (np.float64, np.float16, np.int32, np.uint8, np.bool_, np.complex64, ">f4", object, "U4", "M8[s]"):
        x = np.zeros((2, 37)).astype(dtype)
        with pytest.raises(TypeError, match="x .*float32"):
            linear(x)
        with pytest.raises(TypeError, match="x .*float32"):
            linear(x, out=np.empty((2, 100), np.float32))


def test_wrong_dtype_of_out(linear):
    for dtype in (np.float64, np.int32, np.bool_, ">f4"):
        with pytest.raises(TypeError, match="out .*float32"):
            linear(rows(2), out=np.zeros((2, 100), dtype))


@pytest.mark.parametrize("value", [None, [1.0] * 37, "text", 3.5, {"x": 1}, object(), b"bytes", np.float32(1)])
def test_what_is_no_array(linear, value):
    with pytest.raises(TypeError, match="x"):
        linear(value)
    with pytest.raises(TypeError, match="x"):
        linear(value, out=np.empty((1, 100), np.float32))
    if value is not None:
        with pytest.raises(TypeError, match="out"):
            linear(rows(1), out=value)


def test_pandas_frames_are_no_arrays(linear):
    pandas = pytest.importorskip("pandas")
    with pytest.raises(TypeError, match="x"):
        linear(pandas.DataFrame(rows(2)))


@pytest.mark.parametrize("arguments", [(), (1, 2, 3)])
def test_wrong_number_of_arguments(linear, arguments):
    with pytest.raises(TypeError, match="argument"):
        linear(*arguments)
    with pytest.raises(TypeError, match="a call takes x and nothing but out=; got bias"):
        linear(rows(1), bias=None)


def test_wrong_extents_name_both_sides(linear):
    with pytest.raises(ValueError, match="x has last extent 36; expected 37"):
        linear(rows(2, 36))
    with pytest.raises(ValueError, match="out has extent 3 in axis 0, x has 2"):
        linear(rows(2), out=np.empty((3, 100), np.float32))
    with pytest.raises(ValueError, match="out has last extent 99; expected 100"):
        linear(rows(2), out=np.empty((2, 99), np.float32))
    with pytest.raises(ValueError, match="out has rank 1, x has rank 2"):
        linear(rows(1), out=np.empty(100, np.float32))


def test_rank_zero(linear):
    with pytest.raises((TypeError, ValueError), match="x"):
        linear(np.zeros((), np.float32))
    with pytest.raises(ValueError, match="x has rank 0"):
        linear(np.zeros((), np.float32), out=np.zeros((), np.float32))


def test_strides_that_cannot_be_served(linear):
    square = np.zeros((74, 74), np.float32)
    with pytest.raises(ValueError, match="inner stride"):
        linear(square[:37, :37].T)
    with pytest.raises(ValueError, match="inner stride"):
        linear(square[:, ::2])
    with pytest.raises(ValueError, match="inner stride"):
        linear(rows(2)[:, ::-1])
    with pytest.raises(ValueError, match="inner stride 0"):
        linear(np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (2, 37), (0, 0)))
    with pytest.raises(ValueError, match="not evenly spaced"):
        linear(np.zeros((4, 5, 37), np.float32)[:, :3])
    with pytest.raises(ValueError, match="rows of out overlap"):
        linear(rows(2), out=np.lib.stride_tricks.as_strided(np.zeros(400, np.float32), (2, 100), (40, 4)))
    with pytest.raises(ValueError, match="rows of out overlap"):
        linear(rows(2), out=np.lib.stride_tricks.as_strided(np.zeros(400, np.float32), (2, 100), (0, 4)))


def test_out_that_shares_memory_with_x(linear):
    store = np.zeros(4000, np.float32)
    x = store[:370].reshape(10, 37)
    for first in (0, 1, 36, 333, 369):
        with pytest.raises(ValueError, match="shares memory"):
            linear(x, out=store[first : first + 1000].reshape(10, 100))
    reverse = store[1000:1370].reshape(10, 37)[::-1]
    with pytest.raises(ValueError, match="shares memory"):
        linear(reverse, out=store[1300:2300].reshape(10, 100))
    linear(x, out=store[370:1370].reshape(10, 100))  # back to back is not shared
    linear(reverse, out=store[0:1000].reshape(10, 100)[::-1])


def test_read_only_out_is_refused_and_read_only_x_is_served(linear, weight):
    out = np.zeros((2, 100), np.float32)
    out.setflags(write=False)
    with pytest.raises(ValueError, match="out is read-only"):
        linear(rows(2), out=out)
    assert not out.any()
    x = rows(2)
    x.setflags(write=False)
    assert np.array_equal(linear(x), linear(rows(2)))


def test_memory_mapped_inputs_and_weights(built_pack, linear, weight, tmp_path):
    weight.tofile(tmp_path / "weight")
    rows(6).tofile(tmp_path / "x")
    mapped = np.memmap(tmp_path / "weight", np.float32, "r", shape=(100, 37))
    x = np.memmap(tmp_path / "x", np.float32, "r", shape=(6, 37))
    import haotuner

    with haotuner.load(built_pack.path, threads=1) as pack:
        assert np.array_equal(pack.op(DENSE).bind(mapped)(x), linear(rows(6)))


def test_weights_that_do_not_fit(linear, built_pack):
    import haotuner

    with haotuner.load(built_pack.path) as pack:
        dense = pack.op(DENSE)
        for wrong in ((37, 100), (100, 36), (101, 37), (0, 37)):
            with pytest.raises(ValueError, match="weight has shape .* expected \\(100, 37\\)"):
                dense.bind(np.zeros(wrong, np.float32))
        with pytest.raises(ValueError, match="weight has rank 1"):
            dense.bind(np.zeros(3700, np.float32))
        for dtype in (np.float64, np.int32, ">f4", object):
            with pytest.raises(TypeError, match="weight is .*float32"):
                dense.bind(np.zeros((100, 37)).astype(dtype))
        for value in (None, [[1.0]], "w"):
            with pytest.raises(TypeError, match="weight"):
                dense.bind(value)


def test_ops_and_threads_that_the_pack_has_not(built_pack):
    import haotuner

    with haotuner.load(built_pack.path) as pack, pytest.raises(UsageError, match=f"no op 'dense_n1_k2'.*{DENSE}"):
        pack.op("dense_n1_k2")
    counts: tuple[Any, ...] = (0, -1, 257, True, 1.5, "2")
    for threads in counts:
        with pytest.raises(UsageError, match="threads="):
            haotuner.load(built_pack.path, threads=threads)


def test_whole_numbers_of_numpy_are_whole_numbers(built_pack):
    import haotuner

    with haotuner.load(built_pack.path, threads=np.int64(2)) as pack:
        assert pack.threads == 2 and type(pack.threads) is int
        op = pack.op(DENSE)
        assert op.composition(np.int64(5)) == op.composition(5)
        bad: tuple[Any, ...] = (0, -1, 2**31, True, 1.5, "5", None)
        for m in bad:
            with pytest.raises(UsageError, match="m="):
                op.composition(m)
        with pytest.raises(UsageError, match="threads=99"):
            op.composition(5, threads=99)


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Forged:
    """A DLPack tensor with whatever a broken exporter may write into it."""

    def __init__(self, data: Any, shape: tuple[int, ...], strides: tuple[int, ...] | None = None, **fields: Any) -> None:
        self._keep = [data, (ctypes.c_int64 * max(1, len(shape)))(*shape)]
        tensor = _Tensor(None if data is None else data.ctypes.data, (1, 0), len(shape), 2, 32, 1)
        tensor.shape = ctypes.cast(self._keep[1], ctypes.POINTER(ctypes.c_int64))
        if strides is not None:
            self._keep.append((ctypes.c_int64 * len(strides))(*strides))
            tensor.strides = ctypes.cast(self._keep[-1], ctypes.POINTER(ctypes.c_int64))
        for name, value in fields.items():
            setattr(tensor, name, value)
        self._managed = _Managed(tensor, None, None)
        self.shape = shape

    def __dlpack__(self, **_: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self._managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def forged(case: str) -> tuple[Any, str]:
    data = np.zeros(8000, np.float32)
    return {
        "null data": (Forged(None, (2, 37)), "x has no data"),
        "negative extent": (Forged(data, (-2, 37)), "extent -2 of axis 0"),
        "huge extent": (Forged(data, (2**31, 37), (0, 1)), "not in 0..2\\^31-1"),
        "huge product": (Forged(data, (2**20, 2**20, 37), (0, 0, 1)), "over 2\\^31-1 rows"),
        "overflowing product": (Forged(data, (2**30, 2**30, 2**30, 37), (0, 0, 0, 1)), "over 2\\^31-1 rows"),
        "rank 65": (Forged(data, (1,) * 64 + (37,)), "x has rank 65"),
        "huge stride": (Forged(data, (2, 37), (2**40, 1)), "beyond any memory"),
        "lowest stride": (Forged(data, (2, 2, 37), (-(2**63), -(2**63), 1)), "not evenly spaced|beyond any memory"),
        "lanes": (Forged(data, (2, 37), lanes=4), "x4|4 lanes|x 4"),
        "bits": (Forged(data, (2, 37), bits=64), "x has dtype code 2 with 64 bits"),
        "device": (Forged(data, (2, 37), device=(2, 0)), "x lives on device type 2"),
    }[case]


CASES = ("null data", "negative extent", "huge extent", "huge product", "overflowing product", "rank 65", "huge stride",
         "lowest stride", "lanes", "bits", "device")  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_tensors_no_sound_exporter_makes(linear, case):
    x, message = forged(case)
    out = np.zeros((2, 100), np.float32)
    with pytest.raises((TypeError, ValueError, BufferError), match=message):
        linear(x, out=out)
    assert not out.any()


def test_tables_that_the_library_fills_are_checked(built_pack):
    """look_up, stats, seen and capture write through a pointer: whatever is no such table is refused."""
    import haotuner

    with haotuner.load(built_pack.path) as pack:
        library = pack.library()
        look_up, stats = library.function("ht_look_up"), library.function("ht_stats")
        seen, capture = library.function("ht_seen"), library.function("ht_capture")
        wide = np.zeros(20, np.int64)
        wrong: Any
        table = wide[:10]
        for wrong in ((0, 0, 1, wide[::2]), (0, 0, 1, np.zeros(10)), (0, 0, 1), (0, 0, "x", table), (0, "x", 1, table),
                      (0, 99, 1, table), (99, 0, 1, table), (0, 0, 0, table), (None, 0, 1, table)):  # fmt: skip
            with pytest.raises((TypeError, ValueError)):
                look_up(*wrong)
        for wrong in ((0, wide[:6:2]), (0, np.zeros(3)), (-1, wide[:3]), ("x", wide[:3]), (0,)):
            with pytest.raises((TypeError, ValueError)):
                stats(*wrong)
        for wrong in ((0, np.zeros((2, 5))), (0, np.zeros((5376, 2), np.int64).T), (7, np.zeros((2, 5376), np.int64))):
            with pytest.raises((TypeError, ValueError)):
                seen(*wrong)
        with pytest.raises(TypeError):
            capture("1")
        assert not wide.any()


def test_byte_offset_is_honoured(linear):
    data = rows(3).reshape(-1)
    out = np.empty((2, 100), np.float32)
    linear(Forged(data, (2, 37), byte_offset=37 * 4), out=out)
    assert np.array_equal(out, linear(rows(3)[1:]))


@needs_torch
def test_torch_tensors_that_cannot_be_served(linear):
    x = torch.zeros(2, 37)
    with pytest.raises(ValueError, match="requires grad"):
        linear(x.clone().requires_grad_())
    for bad, kind in (
        (x.to(torch.bfloat16), TypeError),
        (x.to(torch.float8_e4m3fn), TypeError),
        (x.double(), TypeError),
        (x.to(torch.int32), TypeError),
        (torch.empty(2, 37, device="meta"), (ValueError, TypeError)),
        (x.to_sparse(), (ValueError, TypeError)),
        (torch.zeros(2, 37, dtype=torch.complex64).conj(), TypeError),
        (torch.zeros(37, 2).t(), ValueError),
    ):
        with pytest.raises(kind, match="x"):
            linear(bad)
    with pytest.raises((ValueError, TypeError), match="out"):
        linear(x, out=torch.empty(2, 100, device="meta"))


@needs_torch
def test_an_output_that_requires_grad_is_refused_as_by_torch(linear):
    x, out = torch.ones(2, 37), torch.zeros(2, 100, requires_grad=True)
    with pytest.raises(ValueError, match="out requires grad"):
        linear(x, out=out)
    assert not out.any()
    with torch.no_grad():
        assert linear(x, out=out) is out and out.any()


@needs_torch
def test_lazy_negations_are_refused_not_taken_for_their_source(linear):
    x = torch.ones(2, 37, dtype=torch.complex64).conj().imag  # a float32 tensor whose sign is a flag
    assert x.is_neg()
    for out in (None, torch.zeros(2, 100)):
        with pytest.raises(ValueError, match="x is a lazy negation"):
            linear(x, out=out)
    assert linear(x.resolve_neg()).shape == (2, 100)
