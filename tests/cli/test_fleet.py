"""`haotuner tune --on` and `haotuner fleet`: requests that no fleet can carry out, in words and with the right code."""

from __future__ import annotations

import pytest

from haotuner.cli.app import run


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["tune", "--device", "cpu:avx2,cpu:sse"], "several devices are tuned by a fleet; add --on ray"),
        (["tune", "--device", "cpu:avx2,cpu:avx2", "--on", "ray"], "name each device once"),
        (["tune", "--on", "somewhere"], "write ray, or ray://HOST:PORT"),
        (["tune", "--on", "ray", "--zero-measure"], "--on and --zero-measure exclude each other"),
        (["tune", "net.onnx", "--on", "ray", "--device", "cpu:avx2,cpu:sse"], "tuned for one device at a time; name one"),
    ],
)
def test_what_no_fleet_does_is_a_usage_error(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (["fleet", "status", "--on", "ray://127.0.0.1:1"], 4, "no head can be reached there"),
        (["fleet", "status", "--on", "ray://127.0.0.1:99999"], 2, "write ray, or ray://HOST:PORT"),
        (["fleet", "status", "--on", "127.0.0.1:6379"], 2, "write ray, or ray://HOST:PORT"),
        (["fleet", "join", "--address", "nowhere"], 2, "write HOST:PORT"),
        (["fleet", "join", "--port", "0"], 2, "give one of 1..65535"),
        (["fleet", "join", "--cores", "x"], 2, "write numbers"),
        (["tune", "--op", "dense:n=8,k=8", "--on", "ray://127.0.0.1:1"], 4, "no head can be reached there"),
    ],
)
def test_a_head_that_is_not_there_is_said(
    arguments: list[str],
    code: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("ray")
    pytest.importorskip("grpc")
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == code
    assert words in capsys.readouterr().err
