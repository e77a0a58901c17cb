"""Search of schedules that a request asks for: which ops a policy explores, and the template that a user declares.

A template is a TOML file, with a line for each knob whose values are limited:

    rows = [1, 4]                 # some values
    unroll = { min = 2, max = 8 } # a range; either end may be left out
    masked = true                 # one value
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from haotuner.backends.backend import Backend
from haotuner.codegen.template import Template
from haotuner.errors import UsageError
from haotuner.host.files import read_regular
from haotuner.search.explore import Explorable, check_template
from haotuner.spec.device import Device
from haotuner.spec.op import Op
from haotuner.tuning.request import Request

MOST_BYTES = 1 << 16  # a line for each of some ten knobs, and comments


def read_template(path: Path) -> Template:
    """The template in a file. UsageError says what is wrong with the file or with a knob in it."""
    source = f"--template {path}"
    try:
        document = tomllib.loads(read_regular(path, MOST_BYTES).decode("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{source}: {error}; give a TOML file with a line such as rows = [1, 4] for each knob") from error
    if not document:
        raise UsageError(f"{source}: it names no knob; write a line such as rows = [1, 4], or leave --template out")
    return Template.of(document, source)


def policy_of(request: Request, op: Op, backend: Backend, device: Device) -> str:
    """Name of the policy that explores an op's schedules; empty of a model's op without a space of them."""
    explorable = not request.search or isinstance(backend.searched(op, device)[0], Explorable)
    return request.search if explorable or not request.models else ""


def check_search(request: Request, backend: Backend, device: Device) -> None:
    """UsageError where a policy has nothing to explore in a model, or the template does not fit an op."""
    if not request.search:
        return
    families = {op: backend.searched(op, device)[0] for op in request.ops}
    spaces = {op: family.space(op, device) for op, family in families.items() if isinstance(family, Explorable)}
    if request.models and not spaces:
        names = ", ".join(model.written.name for model in request.models)
        raise UsageError(
            f"--search {request.search}: no op of {names} has a space of schedules; leave the option out, or tune a part of "
            "the model as an operator: --op group:FILE.onnx"
        )
    for op, space in spaces.items():
        if request.template is not None:
            check_template(request.template, space, op)
