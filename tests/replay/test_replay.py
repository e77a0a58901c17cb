"""A redesign changes nothing: kernels, plans, pack texts, predictions and selections are as the goldens have them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.replay import answers, cases, golden
from tests.replay.__main__ import compared, made
from tests.replay.answers import Asked
from tests.replay.groups import groups

ROOT = Path(__file__).parents[2]
QUICK = groups(quick=True)
LONG = (("plans", "packs"), ("calls",))  # one tuning of a case gives its plan and its pack
OTHERS = tuple(name for name in groups(quick=False) if not any(name in names for names in LONG))
FIELDS: dict[str, Any] = {
    "kept": [f"kernel {at}" for at in range(100)],
    "us": [1.0 / (at + 1) for at in range(100)],
    "words": "as before",
}


@pytest.mark.parametrize("group", [name for name, every in QUICK.items() if every])
def test_nothing_has_changed(group: str) -> None:
    lines, _ = compared(group, made(QUICK[group]), whole=False)
    assert not lines, "\n".join(["differs from tests/golden/replay; look with python -m tests.replay", *lines])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("names", [*LONG, OTHERS], ids=["plans and packs", "calls", "others"])
def test_nothing_has_changed_in_all_cases(names: Sequence[str]) -> None:
    command = [sys.executable, "-m", "tests.replay", *names]
    where = {**os.environ, "PYTHONHASHSEED": "7"}
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=where)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_only_its_subject_files_know_the_library() -> None:
    reaches = re.compile(r"^ *(from|import) haotuner", re.MULTILINE)
    files = Path(__file__).parent.glob("*.py")
    knowing = sorted(path.name for path in files if reaches.search(path.read_text(encoding="utf-8")))
    assert knowing == ["subject.py", "subject_calls.py", "subject_records.py"]


def test_goldens_stay_small() -> None:
    assert sum(path.stat().st_size for path in golden.FOLDER.glob("*.json")) < 340_000


def test_every_golden_is_of_a_case() -> None:
    whole = groups(quick=False)
    assert {path.stem for path in golden.FOLDER.glob("*.json")} == set(whole)
    for group, every in whole.items():
        assert set(golden.read(group)) == set(every), group


def test_cpu_kernels_go_through_every_kind() -> None:
    names = cases.cpu_kernels()
    assert len(set(names)) == len(names)
    for word in ("mr1_", "mr16_", "ku1_", "ku2_", "ku4_", "ku8_", "vl4_", "vl8_", "vl16_", "_nt"):
        assert any(word in name for name in names), word
    for ahead in (0, 2, 4, 6, 8, 16, 32, 64, 128):
        assert any(name.partition("_nt")[0].endswith(f"_pf{ahead}") for name in names), ahead


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kept": [*FIELDS["kept"][:70], "another", *FIELDS["kept"][71:]]}, "from item 65 to 96"),
        ({"kept": FIELDS["kept"][:-1]}, "100 items, now 99"),
        ({"kept": ["another", *FIELDS["kept"][1:]]}, "was 'kernel 0', now 'another'"),
        ({"us": [*FIELDS["us"][:40], 0.03, *FIELDS["us"][41:]]}, "from item 33 to 64"),
        ({"words": "otherwise"}, "was 'as before', now 'otherwise'"),
        ({"more": "a field"}, "is new"),
    ],
)
def test_a_change_is_told_where_it_begins(monkeypatch, tmp_path, change, message) -> None:
    monkeypatch.setattr(golden, "FOLDER", tmp_path)
    golden.write("example", {"case": FIELDS})
    assert compared("example", {"case": FIELDS}, whole=True) == ([], "same (1 cases)")
    lines, summary = compared("example", {"case": {**FIELDS, **change}}, whole=True)
    assert len(lines) == 1 and message in lines[0], lines
    assert summary.startswith("differs in 1 of 1")


def test_the_last_bit_of_a_number_is_forgiven_and_said(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(golden, "FOLDER", tmp_path)
    golden.write("example", {"case": {**FIELDS, "one": 2.0, "few": [3.0, 0.0]}})
    near = {**FIELDS, "us": [us * (1 + 3e-12) for us in FIELDS["us"]], "one": 2.0 * (1 + 3e-12), "few": [3.0, 1e-17]}
    lines, summary = compared("example", {"case": near}, whole=True)
    assert not lines and "2 lists of numbers agree to 8 digits" in summary


LINES = """{"date":"2026-11-24","device":{"id":"tiny"},"kernels":["f__mr4_nr8_pw8_ku1_pf0","f__mr8_nr8_pw8_ku1_pf0"]}
["dense_n64_k64",1,"cold","n",{"4":[[0,10.0,12.0]],"8":[[0,18.0],[1,14.0]],"16":[[1,26.0]]}]
"""
FOUR, EIGHT = "f__mr4_nr8_pw8_ku1_pf0", "f__mr8_nr8_pw8_ku1_pf0"


@pytest.mark.parametrize(
    ("kernel", "m", "repeat", "us"),
    [
        (FOUR, 4, 0, 10.0),  # recorded twice: the best
        (FOUR, 4, 1, 12.0),  # the second time
        (FOUR, 6, 0, 14.0),  # between 4 and 8 rows
        (FOUR, 16, 0, 36.0),  # behind the last, in proportion
        (EIGHT, 4, 0, 10.5),  # before the first
        ("f__mr7_nr8_pw8_ku1_pf0", 16, 0, 26.0),  # nobody knows it: as eight rows
        (f"{EIGHT}*2+{FOUR}*1", 20, 0, 26.0 + 18.0 / 8 * 4),
    ],
)
def test_times_are_recorded_or_made_from_records(monkeypatch, tmp_path, kernel, m, repeat, us) -> None:
    (tmp_path / "tiny.json").write_text(LINES, encoding="utf-8")
    monkeypatch.setattr(answers, "RECORDS", tmp_path)
    time_us = answers.Answers("tiny").us(Asked("dense_n64_k64", kernel, m, 1, "cold", "n", repeat))
    assert time_us is not None
    recorded = (kernel, m) == (FOUR, 4)
    assert time_us == us if recorded else us <= time_us <= us * (1 + answers.NOISE)


def test_some_kernels_fail_but_none_of_one_row() -> None:
    known = answers.Answers(cases.DEVICES[0])
    names = [f"cpu_dense_fp32__mr{mr}_nr8_pw8_ku{ku}_vl4_pf0" for mr in range(1, 17) for ku in (1, 2, 4, 8)]
    failed = [name for name in names if known.us(Asked("dense_n1024_k1024", name, 32, 1, "cold", "n", 0)) is None]
    assert 0 < len(failed) < 10 and not any("__mr1_" in name for name in failed)
