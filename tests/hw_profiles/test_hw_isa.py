"""Instruction sets and ids out of /proc/cpuinfo."""

import pytest

from haotuner.hw_profiles.isa import ISAS, parse_cpuinfo, wide_pipes
from tests.hw_profiles.hw_machines import CORE_2, EPYC, RYZEN, XEON


@pytest.mark.parametrize(
    ("text", "expected"),
    [(EPYC, ["avx512", "avx2", "sse"]), (XEON, ["avx512", "avx2", "sse"]), (RYZEN, ["avx2", "sse"]), (CORE_2, [])],
)
def test_levels_come_from_the_flags_widest_first(text, expected):
    assert [isa.name for isa in parse_cpuinfo(text).isas()] == expected


@pytest.mark.parametrize("missing", sorted(ISAS[0].flags - ISAS[1].flags))
def test_a_cpu_without_one_avx512_part_is_an_avx2_cpu(missing):
    info = parse_cpuinfo(EPYC.replace(f" {missing}", ""))
    assert [isa.name for isa in info.isas()] == ["avx2", "sse"]


def test_only_the_first_processor_is_read():
    info = parse_cpuinfo(EPYC)
    assert (info.vendor, info.model_name, info.family, info.microcode) == ("AuthenticAMD", "AMD EPYC", "26", "0x1000065")


@pytest.mark.parametrize(
    ("model_name", "expected"),
    [
        ("AMD EPYC", "cpu-amd-epyc-f26m2-avx512"),  # a hypervisor hides the model: family and model keep Zen 4 and 5 apart
        ("AMD EPYC 7763 64-Core Processor", "cpu-amd-epyc-7763-avx512"),
        ("Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz", "cpu-intel-xeon-gold-6248-avx512"),
        ("INTEL(R) XEON(R) PLATINUM 8592+", "cpu-intel-xeon-platinum-8592-plus-avx512"),
        ("13th Gen Intel(R) Core(TM) i7-13700K", "cpu-13th-gen-intel-core-i7-13700k-avx512"),
        ("AMD Ryzen 7 5800U with Radeon Graphics", "cpu-amd-ryzen-7-5800u-avx512"),
        ("", "cpu-amd-f26m2-avx512"),
    ],
)
def test_ids_are_stable_words_joined_by_dashes(model_name, expected):
    vendor = "GenuineIntel" if "intel" in model_name.lower() else "AuthenticAMD"
    info = parse_cpuinfo(EPYC.replace("AMD EPYC", model_name, 1).replace("AuthenticAMD", vendor, 1))
    assert info.id(ISAS[0]) == expected


@pytest.mark.parametrize("text", ["", "\n\n", "garbage without colons", "flags:", "processor\t: 0\n"])
def test_an_unreadable_cpuinfo_has_no_instruction_set_and_still_an_id(text):
    info = parse_cpuinfo(text)
    assert info.isas() == ()
    assert info.id(ISAS[2]) == "cpu-x86-64-sse"


@pytest.mark.parametrize(
    ("text", "pipes"),
    [
        (EPYC, 2),  # Zen 5
        (EPYC.replace("family\t: 26", "family\t: 25"), None),  # Zen 4 has one, but what its family says is not all of it
        (EPYC.replace("AMD EPYC", "AMD Ryzen AI 9 HX 370"), None),  # half as wide in laptops
        (XEON, None),  # of this family some models have one
        (XEON.replace(" avx512f", " avx512f amx_tile"), 2),
        (RYZEN, None),
    ],
)
def test_pipes_of_the_widest_vectors_where_the_generation_says_them(text, pipes):
    assert wide_pipes(parse_cpuinfo(text)) == pipes


def test_wider_levels_contain_narrower_ones():
    for wide, narrow in zip(ISAS, ISAS[1:], strict=False):
        assert wide.flags > narrow.flags
        assert wide.wave_width == 2 * narrow.wave_width


def test_the_chains_of_the_peak_program_fit_the_registers():
    for isa in ISAS:
        assert isa.chains + 2 <= isa.registers  # two constants beside the accumulators
