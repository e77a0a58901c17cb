"""Packs of schema 1 are still read and served. ``schema1/`` is the source of one, as haotuner wrote it then; it stays so."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import haotuner
from haotuner.errors import PackInvalid
from haotuner.pack.manifest import read_manifest
from haotuner.pack.merge import merge
from haotuner.verify.pack_check import verify
from tests.run_folder import toolchain
from tests.runtime.conftest import DENSE, SMALLEST, rows
from tests.runtime.native_builds import HERE, LIBRARY, cc, run
from tests.runtime.packs import LANES, assert_right, make_pack, packed_op, rewrite

SOURCE = Path(__file__).parent / "schema1"

pytestmark = pytest.mark.filterwarnings("ignore:.*it was made for test host")  # as it was written then


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    pack, library = folder / "pack", folder / "pack.so"
    includes: list[str | Path] = ["-I", SOURCE / "native", "-I", toolchain().include]
    sources = [SOURCE / "pack_data.c", SOURCE / "kernels.c", *sorted((SOURCE / "native").glob("*.c"))]
    run(["cc", "-std=c11", "-pthread", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", *includes, *sources, "-o", library])
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    (pack / "lib").mkdir(parents=True)
    shutil.copy(library, pack / "lib" / f"{digest[:16]}.so")
    document = json.loads((SOURCE / "manifest.json").read_text())
    assert document["schema"] == 1
    (pack / "manifest.json").write_text(json.dumps({**document, "files": {f"lib/{digest[:16]}.so": digest}}))
    return pack


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_it_is_served(old, weight, threads):
    with haotuner.load(old, threads=threads) as pack:
        assert pack.ops == (DENSE, SMALLEST) and pack.op(DENSE).n == 100 and pack.manifest.ops[0].weight == "nk"
        bias = np.arange(100, dtype=np.float32)
        linear, plain = pack.op(DENSE).bind(weight, bias), pack.op(DENSE).bind(weight)
        with haotuner.capture(pack) as seen:
            for m in (1, 2, 7, 40, 41, 300):
                x = rows(m)
                assert_right(plain(x), x, weight)
                assert np.allclose(linear(x), plain(x) + bias, atol=1e-5)
        assert seen.counts() == {DENSE: dict.fromkeys((1, 2, 7, 40, 41, 300), 3)}
        assert pack.op(DENSE).composition(7).parts
        with pytest.raises(ValueError, match="last extent 36"):
            linear(rows(2, 36))
        pack.warmup()
        assert pack.stats()[DENSE]["calls"] > 0


def test_it_is_verified_and_handed_over(old, built_pack, weight):
    assert verify(old) == []
    assert read_manifest(old).ops[0].tile_rows == (1, 2, 4)
    with haotuner.load(old, threads=2) as pack:
        linear = pack.op(DENSE).bind(weight)
        before = linear(rows(9))
        with haotuner.load(built_pack.path, threads=2) as new:
            pack.hand_over(new)
            assert np.allclose(linear(rows(9)), before, atol=1e-4) and np.array_equal(linear.weight(), weight)


def test_from_c(old, tmp_path):
    driver = cc([HERE / "drive.c", *LIBRARY], tmp_path / "drive", "-O1", "-DCOUNT_ALL")
    assert run([driver, "quiet", old, "2"]).stdout.strip() == "0"


def test_beside_a_new_pack_for_a_wider_cpu(old, built_pack, weight, tmp_path):
    lanes = LANES[built_pack.level]
    new = make_pack(
        tmp_path / "new", [packed_op(name, lanes, lanes, (1, 2)) for name in (DENSE, SMALLEST)], built_pack.level
    )
    both = merge([old, new.path], tmp_path / "both")
    assert verify(both) == []
    with haotuner.load(both, threads=1) as pack:
        assert pack.manifest.arch == built_pack.level
        assert_right(pack.op(DENSE).bind(weight)(rows(5)), rows(5), weight)


def test_a_seal_beside_it_counts(old, tmp_path):
    pack = Path(shutil.copytree(old, tmp_path / "pack"))
    rewrite(pack, turn=1)
    haotuner.load(pack).close()
    (pack / "manifest.json").write_text((pack / "manifest.json").read_text() + "\n")
    with pytest.raises(PackInvalid, match="manifest.sha256"):
        haotuner.load(pack)
