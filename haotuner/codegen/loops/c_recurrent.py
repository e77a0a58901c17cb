"""C of a recurrent layer: one direction of ONNX's LSTM, GRU or RNN, sequence by sequence (graph/recurrent.py defines it).

On a GPU a block of threads has a sequence: each thread has gates of its own, which meet in shared memory at every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from haotuner.codegen.loops.c_math import fused
from haotuner.graph.recurrent import CLIPPED, GATES, PANEL

SIDE_BY_SIDE = (4, 2, 1)  # sequences of a host's thread
BYTES_SIDE_BY_SIDE = 8  # at most, any number: their sums are few instructions, so weights are what a turn reads
SUMS_BYTES = 256 << 10  # of sequences side by side: they lie on a thread's stack
SHARED_BYTES = 48 << 10  # of a block on any GPU, without being asked for more

# {x}: the argument, {a} and {b} the settings, {f} the suffix of numbers and of C's functions.
_ACTIVATIONS = {
    "relu": "({x} > 0 ? {x} : {x} != {x} ? {x} : 0)",
    "tanh": "{tanh}({x})",
    "sigmoid": "(1.0{f} / (1.0{f} + {exp}(-{x})))",
    "affine": "({a} * {x} + {b})",
    "leakyrelu": "({x} < 0 ? {a} * {x} : {x})",
    "thresholdedrelu": "({x} > {a} ? {x} : 0)",
    "scaledtanh": "({a} * {tanh}({b} * {x}))",
    "hardsigmoid": "({a} * {x} + {b} < 0 ? 0 : {a} * {x} + {b} > 1 ? 1 : {a} * {x} + {b})",
    "elu": "({x} < 0 ? {a} * {expm1}({x}) : {x})",
    "softsign": "({x} / (1.0{f} + fabs{f}({x})))",
    "softplus": "(fmax{f}({x}, 0) + {log1p}({exp}(-fabs{f}({x}))))",
}


def fits_block(attributes: Mapping[str, Any], dtype: str) -> bool:
    """True if a block of a GPU holds the gates of a step: some 3,000 states of an LSTM in fp32."""
    rows = GATES[attributes["kind"]] + int(attributes.get("bytes", False))
    return bool(rows * attributes["hidden"] * (4 if dtype == "fp32" else 8) <= SHARED_BYTES)


def recurrent_lines(attributes: Mapping[str, Any], dtype: str, tokens: str, batch: str, block: int = 0) -> list[str]:
    """The body of the group: ``x0`` products, ``x1`` r, ``x2`` b, ``x3`` peepholes, ``x4`` h, ``x5`` c, ``x6`` lengths.

    ``block``: threads of a GPU that are called together, of a layer that ``fits_block``; 0: one thread of the host.
    """
    kind, hidden = attributes["kind"], attributes["hidden"]
    real, single = ("float", True) if dtype == "fp32" else ("double", False)
    f = "f" if single else ""
    clip = attributes.get("clip")

    def clipped(index: int) -> str:
        """``v``: the argument ``u``, bounded where the activation is a gate's; what is no number stays none."""
        if clip is None or index not in CLIPPED:
            return f"const {real} v = u;"
        low, high = f"{-float(clip)!r}{f}", f"{float(clip)!r}{f}"
        return f"const {real} w = u < {low} ? {low} : u, v = w > {high} ? {high} : w;"

    def value(index: int) -> str:
        name, a, b = attributes["activations"][index]
        calls = {item: f"ht_{item}" if single else item for item in ("tanh", "exp", "expm1", "log1p")}
        return _ACTIVATIONS[name].format(x="v", a=f"{float(a)!r}{f}", b=f"{float(b)!r}{f}", f=f, **calls)

    def act(index: int, x: str) -> str:
        if block:  # C++ has functions inside of functions
            return f"act{index}({x})"
        return f"({{ const {real} u = {x}; {clipped(index)} {value(index)}; }})"

    acts = [
        f"  const auto act{index} = []({real} u) {{ {clipped(index)} return {value(index)}; }};"
        for index in range(len(attributes["activations"]))
    ]
    step = {"lstm": _lstm, "gru": _gru, "rnn": _rnn}[kind](attributes, act, real)
    order = f"{tokens} - 1 - k" if attributes.get("reverse", False) else "k"
    rounds = bool(attributes.get("bytes", False))
    sums_bytes = GATES[kind] * hidden * (4 if single else 8) * (2 if rounds else 1)
    most = max(1, SUMS_BYTES // sums_bytes)
    sides = [min(BYTES_SIDE_BY_SIDE, most)] if rounds else [side for side in SIDE_BY_SIDE if side <= most]
    return [
        f"  enum {{ H = {hidden}, G = {GATES[kind]} }};",
        f"  const int64_t tokens = {tokens}, batch = {batch};",
        *(acts if block else ()),
        *_units(block),
        *(_byte_lines(attributes, block) if rounds else ()),
        *(_block_body(step, real, order, block, rounds) if block else _host_body(step, real, order, sides, attributes)),
        *(["#undef AS_BYTES"] if rounds else ()),
        "#undef UNITS",
    ]


def _byte_lines(attributes: Mapping[str, Any], block: int) -> list[str]:
    """Of weights that are bytes: their sizes, and a sequence's state as bytes of its own range with what they stand for."""
    hidden = attributes["hidden"]
    columns = GATES[attributes["kind"]] * hidden
    sizes = f"  enum {{ QUADS = {-(-hidden // 4)}, PANELS = {-(-columns // PANEL)}, COLUMNS = PANELS * {PANEL} }};"
    if block:
        lines = [
            "#define AS_BYTES(from, to) do {",
            "  float low = 0, high = 0;",
            "  for (int64_t i = 0; i < H; ++i) { low = fminf(low, (from)[i]); high = fmaxf(high, (from)[i]); }",
            "  const float width = (high - low) / 255;",
            "  scale = width == 0 ? 1 : width;",
            "  const float zero = rintf(fminf(fmaxf(-low / scale, 0), 255));",
            "  UNITS(j, H) (to)[j] = fminf(fmaxf(rintf((from)[j] / scale) + zero, 0), 255) - zero;",
            "} while (0)",
        ]
    else:
        total = "  total_of[q] = -H * zero_of[q]; for (int64_t j = 0; j < H; ++j) total_of[q] += state[j];"
        lines = [
            "#define AS_BYTES(q, from, state) do {",
            "  float low = 0, high = 0;",
            "  int nan = 0;",
            "  ht_state_range(from, H, &low, &high, &nan);",
            "  const float width = (high - low) / 255, scale = width == 0 ? 1 : width, middle = rintf(-low / scale);",
            "  const float zero = middle > 255 ? 255 : middle;",
            "  UNITS(j, H) {",
            "    float v = rintf((from)[j] / scale) + zero;",
            "    v = v > 0 ? v : 0;",
            "    state[j] = (uint8_t)(int32_t)(v < 255 ? v : 255);",
            "  }",
            "  zero_of[q] = (int32_t)zero;",
            "  scale_of[q] = nan ? NAN : scale;",
            *([total] if attributes["added"] else []),
            "  for (int64_t j = H; j < 4 * QUADS; ++j) state[j] = 0;",
            "  below_of[q] = ht_state_parts(state, 4 * QUADS, signs_of[q]);",
            "} while (0)",
        ]
    return [sizes, *(f"{line} \\" for line in lines[:-1]), lines[-1]]


def _block_body(step: Sequence[str], real: str, order: str, block: int, rounds: bool) -> list[str]:
    """A sequence after the other."""
    return [
        *_block_sums(real, block, rounds),
        *([f"  __shared__ {real} rounded[H];", f"  {real} scale = 1;"] if rounds else ()),
        "  for (int64_t n = lo[0]; n < hi[0]; ++n) {",
        f"    const {real} *h = x4 + n * H, *c = x5 + n * H;",
        "    (void)c;",
        "    for (int64_t k = 0; k < tokens; ++k) {",
        f"      const int64_t token = {order};",
        f"      {real}* to = y + (token * batch + n) * 2 * H;",
        f"      const {real}* x = x0 + (token * batch + n) * G * H;",
        "      if (token >= (int64_t)x6[n]) {",
        "        UNITS(j, 2 * H) to[j] = 0;",
        "        continue;",
        "      }",
        *(["      __syncthreads();", "      AS_BYTES(h, rounded);"] if rounds else ()),  # of what all threads wrote
        *(f"      {line}" for line in step),
        "      h = to;",
        "      c = to + H;",
        "    }",
        "  }",
        "#undef SUMS",
    ]


def _host_body(step: Sequence[str], real: str, order: str, sides: Sequence[int], attributes: Mapping[str, Any]) -> list[str]:
    """Some sequences side by side, then fewer: they share what is read of ``x1``, which is most of what a token reads.

    The sums of a sequence are the same, however many lie beside it. One that has ended is summed, and what comes of it
    is left alone.
    """
    if attributes.get("bytes", False):
        return _bytes_host_body(step, real, order, sides[0], attributes)
    lines = [f"  {real} sums_of[{sides[0]}][G * H];", "  int64_t n = lo[0];"]
    for side in sides:
        lines += [
            *_sums(real, side),
            f"  for (; n + {side} <= hi[0]; n += {side}) {{",
            f"    const {real} *hs[{side}], *cs[{side}];",
            *_tokens(step, real, order, str(side)),
            "  }",
            "#undef SUMS",
        ]
    return lines


def _bytes_host_body(step: Sequence[str], real: str, order: str, most: int, attributes: Mapping[str, Any]) -> list[str]:
    """``most`` sequences side by side, at last all that are left. Behind a state, weights are 0."""
    return [
        f"  {real} sums_of[{most}][G * H];",
        f"  uint8_t states_of[{most}][4 * QUADS], signs_of[{most}][4 * QUADS];",
        f"  int32_t whole_of[{most}][COLUMNS], zero_of[{most}], below_of[{most}], total_of[{most}];",
        f"  float scale_of[{most}];",
        "  (void)total_of; (void)signs_of;",
        *_byte_sums(attributes),
        "  int side;",
        "  for (int64_t n = lo[0]; n < hi[0]; n += side) {",
        f"    side = hi[0] - n < {most} ? (int)(hi[0] - n) : {most};",
        f"    const {real} *hs[{most}], *cs[{most}];",
        *_tokens(step, real, order, "side", ["for (int q = 0; q < side; ++q) AS_BYTES(q, hs[q], states_of[q]);"]),
        "  }",
        "#undef SUMS",
    ]


def _tokens(step: Sequence[str], real: str, order: str, side: str, first: Sequence[str] = ()) -> list[str]:
    """All tokens of ``side`` sequences; ``first``: what comes before a token's sums."""
    return [
        f"    for (int q = 0; q < {side}; ++q) {{ hs[q] = x4 + (n + q) * H; cs[q] = x5 + (n + q) * H; }}",
        "    for (int64_t k = 0; k < tokens; ++k) {",
        f"      const int64_t token = {order};",
        "      int some = 0;",
        f"      for (int q = 0; q < {side}; ++q) {{",
        f"        {real}* to = y + (token * batch + n + q) * 2 * H;",
        "        if (token < (int64_t)x6[n + q]) some = 1;",
        "        else UNITS(j, 2 * H) to[j] = 0;",
        "      }",
        "      if (!some) continue;",
        *(f"      {line}" for line in first),
        *_phases(step, real, side),
        f"      for (int q = 0; q < {side}; ++q) if (token < (int64_t)x6[n + q]) {{",
        "        hs[q] = y + (token * batch + n + q) * 2 * H;",
        "        cs[q] = hs[q] + H;",
        "      }",
        "    }",
    ]


def _phases(step: Sequence[str], real: str, side: str) -> list[str]:
    """A token of all sequences: sums of all, then what each makes of its own."""
    head = [
        f"      for (int q = 0; q < {side}; ++q) if (token < (int64_t)x6[n + q]) {{",
        "        const int64_t at = token * batch + n + q;",
        f"        {real}* to = y + at * 2 * H;",
        f"        const {real} *x = x0 + at * G * H, *h = hs[q], *c = cs[q], *sums = sums_of[q];",
        "        (void)h; (void)c;",
    ]
    lines: list[str] = []
    for index, line in enumerate(step):
        sums = line.startswith("SUMS")
        if sums and index:
            lines.append("      }")
        lines.append(f"      {line}" if sums else f"        {line}")
        lines += head if sums else ()
    return [*lines, "      }"]


def _byte_sums(attributes: Mapping[str, Any]) -> list[str]:
    """``sums_of`` all gates: sums of whole numbers times the scales of the state and of the column, and the bias."""
    added = " + x8[row] * total_of[q]" if attributes["added"] else ""
    lines = [
        "#define SUMS(first, end, of) do {",
        "  ht_byte_sums(x1, PANELS, QUADS, side, states_of[0], signs_of[0], 4 * QUADS, whole_of[0], COLUMNS);",
        "  for (int q = 0; q < side; ++q) {",
        "    const int32_t moved = zero_of[q] - HT_STATE_MIDDLE, below = below_of[q];",
        "    const float scale = scale_of[q];",
        "    UNITS(row, G * H)",
        f"      sums_of[q][row] = (float)(whole_of[q][row] + below - moved * x7[row]{added}) * (scale * x9[row]) + x2[row];",
        "  }",
        "} while (0)",
    ]
    return [f"{line} \\" for line in lines[:-1]] + [lines[-1]]


def _sums(real: str, side: int) -> list[str]:
    """``sums_of`` some gates: states times ``x1`` and the bias, all gates side by side, four terms at a time.

    ``of``: the state by a sequence's own ``h`` and ``to``.
    """
    every = range(side)
    own = f"const {real} *h = hs[{{q}}], *to = y + (token * batch + n + {{q}}) * 2 * H; (void)h; (void)to;"
    first = ", ".join(f"a{q}{n} = of{q}[i + {n}]" for q in every for n in range(4))
    add = fused(real)
    terms = " ".join(
        f"sums_of[{q}][row] = {add}(a{q}3, w3, {add}(a{q}2, w2, {add}(a{q}1, w1, {add}(a{q}0, w0, sums_of[{q}][row]))));"
        for q in every
    )
    last = " ".join(f"sums_of[{q}][row] = {add}(of{q}[i], w0, sums_of[{q}][row]);" for q in every)
    alone = f"{{ const {real} w0 = x1[i * G * H + row]; {last} }}"
    lines = [
        "#define SUMS(first, end, of) do {",
        *(f"  const {real}* of{q}; {{ {own.format(q=q)} of{q} = of; }}" for q in every),
        f"  for (int64_t row = first; row < end; ++row) {{ {' '.join(f'sums_of[{q}][row] =' for q in every)} x2[row]; }}",
        "  int64_t i = 0;",
        "  for (; i + 4 <= H; i += 4) {",
        f"    const {real} {first}, *w = x1 + i * G * H;",
        "    for (int64_t row = first; row < end; ++row) {",
        f"      const {real} {', '.join(f'w{n} = w[{n} * G * H + row]' for n in range(4))};",
        f"      {terms}",
        "    }",
        "  }",
        f"  for (; i < H; ++i) for (int64_t row = first; row < end; ++row) {alone}",
        "} while (0)",
    ]
    return [f"{line} \\" for line in lines[:-1]] + [lines[-1]]


def _block_sums(real: str, block: int, rounds: bool) -> list[str]:
    """Lines of sums, each thread its own gates: what was written before is there for all, and so are the sums behind it."""
    summed = [
        f"    {real} sum = x2[row];",
        f"    for (int64_t i = 0; i < H; ++i) sum = {fused(real)}((of)[i], x1[i * G * H + row], sum);",
        "    sums[row] = sum;",
    ]
    if rounds:
        position = f"((row / {PANEL} * QUADS + i / 4) * {PANEL} + row % {PANEL}) * 4 + i % 4"
        summed = [
            "    int32_t whole = 0;",
            f"    for (int64_t i = 0; i < H; ++i) whole += (int32_t)(of)[i] * (x1[{position}] + x8[row]);",
            "    sums[row] = (float)whole * (scale * x9[row]) + x2[row];",
        ]
    lines = [
        "#define SUMS(first, end, of) do {",
        "  __syncthreads();",
        f"  for (int64_t row = (first) + threadIdx.x; row < (end); row += {block}) {{",
        *summed,
        "  }",
        "  __syncthreads();",
        "} while (0)",
    ]
    return [f"{line} \\" for line in lines[:-1]] + [lines[-1], f"  __shared__ {real} sums[G * H];"]


def _units(block: int) -> list[str]:
    """A loop over places of which each is read and written by itself."""
    if block:
        return [f"#define UNITS(j, count) for (int64_t j = threadIdx.x; j < (count); j += {block})"]
    return ['#define UNITS(j, count) _Pragma("GCC ivdep") for (int64_t j = 0; j < (count); ++j)']


EACH = "UNITS(j, H) {"


def _lstm(attributes: Mapping[str, Any], act: Any, real: str) -> list[str]:
    forget = (
        "1 - in" if attributes.get("coupled", False) else act(0, "x[2 * H + j] + sums[2 * H + j] + x3[2 * H + j] * c[j]")
    )
    return [
        f"SUMS(0, 4 * H, {'rounded' if attributes.get('bytes', False) else 'h'});",
        EACH,
        f"  const {real} in = {act(0, 'x[j] + sums[j] + x3[j] * c[j]')};",
        f"  const {real} forget = {forget};",
        f"  const {real} cell = forget * c[j] + in * {act(1, 'x[3 * H + j] + sums[3 * H + j]')};",
        f"  to[j] = {act(0, 'x[H + j] + sums[H + j] + x3[H + j] * cell')} * {act(2, 'cell')};",
        "  to[H + j] = cell;",
        "}",
    ]


def _gru(attributes: Mapping[str, Any], act: Any, real: str) -> list[str]:
    """The reset state lies where an LSTM's cell would, until it is read."""
    after = bool(attributes.get("linear_before_reset", False))
    selected, inner = ("", "to[H + j] * sums[2 * H + j]") if after else (" * h[j]", "sums[2 * H + j]")
    return [
        f"SUMS(0, {3 if after else 2} * H, h);",
        EACH,
        f"  to[H + j] = {act(0, 'x[H + j] + sums[H + j]')}{selected};",
        "}",
        *(() if after else ("SUMS(2 * H, 3 * H, to + H);",)),
        EACH,
        f"  const {real} z = {act(0, 'x[j] + sums[j]')};",
        f"  to[j] = (1 - z) * {act(1, f'x[2 * H + j] + {inner}')} + z * h[j];",
        "}",
        "UNITS(j, H) to[H + j] = 0;",
    ]


def _rnn(attributes: Mapping[str, Any], act: Any, real: str) -> list[str]:
    return [
        "SUMS(0, H, h);",
        EACH,
        f"  to[j] = {act(0, 'x[j] + sums[j]')};",
        "}",
        "UNITS(j, H) to[H + j] = 0;",
    ]
