"""Models that ask for what others do not, and damaged ones, in one pack for CUDA."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.partition.executable import ExecutableModel
from haotuner.spec import bytecode
from tests.runtime.empty_models import NAME as CACHED
from tests.runtime.empty_models import cached

B, T, S = dimension("batch"), dimension("seq"), dimension("past")
WIDE = 32
TWICE, SMALL, LARGE = "twice", "small", "large"


def twice() -> Graph:
    """Weights that several layers and ops read, with biases and without; outputs that are an input, and another output."""
    draw = np.random.default_rng(8)
    g = GraphBuilder()
    x = g.input("x", (B, T, WIDE))
    matrix, other = (g.constant((draw.standard_normal((WIDE, WIDE)) / 6).astype(np.float32)) for _ in range(2))
    first, second = (g.constant(draw.standard_normal(WIDE).astype(np.float32)) for _ in range(2))
    h = x
    for weight, bias in ((matrix, ""), (matrix, ""), (other, ""), (matrix, first), (matrix, second), (other, first)):
        h = g.add("contract", h, weight, labels="btk,kn->btn")
        h = g.map("add", h, bias) if bias else h
    h = g.map("max", g.add("contract", h, matrix, labels="btk,kn->btn"), 0.0)
    least = g.map("neg", h)
    rows = g.add("reshape", x, shape=(B * T, WIDE))
    return g.finish(h, least, rows, g.add("reshape", least, shape=(B, T * WIDE)))


def small() -> Graph:
    """One group, whose model knows few sizes."""
    g = GraphBuilder()
    return g.finish(g.add("reduce", g.input("x", (B, S)), how="sum", axes=(1,)))


def large() -> Graph:
    """A group of as many tensors as that of ``small`` and an output of the same shape, which reads a size more."""
    g = GraphBuilder()
    x, z = g.input("x", (B, T, S)), g.input("z", (B, S))
    return g.finish(g.map("neg", z), g.add("reduce", x, how="sum", axes=(1, 2)))


ODD = {TWICE: twice(), SMALL: small(), LARGE: large(), CACHED: cached()}


@dataclass(frozen=True)
class Other:
    """A model as ``pack_library`` takes it, with words and a document of its own; its groups are another model's."""

    name: str
    document: dict[str, Any]
    weights: bytes
    words: list[int]
    functions: tuple[Any, ...] = ()

    @property
    def bytecode(self) -> bytes:
        """File of its words."""
        return struct.pack(f"<{len(self.words)}q", *self.words)

    @property
    def schedule(self) -> bytes:
        """Its file."""
        return (json.dumps(self.document, sort_keys=True) + "\n").encode()


def others(models: Sequence[ExecutableModel]) -> list[Other]:
    """Beside the models of ``ODD``: one with outputs that are shapes of an input and of an output, and damaged ones."""
    by_name = {model.name: model for model in models}
    sound, few = by_name[TWICE], by_name[SMALL]
    variants = [_changed(sound, ALIASED, _alias)]
    variants += [_changed(sound, name, change) for name, change in DAMAGE.items()]
    group = by_name[LARGE].document["steps"][1]["group"]
    variants.append(_changed(few, MISSING, lambda schedule: schedule["steps"][0].update(group=group)))
    return [*variants, *(_reworded(sound, name, *pair) for name, pair in _words(sound.document).items()), _cut(sound)]


ALIASED, CUT, MISSING = "aliased", "a_checksum_of_others", "another_group"
SAME = {ALIASED: TWICE}  # models that compute what another does
DAMAGE = {  # of a schedule: a layer is given what was not bound for it
    "a_weight_that_is_computed": lambda schedule: schedule["steps"][1].update(weight="contract"),
    "a_bias_that_is_computed": lambda schedule: schedule["steps"][3]["constants"].update(bias="contract_7"),
}
WEIGHTS = (*DAMAGE, "a_weight_reshaped", "a_weight_reordered", "a_bias_reshaped", "a_number_as_bias")


def _alias(schedule: dict[str, Any]) -> None:
    for index in (-2, -1):
        of, out = schedule["steps"][index]["tensors"]
        schedule["steps"][index] = {"do": "alias", "out": out, "of": of}


def _changed(model: ExecutableModel, name: str, change: Any) -> Other:
    schedule = json.loads(model.schedule) | {"name": name}
    change(schedule)
    return Other(name, schedule, model.weights, bytecode.schedule_words(schedule, len(model.weights)))


def _words(schedule: Mapping[str, Any]) -> dict[str, tuple[list[int], list[int]]]:
    """Words of an operand of the first layer with a bias, and what stands there instead."""
    names = [name for name, _ in (*sorted(schedule["tensors"].items()), *sorted(schedule["weights"].items()))]
    step = schedule["steps"][3]
    weight, bias = names.index(step["weight"]), names.index(step["constants"]["bias"])
    named = [3, 4, *struct.unpack("<q", b"bias\0\0\0\0")]
    return {
        "a_weight_reshaped": ([1, weight, -1, 0], [1, weight, 2, 2, 2, 0]),
        "a_weight_reordered": ([1, weight, -1, 0], [1, weight, -1, 2, 1, 0]),
        "a_bias_reshaped": ([*named, bias, -1, 0], [*named, bias, 1, 2, 0]),
        "a_number_as_bias": ([*named, bias, -1, 0], [*named, -1, 0, -1, 0]),
    }


def _reworded(model: ExecutableModel, name: str, before: list[int], after: list[int]) -> Other:
    words = bytecode.schedule_words(schedule := json.loads(model.schedule) | {"name": name}, len(model.weights))[4:]
    at = next(i for i in range(len(words)) if words[i : i + len(before)] == before)
    words[at : at + len(before)] = after
    head = [bytecode.MAGIC, bytecode.VERSION, len(words) + 4, bytecode._checksum(words)]
    return Other(name, schedule, model.weights, [*head, *words])


def _cut(model: ExecutableModel) -> Other:
    sound = _changed(model, CUT, lambda schedule: None)
    sound.words[3] ^= 1
    return sound
