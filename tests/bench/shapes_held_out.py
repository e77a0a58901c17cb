"""Held-out shapes of our own devices' records, as Markdown: `python -m tests.bench.shapes_held_out`."""

from __future__ import annotations

from typing import Any

from haotuner.transfer.reading import read_records
from tests.bench.own_records import all_records
from tests.bench.transfer_study.held_out_shapes import evaluate_held_out
from tests.bench.transfer_study.shapes_verb import section


def document() -> dict[str, Any]:
    """Scores of every device whose records lie in this folder."""
    own = all_records()
    devices = {source.device.id: source.device for source in own}
    read = read_records((record for source in own for record in source.records()), devices.__getitem__)
    return evaluate_held_out(read.tables)


if __name__ == "__main__":
    print("\n".join(section(document())))
