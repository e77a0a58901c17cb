"""The script that follows guides: what it reads, what it does, and that it fails where a guide is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guides.follow import ROOT, Command, File, GuideWrong, apply, blocks, copied, follow, main, run
from tests.standin.patience import WALL_S

GUIDES = sorted([ROOT / "docs" / "quickstart.md", *(ROOT / "docs" / "guides").glob("*.md")])
GUIDE = """# A guide

```python title=pkg/new.py
VALUE = 41
```

Not for the script:

```python
import nothing
```

```python title=pkg/index.py after="ALL = ["
    "new",
```

```console
$ python -c "
> from pkg.new import VALUE
> print('value', VALUE + 1)"
value ...
$ cat pkg/index.py
"new",
"old",
```
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "index.py").write_text('ALL = [\n    "old",\n]\n')
    return tmp_path


def test_blocks_come_in_order_with_their_lines():
    parsed = blocks(GUIDE)
    assert parsed == [
        File(3, "pkg/new.py", "VALUE = 41\n"),
        File(13, "pkg/index.py", '    "new",\n', "ALL = ["),
        Command(18, "python -c \"\nfrom pkg.new import VALUE\nprint('value', VALUE + 1)\"", ("value ...",)),
        Command(22, "cat pkg/index.py", ('"new",', '"old",')),
    ]


def test_a_guide_is_carried_out(tree: Path):
    guide = tree / "guide.md"
    guide.write_text(GUIDE)
    messages: list[str] = []
    assert follow(guide, tree, messages.append) == 4
    assert "value 42" in messages
    assert (tree / "pkg" / "index.py").read_text() == 'ALL = [\n    "new",\n    "old",\n]\n'


@pytest.mark.parametrize(
    "text, words",
    [
        ("```python title=a.py\nx = 1\n", "never closed"),
        ("```python title=../a.py\n```\n", "not inside"),
        ("```python title=/etc/a.py\n```\n", "not inside"),
        ("```python tilte=a.py\n```\n", "cannot read"),
        ("```python title=a.py before=b\n```\n", "cannot read"),
        ("```console\noutput without a command\n```\n", "before any command"),
    ],
)
def test_a_guide_that_cannot_be_read_is_refused(text: str, words: str):
    with pytest.raises(GuideWrong, match=words):
        blocks(text)


@pytest.mark.parametrize(
    "block, words",
    [
        (File(1, "pkg/index.py", "x\n"), "exists already"),
        (File(1, "pkg/none.py", "x\n", "ALL"), "there is no"),
        (File(1, "pkg/index.py", "x\n", "NONE"), "in 0 lines"),
        (File(1, "pkg/index.py", "x\n", ""), "in 3 lines"),
    ],
)
def test_a_file_that_is_not_as_the_guide_thinks_is_refused(tree: Path, block: File, words: str):
    with pytest.raises(GuideWrong, match=words):
        apply(block, tree)
    assert (tree / "pkg" / "index.py").read_text() == 'ALL = [\n    "old",\n]\n'


@pytest.mark.parametrize(
    "command, words, limit_s",
    [
        (Command(7, "echo told; exit 3"), "line 7: .* ended with 3:\ntold", WALL_S),
        (Command(1, "echo one", ("two",)), "did not print 'two'", WALL_S),
        (Command(1, "echo one; echo two", ("two", "one")), "or not there", WALL_S),
        (Command(1, "sleep 600"), "longer than", 0.2),
    ],
)
def test_a_command_that_does_not_do_what_the_guide_says_is_refused(tree: Path, command: Command, words: str, limit_s: float):
    with pytest.raises(GuideWrong, match=words):
        run(command, tree, limit_s=limit_s)


def test_a_guide_without_a_command_proves_nothing(tree: Path):
    (tree / "guide.md").write_text("```python title=a.py\n```\n")
    with pytest.raises(GuideWrong, match="no command"):
        follow(tree / "guide.md", tree)


def test_the_copy_is_what_its_environment_imports(tmp_path: Path):
    """Kernels, plans and children of the copy, not of the checkout: else a guide could pass without what it adds."""
    tree = copied(tmp_path / "tree")
    (tree / "haotuner" / "added.py").write_text("WORD = 'added'\n")
    output = run(
        Command(1, "python -I -c 'import haotuner.added, numpy, sys; print(haotuner.added.WORD, sys.prefix)'"), tree
    )
    assert output.split() == ["added", str(tree / ".venv")]
    assert "haotuner.added" in run(Command(1, "haotuner --help && echo haotuner.added"), tree)
    assert not (tree / ".git").exists() and (tree / "haotuner" / "transfer").is_symlink()


def test_the_command_line_fails_loudly(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    guide = tmp_path / "guide.md"
    guide.write_text("```console\n$ false\n```\n")
    assert main([str(guide)]) == 1
    assert "line 2: `false` ended with 1" in capsys.readouterr().err


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_every_guide_can_be_read_and_fits_the_tree(guide: Path):
    new_files: dict[str, str] = {}
    for block in blocks(guide.read_text(encoding="utf-8")):
        if not isinstance(block, File):
            continue
        target = ROOT / block.path
        if block.after is None:
            assert not target.exists(), f"{guide.name}:{block.line}: {block.path} is there already"
            new_files[block.path] = block.text
        else:
            text = new_files.get(block.path) or target.read_text(encoding="utf-8")
            assert sum(block.after in line for line in text.splitlines()) == 1, f"{guide.name}:{block.line}: {block.after!r}"
