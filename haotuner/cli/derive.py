"""`haotuner derive`: other expressions of a model's products, found by rules, with the chain of rules and expected times."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from haotuner.cli.devices import columns
from haotuner.cli.output import counted, say
from haotuner.derive.expression import Scope, scopes
from haotuner.derive.from_graph import sizes_needed
from haotuner.derive.model import Derivation, Form, NodeForms
from haotuner.derive.price import kernel_of
from haotuner.derive.search import Derived, Limits, SearchResult, search
from haotuner.derive.text import lines, parse
from haotuner.errors import UsageError
from haotuner.frontends.onnx.read import read
from haotuner.graph.graph import Graph
from haotuner.partition.dim_ranges import UNSAID, ranges_of, requests, spans_of
from haotuner.spec.shape import ShapeRange

SHOWN = 3  # forms of one product
PRICED = 2  # requests beside both ends


def derive(
    file: Annotated[Path | None, typer.Argument(metavar="MODEL.onnx", help="The model whose products are derived.")] = None,
    expression: Annotated[
        str, typer.Option("--expression", metavar="TEXT", help="An expression instead of a model; all sizes in --shapes.")
    ] = "",
    node: Annotated[
        str, typer.Option("--node", metavar="NAME", help="One tensor that a product makes. [default: every product]")
    ] = "",
    shapes: Annotated[str, typer.Option("--shapes", help="Sizes of the dimensions, for example n=1..16;h=7..56.")] = UNSAID,
    budget: Annotated[float, typer.Option("--budget", help="Seconds of search, all products together.")] = 60.0,
    trace: Annotated[bool, typer.Option("--trace", help="Print the rules that led to each form, step by step.")] = False,
) -> None:
    """Derive other expressions of products by rules, with their expected times."""
    if budget <= 0:
        raise UsageError(f"--budget {budget:g}: give seconds above 0")
    if (file is None) == (not expression):
        raise UsageError("name a model, MODEL.onnx, or an expression, --expression TEXT; one of both")
    if file is None:
        scope = parse(expression)
        at = _sizes(scope, shapes)
        _print_states(search(scope, at, Limits(seconds=budget)), at, trace=trace)
        return
    graph = read(file, ranges=lambda inputs: ranges_of(inputs, shapes))
    _model(graph, node, shapes, budget, trace=trace)


def _sizes(scope: Scope, shapes: str) -> list[dict[str, int]]:
    """Requests of an expression. UsageError where a dimension has no size."""
    spans = {} if shapes == UNSAID else dict(ShapeRange.parse(shapes).spans)
    lacking = sorted(sizes_needed(scope) - spans.keys())
    if lacking:
        raise UsageError(f"--shapes says nothing of {', '.join(lacking)}; write for example {lacking[0]}=7..56")
    return requests(spans, PRICED)


def _model(graph: Graph, node: str, shapes: str, budget: float, *, trace: bool) -> None:
    at = requests(spans_of(graph, shapes), PRICED)[: 2 + PRICED]
    derivation = Derivation(graph, at)
    products = derivation.products()
    if not products:
        raise UsageError("the model has no product or convolution in fp32; there is nothing to derive")
    if node and node not in products:
        shown = ", ".join(products[:20]) + (" …" if len(products) > 20 else "")
        raise UsageError(f"--node {node!r}: no product makes it; products make {shown}")
    until = time.monotonic() + budget
    chosen = [node] if node else products
    for position, tensor in enumerate(chosen):
        seconds_left = until - time.monotonic()
        if seconds_left <= 0:
            say(f"\n{counted(len(chosen) - position, 'product')} left out: {budget:g} s are over; raise --budget")
            break
        derivation.limits = Limits(seconds=seconds_left)
        try:
            forms = derivation.forms_of(tensor)
        except UsageError as error:
            say(f"\n{tensor}: stays as it is: {error}")
            continue
        _print_forms(forms, at, trace=trace)
    if not node:
        for forms in derivation.merged():
            _print_forms(forms, at, trace=trace)


def _print_forms(forms: NodeForms, at: Sequence[Mapping[str, int]], *, trace: bool) -> None:
    say(f"\n{', '.join(forms.tensors)}: {forms.statistics}")
    named_forms = [("as the model has it", forms.original), *((f"form {n}", form) for n, form in enumerate(forms.others, 1))]
    heads = tuple(f"us at {_words(request)}" for request in at)
    rows = [(name, *(f"{us:,.1f}" for us in form.us)) for name, form in named_forms[: SHOWN + 1]]
    say(columns([("expected", *heads), *rows]))
    best = {_words(request): forms.best_at(index) for index, request in enumerate(at)}
    better = [words for words, form in best.items() if form is not forms.original]
    say(f"cheapest: {'a derived form at ' + ', '.join(better) if better else 'the model as it is, at named_forms size'}")
    for name, form in named_forms[: SHOWN + 1]:
        say(f"{name}:")
        _print_form(form, at[-1], trace=trace)


def _print_form(form: Form, sizes: Mapping[str, int], *, trace: bool) -> None:
    for scope in form.scopes:
        _print_scope(scope, sizes)
    if trace:
        for at, (rule, detail) in enumerate(form.steps, 1):
            say(f"    {at}. {rule}: {detail}")


def _print_scope(scope: Scope, sizes: Mapping[str, int]) -> None:
    for line in lines(scope):
        say(f"  {line}")
    kernels = [kernel for inner in scopes(scope) if (kernel := kernel_of(inner, sizes)) is not None]
    say(f"  kernels: {', '.join(dict.fromkeys(map(str, kernels))) or 'generated loops alone'}")


def _print_states(result: SearchResult, at: Sequence[Mapping[str, int]], *, trace: bool) -> None:
    """States of one expression, the cheapest first."""
    say(f"{result.statistics}")
    shown: list[Derived] = [result.original, *(state for state in result.states if state.steps)][: SHOWN + 1]
    for position, state in enumerate(shown):
        say(f"\n{f'form {position}' if position else 'as it was written'}, expected {state.price_us:,.1f} us:")
        _print_scope(state.scope, at[-1])
        if trace:
            for number, (rule, detail) in enumerate(state.steps, 1):
                say(f"    {number}. {rule}: {detail}")


def _words(request: Mapping[str, int]) -> str:
    return ";".join(f"{name}={size}" for name, size in request.items()) or "its sizes"
