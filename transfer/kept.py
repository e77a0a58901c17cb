"""Saved models of any kind: the one place that opens what ``haotuner transfer fit`` wrote."""

from __future__ import annotations

from pathlib import Path

from haotuner.cost.forest import Forest
from haotuner.cost.saved import Saved, read, save, write
from haotuner.errors import UsageError
from haotuner.transfer.transferred import KIND, Transferred


def load_model(path: Path, *, threads: int = 1) -> Forest | Transferred:
    """The saved cost model; UsageError says whether the file is missing, damaged, or of another version or kind."""
    saved = read(path)
    if saved.kind == "forest":
        return Forest.restored(saved.state, saved.texts, threads=threads)
    if saved.kind == KIND:
        return Transferred.restored(saved.state, saved.texts, threads=threads)
    raise UsageError(f"the model {path} is of kind {saved.kind!r}, which this haotuner does not know; train it again")


def save_model(model: Forest | Transferred, path: Path) -> None:
    """Write a model so that ``load_model`` opens it."""
    if isinstance(model, Forest):
        save(model, path)
    else:
        state, texts = model.state()
        write(path, Saved(kind=KIND, state=state, texts=texts))
