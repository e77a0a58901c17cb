"""Metrics, spans and captured traffic of a server, metrics of a pack, and tuning while idle."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import haotuner
from haotuner.errors import HaotunerError, UsageError
from haotuner.isolate.throttle import descendants, processor_s, run_throttled
from haotuner.pack.manifest import read_manifest
from haotuner.serve.traffic import MOST_SIZES, Traffic
from tests.serve.nets import drawn, served_pack

pytest.importorskip("google")
pytest.importorskip("grpc")
pytest.importorskip("prometheus_client")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from haotuner.serve.idle_tuning import IdleTuner, shapes_of  # noqa: E402
from haotuner.serve.inference import InferenceRequest  # noqa: E402
from haotuner.serve.metrics import ServerMetrics  # noqa: E402
from haotuner.serve.observing import Observing  # noqa: E402
from haotuner.serve.pack_metrics import PackMetrics  # noqa: E402
from haotuner.serve.refusals import InvalidRequest  # noqa: E402
from haotuner.serve.repository import Repository, Settings  # noqa: E402


def request(*shape: int) -> InferenceRequest:
    return InferenceRequest("rows", "", {"x": drawn(0, *shape)}, None, dict(zip(("batch", "seq"), shape, strict=True)))


def test_metrics_of_a_pack_count_calls_latencies_memory_and_odd_sizes(pack_path: Path) -> None:
    with haotuner.load(pack_path, threads=1) as pack:
        model = pack.model("rows")
        model.run({"x": drawn(0, 1, 2)})
        assert "run" not in vars(model), "nothing lies in the way of a call before"
        seen = haotuner.metrics(pack)
        for size in (3, 3, 600):
            model.run({"x": drawn(0, 1, size)})
        pack.model("rows").run({"x": drawn(0, 1, 4)})
        rows = seen.snapshot()["models"]["rows"]
        assert (rows["calls"], rows["out_of_range"]) == (5, 1)
        assert rows["latency_s"]["buckets"][-1] == ("+Inf", 4) and rows["latency_s"]["sum"] > 0
        text = seen.text()
    labels = f'kind="model",name="rows",pack="{pack.manifest.sha256[:16]}"'
    assert f"haotuner_calls_total{{{labels}}} 5.0" in text
    assert 'haotuner_call_seconds_count{name="rows"' in text and "haotuner_memory_bytes{" in text
    assert f'haotuner_pack_info{{device="{pack.device}"' in text


def test_a_server_counts_answers_refusals_and_joined_requests(pack_path: Path) -> None:
    metrics = ServerMetrics()
    observing = Observing(metrics)
    repository = Repository([pack_path], Settings(threads=1), observing.observe)
    try:
        metrics.attach(repository)
        repository.batcher("rows").submit(request(2, 3)).result(20)
        observing.answered("rows", "http")
        observing.refused("rows", "grpc", InvalidRequest("wrong"))
        text = observing.text()
    finally:
        repository.close(5.0)
    assert 'haotuner_answers_total{model="rows",protocol="http"} 1.0' in text
    assert 'haotuner_refusals_total{protocol="grpc",status="400"} 1.0' in text
    assert (
        'haotuner_joined_requests_count{model="rows"} 1.0' in text and 'haotuner_waiting_requests{model="rows"} 0.0' in text
    )
    assert 'haotuner_calls_total{kind="model",name="rows"' in text and "haotuner_hand_overs 0.0" in text


def test_nothing_looks_on_where_all_is_off() -> None:
    off = Observing()
    assert off.observe is None and not off.has_metrics and off.text() == ""


def test_spans_are_children_of_the_caller_s() -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from haotuner.serve.spans import Spans

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    observing = Observing(spans=Spans(provider))
    caller = f"00-{7:032x}-{9:016x}-01"
    with observing.span("rows", request(2, 3), {"traceparent": caller}):
        pass
    with pytest.raises(InvalidRequest), observing.span("rows", request(2, 3), {}):
        raise InvalidRequest("wrong")
    good, bad = exporter.get_finished_spans()
    assert good.context.trace_id == 7 and good.parent is not None and good.parent.span_id == 9
    assert dict(good.attributes or {}) == {"haotuner.model": "rows", "haotuner.dim.batch": 2, "haotuner.dim.seq": 3}
    assert not bad.status.is_ok and bad.parent is None


def test_traffic_is_counted_in_bounded_memory_and_written_as_traces(tmp_path: Path) -> None:
    traffic = Traffic()
    for size in (3, 5, 3):
        dims = {"batch": 1, "seq": size}
        traffic.count("rows", dims if size == 5 else dict(reversed(dims.items())))
    assert traffic.write(tmp_path / "t.csv") == [tmp_path / "t.csv"]
    assert (tmp_path / "t.csv").read_text() == "batch,seq,weight\n1,3,2\n1,5,1\n"
    for size in range(MOST_SIZES + 10):
        traffic.count("other", {"n": size})
    assert len(traffic.counts("other")) == MOST_SIZES
    assert traffic.write(tmp_path / "t.csv") == [tmp_path / "t.rows.csv", tmp_path / "t.other.csv"]
    assert shapes_of(traffic, "rows", {}) == "batch=1;seq=3,5"
    assert shapes_of(traffic, "other", {}) == f"n=1..{MOST_SIZES - 1}"
    traffic.count("fixed", {})
    assert shapes_of(traffic, "fixed", {}) == shapes_of(traffic, "asked of nothing", {}) == "dynamic"
    assert shapes_of(traffic, "none", {"model_ranges": {"none": {"n": [1, 9]}}}) == "n=1..9"


SPIN = "import time\nend = time.monotonic() + {}\nwhile time.monotonic() < end: pass"


def test_a_throttled_command_keeps_to_its_share(tmp_path: Path) -> None:
    used: list[float] = []
    earlier = set(descendants(os.getpid()))

    def must_wait() -> bool:
        own = [pid for pid in descendants(os.getpid()) if pid not in earlier]
        used.append(sum(filter(None, map(processor_s, own))))
        return False

    code = run_throttled([sys.executable, "-c", SPIN.format(7)], 0.1, must_wait, lambda: False, tmp_path / "log")
    assert code == 0 and 0 < max(used) < 2.0 + 0.1 * (os.cpu_count() or 1) * 8 + 0.5


def test_a_throttled_command_stands_still_and_ends_when_told(tmp_path: Path) -> None:
    begin = time.monotonic()
    command = [sys.executable, "-c", SPIN.format(60)]
    assert run_throttled(command, 1.0, lambda: True, lambda: time.monotonic() > begin + 1, tmp_path / "log") is None
    assert (
        run_throttled([sys.executable, "-c", "print(5); exit(3)"], 1.0, lambda: False, lambda: False, tmp_path / "log") == 3
    )
    assert (tmp_path / "log").read_bytes() == b"5\n"


class Tuned:
    """What carries out commands: "tuning" copies a pack, racing answers times."""

    def __init__(self, source: Path, ratio: float, code: int = 0) -> None:
        self.source, self.ratio, self.code = source, ratio, code
        self.commands: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str], log: Path) -> int | None:
        self.commands.append(command)
        if "tune" in command:
            log.write_text("no compiler")
            if self.code == 0:
                shutil.copytree(self.source, command[command.index("--out") + 1])
            return self.code
        plan = json.loads(Path(command[-1]).read_text())
        factor = self.ratio if Path(command[3]).name == "pack" else 1.0
        times = {name: [[100.0 * factor] for _ in rows] for name, rows in plan["requests"].items()}
        log.write_text(json.dumps({"1": times}) + "\n")
        return 0


@pytest.fixture
def idle(pack_path: Path, tmp_path: Path) -> Any:
    position = tmp_path / "served"
    shutil.copytree(pack_path, position)
    traffic = Traffic()
    repository = Repository([position], Settings(threads=1))
    for size in (3, 5):
        traffic.count("rows", {"batch": 1, "seq": size})
    files = {name: tmp_path / f"{name}.onnx" for name in repository.batchers}
    yield IdleTuner(repository, Observing(), traffic, files, 0.2), position, tmp_path
    repository.close(5.0)


def test_a_faster_pack_is_handed_over_a_slower_one_is_not(idle: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    tuner, position, folder = idle
    new = served_pack(tmp_path_factory.mktemp("new") / "pack", 3.0)
    before = tuner.repository.packs[position]
    (folder / "one").mkdir()
    slower = Tuned(new, 0.99)
    assert tuner.tune(position, folder / "one", slower) == pytest.approx(0.99)
    assert tuner.repository.packs[position] is before
    files = [str(tuner.files[name]) for name in tuner.repository.batchers]
    assert list(slower.commands[0][3:8]) == ["tune", *files]
    assert "batch=1;seq=3,5" in slower.commands[0]
    (folder / "two").mkdir()
    assert tuner.tune(position, folder / "two", Tuned(new, 0.8)) == pytest.approx(0.8)
    assert tuner.repository.packs[position].manifest.sha256 == haotuner.load(new, threads=1).manifest.sha256
    assert tuner.repository.batcher("rows").model.run({"x": drawn(0, 1, 2)})


def test_a_pack_that_came_meanwhile_is_not_replaced(idle: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    tuner, position, folder = idle
    new, other = (served_pack(tmp_path_factory.mktemp("new") / "pack", factor) for factor in (3.0, 5.0))
    shutil.rmtree(position)
    shutil.copytree(other, position)
    assert tuner.tune(position, folder, Tuned(new, 0.8)) is None
    assert read_manifest(position) == read_manifest(other)


def test_a_tuning_that_fails_leaves_the_server_as_it_is(idle: Any) -> None:
    tuner, position, folder = idle
    with pytest.raises(HaotunerError, match="exit code 4: no compiler"):
        tuner.tune(position, folder, Tuned(position, 1.0, code=4))
    missing = IdleTuner(tuner.repository, tuner.observing, tuner.traffic, {}, 0.2)
    with pytest.raises(UsageError, match="whose file is not known"):
        missing.start()
    assert isinstance(PackMetrics(tuner.repository.packs[position], latency=False).snapshot(), dict)
