"""Weights of whole models are what was packed: any damage is refused, by Python and by C."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.errors import PackInvalid
from haotuner.graph.extents import dimension
from haotuner.graph.graph import GraphBuilder
from haotuner.runtime.model_bound import opened_model
from haotuner.spec.chunks import CHUNK_BYTES, chunk_checksums
from tests.runtime.model_packs import model_pack
from tests.runtime.native_builds import HERE, LIBRARY, cc

NATIVE = Path(haotuner.__file__).parent / "runtime" / "native"
CPUS = {
    "of this machine": (),
    "that multiplies without carries, 16 bytes at a time": ("-D__builtin_cpu_supports(what)=((what)[0]!='v')",),
    "without such products": ("-D__builtin_cpu_supports(what)=0",),
}


@pytest.mark.parametrize("cpu", CPUS)
def test_checksums_are_those_of_zlib(tmp_path, cpu):
    library = cc([NATIVE / "model" / "crc32.c"], tmp_path / "crc32.so", "-shared", "-fPIC", f"-I{NATIVE}", *CPUS[cpu])
    crc32 = ctypes.CDLL(str(library)).ht_crc32
    crc32.restype, crc32.argtypes = ctypes.c_uint32, (ctypes.c_char_p, ctypes.c_size_t)
    data = np.random.default_rng(0).bytes(5000)
    for first in (0, 1, 7):
        for size in (*range(300), 1023, 1024, 4096, 4097, 4900):
            assert crc32(data[first : first + size], size) == zlib.crc32(data[first : first + size]), (first, size)


def test_every_byte_is_in_one_chunk():
    data = np.random.default_rng(0).bytes(2 * CHUNK_BYTES + 5)
    assert chunk_checksums(data) == [zlib.crc32(data[:CHUNK_BYTES]), zlib.crc32(data[CHUNK_BYTES:-5]), zlib.crc32(data[-5:])]
    assert len(chunk_checksums(data[:CHUNK_BYTES])) == 1 and chunk_checksums(b"") == []


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 3 MiB: packed weights of layers, a table that steps read in place, and a product by loops."""
    g, rng = GraphBuilder(), np.random.default_rng(0)

    def weight(*shape: int) -> Any:
        return g.constant(rng.standard_normal(shape).astype(np.float32))

    x = g.add("gather", weight(4000, 128), g.input("ids", (dimension("count"),), "int64"), axis=0)
    for _ in range(4):
        x = g.add("contract", x, weight(128, 256), labels="bk,kn->bn")
        x = g.add("contract", x, weight(256, 128), labels="bk,kn->bn")
    return model_pack(tmp_path_factory.mktemp("weights") / "pack", {"table": g.finish(x)})


@pytest.fixture
def copy(pack: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pack, tmp_path / "pack"))


def weights_of(pack: Path) -> Path:
    return pack / "models" / "table.weights"


def damages(sound: bytes, count: int) -> dict[str, bytes]:
    """Flipped bits, zeroed and swapped pages, a repeated chunk, cuts, growth; none is the file itself."""
    rng, size, damaged = np.random.default_rng(5), len(sound), dict[str, bytes]()

    def put(what: str, at: int, data: bytes) -> None:
        damaged[f"{what} at {at}"] = sound[:at] + data + sound[at + len(data) :]

    for at in (0, size - 1, CHUNK_BYTES - 1, CHUNK_BYTES):
        put("lowest bit", at, bytes([sound[at] ^ 1]))
    while len(damaged) < count:
        at = int(rng.integers(size - 5000))
        put("bit", at, bytes([sound[at] ^ 1 << int(rng.integers(8))]))
        put("sign of zero", at // 4 * 4 + 3, bytes([sound[at // 4 * 4 + 3] ^ 0x80]))
        put("zeros", at, bytes(4096))
        put("floats exchanged", at, sound[at + 4 : at + 8] + sound[at : at + 4])
        put("a page of another place", at, sound[(at + size // 2) % (size - 4096) :][:4096])
        damaged[f"cut at {at}"] = sound[:at]
        damaged[f"grown by {at}"] = sound + bytes(at % 5000 + 1)
    damaged["last chunk twice"] = sound[:-CHUNK_BYTES] + sound[-2 * CHUNK_BYTES : -CHUNK_BYTES]
    return {what: data for what, data in damaged.items() if data != sound}


def test_damaged_weights_are_not_served(copy):
    path = weights_of(copy)
    sound = path.read_bytes()
    for what, data in damages(sound, 150).items():
        path.write_bytes(data)
        with haotuner.load(copy, threads=2) as opened, pytest.raises(PackInvalid, match="restore the pack or tune again"):
            opened.model("table")
            pytest.fail(what)
    path.write_bytes(sound)
    with haotuner.load(copy, threads=2) as opened:
        assert opened.model("table").run({"ids": np.zeros(3, np.int64)})


def test_a_server_that_cannot_wait_leaves_the_comparison_out(copy):
    path = weights_of(copy)
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    with haotuner.load(copy, check_weights=False) as opened:
        assert opened.model("table").run({"ids": np.zeros(3, np.int64)})
    with haotuner.load(copy, check_weights=False) as opened, pytest.raises(PackInvalid, match="not the file that the"):
        path.write_bytes(path.read_bytes()[:-1])
        opened.model("table")


def test_weights_of_libraries_without_checksums_are_compared_by_their_hash(copy):
    with haotuner.load(copy) as opened:
        manifest = opened.manifest
    with opened_model(copy, manifest, "table", hashed=True) as files:
        assert os.fstat(files.weights).st_size == manifest.models["table"].weights_bytes
    weights_of(copy).write_bytes(bytes([weights_of(copy).read_bytes()[0] ^ 1]) + weights_of(copy).read_bytes()[1:])
    with (
        pytest.raises(PackInvalid, match="its sha256 is not the one in the manifest"),
        opened_model(copy, manifest, "table", hashed=True),
    ):
        pytest.fail("it was opened")


def test_c_refuses_what_python_refuses(copy, tmp_path):
    program = cc([HERE / "drive_models.c", *LIBRARY], tmp_path / "drive", "-O1")
    path, sound = weights_of(copy), weights_of(copy).read_bytes()

    def said() -> str:
        ran = subprocess.run(
            [program, copy, "table", "2", tmp_path / "out", "3"], capture_output=True, text=True, check=False
        )
        assert ran.returncode in (0, 1), ran
        return ran.stdout

    assert "calls=2" in said()
    for what, data in list(damages(sound, 10).items()):
        path.write_bytes(data)
        assert "restore the pack or tune again" in said(), what
    path.unlink()
    os.mkfifo(path)
    assert "not the one that the pack was made with" in said()
    path.unlink()
    path.symlink_to(copy / "manifest.json")
    assert "not the one that the pack was made with" in said()


@pytest.mark.parametrize("what", ["a pipe", "a link", "a folder"])
def test_weights_that_are_no_file_are_refused_without_waiting(copy, what):
    path = weights_of(copy)
    path.rename(copy.parent / "aside")
    {"a pipe": os.mkfifo, "a folder": os.mkdir, "a link": lambda at: at.symlink_to(copy.parent / "aside")}[what](path)
    with haotuner.load(copy) as opened, pytest.raises(PackInvalid, match=f"it is {what}, not a regular file"):
        opened.model("table")
