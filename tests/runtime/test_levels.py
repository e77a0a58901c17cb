"""A pack for several instruction sets: each CPU gets the widest it has, in Python and in C; what fits none is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.errors import PackInvalid, PackMismatch, UsageError
from haotuner.graph.extents import dimension
from haotuner.graph.graph import GraphBuilder
from haotuner.graph.interpret import interpret
from haotuner.host import processor
from haotuner.pack.__main__ import main
from haotuner.pack.levels import level_hashes, served_level
from haotuner.pack.manifest import read_manifest
from haotuner.pack.merge import merge
from haotuner.verify.pack_check import verify
from tests.runtime.chain_graphs import product
from tests.runtime.conftest import DENSE, rows
from tests.runtime.model_packs import model_pack
from tests.runtime.native_builds import HERE, LIBRARY, c_pack, cc, run
from tests.runtime.packs import LANES, assert_right, make_pack, packed_op, put_manifest

WIDE, MIDDLE, NARROW = "x86-64-v4", "x86-64-v3", "x86-64-v2"
FLAGS = {level: sorted(set().union(*(processor.LEVELS[name] for name in list(processor.LEVELS)[: index + 1])))
         for index, level in enumerate(processor.LEVELS)}  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """DENSE for each level, with panels of another width each and kernels in C, which build quickly."""
    folder = tmp_path_factory.mktemp("levels")
    return {level: c_pack(folder / level, [packed_op(DENSE, n, 2 * n)], level=level) for level, n in LANES.items()}


@pytest.fixture(scope="module")
def merged(plain: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return merge(list(plain.values()), tmp_path_factory.mktemp("merged") / "pack")


@pytest.fixture
def mine(merged: Path, tmp_path: Path) -> Path:
    """A copy that the test may damage."""
    return Path(shutil.copytree(merged, tmp_path / "mine"))


def pretend(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    """The host's CPU has what ``level`` names and nothing more."""
    monkeypatch.setattr(processor, "host_flags", lambda *_: frozenset(FLAGS[level]))


@pytest.mark.parametrize("level", [WIDE, MIDDLE, NARROW])
def test_each_cpu_gets_the_widest_level_it_has(merged, weight, monkeypatch, level):
    if processor.missing_flags(level):
        pytest.skip(f"isa: this host is not {level}")
    pretend(monkeypatch, level)
    for threads in (1, 2):
        with haotuner.load(merged, threads=threads) as pack:
            assert pack.manifest.arch == level
            linear = pack.op(DENSE).bind(weight)
            for m in (1, 5, 40, 77):
                assert_right(linear(rows(m)), rows(m), weight)


def test_the_choice_for_every_host_and_every_set_of_levels():
    def lacks(top: str) -> Any:
        order = list(processor.LEVELS)
        return lambda level: () if order.index(level) <= order.index(top) else ("flag",)

    order = list(processor.LEVELS)
    for top in order:
        for mask in range(1, 1 << len(order)):
            levels = {level: "" for index, level in enumerate(order) if mask >> index & 1}
            fit = [level for level in levels if order.index(level) <= order.index(top)]
            assert served_level(levels, lacks(top)) == (fit[-1] if fit else next(iter(levels)))


def test_a_cpu_narrower_than_every_level_is_refused(plain, tmp_path, monkeypatch):
    both = merge([plain[WIDE], plain[MIDDLE]], tmp_path / "both")
    pretend(monkeypatch, NARROW)
    with pytest.raises(PackMismatch, match="x86-64-v3; this CPU lacks .*avx2"):
        haotuner.load(both)
    with pytest.raises(PackMismatch, match="x86-64-v4; this CPU lacks .*avx512f"):
        haotuner.load(plain[WIDE])


def test_hand_over_between_levels(merged, weight, monkeypatch):
    """A server that is moved to another CPU model keeps its linears: weights are packed anew where panels differ."""
    if processor.missing_flags(MIDDLE):
        pytest.skip("isa: this host is not x86-64-v3")
    pretend(monkeypatch, NARROW)
    pack = haotuner.load(merged, threads=1)
    linear = pack.op(DENSE).bind(weight)
    pretend(monkeypatch, MIDDLE)
    with haotuner.load(merged, threads=1) as wider:
        pack.hand_over(wider)
        assert wider.manifest.arch == MIDDLE and pack.manifest.arch == NARROW
        assert_right(linear(rows(9)), rows(9), weight)


def test_damage_to_a_level_is_refused(mine):
    inner = mine / read_manifest(mine).arch
    text = (inner / "manifest.json").read_text()
    (inner / "manifest.json").write_text(text + "\n")
    with pytest.raises(PackInvalid, match=r"not the one that .* names \(sha256\)"):
        haotuner.load(mine)
    (inner / "manifest.json").write_text(text)
    haotuner.load(mine).close()
    (library,) = (inner / "lib").iterdir()
    data = library.read_bytes()
    library.write_bytes(data[:-1])
    with pytest.raises(PackInvalid, match="sha256"):
        haotuner.load(mine)
    library.write_bytes(data)
    inner.rename(mine.parent / "elsewhere")
    with pytest.raises(PackInvalid, match="cannot read manifest"):
        haotuner.load(mine)
    inner.symlink_to(mine.parent / "elsewhere")
    with pytest.raises(PackInvalid, match="link"):
        haotuner.load(mine)


def test_verify_checks_every_level(merged, mine):
    assert verify(merged) == []
    (library,) = (mine / WIDE / "lib").iterdir()  # wherever this runs, files of all levels are checked
    library.write_bytes(library.read_bytes() + b"\0")
    assert any("sha256" in problem for problem in verify(mine))


HOSTILE = {
    "a level up": ({"../x": "0" * 64}, "is not one of"),
    "no such level": ({"x86-64-v9": "0" * 64}, "is not one of"),
    "no hash": ({WIDE: "0"}, "is not one of"),
    "hash is a number": ({WIDE: 1}, "is not one of"),
    "none": ({}, "at least one"),
    "a list": ([WIDE], "at least one"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_levels(tmp_path, case, driver):
    levels, message = HOSTILE[case]
    put_manifest(tmp_path, json.dumps({"schema": 1, "levels": levels}).encode())
    with pytest.raises(PackInvalid, match=message):
        haotuner.load(tmp_path)
    assert verify(tmp_path) and message in verify(tmp_path)[0]
    assert run([driver, "open", tmp_path]).stdout.startswith("-3 ")


def test_levels_beside_files_and_levels_in_levels(mine, driver):
    outer = json.loads((mine / "manifest.json").read_text())
    whole = json.loads((mine / WIDE / "manifest.json").read_text())
    put_manifest(mine, json.dumps({**whole, **outer}).encode())
    with pytest.raises(PackInvalid, match="beside"):
        haotuner.load(mine)
    assert run([driver, "open", mine]).stdout.startswith("-3 ")
    put_manifest(mine, json.dumps({"schema": 3, "levels": outer["levels"]}).encode())
    with pytest.raises(PackInvalid, match="schema 3"):
        haotuner.load(mine)
    assert run([driver, "open", mine]).stdout.startswith("-3 ")


def test_what_cannot_be_merged(plain, merged, tmp_path, built_pack):
    with pytest.raises(UsageError, match="at least two"):
        merge([plain[WIDE]], tmp_path / "out")
    with pytest.raises(UsageError, match="both for x86-64-v3"):
        merge([plain[MIDDLE], plain[MIDDLE]], tmp_path / "out")
    with pytest.raises(UsageError, match="merged already"):
        merge([merged, plain[WIDE]], tmp_path / "out")
    other = next(level for level in LANES if level != built_pack.level)
    with pytest.raises(UsageError, match="differ in dense_n1_k1, dense_n64_k16_kn"):
        merge([built_pack.path, plain[other]], tmp_path / "out")
    damaged = Path(shutil.copytree(plain[WIDE], tmp_path / "damaged"))
    (library,) = (damaged / "lib").iterdir()
    library.write_bytes(b"")
    with pytest.raises(PackInvalid, match="sha256"):
        merge([damaged, plain[MIDDLE]], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command(plain, tmp_path, capsys):
    words = ["merge", str(plain[WIDE]), str(plain[NARROW]), "--out", str(tmp_path / "out")]
    assert main(words) == 0 and "2 levels" in capsys.readouterr().out
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["manifest.json", "manifest.sha256", NARROW, WIDE]
    assert set(level_hashes(json.loads((tmp_path / "out" / "manifest.json").read_text())) or {}) == {WIDE, NARROW}
    assert main(words) == 0  # an earlier pack there is replaced
    assert main(["merge", str(plain[WIDE]), "--out", str(tmp_path / "one")]) == 2
    assert "at least two" in capsys.readouterr().err


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cc([HERE / "drive.c", *LIBRARY], tmp_path_factory.mktemp("driver") / "drive", "-O1", "-DCOUNT_ALL")


def test_c_servers_open_the_same_level(merged, mine, driver, tmp_path):
    assert run([driver, "quiet", merged, "2"]).stdout.strip() == "0"
    inner = mine / read_manifest(mine).arch
    (inner / "manifest.json").write_text((inner / "manifest.json").read_text() + "\n")
    assert "-3 " in run([driver, "open", mine]).stdout
    for level in LANES:  # only the folder that is opened matters, and that is Python's choice
        if level != inner.name:
            shutil.rmtree(mine / level)
    assert "names (sha256)" in run([driver, "open", mine]).stdout
    lowest = c_pack(tmp_path / "lowest", [packed_op(DENSE, 4, 4)])
    both = merge([lowest, merged / NARROW], tmp_path / "both")
    assert run([driver, "quiet", both, "1"]).stdout.strip() == "0"


@pytest.mark.slow
def test_the_same_bits_wherever_fused_multiply_adds_are(tmp_path, weight):
    """AVX2 and AVX-512 kernels sum in the same order with the same rounding; SSE has no fused multiply-add."""
    if processor.missing_flags(WIDE):
        pytest.skip("isa: this host is not x86-64-v4")
    outputs = []
    for level in (WIDE, MIDDLE):
        built_pack = make_pack(tmp_path / level, [packed_op(DENSE, LANES[level], LANES[level])], level)
        with haotuner.load(built_pack.path, threads=1) as pack:
            outputs.append(pack.op(DENSE).bind(weight)(rows(33)))
    assert np.array_equal(*outputs)


def test_each_level_has_its_models(tmp_path, monkeypatch):
    g = GraphBuilder()
    x = g.input("x", (dimension("batch"), 8))
    graph = g.finish(product(g, x))
    levels = [level for level in (MIDDLE, NARROW) if not processor.missing_flags(level)]
    if len(levels) < 2:
        pytest.skip(f"isa: this host is not {MIDDLE}")
    packs = [model_pack(tmp_path / level, {"net": graph}, level=level) for level in levels]
    whole = merge(packs, tmp_path / "whole")
    inputs = {"x": np.ones((5, 8), np.float32)}
    (expected,) = interpret(graph, inputs).values()
    for level in levels:
        pretend(monkeypatch, level)
        with haotuner.load(whole, threads=1) as pack:
            assert pack.manifest.arch == level and pack.models == ("net",)
            (output,) = pack.model("net").run(inputs).values()
            np.testing.assert_allclose(output, expected, rtol=1e-5)
    other = model_pack(tmp_path / "other", {"web": graph}, level=NARROW)
    with pytest.raises(UsageError, match="differ in model net, model web"):
        merge([packs[0], other], tmp_path / "out")
    facts = packs[1] / "facts.json"
    facts_bytes = facts.read_bytes()
    facts.unlink()
    with pytest.raises(PackInvalid, match="facts.json cannot be read"):
        merge(packs, tmp_path / "out")
    facts.write_bytes(facts_bytes)
    (packs[0] / "models" / "net.weights").write_bytes(b"")
    with pytest.raises(PackInvalid, match="net.weights: its sha256"):
        merge(packs, tmp_path / "out")
