"""Saved models: ``Transferred``, the sources' knowledge as a cost model; opening and writing files of any kind of model."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from haotuner.cost.features import NAMES
from haotuner.cost.forest import Forest
from haotuner.cost.model import Scores, check_columns, predict_alike
from haotuner.cost.model_file import Saved, damaged, read, save, write
from haotuner.errors import UsageError
from haotuner.transfer.sources import KnownPrograms, Scale, Sources

KIND = "transfer-3"  # 2: other keys of memories; 3: without a residual, which `tune` learns as it measures
# What no ``save_model`` wrote shows when it is put together, or when it predicts this.
_ROW = pd.DataFrame(np.zeros((1, len(NAMES))), columns=list(NAMES))


class Transferred:
    """A ``CostModel`` of what sources say of a target; ``tune`` puts it right by what it measures (``warm_start.py``)."""

    def __init__(self, sources: Sources, *, seed: int = 0) -> None:
        self.sources = sources
        self.seed = seed
        self.facts: dict[str, Any] = {}  # provenance that travels with the saved model

    def fit(self, frame: pd.DataFrame, log_efficiency: ArrayLike, sample_weight: ArrayLike | None = None) -> Transferred:
        """Learns nothing: what starts a run must not forget the rows that it was made of."""
        return self

    def predict(self, frame: pd.DataFrame) -> Scores:
        """Predicted log(throughput / roofline) of shape ``(rows,)``; higher is better."""
        check_columns(frame)
        return predict_alike(frame, lambda rows: self.sources.zero_shot(self.sources.columns(rows)))

    def state(self) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """State that saving keeps: values that JSON can hold, and LightGBM's texts."""
        keep = _Keep()
        s = self.sources
        state = {
            "seed": self.seed,
            "facts": self.facts,
            "sources": {
                "ids": list(s.ids),
                "weights": s.priors.tolist(),
                "distances": s.distances.tolist(),
                "scales": [[scale.mean, scale.spread] for scale in s.scales],
                "analytic": [s.analytic.mean, s.analytic.spread],
                "memories": [[_packed(known.keys), _packed(known.residuals)] for known in s.known_programs],
                "share": s.joint_share,
                "joint": keep.forest(s.joint),
                "forests": [keep.forest(forest) for forest in s.forests],
            },
        }
        return state, tuple(keep.texts)

    @staticmethod
    def restored(state: Mapping[str, Any], texts: Sequence[str], *, threads: int = 1) -> Transferred:
        """A model from what ``state`` gave; the caller has verified that the texts are undamaged.

        Any error may come of a state that is not what ``state`` gives.
        """
        give = _Give(texts, threads)
        s = state["sources"]
        joint = give.forest(s["joint"])  # texts come in the order in which they were kept
        sources = Sources(
            ids=tuple(s["ids"]),
            forests=tuple(give.forest(item) for item in s["forests"]),
            scales=tuple(Scale(mean=mean, spread=spread) for mean, spread in s["scales"]),
            analytic=Scale(mean=s["analytic"][0], spread=s["analytic"][1]),
            priors=_finite(s["weights"], len(s["ids"])),
            known_programs=tuple(_known_programs(keys, residuals) for keys, residuals in s["memories"]),
            joint=joint,
            joint_share=float(s["share"]),
            distances=_finite(s["distances"], len(s["ids"])),
        )
        model = Transferred(sources, seed=int(state["seed"]))
        model.facts = dict(state["facts"])
        return model


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
        row = _ROW[list(saved.columns)] if isinstance(model, Forest) else _ROW
        with np.errstate(all="ignore"):
            prediction = model.predict(row)
    except Exception as error:  # of an odd state nearly any error can come, LightGBM's own among them
        said_of_it = str(error).partition("\n")[0]
        raise damaged(path, f"its parts do not fit together ({type(error).__name__}: {said_of_it})") from error
    if not np.isfinite(prediction).all():
        raise damaged(path, f"it predicts {prediction[0]}")
    return model


def save_model(model: Forest | Transferred, path: Path) -> None:
    """Write a model so that ``load_model`` opens it."""
    if isinstance(model, Forest):
        save(model, path)
    else:
        state, texts = model.state()
        write(path, Saved(kind=KIND, state=state, texts=texts))


def _packed(values: NDArray[Any]) -> str:
    """Little-endian bytes as text that JSON can hold."""
    return base64.b64encode(values.astype(values.dtype.newbyteorder("<")).tobytes()).decode("ascii")


def _unpacked(text: str, kind: type[np.generic]) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(text), dtype=np.dtype(kind).newbyteorder("<")).astype(kind)


def _finite(values: Sequence[float], sources: int) -> NDArray[np.float64]:
    """Priors or distances; ValueError unless there is a finite number from 0 up for each source."""
    result = np.array(values, dtype=np.float64)
    if result.shape != (sources,) or not np.isfinite(result).all() or (result < 0).any():
        raise ValueError(f"{sources} sources need as many finite numbers from 0 up")
    return result


def _known_programs(keys: str, residuals: str) -> KnownPrograms:
    known = KnownPrograms(keys=_unpacked(keys, np.uint64), residuals=_unpacked(residuals, np.float64))
    if len(known.keys) != len(known.residuals) or not np.isfinite(known.residuals).all():
        raise ValueError(f"{len(known.keys)} known programs need as many finite residuals")
    return known


class _Keep:
    """Collects LightGBM's texts while states are written."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def forest(self, forest: Forest) -> dict[str, Any]:
        state, texts = forest.state()
        self.texts += texts
        return {"state": state, "texts": len(texts)}


class _Give:
    """Hands the texts out again in the same order."""

    def __init__(self, texts: Sequence[str], threads: int) -> None:
        self._remaining, self._threads = list(texts), threads

    def forest(self, selected: Mapping[str, Any]) -> Forest:
        texts = [self._remaining.pop(0) for _ in range(selected["texts"])]
        return Forest.restored(selected["state"], texts, threads=self._threads)
