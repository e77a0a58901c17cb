"""Every peer that is installed here computes the right product in the form that is raced; every other one is missing."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest

from haotuner.bench.contender import Setting
from haotuner.bench.field import HOST
from haotuner.bench.processes import Processes
from haotuner.host.processor import host_flags
from haotuner.isolate.answers import ChildNotResponding
from tests.standin.patience import WALL_S

pytestmark = pytest.mark.long

LIMIT_S = float(WALL_S)
COUNT = 3  # weights in turn
LIBRARY = {"torch": "torch", "onednn": "torch", "inductor": "torch", "numpy": "numpy", "openvino": "openvino",
           "onnxruntime": "onnxruntime", "zentorch": "zentorch"}  # fmt: skip


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    """All peers with two threads, started together."""
    with Processes(HOST.peers, Setting(threads=2), dict(os.environ), {}) as started:
        assert started.start() == {}
        yield started


def test_every_peer_is_listed_here():
    assert set(LIBRARY) == set(HOST.peers)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "inductor" else ()) for name in HOST.peers]
)
def test_a_peer_is_right_with_every_weight_and_any_number_of_rows(processes, name):
    if name in processes.missing:
        assert importlib.util.find_spec(LIBRARY[name]) is None or name in ("onnxruntime", "onednn")
        pytest.skip(f"peer: {name} is not installed")
    assert processes.versions[name]
    for op in ("dense_n50_k36", "dense_n33_k17"):  # the second finds what the first left behind
        processes.ask(name, {"do": "prepare", "shape": {"m": 2}, "op": op, "count": COUNT, "seed": 0}, LIMIT_S)
        for m, count in ((7, COUNT), (1, COUNT), (64, 1), (7, 1)):
            seen = processes.ask(name, {"do": "aim", "shape": {"m": m}, "count": count, "seed": m}, LIMIT_S)
            assert 0 <= seen["error_share"] <= 1
            timed = processes.ask(name, {"do": "time", "seconds": 0.001}, LIMIT_S)
            assert timed["us"] > 0 and timed["calls"] >= 1
    # X of over 4 MiB is a mapping of its own: who did not hold on to it would read an address that is gone
    processes.ask(name, {"do": "prepare", "shape": {"m": 2}, "op": "dense_n448_k1052", "count": 1, "seed": 0}, LIMIT_S)
    processes.ask(name, {"do": "aim", "shape": {"m": 1300}, "count": 1, "seed": 0}, LIMIT_S)
    assert processes.ask(name, {"do": "time", "seconds": 0.001}, LIMIT_S)["us"] > 0


TYPES = {"torch": ("bf16", "fp16", "int8"), "onednn": ("bf16", "int8"), "onnxruntime": ("int8",), "openvino": ("int8",)}


@pytest.mark.parametrize("name", [name for name in HOST.peers if name != "inductor"])
def test_a_peer_is_right_in_its_types_and_refuses_others(processes, name):
    if name in processes.missing:
        pytest.skip(f"peer: {name} is not installed")
    for dtype in ("bf16", "fp16", "int8"):
        job = {"do": "prepare", "shape": {"m": 2}, "op": f"dense_n33_k18_{dtype}", "count": 2, "seed": 0}
        if (name, dtype) == ("onednn", "bf16") and not {"avx512bw", "avx_ne_convert"} & host_flags():
            continue  # it says that it needs one of the two
        if dtype in TYPES.get(name, ()):
            processes.ask(name, job, LIMIT_S)
            aim = {"do": "aim", "shape": {"m": 7}, "count": 2, "seed": 1}
            assert 0 <= processes.ask(name, aim, LIMIT_S)["error_share"] <= 1
        elif (name, dtype) != ("onednn", "fp16"):  # where the CPU has it
            with pytest.raises(ChildNotResponding, match="it is raced in"):
                processes.ask(name, job, LIMIT_S)
