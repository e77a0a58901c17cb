"""Models whose sizes depend on data in C: damaged chains, callers at once, the calls of haotuner.h; under ASan and UBSan."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.errors import PackInvalid
from haotuner.ops.host_steps import random_numbers
from haotuner.verify.pack_check import verify
from tests.runtime.chain_graphs import GRAPHS
from tests.runtime.model_packs import planned
from tests.runtime.native_builds import ASAN, HERE, LIBRARY, LOOSE, c_pack, cc, pack_sources, run, write_files

pytestmark = pytest.mark.long

LANES = 4


WRAPPED = tuple(f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "mmap", "mremap"))


@pytest.fixture(scope="module", params=GRAPHS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any], str]:
    """The program of native/chains.c, the folder with its models and their names, and the chain's name."""
    folder = tmp_path_factory.mktemp(request.param)
    segments, chains, ops = planned({request.param: GRAPHS[request.param]}, LANES, exact=False)
    names = write_files(folder, [*segments, *chains])
    sources = [*pack_sources(folder / "pack", ops, [*segments, *chains]), HERE / "chains.c"]
    return cc(sources, folder / "chains", *ASAN, *LOOSE, *WRAPPED), [folder, *names], request.param


def test_nothing_is_read_or_written_past_its_end(program):
    assert run([program[0], "schedules", "1500", "5", *program[1]], 120).stdout == "refused=1 ran=1 failed=1\n"


def test_a_chain_whose_sizes_were_seen_takes_no_memory(program):
    printed = run([program[0], "steady", "1", "5", *program[1]], 60).stdout
    assert printed.startswith("same=1 taken=0 calls=3 contexts=1 after_trim=0 ")
    assert printed.endswith("a size of -3; the model takes no such request\n") == (program[2] == "grown")


def test_callers_at_once_get_what_one_gets(program):
    assert run([program[0], "callers", "1", "5", *program[1]], 60).stdout == "wrong=0\n"


def test_c_answers_what_python_does(tmp_path):
    segments, chains, ops = planned(GRAPHS, LANES, exact=False)
    pack = c_pack(tmp_path / "pack", ops, models=[*segments, *chains])
    assert verify(pack) == []
    built = cc([HERE / "drive_chain.c", *LIBRARY], tmp_path / "drive", "-O1")
    with haotuner.load(pack, threads=1) as opened:
        for name in GRAPHS:
            model = opened.model(name)
            for rows, length in ((5, 7), (1, 0), (0, 3)):
                inputs: dict[str, Any] = {"x": ((np.arange(rows * 8) % 11 - 5) / 4).astype(np.float32).reshape(rows, 8)}
                inputs |= {"long": np.full(2, length)} if name != "chosen" else {}
                outputs = model.run(inputs, seed=12)
                printed = run([built, pack, name, str(rows), str(length), "12", tmp_path / "out"], 40).stdout
                assert printed.startswith("run=-2 shapes=-2 memory=1 ") and "calls=2" in printed
                assert ("none=-6" in printed) == (outputs[GRAPHS[name].outputs[0]].size > 0), (
                    "an output without memory is refused"
                )
                assert (tmp_path / "out").read_bytes() == b"".join(array.tobytes() for array in outputs.values())


def test_two_chains_that_name_each_other_are_refused_when_they_are_opened(tmp_path):
    pair = ("chosen", "grown")
    segments, chains, ops = planned({name: GRAPHS[name] for name in pair}, LANES, exact=False)
    for index, (chain, other) in enumerate((pair, pair[::-1])):
        text = json.dumps(chains[index].document).replace(f'"{chain}.0"', f'"{other}"')
        chains[index] = dataclasses.replace(chains[index], document=json.loads(text))
    pack = c_pack(tmp_path / "pack", ops, models=[*segments, *chains])
    built = cc([HERE / "drive_chain.c", *LIBRARY], tmp_path / "drive", "-O1")
    with haotuner.load(pack, threads=1) as opened:
        for name in pair:
            printed = run(["sh", "-c", '"$0" "$@" || exit 0', built, pack, name, "1", "1", "1", tmp_path / "out"]).stdout
            assert "has segments itself; restore the pack" in printed
            with pytest.raises(PackInvalid, match="has segments itself"):
                opened.model(name)
    assert sum("has segments itself" in message for message in verify(pack)) == 2


def test_numbers_of_a_law_are_as_they_should_be_and_python_draws_what_c_does():
    law = {"law": "normal", "low": 1.0, "high": 2.0, "number": 3}
    drawn = random_numbers(law, (400, 100), 7, np.float64)
    assert abs(drawn.mean() - 1) < 0.05 and abs(drawn.std() - 2) < 0.05 and np.abs(drawn - 1).max() < 12
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 0.2
    even = random_numbers(law | {"law": "uniform"}, (40_000,), 7, np.float32)
    assert even.min() >= 1 and even.max() <= 2 and abs(even.mean() - 1.5) < 0.01
    np.testing.assert_array_equal(drawn, random_numbers(law, (400, 100), 7, np.float64))
    assert not np.array_equal(drawn, random_numbers(law | {"number": 4}, (400, 100), 7, np.float64))
    assert not np.array_equal(drawn, random_numbers(law, (400, 100), None, np.float64))
