"""Hand-overs under load: no request is lost, and every answer is that of one of both packs."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.errors import HaotunerError, PackInvalid, UsageError
from haotuner.graph.graph import GraphBuilder, renamed
from tests.runtime.model_packs import model_pack
from tests.serve.nets import B, drawn, masked, rows

http = pytest.importorskip("tritonclient.http")
grpc = pytest.importorskip("tritonclient.grpc")
pytest.importorskip("google")
pytest.importorskip("grpc")
pytest.importorskip("prometheus_client")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from haotuner.serve.repository import Repository, Settings  # noqa: E402
from haotuner.serve.server import Address, Server  # noqa: E402

FACTORS = (1.0, 3.0)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("both")
    return [model_pack(folder / f"pack{index}", {"rows": rows(factor)}) for index, factor in enumerate(FACTORS)]


def put(source: Path, position: Path) -> None:
    """Replace a pack in its place, as publishing does: renamed as a whole."""
    aside, old = position.with_name("aside"), position.with_name("old")
    shutil.copytree(source, aside)
    if position.exists():
        position.rename(old)
    aside.rename(position)
    shutil.rmtree(old, ignore_errors=True)


@pytest.mark.parametrize("count", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_no_answer_is_lost_or_wrong_through_hand_overs(both: list[Path], tmp_path: Path, count: int) -> None:
    position = tmp_path / "pack"
    put(both[0], position)
    done, problems, answers = threading.Event(), list[BaseException](), [0, 0]
    lock = threading.Lock()

    def load(library: Any, port: int, seed: int) -> None:
        client = library.InferenceServerClient(f"127.0.0.1:{port}")
        try:
            while not done.is_set():
                x = drawn(seed, 1 + seed % 4, 5)
                tensor = library.InferInput("x", list(x.shape), "FP32")
                tensor.set_data_from_numpy(x)
                y = client.infer("rows", [tensor]).as_numpy(name)
                fits = [np.array_equal(y, np.maximum(x * np.float32(2 * factor), 0)) for factor in FACTORS]
                assert any(fits), "an answer that is neither pack's"
                with lock:
                    answers[fits.index(True)] += 1
        except BaseException as error:
            problems.append(error)
        finally:
            client.close()

    with Server([position], Settings(threads=1), Address(port=0, grpc_port=0)) as server:
        name = server.repository.batcher("rows").model.outputs[0].name
        clients = [threading.Thread(target=load, args=(http, server.port, seed)) for seed in range(4)]
        clients += [threading.Thread(target=load, args=(grpc, server.grpc_port, seed)) for seed in range(4)]
        for client in clients:
            client.start()
        try:
            for turn in range(count):
                put(both[(turn + 1) % 2], position)
                assert len(server.hand_over()) == 1
        finally:
            done.set()
            for client in clients:
                client.join()
    assert not problems, problems[0]
    assert min(answers) > 0 and sum(answers) > count


def test_a_pack_that_cannot_take_over_leaves_the_old_one_serving(both: list[Path], tmp_path: Path) -> None:
    position = tmp_path / "pack"
    put(both[0], position)
    repository = Repository([position], Settings(threads=1))
    try:
        before = repository.packs[position]
        (position / "manifest.json").write_text("{}")
        with pytest.raises(PackInvalid):
            repository.hand_over(position)
        shutil.rmtree(position)
        with pytest.raises(HaotunerError):
            repository.hand_over(position)
        other = model_pack(tmp_path / "other", {"others": masked()})
        with pytest.raises(UsageError, match="lacks the model"):
            repository.hand_over(position, other)
        failures: list[str] = []
        assert repository.hand_over_all(lambda path, error: failures.append(str(error))) == [] and len(failures) == 1
        assert repository.packs[position] is before and before.is_open
        assert repository.batcher("rows").model.run({"x": drawn(0, 1, 2)})
    finally:
        repository.close(1.0)


def test_requests_are_joined_only_while_the_served_pack_s_rows_keep_their_bits(tmp_path: Path) -> None:
    packs = [model_pack(tmp_path / f"pack{index}", {"rows": eight(index)}) for index in (0, 1)]
    repository = Repository([packs[0]], Settings(threads=1))
    batcher = repository.batcher("rows")
    try:
        assert batcher.joining[0] == "batch"
        repository.hand_over(packs[0], packs[1])
        assert batcher.joining[0] == ""
        repository.hand_over(packs[0])
        assert batcher.joining[0] == "batch"
        with pytest.raises(UsageError, match="its inputs are"):
            repository.hand_over(packs[0], model_pack(tmp_path / "other", {"rows": rows()}))
        assert batcher.joining[0] == "batch"
    finally:
        repository.close(1.0)


def eight(mean: int) -> Any:
    """Rows of eight: twice each, or less the sum of all. Both have the same ends."""
    g = GraphBuilder()
    x = g.input("x", (B, 8))
    total = g.add("reshape", g.add("reduce", x, how="sum", axes=(0,)), shape=(1, 8))
    graph = g.finish(g.map("sub", x, total) if mean else g.map("mul", x, 2.0))
    return renamed(graph, lambda name: "y" if name == graph.outputs[0] else name)


def test_packs_that_cannot_be_served_together_or_at_all_are_refused(
    both: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(threads=1)
    with pytest.raises(UsageError, match="given twice"):
        Repository([both[0], both[0]], settings)
    with pytest.raises(UsageError, match="both hold a model"):
        Repository(both, settings)
    with pytest.raises(PackInvalid, match="not a haotuner pack"):
        Repository([tmp_path], settings)
    monkeypatch.setattr("haotuner.serve.repository.available_bytes", lambda: -1)
    with pytest.raises(HaotunerError, match="serve fewer models"):
        Repository([both[0]], settings)


def test_a_model_whose_name_looks_like_a_segment_is_served(tmp_path: Path) -> None:
    pack = model_pack(tmp_path / "pack", {"rows": rows(), "rows.1": rows(3.0)})
    repository = Repository([pack], Settings(threads=1))
    try:
        assert repository.models_of(pack) == ["rows", "rows.1"]
    finally:
        repository.close(0.0)


def test_segments_of_a_model_are_not_served_apart(tmp_path: Path) -> None:
    from tests.runtime.test_models_segments import GRAPHS

    name = next(iter(GRAPHS))
    pack = model_pack(tmp_path / "pack", {name: GRAPHS[name], "rows": rows()})
    with haotuner.load(pack, threads=1) as opened:
        assert len(opened.models) > 2, "the model has segments"
    repository = Repository([pack], Settings(threads=1))
    try:
        assert repository.models_of(pack) == [name, "rows"]
    finally:
        repository.close(0.0)
