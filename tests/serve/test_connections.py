"""Connections and bodies that go wrong: the server answers in the protocol's form, and lives on."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.serve.nets import drawn

grpc = pytest.importorskip("grpc")

HEADER = "Inference-Header-Content-Length"


@pytest.fixture
def lives_on(server: Any) -> Iterator[Any]:
    """The server, which answers a request behind the test."""
    yield server
    assert posted(server, {"inputs": [numbers([[1.0, 2.0]])]})[0] == 200


def numbers(values: Any, **more: Any) -> dict[str, Any]:
    array = np.asarray(values)
    return {"name": "x", "datatype": "FP32", "shape": list(array.shape), "data": array.reshape(-1).tolist(), **more}


def posted(server: Any, body: Any, headers: dict[str, str] | None = None, path: str = "rows/infer") -> tuple[int, Any]:
    line = HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        line.request("POST", f"/v2/models/{path}", raw, headers or {})
        answer = line.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        line.close()


def head_of(body: dict[str, Any], raw: bytes) -> tuple[bytes, dict[str, str]]:
    text = json.dumps(body).encode()
    return text + raw, {HEADER: str(len(text))}


BINARY = {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
MALFORMED: list[tuple[Any, dict[str, str] | None, str]] = [
    (b"", None, "no JSON"),
    (b"{", None, "no JSON"),
    (b"\xff\xfe", None, "no JSON"),
    (b"[" * 100_000, None, "no JSON"),
    ([], None, "must be a JSON object"),
    ({}, None, "inputs must be a list"),
    ({"inputs": [1]}, None, "an input must be a JSON object"),
    ({"inputs": [{"name": 3}]}, None, "must have a name"),
    ({"inputs": [numbers([[1.0]]), numbers([[1.0]])]}, None, "is there twice"),
    ({"inputs": [numbers([[1.0]], shape=[1, 2])]}, None, "got 1 elements"),
    ({"inputs": [numbers([[1.0]], shape=[-1, 1])]}, None, "whole numbers from 0 on"),
    ({"inputs": [numbers([[1.0]], shape="x")]}, None, "whole numbers from 0 on"),
    ({"inputs": [numbers([[1.0]], shape=[1 << 39, 1 << 39])]}, None, "more elements than any request"),
    ({"inputs": [numbers([[1.0]], shape=[1] * 65)]}, None, "65 axes, at most 64"),
    ({"inputs": [numbers([[1.0]], data=["x"])]}, None, "data of float32"),
    ({"inputs": [numbers([[1.0]], data=[[1], [2, 3]])]}, None, "data of float32"),
    ({"inputs": [numbers([[1.0]], datatype="BYTES")]}, None, "must be of FP32"),
    ({"inputs": [numbers([[1.0]])], "outputs": [{"name": 1}]}, None, "an output must have a name"),
    ({"inputs": [numbers([[1.0]])], "id": 7}, None, "id must be a text"),
    (*head_of({"inputs": [BINARY]}, b"1234"), "more than the 4 bytes left"),
    (*head_of({"inputs": [BINARY]}, b"12345678x"), "1 bytes follow"),
    (*head_of({"inputs": [{**BINARY, "shape": [1, 3]}]}, b"12345678"), "has 12 bytes, got 8"),
    (*head_of({"inputs": [{**BINARY, "parameters": {"binary_data_size": -1}}]}, b""), "binary_data_size"),
    (*head_of({"inputs": [{**BINARY, "shape": [1] * 64 + [2]}]}, b"12345678"), "65 axes, at most 64"),
    (b"{}", {HEADER: "x"}, "no length within the body"),
    (b"{}", {HEADER: "99"}, "no length within the body"),
    (b"{}", {HEADER: "9" * 5000}, "no length within the body"),
    (b"{}", {"Content-Encoding": "gzip"}, "must not be compressed"),
]


@pytest.mark.parametrize(("body", "headers", "words"), MALFORMED)
def test_malformed_bodies_are_refused_in_words(lives_on: Any, body: Any, headers: Any, words: str) -> None:
    status, answer = posted(lives_on, body, headers)
    assert status == 400 and words in answer["error"], answer


def test_an_unknown_path_and_a_wrong_method_are_refused(lives_on: Any) -> None:
    assert posted(lives_on, {}, path="rows/guess")[0] == 404
    line = HTTPConnection("127.0.0.1", lives_on.port, timeout=20)
    line.request("GET", "/v2/models/rows/infer")
    assert "is no call of the open inference protocol" in json.loads(line.getresponse().read())["error"]
    line.close()


def connected(server: Any) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def rest_of(line: socket.socket) -> bytes:
    parts = []
    try:
        while part := line.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def test_a_body_of_two_gigabytes_is_refused_before_it_comes(lives_on: Any) -> None:
    with connected(lives_on) as line:
        line.sendall(b"POST /v2/models/rows/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 2147483648\r\n\r\n{")
        answer = rest_of(line)
    assert b" 413 " in answer and b"at most 1048576 are taken" in answer


def test_chunks_beyond_the_limit_are_refused(lives_on: Any) -> None:
    with connected(lives_on) as line:
        line.sendall(b"POST /v2/models/rows/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        try:
            for _ in range(40):
                line.sendall(chunk)
        except ConnectionError:
            pass  # it did not read on
        answer = rest_of(line)
    assert answer == b"" or b" 413 " in answer


def test_a_client_that_sends_slowly_is_given_up(lives_on: Any) -> None:
    begin = time.monotonic()
    with connected(lives_on) as line:
        line.sendall(b"POST /v2/models/rows/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        answer = rest_of(line)
    assert b" 408 " in answer and b"not sent within 1.5 s" in answer
    with connected(lives_on) as line:
        line.sendall(b"POST /v2/mod")  # a head that never ends
        assert rest_of(line) == b""
    with connected(lives_on) as line:
        assert rest_of(line) == b"", "nothing is sent at all"
    assert time.monotonic() - begin < 15


def test_connections_that_are_closed_halfway_harm_nobody(lives_on: Any) -> None:
    for sent in (b"", b"POST", b"POST /v2/models/rows/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"):
        line = connected(lives_on)
        line.sendall(sent)
        line.shutdown(socket.SHUT_WR)
        rest_of(line)
        line.close()
    for _ in range(20):
        line = connected(lives_on)
        body = json.dumps({"inputs": [numbers(drawn(0, 8, 64))]}).encode()
        line.sendall(b"POST /v2/models/rows/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        line.close()  # before the answer


def test_what_is_no_http_is_refused(lives_on: Any) -> None:
    with connected(lives_on) as line:
        line.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 5 + b"\r\n\r\n")
        head, _, body = rest_of(line).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and b"content-type: application/json" in head
    assert json.loads(body) == {"error": "Invalid HTTP request received. Send HTTP/1.1"}
    with connected(lives_on) as line:
        line.sendall(b"POST /v2/models/rows/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nno length\r\n")
        head, _, body = rest_of(line).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and "error" in json.loads(body)


def test_malformed_protobuf_is_an_error_of_its_call(lives_on: Any) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{lives_on.grpc_port}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for raw in (b"\xff\xff\xff", b"\x0a\xff\xff\xff\xff\x7f", bytes(range(256))):
            with pytest.raises(grpc.RpcError):
                call(raw, timeout=20)
        with pytest.raises(grpc.RpcError) as error:
            call(b"", timeout=20)
        assert error.value.code() == grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.RpcError) as error:
            channel.unary_unary("/inference.GRPCInferenceService/Guess")(b"", timeout=20)
        assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_contents_beside_raw_contents_are_refused_and_an_output_comes_once(lives_on: Any) -> None:
    from haotuner.serve.grpc_messages import MESSAGES

    with grpc.insecure_channel(f"127.0.0.1:{lives_on.grpc_port}") as channel:
        types = MESSAGES["ModelInferRequest"].SerializeToString, MESSAGES["ModelInferResponse"].FromString
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", *types)
        name = lives_on.repository.batcher("rows").model.outputs[0].name
        request = MESSAGES["ModelInferRequest"](model_name="rows", raw_input_contents=[drawn(0, 1, 2).tobytes()])
        request.inputs.add(name="x", datatype="FP32", shape=(1, 2))
        for _ in range(2):
            request.outputs.add(name=name)
        assert [output.name for output in call(request, timeout=20).outputs] == [name]
        request.inputs[0].contents.fp32_contents.extend((1.0, 2.0))
        with pytest.raises(grpc.RpcError) as error:
            call(request, timeout=20)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT and "send one of both" in error.value.details()


def test_connections_beyond_the_bound_are_refused_in_the_protocol_s_form(pack_path: Path) -> None:
    pytest.importorskip("uvicorn")
    from haotuner.serve.repository import Settings
    from haotuner.serve.server import Address, Limits, Server

    with Server([pack_path], Settings(threads=1), Address(port=0, grpc_port=None), Limits(connections=1)) as server:
        with closing(HTTPConnection("127.0.0.1", server.port, timeout=20)) as first:
            for _ in range(2):
                first.request("GET", "/v2/health/live")
                assert first.getresponse().read()
                status, answer = posted(server, {"inputs": [numbers([[1.0]])]})
                assert status == 503 and "1 connections are open" in answer["error"]
        until = time.monotonic() + 20
        while posted(server, {"inputs": [numbers([[1.0]])]})[0] != 200:
            assert time.monotonic() < until


def test_health_does_not_wait_behind_answers() -> None:
    for package in ("google.protobuf", "prometheus_client", "starlette"):
        pytest.importorskip(package)
    from haotuner.serve.grpc_messages import MESSAGES, PACKAGE, SERVICE
    from haotuner.serve.grpc_service import grpc_server
    from haotuner.serve.http_app import State
    from haotuner.serve.observing import Observing

    future: Future[dict[str, Any]] = Future()
    model = SimpleNamespace(name="held", inputs=(), outputs=())
    batcher = SimpleNamespace(model=model, answer_now=lambda _: None, submit=lambda _: future)
    repository: Any = SimpleNamespace(batcher=lambda *_: batcher, version=lambda _: "1")
    server = grpc_server(repository, Observing(), State(), body_bytes=1 << 20, waiting=128)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:

            def call(name: str) -> Any:
                types = MESSAGES[f"{name}Request"].SerializeToString, MESSAGES[f"{name}Response"].FromString
                return channel.unary_unary(f"/{PACKAGE}.{SERVICE}/{name}", *types)

            answers = [call("ModelInfer").future(MESSAGES["ModelInferRequest"](model_name="held")) for _ in range(100)]
            assert call("ServerLive")(MESSAGES["ServerLiveRequest"](), timeout=20).live
            future.set_result({})
            assert all(answer.result(20).model_name == "held" for answer in answers)
    finally:
        future.set_result({}) if not future.done() else None
        server.stop(None)


def test_expected_times_are_told(lives_on: Any) -> None:
    line = HTTPConnection("127.0.0.1", lives_on.port, timeout=20)
    line.request("GET", "/v2/models/rows/expected?batch=8&seq=64")
    answer = json.loads(line.getresponse().read())
    assert answer == {"low_us": pytest.approx(910.8), "expected_us": pytest.approx(1012), "high_us": pytest.approx(1113.2)}
    for query, words in (
        ("batch=x&seq=1", "whole numbers"),
        ("batch=1", "has the dimensions"),
        ("batch=-1&seq=1", "no size"),
    ):
        line.request("GET", f"/v2/models/rows/expected?{query}")
        refused = line.getresponse()
        assert refused.status == 400 and words in json.loads(refused.read())["error"]
    line.close()
