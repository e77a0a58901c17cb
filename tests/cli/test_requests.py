"""What can be asked for, and what is refused at once, in one line with the right exit code."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.backends.index import BACKENDS
from haotuner.cli.options import peers_of
from haotuner.errors import EnvironmentMissing, NothingLegal, PackInvalid, UsageError
from haotuner.hw_profiles.cpu import cpu_info
from haotuner.hw_profiles.topology import Host
from haotuner.microkernels.index import families_for
from haotuner.pack.write import check_destination
from haotuner.spec import traffic
from haotuner.spec.op import Op
from haotuner.spec.traffic import arrivals_of
from haotuner.spec.workloads import DEFAULT, WORKLOADS, workload, workload_shapes
from haotuner.tuning import publisher, session
from haotuner.tuning.request import Request, ops_asked
from haotuner.verify import model_check
from tests.cli.command import TINY, command, environment
from tests.cli.command import haotuner as run
from tests.cost.cost_examples import BIG_CORE

TRACE = "op,m,weight\ndense_n48_k32,3,5\ndense_n32_k32,17,1\n"
OP = Op.parse("dense:n=48,k=32")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "99999999999999999999999999"], "--seed 9999"),
        (["--seed", "-1"], "--seed -1"),
        (["--seed", "2147483648"], "0..2147483647"),
        (["--out", "p" * 300], "(300 letters): File name too long"),
        (["--out", "p" * 250], "cannot be written to (File name too long)"),
        (["--out", "/proc/x"], "the folder /proc cannot be written to"),
        (["--peers", "nosuch"], "no peer nosuch; known are"),
        (["--peers", ""], "or write none"),
        (["--op", "dense:n=2147483647,k=2147483647"], "GiB and is packed beside it"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_2(cache: Path, tmp_path: Path, words: list[str], message: str) -> None:
    options = {"--op": "dense:n=48,k=32", "--shapes": "m=1..24", "--peers": "none", "--threads": "1"}
    options |= {words[0]: words[1]}
    answer = run("tune", *(word for pair in options.items() for word in pair), cache=cache, cwd=tmp_path)
    assert answer.code == 2, answer.err
    assert message in answer.err and "Traceback" not in answer.err and answer.out == ""
    assert not list(tmp_path.iterdir())


def test_a_name_that_is_not_utf8_is_refused_at_once(cache: Path, tmp_path: Path) -> None:
    words: list[str | bytes] = [*command("tune", *TINY, "--out"), b"p\xff"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(cache), capture_output=True, check=False)
    assert done.returncode == 2 and b"p\\udcff: the path is not UTF-8" in done.stderr, done.stderr
    assert b"Traceback" not in done.stderr and not list(tmp_path.iterdir())


def test_records_lie_beside_a_pack_of_any_name(cache: Path, tmp_path: Path) -> None:
    answer = run("tune", *TINY, "--budget", "1s", "-q", "--out", "p%41?#é b", cache=cache, cwd=tmp_path)
    assert answer.code == 0, answer.err
    names = {path.name for path in tmp_path.iterdir() if not path.name.endswith(("-wal", "-shm"))}
    assert names == {"p%41?#é b", "p%41?#é b.records.db"}


def test_a_store_may_have_a_name_that_is_not_utf8(cache: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"sqlite:///r\xff.db")  # as Python has it of a command's words
    done = run("tune", *TINY, "--budget", "1s", "-q", "--db", name, cache=cache, cwd=tmp_path)
    assert done.code == 0, done.err
    assert os.fsdecode(b"r\xff.db") in {path.name for path in tmp_path.iterdir()}


def test_a_trace_that_names_ops_tunes_them(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TRACE)
    words = ("--shapes", "t.csv", "--threads", "1", "--zero-measure", "--json")
    answer = run("tune", *words, cache=cache, cwd=tmp_path)
    assert answer.code == 3, answer.err  # zero-measure has no measured plan
    ops = answer.json()["ops"]
    assert [op["name"] for op in ops] == ["dense_n48_k32", "dense_n32_k32"]
    assert all(op["regret_mean"] is None for op in ops)


def test_which_ops_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TRACE)
    (tmp_path / "u.csv").write_text("m\n3\n")
    named, unnamed = arrivals_of(str(tmp_path / "t.csv")), arrivals_of(str(tmp_path / "u.csv"))
    assert [op.name for op in ops_asked(None, None, named)] == ["dense_n48_k32", "dense_n32_k32"]
    assert ops_asked(["dense:n=48,k=32"], None, named) == (OP,)
    assert ops_asked(None, "gpt2", named) == workload("gpt2")
    assert ops_asked(None, None, unnamed) == ops_asked(None, None, arrivals_of("dynamic")) == workload(DEFAULT)


def test_a_trace_is_read_once_however_many_ops_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.csv").write_text(TRACE)
    read: list[Any] = []
    real = traffic.read_trace

    def reading(path: Path) -> Any:
        read.append(path)
        return real(path)

    monkeypatch.setattr(traffic, "read_trace", reading)
    arrivals = arrivals_of(str(tmp_path / "t.csv"))
    request = Request(ops=ops_asked(None, None, arrivals), arrivals=arrivals, out=tmp_path / "pack")
    request.check()
    assert [len(request.traffic(op)) for op in request.ops] == [1, 1] and len(read) == 1


def test_no_op_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no op to tune"):
        haotuner.tune([], out=tmp_path / "pack")


def test_python_takes_what_the_command_line_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Request] = []
    monkeypatch.setattr(session, "produce", requests.append)
    haotuner.tune("dense:n=48,k=32", batch_invariant=True)
    haotuner.tune()
    assert requests[0].batch_invariant and not requests[1].batch_invariant and requests[1].ops == workload(DEFAULT)


def test_an_op_that_no_memory_holds_is_refused_and_one_that_fits_is_not() -> None:
    small, huge = (Request(ops=(Op.parse(f"dense:n={n},k={n}"),)) for n in (64, 10**6))
    small.check_memory(BIG_CORE)
    with_memory = replace(BIG_CORE, memory_bytes=16 << 30, sources={**BIG_CORE.sources, "memory_bytes": "queried"})
    small.check_memory(with_memory)
    with pytest.raises(UsageError, match=r"its weight takes 3,725.3 GiB .* has 16.0 GiB"):
        huge.check_memory(with_memory)


def test_a_full_disk_while_the_pack_is_built_says_where_the_records_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(ops=(OP,), out=tmp_path / "pack")
    for error in (OSError(28, "No space left on device"), RuntimeError("cc failed with 1: No space left on device")):
        pattern = r"No space left.*safe in sqlite:///.*pack\.records\.db.*--resume"
        with pytest.raises(EnvironmentMissing, match=pattern), publisher._building(request):
            raise error


def test_without_proc_the_reason_is_said(tmp_path: Path) -> None:
    host = Host(system="Linux", machine="x86_64", cpus=frozenset({0}), proc=tmp_path)
    with pytest.raises(EnvironmentMissing, match="cannot read .*cpuinfo.*mount /proc"):
        cpu_info(host)


def test_peers_are_known_names() -> None:
    assert peers_of("none") == () and peers_of("numpy, torch") == ("numpy", "torch")
    with pytest.raises(UsageError, match="no peer tensorflow"):
        peers_of("numpy,tensorflow")


def test_a_destination_is_tried_and_nothing_is_left(tmp_path: Path) -> None:
    check_destination(tmp_path / "pack")
    assert not list(tmp_path.iterdir())
    shutil.rmtree(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        check_destination(tmp_path / "pack")


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_every_op_of_a_workload_is_served_and_has_shapes(name: str) -> None:
    arrivals = arrivals_of("dynamic").with_own(workload_shapes(name))
    ops = workload(name)
    assert len({op.name for op in ops}) == len(ops) == len(workload_shapes(name))
    for op in ops:
        assert op.name in workload_shapes(name) and families_for(op, "cpu")
        least = min((shape for shape, _ in arrivals.traffic(op)), key=op.flops)
        assert op.flops(least) > 0 and min(op.extents(least).values()) >= 1


def test_a_workload_in_another_type_has_the_same_ops_and_shapes() -> None:
    halves, plain = workload_shapes("bert_base:dtype=bf16"), workload_shapes("bert_base")
    assert list(halves.values()) == list(plain.values()) and "dense_n3072_k768_bf16_bias_gelu" in halves
    assert workload_shapes("resnet50:dtype=fp32") == workload_shapes("resnet50")
    assert {op.dtype for op in workload("mobilenet_v3:dtype=fp16")} == {"fp16"}
    for wrong in ("bert_base:dtype=int4", "bert_base:bf16", "bert_base:type=bf16", "bert_base:"):
        with pytest.raises(UsageError, match="write bert_base, or bert_base:dtype=X with X of fp32, fp16, bf16, int8"):
            workload(wrong)


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_bytes_of_a_workload_are_scaled_and_served_on_cpus_and_devices(name: str) -> None:
    shapes, plain = workload_shapes(f"{name}:dtype=int8"), workload(name)
    for op, floats in zip(workload(f"{name}:dtype=int8"), plain, strict=True):
        assert op.name in shapes and shapes[op.name] == workload_shapes(name)[floats.name]
        assert op.sums == "int32" and op.dtype_of(op.meaning.output) == "fp32"
        assert op.epilogue == (("scale",) if op.kind != "batch_matmul" else ()) + floats.epilogue
        assert all(backend.families(op) for backend in BACKENDS)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("batch_matmul:epilogue=bias+relu", "come with the call"),
        ("dense:k=3", "leaves m, n to run time; plans of dense are by m alone"),
        ("dense:m=2,n=3,k=3", "leaves nothing to run time"),
    ],
)
def test_what_cpus_do_not_compute_of_a_product_is_said(spec: str, words: str) -> None:
    (cpu,) = (backend for backend in BACKENDS if backend.name == "cpu")
    with pytest.raises(NothingLegal, match=words):
        cpu.families(Op.parse(spec))


def test_cpus_write_results_of_fp32_ops_in_other_types_by_families_of_their_own() -> None:
    (cpu,) = (backend for backend in BACKENDS if backend.name == "cpu")
    for spec in ("dense:n=4,k=4", "batch_matmul:k=4", "conv2d:c=4,f=4,r=3,s=3", "conv_transpose1d:c=4,f=4,s=2,stride=2",
                 "conv2d:c=4,f=4,r=3,s=3,groups=4"):  # fmt: skip
        plain = {family.name for family in cpu.families(Op.parse(f"{spec},out=fp32"))}
        assert plain == {family.name for family in cpu.families(Op.parse(spec))}
        for out in ("bf16", "fp16", "int8"):
            converted = {family.name for family in cpu.families(Op.parse(f"{spec},out={out}"))}
            assert converted and not converted & plain and all(name.endswith("_converted_fp32") for name in converted)


def test_shapes_that_fit_an_op_replace_a_workloads() -> None:
    arrivals = arrivals_of("m=3").with_own(workload_shapes("bert_base"))
    dense, scores = (next(op for op in workload("bert_base") if op.kind == kind) for kind in ("dense", "batch_matmul"))
    assert [shape["m"] for shape, _ in arrivals.traffic(dense)] == [3]
    assert all(shape["n"] == shape["m"] and shape["b"] % 12 == 0 for shape, _ in arrivals.traffic(scores))
    with pytest.raises(UsageError, match="needs exactly b, m, n"):
        arrivals_of("m=3").traffic(scores)


def test_models_have_the_layers_that_they_are_known_for() -> None:
    assert {"batch_matmul_k64_nt", "batch_matmul_n64", "dense_n3072_k768_bias_gelu"} <= set(workload_shapes("bert_base"))
    resnet, mobile = workload_shapes("resnet50"), workload_shapes("mobilenet_v3")
    assert resnet["conv2d_c512_f512_r3_s3_pad1_bias_relu"] == "b=1..8;h=5..10;w=h"
    assert mobile["conv2d_c960_f960_r5_s5_pad2_groups960_bias_hardswish"] == "b=1..8;h=5..10;w=h"
    assert len(resnet) == 25 and "dense_n168_k672_bias_relu" in mobile


def test_a_reference_that_fits_no_memory_is_told_in_words(monkeypatch: Any, capsys: Any) -> None:
    def huge(*_: Any) -> None:
        np.empty(1 << 60, np.float32)

    monkeypatch.setattr(model_check, "graph_of", lambda *_, **__: None)
    monkeypatch.setattr(model_check, "read_manifest", lambda _: SimpleNamespace(on_device=False))
    monkeypatch.setattr(model_check, "spans_of", lambda *_: {})
    monkeypatch.setattr(model_check, "check_model", huge)
    assert model_check.main("pack", "m.onnx", "b=1..4") == PackInvalid.exit_code
    assert "more memory than there is (Unable to allocate 4.00 EiB" in capsys.readouterr().err
