"""Saved models of any kind: the one place that opens what ``haotuner transfer fit`` wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from haotuner.cost.features import NAMES
from haotuner.cost.forest import Forest
from haotuner.cost.saved import Saved, damaged, read, save, write
from haotuner.errors import UsageError
from haotuner.transfer.transferred import KIND, Transferred

# What no ``save_model`` wrote shows when it is put together, or when it predicts this.
_ROW = pd.DataFrame(np.zeros((1, len(NAMES))), columns=list(NAMES))


def load_model(path: Path, *, threads: int = 1) -> Forest | Transferred:
    """The saved cost model; UsageError says whether the file is missing, damaged, or of another version or kind."""
    saved = read(path)
    if saved.kind not in ("forest", KIND):
        raise UsageError(
            f"the model {path} is of kind {saved.kind!r}, this haotuner knows forest and {KIND}; "
            f"train it again with: haotuner transfer fit"
        )
    kind = Forest if saved.kind == "forest" else Transferred
    try:
        model: Forest | Transferred = kind.restored(saved.state, saved.texts, threads=threads)
        with np.errstate(all="ignore"):
            said = model.predict(_ROW)
    except Exception as error:  # of an odd state nearly any error can come, LightGBM's own among them
        said_of_it = str(error).partition("\n")[0]
        raise damaged(path, f"its parts do not fit together ({type(error).__name__}: {said_of_it})") from error
    if not np.isfinite(said).all():
        raise damaged(path, f"it predicts {said[0]}")
    return model


def save_model(model: Forest | Transferred, path: Path) -> None:
    """Write a model so that ``load_model`` opens it."""
    if isinstance(model, Forest):
        save(model, path)
    else:
        state, texts = model.state()
        write(path, Saved(kind=KIND, state=state, texts=texts))
