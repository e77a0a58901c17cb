"""Whole models in a fleet: products and generated groups are timed on the device's node, and never twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("grpc")
pytest.importorskip("onnx")

from haotuner.backends.cpu.group_jobs import GroupJob
from haotuner.backends.index import backend_for
from haotuner.errors import UsageError
from haotuner.fleet.connection import Connection
from haotuner.fleet.engine import Programs, RayEngine
from haotuner.fleet.node_programs import MeasurerProgram
from haotuner.hw_profiles.find import find_device
from haotuner.records import open_store
from haotuner.runtime.pack import Pack
from haotuner.spec.record import Timed
from haotuner.tuning.model_session import model_request, read_models
from haotuner.tuning.session import Report, produce
from tests.cli.test_tune_model import layers
from tests.fleet.local_fleet import LocalFleet

CALLS_WORD = "HAOTUNER_TEST_GROUP_CALLS"


class CountingMeasurer(MeasurerProgram):
    """Writes down how many calls of groups its node has timed."""

    def time_groups(self, job: GroupJob) -> list[str]:
        with Path(os.environ[CALLS_WORD]).open("a", encoding="utf-8") as file:
            file.write(f"{len(job.tasks)}\n")
        return super().time_groups(job)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[LocalFleet]:
    running = LocalFleet({CALLS_WORD: str(tmp_path / "calls")})
    try:
        running.begin("cpu")
        yield running
    finally:
        running.end()


@pytest.mark.slow
def test_a_model_is_tuned_on_its_node_and_resumed(fleet: LocalFleet, tmp_path: Path) -> None:
    models = read_models(
        [layers(tmp_path / "net.onnx", 32, 48, 32)], ["batch=1..4"], device=find_device("cpu", measure=False)
    )
    db, calls = f"sqlite:///{tmp_path}/records.db", tmp_path / "calls"

    def tuned(*, resume: bool) -> Report:
        request = model_request(
            models, device="cpu", budget_s=20.0, threads=(1,), out=tmp_path / "pack", db=db, resume=resume,
            environment=dict(os.environ),
        )  # fmt: skip
        with Connection(fleet.address) as connection:
            programs = Programs(measurer=CountingMeasurer)
            return produce(request, engine=RayEngine(connection, "cpu", backend_for, programs=programs))

    first = tuned(resume=False)
    assert not first.document.get("lost") and first.document["verification"]["numbers"]
    with Pack(tmp_path / "pack") as pack:
        assert pack.manifest.models.keys() == {"net"}
    store = open_store(db, write=False)
    records = list(store.records())
    store.close()
    groups = [record for record in records if record.trial.op.name.startswith(("loops_", "program_"))]
    products = [record for record in records if record.trial.op.name.startswith("dense_")]
    assert products and groups and all(isinstance(record.outcome, Timed) for record in groups)
    timed = sum(map(int, calls.read_text().split()))
    assert len(groups) <= timed, "every time of a group comes from the node"
    second = tuned(resume=True)
    assert second.document["reused"] >= len(groups)
    store = open_store(db, write=False)
    keys = [record.trial.key() for record in store.records()]
    store.close()
    assert len(keys) == len(set(keys)), "nothing was timed twice"


@pytest.mark.isa("avx2", "fma")
def test_a_model_that_was_read_for_another_cpu_is_refused(tmp_path: Path) -> None:
    models = read_models(
        [layers(tmp_path / "net.onnx", 8, 8)], ["batch=1..4"], device=find_device("cpu:avx2", measure=False)
    )
    request = model_request(models, device="cpu", out=tmp_path / "pack")
    request.check_models(find_device("cpu:avx2", measure=False))
    with pytest.raises(UsageError, match=r"net: --device cpu is .*-avx2 on this host.*-sse in the fleet; tune on a host"):
        request.check_models(find_device("cpu:sse", measure=False))
