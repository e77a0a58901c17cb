"""``python -m tests.bench.transfer_study solvers``, on a folder of small find databases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from haotuner.cli.app import run
from haotuner.records.clblast import PARAMETERS
from tests.bench.transfer_study.__main__ import main
from tests.transfer.solver_examples import table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, arch, units in (("gfx803_36", "gfx803", 36), ("gfx906_60", "gfx906", 60), ("gfx908_120", "gfx908", 120)):
        timings = table(arch, units, shapes=30)
        lines: dict[str, list[str]] = {}
        for problem, solver, ms in zip(timings.problem.tolist(), timings.solver.tolist(), timings.ms.tolist(), strict=True):
            lines.setdefault(timings.problems[problem], []).append(f"{timings.solvers[solver]}:{ms},0,x")
        text = "".join(f"{key}={';'.join(entries)}\n" for key, entries in lines.items())
        (tmp_path / f"{name}.HIP.fdb.txt").write_text(text, encoding="utf-8")
    return tmp_path


def test_it_prints_tables_and_what_was_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "gfx906_60.again.fdb.txt").write_text((folder / "gfx906_60.HIP.fdb.txt").read_text(), encoding="utf-8")
    (folder / "elsewhere_1.fdb.txt").write_text("nothing", encoding="utf-8")
    assert main(["solvers", "--data", str(folder), "--target", "gfx803-36", "--no-shapes"]) == 0
    printed = capsys.readouterr()
    assert "| **gfx803-36** (30 problems) | prior of solvers |" in printed.out and "copy of gfx906-60" in printed.out
    assert "another file of gfx906-60 was read" in printed.err and "names no known AMD architecture" in printed.err


def test_it_prints_one_json_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solvers", "--data", str(folder), "--problems", "10", "--json", "-q"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert set(document["devices"]["targets"]) == {"gfx803-36", "gfx906-60", "gfx908-120"}
    assert set(document["shapes"]["devices"]) == set(document["devices"]["targets"])
    assert not printed.err


def test_a_folder_without_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solvers", "--data", str(tmp_path)]) == 2
    assert "holds no find database of MIOpen" in capsys.readouterr().err
    assert main(["solvers", "--data", str(tmp_path / "none")]) == 2


def test_a_report_of_a_folder_of_mixed_files_judges_what_is_there(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.md"
    assert main(["report", "--data", str(folder), "--out", str(out), "--problems", "10", "-q"]) == 0
    assert "| **gfx803-36** (10 problems) |" in capsys.readouterr().out
    assert "## Choice of a solver" in out.read_text(encoding="utf-8")
    assert main(["report", "--data", str(folder), "--problems", "10", "-q", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"solvers"}


def test_an_import_stores_times_of_solvers_and_says_of_winners_who_uses_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (folder / "gfx906_60.HIP.fdb.txt").read_text().replace(":", ":-", 1)
    (folder / "gfx906_60.HIP.fdb.txt").write_text(text, encoding="utf-8")
    command = ["records", "import", "--data", str(folder), "--db", f"sqlite:///{folder / 'r.db'}"]
    (folder / "shapes.json").write_text('{"shapes": [[1, 2]]}', encoding="utf-8")
    assert run(command) == 0
    printed = capsys.readouterr()
    assert "shapes.json: no cache, no find database and no winners: passed over" in printed.err
    output = printed.out
    assert output.count(" timed, 0 failed, ") == 3 and "on gfx906-60: 90 timed" not in output
    assert "left out 1: times of zero or less" in output and "more ops on gfx906-60" in output
    assert (folder / "r.db").exists()
    winners = {"kernel": "Xgemm", "parameters": [], "rows": []}
    (folder / "xgemm.json").write_text(json.dumps(winners), encoding="utf-8")
    assert run(command) == 2, "a table that nobody can use is a file that did not come in"
    assert "xgemm.json: not one usable winner" in capsys.readouterr().err
    best = dict(zip(PARAMETERS, (0, 1, 32, 2, 8, 8, 64, 8, 8, 64, 1, 1, 0, 0, 4, 4), strict=True))
    row = {"device": "GeForce GTX 970", "vendor": "NVIDIA", "kind": "GPU", "architecture": "SM5.2", "best": best}
    (folder / "xgemm.json").write_text(json.dumps({**winners, "rows": [row]}), encoding="utf-8")
    assert run(command) == 0
    used = f"no records to store, `haotuner transfer fit --winners {folder / 'xgemm.json'}` reads the file"
    assert used in capsys.readouterr().out
    (folder / "xgemm.json").unlink()
    assert run([*command, "--json"]) == 0
    assert [file["new"] for file in json.loads(capsys.readouterr().out)["files"]] == [0] * 3
    assert run(["records", "import", "--db", command[-1]]) == 2 and "FILE... or --data FOLDER" in capsys.readouterr().err
    assert run([*command[:3], str(folder / "none"), *command[4:]]) == 2 and "is no folder" in capsys.readouterr().err
    cache = {
        "device_name": "NVIDIA RTX A4000", "kernel_name": "d", "problem_size": [25000, 2048, 1],
        "tune_params_keys": ["block_size_x", "block_size_y", "tile_size_x", "tile_size_y", "tile_stride_x", "tile_stride_y"],
        "cache": {"a": {"block_size_x": 8, "block_size_y": 64, "tile_size_x": 1, "tile_size_y": 1, "tile_stride_x": 0,
                        "tile_stride_y": 0, "time": 150.0}},
    }  # fmt: skip
    (folder / "dedispersion.json").write_text(json.dumps(cache), encoding="utf-8")
    assert run(command) == 0
    assert "1 rows of dedispersion_s25000_d2048_c1536 on a4000" in capsys.readouterr().out
