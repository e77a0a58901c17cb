"""Triton Inference Server's backend in a host that loads it as the server does: bits of pack.model, refusals, no leaks."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from tests.integrations.onnxruntime_packs import NAMES, feeds_of, files_and_pack
from tests.run_folder import toolchain
from tests.runtime.native_builds import ASAN, CLIB, LIBRARY, NATIVE, run

pytest.importorskip("onnx")

PROJECT = Path(__file__).parents[2] / "integrations" / "triton"
HOST = Path(__file__).parent / "native" / "triton_host.c"
TYPES = {"bool": 1, "uint8": 2, "uint16": 3, "uint32": 4, "uint64": 5, "int8": 6, "int16": 7, "int32": 8, "int64": 9,
         "float16": 10, "float32": 11, "float64": 12}  # fmt: skip
CONFIG = {"name": "served", "parameters": {"threads": {"string_value": "2"}, "model": {"string_value": "mlp"}}}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pack, in a model's folder of a repository."""
    folder = tmp_path_factory.mktemp("triton")
    _, pack = files_and_pack(folder)
    (folder / "repository" / "3").mkdir(parents=True)
    pack.rename(folder / "repository" / "3" / "pack")
    return folder / "repository"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Host and backend under AddressSanitizer and UndefinedBehaviorSanitizer."""
    folder = tmp_path_factory.mktemp("asan")
    includes: list[str | Path] = ["-I", CLIB, "-I", CLIB / "include", "-I", NATIVE, "-I", toolchain().include]
    words: list[str | Path] = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", *ASAN, "-O1"]
    backend, host = folder / "libtriton_haotuner.so", folder / "host"
    sources = sorted((PROJECT / "native").glob("*.c"))
    run(
        [*words, "-fPIC", "-shared", "-fvisibility=hidden", *includes, *sources, *LIBRARY, "-ldl", "-pthread", "-o", backend]
    )
    run([*words, "-rdynamic", HOST, "-ldl", "-o", host])
    return host, backend


class Request:
    """A request, as the host reads it."""

    def __init__(self, feeds: Mapping[str, Any], outputs: Sequence[str], buffers: int = 1, memory: int = 0) -> None:
        self.raw = b"request\n"
        for name, value in feeds.items():
            array = np.ascontiguousarray(value)
            self.add(name, TYPES[array.dtype.name], array.shape, array.tobytes(), buffers, memory)
        self.raw += b"".join(f"output {name}\n".encode() for name in outputs)

    def add(self, name: str, code: int, shape: Sequence[int], raw: bytes, buffers: int = 1, memory: int = 0) -> Request:
        extents = "".join(f" {extent}" for extent in shape)
        self.raw += f"input {name} {code} {memory} {buffers} {len(raw)} {len(shape)}{extents}\n".encode() + raw + b"\n"
        return self


def answers(
    built: tuple[Path, Path],
    repository: Path,
    folder: Path,
    requests: Sequence[Request] = (),
    config: Mapping[str, Any] | str = CONFIG,
    name: str = "served",
    version: int = 3,
    major: int = 1,
) -> tuple[list[str], bytes]:
    """Lines of the host, and the bytes of all outputs."""
    host, backend = built
    (folder / "requests").write_bytes(b"".join(single.raw for single in requests))
    words = [
        host,
        backend,
        repository,
        name,
        str(version),
        str(major),
        config if isinstance(config, str) else json.dumps(config),
    ]
    command = [str(word) for word in (*words, folder / "requests", folder / "out")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120,
        env={"PATH": "/usr/bin:/bin", "ASAN_OPTIONS": "detect_leaks=1"},
    )  # fmt: skip
    assert done.returncode in (0, 1) and not done.stderr, (done.returncode, done.stdout, done.stderr[-3000:])
    assert re.search(r"left=0( messages=0)?$", done.stdout.rstrip()), done.stdout
    return done.stdout.splitlines(), (folder / "out").read_bytes() if done.returncode == 0 else b""


@pytest.mark.parametrize("name", [*NAMES, "mlp"])
@pytest.mark.parametrize("buffers", [1, 3])
def test_the_bits_of_the_packs_model(built, packed, tmp_path, name, buffers):
    config = {"parameters": {"model": {"string_value": name}, "threads": {"string_value": "2"}}}
    with haotuner.load(packed / "3" / "pack", threads=2) as opened:
        model = opened.model(name)
        outputs = [end.name for end in model.outputs]
        requests = [Request(feeds, outputs, buffers) for feeds in feeds_of(name)]
        lines, raw = answers(built, packed, tmp_path, requests, config)
        expected = [model.run(feeds) for feeds in feeds_of(name)]
    number = -1
    for line in lines:
        number += line.startswith("request ")
        if line.startswith("output "):  # in the order in which the model knew their shapes
            _, end, code, *shape = line.split()
            answer = expected[number].pop(end)
            assert (code, shape) == (str(TYPES[answer.dtype.name]), [str(extent) for extent in answer.shape])
            assert raw.startswith(answer.tobytes())
            raw = raw[answer.nbytes :]
    assert raw == b"" and not any(expected)
    count = len(requests)
    assert [line for line in lines if line.startswith("request")] == [
        f"request {i} sent=1 released=1 ok" for i in range(count)
    ]
    assert lines[-1] == f"good={count} bad=0 batched={count} left=0 messages=0"


def test_outputs_that_nobody_requests_are_not_sent(built, packed, tmp_path):
    feeds = feeds_of("encoder")[1]
    config = {"parameters": {"model": {"string_value": "encoder"}}}
    lines, raw = answers(built, packed, tmp_path, [Request(feeds, ["best"])], config)
    with haotuner.load(packed / "3" / "pack") as opened:
        assert raw == opened.model("encoder").run(feeds)["best"].tobytes()
    assert [line.split()[1] for line in lines if line.startswith("output ")] == ["best"]


def test_wrong_requests_are_answered_with_errors_and_the_others_are_served(built, packed, tmp_path):
    x = np.ones((2, 32), np.float32)
    good = Request({"x": x}, ["y"])
    wrong = {
        "the request has no input x": Request({"z": x}, ["y"]),
        "x has": Request({"x": x[0]}, ["y"]),
        "mlp: input x": Request({"x": np.ones((2, 31), np.float32)}, ["y"]),
        "input x": Request({"x": np.ones((2, 32))}, ["y"]),
        "input x has type 13 of the server's": Request({}, ["y"]).add("x", 13, (2, 32), b"text"),
        "has 8 bytes, which are not those of its shape": Request({}, ["y"]).add("x", 11, (2, 32), b"12345678"),
        "are not those of its shape": Request({}, ["y"]).add("x", 11, (-1, 32), x.tobytes()),
        "lies on a GPU": Request({"x": x}, ["y"], memory=2),
        "the host has no such memory": Request({"x": np.ones((1_100_000, 32), np.float32)}, ["y"]),
    }
    requests = [single for bad in wrong.values() for single in (bad, good)]
    lines, raw = answers(built, packed, tmp_path, requests)
    reports = [line for line in lines if line.startswith("request")]
    for words, line in zip(wrong, reports[::2], strict=True):
        assert " sent=1 released=1 " in line and words in line, (words, line)
    assert all(line.endswith(" sent=1 released=1 ok") for line in reports[1::2])
    count = len(wrong)
    assert lines[-1] == f"good={count} bad={count} batched={count} left=0 messages=0"
    with haotuner.load(packed / "3" / "pack") as opened:
        assert raw == count * opened.model("mlp").run({"x": x})["y"].tobytes()


PARAMETERS: dict[str, Any] = {
    "holds no model other but": {"parameters": {"model": {"string_value": "other"}}},
    "holds no model served but": {},
    "parameter threads of served is 0;": {"parameters": {"threads": {"string_value": "0"}}},
    "parameter threads of served is many;": {"parameters": {"threads": {"string_value": "many"}}},
    "parameter model of served is too long": {"parameters": {"model": {"string_value": "x" * 300}}},
}


@pytest.mark.parametrize("words", PARAMETERS)
def test_wrong_configurations(built, packed, tmp_path, words):
    lines, _ = answers(built, packed, tmp_path, config=PARAMETERS[words])
    assert lines[0].startswith("model: error ") and words in lines[0]


@pytest.mark.parametrize(
    "config", ["", "[1, 2]", '{"parameters": {"model"', '{"a": {"b": [1, {"c": "}"}]}, "parameters": 3}', "{" * 200]
)
def test_configurations_that_are_cut_or_of_another_form(built, packed, tmp_path, config):
    lines, _ = answers(
        built, packed, tmp_path, config=config, name="mlp"
    )  # no parameter is set: the model of the server's name
    assert lines == ["good=0 bad=0 batched=0 left=0 messages=0"]


def test_packs_that_cannot_be_served(built, packed, tmp_path):
    assert "no such pack" in answers(built, packed, tmp_path, version=4)[0][0]
    copy = tmp_path / "repository"
    shutil.copytree(packed, copy)
    library = next((copy / "3" / "pack" / "lib").iterdir())
    library.write_bytes(library.read_bytes()[:-1] + b"x")
    assert "sha256" in answers(built, copy, tmp_path)[0][0]


def test_a_server_of_another_api_is_refused(built, packed, tmp_path):
    lines, _ = answers(built, packed, tmp_path, major=2)
    assert "backend: error 5 haotuner: the server's backend API is 2.19" in lines[0]


@pytest.mark.long
def test_cmake_builds_the_backend_with_its_functions_alone(packed, built, tmp_path):
    if shutil.which("cmake") is None:
        pytest.skip("cmake: not installed")
    folder = run([sys.executable, "-m", "haotuner", "--cmakedir"]).stdout.rstrip("\n")
    run(
        [
            "cmake",
            "-S",
            PROJECT,
            "-B",
            tmp_path / "build",
            f"-Dhaotuner_DIR={folder}",
            f"-DDLPACK_INCLUDE={toolchain().include}",
        ]
    )
    run(["cmake", "--build", tmp_path / "build"])
    run(["cmake", "--install", tmp_path / "build", "--prefix", tmp_path / "server"])
    backend = tmp_path / "server/backends/haotuner/libtriton_haotuner.so"
    names = {line.split()[-1] for line in run(["nm", "-D", "--defined-only", backend]).stdout.splitlines()}
    steps = (
        "Initialize",
        "ModelInitialize",
        "ModelFinalize",
        "ModelInstanceInitialize",
        "ModelInstanceFinalize",
        "ModelInstanceExecute",
    )
    assert names == {f"TRITONBACKEND_{step}" for step in steps}
    host = tmp_path / "host"
    run(["cc", "-std=c11", "-O1", "-rdynamic", HOST, "-ldl", "-o", host])
    lines, raw = answers((host, backend), packed, tmp_path, [Request(feeds_of("mlp")[2], ["y"])])
    assert lines[-1].startswith("good=1 bad=0") and len(raw) == 13 * 16 * 4
