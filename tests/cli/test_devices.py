"""`haotuner devices`: the JSON contract, and what a person sees."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from haotuner.cli.devices import columns, devices
from haotuner.host.cache_folder import cache_folder
from haotuner.spec.device import Device


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    app = typer.Typer()
    app.command()(devices)

    def call(*arguments: str) -> str:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        return result.stdout

    return call


def test_json_is_one_document_with_the_agreed_keys(run):
    listed = json.loads(run("--json"))["devices"]
    for device in listed:
        assert device.keys() >= {"id", "kind", "compute_units", "memory_bytes", "source"}
        assert device["source"] in ("queried", "datasheet")
        assert device["kind"] in ("cpu", "cuda", "hip")
        assert set(device["sources"]) == device.keys() & set(Device.__dataclass_fields__) - {
            *("id", "kind", "name", "arch", "mig", "sources"),
            *(() if device["memory_bytes"] is not None else ("memory_bytes",)),
        }
    assert {"h200", "a100-40gb", "rtx-3090", "titan-rtx"} <= {device["id"] for device in listed}
    assert listed[0]["ask"] == "cpu"


def test_looking_does_not_measure_and_leaves_no_files(run, tmp_path):
    assert json.loads(run("--json"))["devices"][0].get("peak_gflops") is None
    assert list(tmp_path.iterdir()) == []


def test_the_table_has_one_aligned_line_a_device(run):
    header, *rows = run().splitlines()
    assert header.split() == ["--device", "id", "kind", "arch", "units", "memory", "GB/s", "fp32", "TFLOP/s", "source"]
    at = header.index("kind")
    assert all(row[at - 1] == " " and row[at] in "ch" for row in rows)
    assert any(row.startswith("h200 ") and " 132 " in row and "141 GiB" in row and "4800" in row for row in rows)


def test_quiet_gives_only_names_that_work(run):
    names = run("-q").split("\n")
    assert names[0] == "cpu"
    assert "rtx-3060-laptop" in names


def test_verbose_gives_every_number_with_its_source(run):
    text = run("-v")
    assert "h200: NVIDIA H200 (h200, cuda, sm_90a)" in text
    assert "shared_per_block_bytes  232448" in text
    assert " datasheet" in text and " queried" in text


def test_columns_are_as_wide_as_their_widest_cell():
    assert columns([("a", "bb"), ("ccc", "d")]) == "a    bb\nccc  d"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, Path("/c/haotuner")),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, Path("/h/.cache/haotuner")),
        ({"XDG_CACHE_HOME": "", "HOME": "/h"}, Path("/h/.cache/haotuner")),
        ({"HOME": "/h"}, Path("/h/.cache/haotuner")),
        ({"HOME": ""}, None),
        ({}, None),
    ],
)
def test_the_cache_folder_follows_the_xdg_rules(environment, expected):
    assert cache_folder(environment) == expected
