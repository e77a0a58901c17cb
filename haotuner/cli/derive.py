"""`haotuner derive`: other expressions of a model's products, by rules, with the rules and expected and measured times."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from haotuner.cli.devices import columns
from haotuner.cli.output import counted, say
from haotuner.derive.expression import Scope, scopes
from haotuner.derive.general_extents import sizes_needed
from haotuner.derive.model import Derivation, Form, NodeForms, are_laid_out
from haotuner.derive.price import kernel_of
from haotuner.derive.search import Derived, Limits, SearchResult, search
from haotuner.derive.text import lines, parse
from haotuner.errors import HaotunerError, UsageError
from haotuner.frontends.onnx.read import read
from haotuner.graph.graph import Graph
from haotuner.host.cache_folder import cache_folder
from haotuner.partition.dim_ranges import UNSAID, ranges_of, requests, spans_of
from haotuner.spec.shape import ShapeRange

SHOWN = 3  # forms of one product
PRICED = 2  # requests beside both ends
ENDS = 2  # requests at which forms are timed: the smallest and the largest
SEARCHING = 0.5  # of the budget, at most, where forms are timed in the rest


def derive(
    file: Annotated[Path | None, typer.Argument(metavar="MODEL.onnx", help="The model whose products are derived.")] = None,
    expression: Annotated[
        str, typer.Option("--expression", metavar="TEXT", help="An expression instead of a model; all sizes in --shapes.")
    ] = "",
    node: Annotated[
        str, typer.Option("--node", metavar="NAME", help="One tensor that a product makes. [default: every product]")
    ] = "",
    shapes: Annotated[str, typer.Option("--shapes", help="Sizes of the dimensions, for example n=1..16;h=7..56.")] = UNSAID,
    budget: Annotated[float, typer.Option("--budget", help="Seconds of search and of times, all products together.")] = 60.0,
    trace: Annotated[bool, typer.Option("--trace", help="Print the rules that led to each form, step by step.")] = False,
    zero_measure: Annotated[bool, typer.Option("--zero-measure", help="Time nothing: expected times alone.")] = False,
) -> None:
    """Derive other expressions of products by rules, with expected times, and times of the forms that are cheaper."""
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
    _model(graph, node, shapes, budget, trace=trace, times=not zero_measure)


def _sizes(scope: Scope, shapes: str) -> list[dict[str, int]]:
    """Requests of an expression. UsageError where a dimension has no size."""
    spans = {} if shapes == UNSAID else dict(ShapeRange.parse(shapes).spans)
    lacking = sorted(sizes_needed(scope) - spans.keys())
    if lacking:
        raise UsageError(f"--shapes says nothing of {', '.join(lacking)}; write for example {lacking[0]}=7..56")
    return requests(spans, PRICED)


def _model(graph: Graph, node: str, shapes: str, budget: float, *, trace: bool, times: bool) -> None:
    at = requests(spans_of(graph, shapes), PRICED)[: 2 + PRICED]
    derivation = Derivation(graph, at)
    products = derivation.products()
    if not products:
        raise UsageError("the model has no product or convolution in fp32; there is nothing to derive")
    if node and node not in products:
        shown = ", ".join(products[:20]) + (" …" if len(products) > 20 else "")
        raise UsageError(f"--node {node!r}: no product makes it; products make {shown}")
    begin = time.monotonic()
    search_s = budget * SEARCHING if times else budget
    chosen = [node] if node else products
    printed = list[NodeForms]()
    for position, tensor in enumerate(chosen):
        seconds_left = begin + search_s - time.monotonic()
        if seconds_left <= 0:
            say(f"\n{counted(len(chosen) - position, 'product')} left out: {search_s:g} s are over; raise --budget")
            break
        derivation.limits = Limits(seconds=seconds_left)
        try:
            forms = derivation.forms_of(tensor)
        except UsageError as error:
            say(f"\n{tensor}: stays as it is: {error}")
            continue
        _print_forms(forms, at, trace=trace)
        printed.append(forms)
    if not node:
        late = list[tuple[str, ...]]()

        def has_time(*tensors: str) -> bool:
            late.extend([tensors] if time.monotonic() >= begin + search_s else [])
            return not late

        for forms in derivation.merged(may_save=has_time):
            _print_forms(forms, at, trace=trace)
            printed.append(forms)
        if late:
            say(f"\n{counted(len(late), 'merge')} left out: {search_s:g} s are over; raise --budget")
    if times:
        _print_times(graph, printed, at, begin + budget)


def _print_times(graph: Graph, every: Sequence[NodeForms], at: Sequence[Mapping[str, int]], until: float) -> None:
    """Times of the cheapest derived form of each product beside the original's; those that save most come first."""
    cheaper = sorted(_cheaper(every), key=lambda item: -item[0])
    if not cheaper:
        say("\nmeasured: nothing, for no derived form is expected to be cheaper")
    ends, last_s = at[:ENDS], 0.0
    for position, (_, forms, number) in enumerate(cheaper):
        begin = time.monotonic()
        if begin + last_s >= until:
            say(f"\n{counted(len(cheaper) - position, 'form')} not measured: the time is over; raise --budget")
            break
        name = ", ".join(forms.tensors)
        try:
            rows = _raced(graph, forms, number, ends)
        except HaotunerError as error:
            say(f"\n{name}: form {number} is not measured: {error}")
            continue
        last_s = time.monotonic() - begin
        heads = tuple(f"us at {_words(request)}" for request in ends)
        named = zip(("as the model has it", f"form {number}"), rows, strict=True)
        say(f"\n{name}: least times of calls on this host, one thread, each with predicted kernels")
        say(columns([("measured", *heads), *((word, *(f"{us:,.1f}" for us in row)) for word, row in named)]))
        faster = [f"{own / us:.2f}x at {_words(request)}" for own, us, request in zip(*rows, ends, strict=True)]
        say(f"form {number} against the original: {', '.join(faster)}")


def _cheaper(every: Sequence[NodeForms]) -> Iterator[tuple[float, NodeForms, int]]:
    """Microseconds that a form is expected to save at most at a request, its product, and the form's number from 1 on."""
    for forms in every:
        saved = [max(own - us for own, us in zip(forms.original.us, form.us, strict=True)) for form in forms.others[:SHOWN]]
        if saved and max(saved) > 0:
            yield max(saved), forms, saved.index(max(saved)) + 1


def _raced(graph: Graph, forms: NodeForms, number: int, requests: Sequence[Mapping[str, int]]) -> list[tuple[float, ...]]:
    """Microseconds of the model's own form and of another one at each request; HaotunerError where they are not raced."""
    from haotuner.tuning.form_race import raced_forms  # with solvers and more, which a plain search can do without

    form = forms.others[number - 1]
    if not are_laid_out(graph, form.scopes):
        raise UsageError("its weights are too large to lay out")
    return raced_forms([forms.original.graph, form.graph], requests, "cpu", dict(os.environ), cache_folder(os.environ))


def _print_forms(forms: NodeForms, at: Sequence[Mapping[str, int]], *, trace: bool) -> None:
    say(f"\n{', '.join(forms.tensors)}: {forms.statistics}")
    named_forms = [("as the model has it", forms.original), *((f"form {n}", form) for n, form in enumerate(forms.others, 1))]
    heads = tuple(f"us at {_words(request)}" for request in at)
    rows = [(name, *(f"{us:,.1f}" for us in form.us)) for name, form in named_forms[: SHOWN + 1]]
    say(columns([("expected", *heads), *rows]))
    best = {_words(request): forms.best_at(index) for index, request in enumerate(at)}
    better = [words for words, form in best.items() if form is not forms.original]
    say(f"cheapest: {'a derived form at ' + ', '.join(better) if better else 'the model as it is, at every size'}")
    for name, form in named_forms[: SHOWN + 1]:
        say(f"{name}:")
        _print_form(form, at[-1], trace=trace)


def _print_form(form: Form, sizes: Mapping[str, int], *, trace: bool) -> None:
    for scope in form.scopes:
        _print_scope(scope, sizes)
    if form.adds_zeros:
        say("  adds zeros: beside an infinity or NaN it may have NaN where the model has none")
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
