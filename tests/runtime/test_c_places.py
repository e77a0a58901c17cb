"""Places that can be left out of C code, and the list of those whose absence cannot show."""

from __future__ import annotations

import subprocess

import pytest

from tests.run_folder import toolchain
from tests.runtime.c_places import masked, places
from tests.runtime.cuda_deletions import every, files, justified
from tests.runtime.cuda_seen import SEEN, Journal, digest
from tests.runtime.native_builds import CLIB, NATIVE

CODE = r"""
static int first(int a, int b) {
  if (a < 0 || (b < 0 && a > 1)) return refuse("if (no) free(it);");
  for (int i = 0; i < a && b; ++i) use(table[i]);
  TRY(wait_for(a, b), "waiting");
  mark->mark = 0; /* if (comment) */
  if (a) return waited();
  return a == 0 ? 0 : refuse("x");
}
"""
FOUND = {  # what is left out, and what stands there
    ("a < 0 || (b < 0 && a > 1)", "0"), ("a < 0", "0"), ("(b < 0 && a > 1)", "0"), ("b < 0", "1"), ("a > 1", "1"),
    ("i < a", "1"), ("b", "1"), ('TRY(wait_for(a, b), "waiting");', ";"),
    ('TRY(wait_for(a, b), "waiting");', "(void)(wait_for(a, b));"),
    ("mark->mark = 0;", ";"), ("a", "0"), ("waited()", "0"), ('a == 0 ? 0 : refuse("x")', "0"),
}  # fmt: skip


def test_checks_their_parts_waits_and_calls_are_found():
    assert {(CODE[deletion.start : deletion.end], deletion.instead) for deletion in places("file.c", CODE)} == FOUND
    assert all(deletion.name.startswith("file.c first: ") for deletion in places("file.c", CODE))


def test_a_place_is_left_out_alone():
    for deletion in places("file.c", CODE):
        text = deletion.without(CODE)
        assert text == CODE[: deletion.start] + deletion.instead + CODE[deletion.end :] != CODE


def test_comments_and_strings_are_blank_and_keep_their_places():
    code = masked(CODE)
    assert len(code) == len(CODE) and "comment" not in code and "no" not in code
    assert [i for i, c in enumerate(code) if c == "\n"] == [i for i, c in enumerate(CODE) if c == "\n"]


def test_names_are_unique_and_every_file_has_places():
    names = [deletion.name for _, deletion in every()]
    assert len(names) == len(set(names)) and len(names) > 500
    without = {file.name for file in files()} - {file.name for file, _ in every()}
    assert without <= {"cuda_kind.c"}, "answers of several kinds, which decide nothing"


def test_the_list_of_the_justified_is_true_to_the_source():
    names, reasons = {deletion.name for _, deletion in every()}, justified()
    stale = sorted(set(reasons) - names)
    assert not stale, f"the source has no such places (any more): {stale}"
    assert all(len(reason) > 15 for reason in reasons.values()), "each has its reason"


@pytest.mark.parametrize("file", [NATIVE / "cuda" / "workspace.c", CLIB / "gpu.c"], ids=lambda file: file.name)
def test_what_is_left_is_c(file, tmp_path):
    """The compiler takes the code without the first place of each kind, so that tests and not the compiler must notice."""
    kinds = {deletion.instead: deletion for deletion in places(file.name, file.read_text())}
    for deletion in kinds.values():
        (tmp_path / file.name).write_text(deletion.without(file.read_text()))
        tools = toolchain()
        folders = [file.parent, NATIVE, NATIVE / "cuda", CLIB / "include", tools.include]
        command = [
            tools.compiler,
            "-std=c11",
            "-w",
            "-fsyntax-only",
            *(f"-I{folder}" for folder in folders),
            str(tmp_path / file.name),
        ]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_list_of_what_was_seen_is_read_back():
    """Every line says who noticed a place, and most of them are of functions as they are."""
    seen = Journal(SEEN.parent, "none").seen
    now = {(deletion.name, digest(deletion.around)) for _, deletion in every()}
    assert len(now & set(seen)) > len(now) // 2, "run cuda_deletions on what changed, with --keep"
    assert all(entry["why"] or entry["tests"] for entry in seen.values())
