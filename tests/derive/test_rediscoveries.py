"""The published derivations, each from a plain definition, by rules that name no operator and no stored sequence of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from haotuner.derive.expression import Read, Scope, Tensor, scopes
from haotuner.derive.kernels import Kernel, is_constant, is_plain, kernels
from haotuner.derive.moves import Move, moves
from haotuner.derive.nests import is_layout
from haotuner.derive.search import Check, Derived, Limits, search
from haotuner.derive.text import parse
from haotuner.derive.together import together
from haotuner.graph.extents import is_symbolic
from tests.derive.expressions import band, conv, matmul, other_names, transposed_conv

LIMITS = Limits(explorative=3, seconds=60.0)
SIZES = {"n": 2, "h": 14, "w": 14, "c": 64, "f": 32, "b": 8, "s": 256, "k": 64, "m": 32}


def kernels_of_kind(scope: Scope, kind: str) -> Iterator[tuple[Scope, Kernel]]:
    """Nests of an expression that are a kernel of a kind, with operands that lie as it reads them."""
    for inner in scopes(scope):
        for kernel in kernels(inner):
            if kernel.kind == kind:
                yield inner, kernel


def sums_shifted(scope: Scope, count: int) -> bool:
    """True if the whole is a sum of so many elements of one nest, at affine places."""
    return (
        isinstance(scope.body, Read)
        and isinstance(scope.body.source, Scope)
        and not any(is_symbolic(loop.extent) for loop in scope.sums)
        and len(scope.sums) > 0
        and _product(loop.extent for loop in scope.sums) == count
    )


def _product(sizes: Iterator[int]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result


def matmul_and_shifted_add(count: int) -> Callable[[Scope], bool]:
    """A product of plain operands, and a sum of ``count`` elements of its result."""

    def holds(scope: Scope) -> bool:
        return sums_shifted(scope, count) and any(
            inner == scope.body.source and is_plain(kernel.first) and is_plain(kernel.second) and len(kernel.roles["k"]) == 1
            for inner, kernel in kernels_of_kind(scope, "matmul")
            if isinstance(scope.body, Read)
        )

    return holds


def smaller_windows(window: int, count: int, channels: int) -> Callable[[Scope], bool]:
    """A convolution of smaller windows and stride 1 with more features, and a sum of ``count`` elements of its result."""

    def holds(scope: Scope) -> bool:
        return sums_shifted(scope, count) and any(
            inner == scope.body.source
            and len(kernel.windows) == 2
            and all(side.stride == side.dilation == 1 for side in kernel.windows)
            and {inner.ranges[side.tap] for side in kernel.windows} == {(0, window)}
            and len(kernel.roles["n"]) == channels
            for inner, kernel in kernels_of_kind(scope, "conv")
            if isinstance(scope.body, Read)
        )

    return holds


def phases_as_channels(scope: Scope) -> bool:
    """A convolution of stride 1 over an image laid out in phases, which are channels beside its own."""
    return any(
        len(kernel.windows) == 2
        and all(side.stride == 1 for side in kernel.windows)
        and isinstance(kernel.first.source, Scope)
        and is_layout(kernel.first.source)
        and len(kernel.roles["k"]) == 5
        for _, kernel in kernels_of_kind(scope, "conv")
    )


def residues_as_batch(scope: Scope) -> bool:
    """A convolution without gaps over an image laid out in residues, which are images beside its own."""
    return any(
        len(kernel.windows) == 2
        and all(side.stride == side.dilation == 1 for side in kernel.windows)
        and isinstance(kernel.first.source, Scope)
        and len(kernel.roles["m"]) == 5
        for _, kernel in kernels_of_kind(scope, "conv")
    )


def dense_band(scope: Scope) -> bool:
    """A dense band of two operands laid out in residues."""
    return any(
        is_layout(operand.source) if isinstance(operand.source, Scope) else False
        for _, kernel in kernels_of_kind(scope, "band")
        for operand in (kernel.first, kernel.second)
        if not isinstance(operand.source, Tensor)
    )


def block_products(scope: Scope) -> bool:
    """A batch of products whose rows are blocks of the band's."""
    return any(
        kernel.roles["m"] and kernel.roles["n"] and kernel.roles["b"] for _, kernel in kernels_of_kind(scope, "batch_matmul")
    )


CASES: dict[str, tuple[Scope, Callable[[Scope], bool]]] = {
    "conv3x3 is a matmul and a shifted add": (conv(3), matmul_and_shifted_add(9)),
    "conv7x7 is a matmul and a shifted add": (conv(7), matmul_and_shifted_add(49)),
    "conv3x3 of stride 1 and dilation 3 is a matmul and a shifted add": (conv(3, 1, 3), matmul_and_shifted_add(9)),
    "transposed conv4x4 of stride 2 is a matmul and a gathered add": (transposed_conv(), matmul_and_shifted_add(4)),
    "transposed conv7x7 of stride 2 is a matmul and a gathered add": (transposed_conv(7, 2, 3), matmul_and_shifted_add(16)),
    "transposed conv6x6 of stride 3 is a matmul and a gathered add": (transposed_conv(6, 3, 1), matmul_and_shifted_add(4)),
    "conv5x5 is a conv3x3 of more features and a shifted add": (conv(5), smaller_windows(3, 4, 3)),
    "conv7x7 is a conv3x3 of more features and a shifted add": (conv(7), smaller_windows(3, 9, 3)),
    "conv3x3 of stride 2 is phases as channels": (conv(3, 2), phases_as_channels),
    "conv7x7 of stride 2 is phases as channels": (conv(7, 2), phases_as_channels),
    "conv4x4 of stride 2 is phases as channels": (conv(4, 2), phases_as_channels),
    "conv3x3 of dilation 2 is residues as images": (conv(3, 1, 2), residues_as_batch),
    "conv3x3 of dilation 3 is residues as images": (conv(3, 1, 3), residues_as_batch),
    "a dilated band is a dense band": (band(4, 4), dense_band),
    "a band of dilation 3 is a dense band": (band(4, 3), dense_band),
    "a dense band is a batch of products": (band(4, 1), block_products),
}  # fmt: skip


def derivation(scope: Scope, holds: Callable[[Scope], bool]) -> Derived:
    """The state of fewest steps that is what is looked for."""
    result = search(scope, [SIZES], LIMITS)
    reached = [state for state in result.states if holds(state.scope)]
    assert reached, f"not among {result.statistics}"
    assert not result.statistics.pruned["wrong"], "no rule makes another expression of one"
    return min(reached, key=lambda state: len(state.steps))


VARIANTS = ("7x7", "dilation 2", "conv4x4 of", "6x6")


@pytest.mark.parametrize(
    "name", [pytest.param(item, marks=pytest.mark.long) if any(v in item for v in VARIANTS) else item for item in CASES]
)
def test_a_published_form_is_derived(name: str):
    scope, holds = CASES[name]
    state = derivation(scope, holds)
    assert state.steps
    assert Check(scope, seed=7).holds(state.scope)


OFTEN = ("conv3x3 is a matmul and a shifted add", "a dense band is a batch of products")


@pytest.mark.parametrize("name", [item if item in OFTEN else pytest.param(item, marks=pytest.mark.long) for item in CASES])
def test_a_form_is_derived_whatever_iterators_are_called(name: str):
    scope, holds = CASES[name]
    assert derivation(other_names(scope, 1), holds).steps


SHUFFLED = (
    "conv3x3 is a matmul and a shifted add",
    "transposed conv4x4 of stride 2 is a matmul and a gathered add",
    "a dense band is a batch of products",
)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", SHUFFLED)
def test_a_form_is_derived_in_whatever_order_rules_are_tried(name: str, seed: int, monkeypatch: pytest.MonkeyPatch):
    draw = random.Random(seed)

    def shuffled(root: Scope, explores: bool) -> list[Move]:
        every = list(moves(root, explores))
        draw.shuffle(every)
        return every

    monkeypatch.setattr("haotuner.derive.search.moves", shuffled)
    scope, holds = CASES[name]
    assert derivation(scope, holds).steps


def are_one(scopes_: list[Scope], kind: str) -> Scope:
    """The nest that several expressions are parts of, checked."""
    parts = together(scopes_)
    assert parts is not None
    check = Check(*scopes_)
    assert all(check.holds(part, at) for at, part in enumerate(parts))
    inner = {part.body.source for part in parts if isinstance(part.body, Read)}
    assert len(inner) == 1
    merged = inner.pop()
    assert isinstance(merged, Scope)
    kernel = next(kernel for kernel in kernels(merged) if kernel.kind == kind)
    assert is_constant(kernel.second)
    return merged


def test_three_matmuls_of_one_input_are_one():
    merged = are_one([matmul(1, "f"), matmul(2, "f"), other_names(matmul(3, "2*g"), 1)], "matmul")
    assert str(merged.spatial[1].extent) == "2*f + 2*g"


@pytest.mark.parametrize("windows", [(3, 3), (3, 5), (7, 3), (1, 3)])
@pytest.mark.parametrize("stride, dilation", [(1, 1), (2, 1), (1, 3)])
def test_two_convolutions_of_one_image_are_one(windows: tuple[int, int], stride: int, dilation: int):
    first, other = (conv(size, stride, dilation, f"K{at}", f"f{at}") for at, size in enumerate(windows))
    merged = are_one([first, other_names(other, 2)], "conv")
    assert {loop.extent for loop in merged.sums if not is_symbolic(loop.extent)} == {max(windows)}


def test_products_of_different_inputs_are_not_one():
    assert together([conv(3), conv(3, 2, weight="V")]) is None
    assert together([conv(3), matmul(1, "f")]) is None
    assert together([matmul(1, "f"), parse("Y(m, k), V(f, k)!; L[a:0..m, o:0..f] S[d:0..k] Y[a, d] * V[o, d]")]) is None


def test_products_whose_sums_both_leave_their_ranges_stay_apart():
    """Of K each window axis alone shows that it is 0 outside of its range; -1 and 2 together are inside of K."""
    spatial, weight = "L[i:0..n, j:0..n, o:0..f]", "{L[k:1..2, g:0..f] K[k - 1, g]}[u + v, o]"
    inner = parse(f"X(n, n), K(1, f)!; {spatial} S[u:0..2, v:0..2] X[i + u, j + v] * {weight}")
    outer = parse(f"X(n, n), Q(4, 4, f)!; {spatial} S[u:0..4, v:0..4] X[i + u - 1, j + v - 1] * Q[u, v, o]")
    assert together([inner, outer]) is None and together([outer, inner]) is None
