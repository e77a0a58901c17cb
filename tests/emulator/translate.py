"""Generated CUDA C++ into C++ for the emulator: inline PTX becomes calls of the machine, the rest stays as it is."""

from __future__ import annotations

import re
from collections.abc import Callable

_OPERAND = re.compile(r'"[^"]*"\s*\(((?:[^()]|\([^()]*\))*)\)')  # "=r"(name), one level of parentheses inside
_NOTHING = ("fence", "setmaxnreg", "prefetch.tensormap")  # order and register hints that a CPU needs not


class UnknownInstruction(ValueError):
    """PTX that the emulator does not know; it must be taught before the kernel can be judged."""


class _Asm:
    """One asm statement: its text and the C expressions of its operands."""

    def __init__(self, statement: str) -> None:
        parts = _split(statement)
        text = " ".join(re.findall(r'"((?:[^"\\]|\\.)*)"', parts[0])).replace("\\n", " ").replace("\\t", " ")
        self.text = re.sub(r"\s+", " ", text).replace("{ %", "{%")
        self._operands = [e for part in parts[1:3] for e in _OPERAND.findall(part)]

    def operand(self, text: str) -> str:
        """The C expression of ``%3``; any other text is itself."""
        text = text.strip()
        return self._operands[int(text[1:])] if text.startswith("%") else text

    def operands(self, text: str) -> list[str]:
        """The C expressions of a comma-separated list."""
        return [self.operand(operand) for operand in text.split(",")]


def translate(source: str) -> str:
    """The whole unit for the emulator; raises UnknownInstruction at the first PTX it cannot express."""
    out, at = ['#include "emulator.h"\n'], 0
    for match in re.finditer(r"\basm\s*(?:volatile)?\s*\(", source):
        if match.start() < at:
            continue
        end = _closing(source, match.end())
        out.append(source[at : match.start()])
        out.append(_call(_Asm(source[match.end() : end])))
        at = end + 2 if source[end + 1 : end + 2] == ";" else end + 1
    out.append(source[at:])
    text = "".join(out)
    text = re.sub(
        r"extern __shared__ (?:__align__\(\d+\)|alignas\(\d+\)) (\w+) (\w+)\[\];",
        r"\1* \2 = (\1*)emu::shared_memory();",
        text,
    )
    return re.sub(r"#include <cuda(?:_runtime|_fp16|_bf16)?\.h>", "", text)


def _copy_async(asm: _Asm, match: re.Match[str]) -> str:
    to, source, size, bytes_read = (asm.operand(g) if g else None for g in match.groups())
    return f"emu::copy_async({to}, (const void*)({source}), {size}, {bytes_read or size});"


def _ldmatrix(asm: _Asm, match: re.Match[str]) -> str:
    registers = ", ".join(f"(uint32_t*)&({r})" for r in asm.operands(match[3]))
    return (
        f"{{ uint32_t* emu_to[] = {{{registers}}}; "
        f"emu::load_matrices({match[1]}, {_bool(match[2])}, emu_to, {asm.operand(match[4])}); }}"
    )


def _mma(asm: _Asm, match: re.Match[str]) -> str:
    d, a, b, c = (asm.operands(g) for g in match.groups()[2:])
    addresses = ", ".join(f"&({x})" for x in d)
    return (
        f"{{ float* emu_d[] = {{{addresses}}}; uint32_t emu_a[] = {{{', '.join(a)}}}, emu_b[] = {{{', '.join(b)}}}; "
        f"float emu_c[] = {{{', '.join(c)}}}; "
        f"emu::multiply_168({match[1]}, {_bool(match[2] == 'bf16')}, emu_d, emu_a, emu_b, emu_c); }}"
    )


def _mma_bytes(asm: _Asm, match: re.Match[str]) -> str:
    d, a, b, c = (asm.operands(g) for g in match.groups()[2:])
    addresses = ", ".join(f"(int*)&({x})" for x in d)
    return (
        f"{{ int* emu_d[] = {{{addresses}}}; uint32_t emu_a[] = {{{', '.join(a)}}}, emu_b[] = {{{', '.join(b)}}}; "
        f"int emu_c[] = {{{', '.join(f'(int)({x})' for x in c)}}}; "
        f"emu::multiply_bytes({_bool(match[1] == 's')}, {_bool(match[2] == 's')}, emu_d, emu_a, emu_b, emu_c); }}"
    )


def _wgmma(asm: _Asm, match: re.Match[str]) -> str:
    n, element, accumulators, a, b, scale, a_transposed, b_transposed = match.groups()
    values = asm.operands(accumulators)
    predicate = re.search(r"setp\.ne\.b32 \w+, (%\d+), 0", asm.text)
    add = asm.operand(predicate[1]) if predicate else scale
    if not predicate and scale not in ("0", "1"):
        raise UnknownInstruction(asm.text[:300])
    addresses = ", ".join(f"&({x})" for x in values)
    return (
        f"{{ float* emu_d[] = {{{addresses}}}; "
        f"emu::warpgroup_multiply({_bool(element == 'bf16')}, {n}, emu_d, {len(values)}, "
        f"{asm.operand(a)}, {asm.operand(b)}, {add}, {a_transposed}, {b_transposed}); }}"
    )


def _wgmma_held(asm: _Asm, match: re.Match[str]) -> str:
    n, element, accumulators, a, b, transposed = match.groups()
    values, a_registers = asm.operands(accumulators), asm.operands(a)
    if len(a_registers) != 4 or not re.search(r"setp\.ne\.b32 \w+, 1, 0", asm.text):
        raise UnknownInstruction(asm.text[:300])
    return (
        f"{{ float* emu_d[] = {{{', '.join(f'&({x})' for x in values)}}}; "
        f"const uint32_t* emu_a[] = {{{', '.join(f'&({x})' for x in a_registers)}}}; "
        f"emu::warpgroup_multiply_held({_bool(element == 'bf16')}, {n}, emu_d, {len(values)}, emu_a, "
        f"{asm.operand(b)}, {transposed}); }}"
    )


def _tensor_load(asm: _Asm, match: re.Match[str]) -> str:
    to, tensor_map, corner, barrier = match.groups()
    return (
        f"{{ int emu_corner[] = {{{', '.join(asm.operands(corner))}}}; emu::tensor_load("
        f"{asm.operand(to)}, (const void*)({asm.operand(tensor_map)}), emu_corner, {asm.operand(barrier)}); }}"
    )


def _pair(asm: _Asm, match: re.Match[str]) -> str:
    to, high, low = (asm.operand(g) for g in match.groups()[1:])
    bits = f"emu::{'bf16' if match[1] == 'bf16' else 'half'}_bits"
    return f"{to} = {bits}({low}) | (uint32_t){bits}({high}) << 16;"


def _given(function: str) -> Callable[[_Asm, re.Match[str]], str]:
    return lambda asm, match: f"{asm.operand(match[1])} = emu::{function}({asm.operand(match[2])});"


def _simple(function: str) -> Callable[[_Asm, re.Match[str]], str]:
    return lambda asm, match: f"emu::{function}({', '.join(asm.operand(g) for g in match.groups())});"


_PREDICATED = re.compile(r"\bcp\.async\.c[ag]\.\S+ .*@!?p|@!?p .*\bcp\.async\.c[ag]\.")
_RULES: tuple[tuple[str, Callable[[_Asm, re.Match[str]], str]], ...] = (
    (r"cp\.async\.c[ag]\.shared\.global(?:\.L2::\w+)? \[(%\d+)\], \[(%\d+)\], (%?\d+)(?:, (%?\d+))?;", _copy_async),
    (r"cp\.async\.commit_group", _simple("copy_commit")),
    (r"cp\.async\.wait_group (\d+)", _simple("copy_wait")),
    (r"ldmatrix\.sync\.aligned\.m8n8\.x(\d)(\.trans)?\.shared(?:::cta)?\.b16 \{(.*?)\}, \[(%\d+)\]", _ldmatrix),
    (
        r"mma\.sync\.aligned\.m16n8k(8|16)\.row\.col\.f32\.(f16|bf16)\.\w+\.f32\s*"
        r"\{(.*?)\}, \{(.*?)\}, \{(.*?)\}, \{(.*?)\}",
        _mma,
    ),
    (
        r"mma\.sync\.aligned\.m16n8k32\.row\.col\.s32\.([us])8\.([us])8\.s32\s*\{(.*?)\}, \{(.*?)\}, \{(.*?)\}, \{(.*?)\}",
        _mma_bytes,
    ),
    (
        r"dp4a\.([us])32\.s32 (%\d+), (%\d+), (%\d+), (%\d+)",
        lambda asm, match: (
            f"{asm.operand(match[2])} = emu::dot_bytes({_bool(match[1] == 's')}, true, "
            f"{', '.join(asm.operand(match[i]) for i in (3, 4, 5))});"
        ),
    ),
    (r"cvt\.rni\.s32\.f32 (%\d+), (%\d+)", _given("nearest")),
    (r"ex2\.approx\.ftz\.f32 (%\d+), (%\d+)", _given("power_of_two")),
    (r"cp\.async\.mbarrier\.arrive\.noinc\.\S+ \[(%\d+)\]", _simple("copy_arrive")),
    (r"mbarrier\.init\.\S+ \[(%\d+)\], (%\d+)", _simple("barrier_init")),
    (r"mbarrier\.arrive\.expect_tx\.\S+ _, \[(%\d+)\], (%\d+)", _simple("barrier_expect")),
    (r"mbarrier\.arrive\.\S+ _, \[(%\d+)\], (%\d+)", _simple("barrier_arrive")),
    (r"mbarrier\.try_wait\.parity\.\S+ P1, \[(%\d+)\], (%\d+)", _simple("barrier_wait")),
    (r"cp\.async\.bulk\.tensor\.\dd\.\S*mbarrier\S* \[(%\d+)\], \[(%\d+), \{(.*?)\}\], \[(%\d+)\]", _tensor_load),
    (
        r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(f16|bf16)\.\w+ "
        r"\{(.*?)\}, (%\d+), (%\d+), (\w+), 1, 1, ([01]), ([01])",
        _wgmma,
    ),
    (
        r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(f16|bf16)\.\w+ "
        r"\{(.*?)\}, \{(.*?)\}, (%\d+), \w+, 1, 1, ([01]);",
        _wgmma_held,
    ),
    (r"wgmma\.commit_group", _simple("warpgroup_commit")),
    (r"wgmma\.wait_group\.sync\.aligned (\d+)", _simple("warpgroup_wait")),
    (r"bar\.sync (%\d+), (%\d+)", _simple("sync_some")),
    (r"cvt\.rn\.f16\.f32 (%\d+), (%\d+)", _given("half_bits")),
    (r"cvt\.rn\.bf16\.f32 (%\d+), (%\d+)", _given("bf16_bits")),
    (r"cvt\.f32\.f16 (%\d+), (%\d+)", _given("half_value")),
    (r"cvt\.rn\.(f16|bf16)x2\.f32 (%\d+), (%\d+), (%\d+)", _pair),
    (r"mov\.b32 (%\d+), (%\d+)", lambda asm, match: f"{asm.operand(match[1])} = {asm.operand(match[2])};"),
    (r"mov\.u32 (%\d+), %%?tid\.x", lambda asm, match: f"{asm.operand(match[1])} = threadIdx.x;"),
    (r"mov\.u32 (%\d+), %%?ctaid\.x", lambda asm, match: f"{asm.operand(match[1])} = blockIdx.x;"),
    (r"mov\.u32 (%\d+), %%?smid", lambda asm, match: f"{asm.operand(match[1])} = emu::multiprocessor();"),
)


def _call(asm: _Asm) -> str:
    if _PREDICATED.search(asm.text):
        raise UnknownInstruction(f"predicated copy: {asm.text[:300]}")
    for pattern, translated in _RULES:
        if match := re.search(pattern, asm.text):
            return translated(asm, match)
    if not asm.text or any(word in asm.text for word in _NOTHING):
        return ";"
    raise UnknownInstruction(asm.text[:300])


def _bool(value: object) -> str:
    return "true" if value else "false"


def _closing(source: str, at: int) -> int:
    """Index of the parenthesis that closes the one before ``at``; strings are skipped."""
    depth, quoted = 1, False
    while True:
        character = source[at]
        if quoted:
            at += character == "\\"
            quoted = character != '"'
        elif character == '"':
            quoted = True
        else:
            depth += (character == "(") - (character == ")")
            if depth == 0:
                return at
        at += 1


def _split(statement: str) -> list[str]:
    """The template, outputs, inputs and clobbers of an asm statement: its parts between top-level colons."""
    parts, depth, quoted, start, at = [], 0, False, 0, 0
    while at < len(statement):
        character = statement[at]
        if quoted:
            at += character == "\\"
            quoted = character != '"'
        elif character == '"':
            quoted = True
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == ":" and depth == 0:
            parts.append(statement[start:at])
            start = at + 1
        at += 1
    return [*parts, statement[start:]]
