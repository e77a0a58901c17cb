"""Folder of libraries on a node: what is sent twice is written once, and the oldest go."""

from __future__ import annotations

from pathlib import Path

import pytest

from haotuner.backends.backend import LibrarySlot


def test_a_library_that_is_sent_again_is_not_written_again(tmp_path: Path) -> None:
    """A process of the node may have it mapped: written again, the process dies."""
    pytest.importorskip("ray")
    from haotuner.fleet.node_programs import Libraries, LibraryFolder, Missing, digest

    folder, data = LibraryFolder(tmp_path, most=2), [f"library {number}".encode() for number in range(4)]
    names = [digest(content) for content in data]

    def call(*numbers: int, sent: bool) -> Libraries:
        slots = {f"kernel {number}": LibrarySlot(library=names[number], index=number) for number in numbers}
        return Libraries(slots=slots, data={names[number]: data[number] for number in numbers} if sent else {})

    assert folder.slots(call(0, 1, sent=False)) == Missing(tuple(sorted(names[:2])))
    slots = folder.slots(call(0, 1, sent=True))
    assert not isinstance(slots, Missing)
    path = Path(slots["kernel 1"].library)
    assert path.read_bytes() == data[1] and slots["kernel 1"].index == 1
    written = path.stat()
    assert folder.slots(call(0, 1, sent=True)) == slots
    assert path.stat().st_mtime_ns == written.st_mtime_ns and path.stat().st_ino == written.st_ino
    assert not isinstance(folder.slots(call(2, 3, sent=True)), Missing)
    assert folder.slots(call(0, sent=False)) == Missing((names[0],)) and not path.exists()
