"""Offers of nodes, and versions that are compared before work is sent: no Ray is needed for these."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from haotuner.errors import EnvironmentMissing, UnknownDevice, UsageError
from haotuner.fleet.offer import BUILD, Offer, folder_of, named, offer_of
from haotuner.fleet.versions import HAOTUNER, check_labels, check_toolchain, labels
from haotuner.hw_profiles.find import find_device

pytestmark = pytest.mark.isa("avx2", "fma")


@pytest.fixture
def offer() -> Offer:
    device = replace(find_device("cpu:avx2", measure=False), compute_units=1)
    return Offer(devices={"cpu:avx2": device}, builds=2, cores={"cpu:avx2": [0]}, cache="/somewhere")


def test_an_offer_survives_its_text(offer: Offer) -> None:
    assert Offer.of_text(offer.text) == offer


def test_a_device_is_one_resource_whatever_it_is_called(offer: Offer) -> None:
    device_id = offer.devices["cpu:avx2"].id
    resources = offer.resources
    assert resources[BUILD] == 2 and resources[f"haotuner:{device_id}"] == 1
    assert named(resources) == {"cpu:avx2": device_id, device_id: device_id}
    assert offer.names == {"cpu:avx2": "cpu:avx2", device_id: "cpu:avx2"}


def test_the_widest_cpu_has_the_name_of_its_instruction_set() -> None:
    offer = offer_of(["cpu"], cache=None, measure=False)
    assert any(name.startswith("cpu:") for name in offer.names) and offer.cores == {}


def test_cpus_of_one_host_share_its_cores() -> None:
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        pytest.skip("cores: this process has one")
    offer = offer_of(["cpu:avx2", "cpu:sse"], cache=None, measure=False)
    shares = list(offer.cores.values())
    assert sorted([*shares[0], *shares[1]]) == mine and sorted(os.sched_getaffinity(0)) == mine
    assert [device.compute_units for device in offer.devices.values()] == [len(share) for share in shares]


@pytest.mark.parametrize(
    "names, cores, error, words",
    [
        (["cpu", "cpu"], [], UsageError, "name each device once"),
        ([], [], UsageError, "name each device once"),
        (["cpu"], [4000], UsageError, "--cores 4000: this process may use"),
        (["cpu:neon"], [], UnknownDevice, "cpu:neon"),
        (["h200"], [], UsageError, "h200"),
    ],
)
def test_what_a_host_cannot_offer_is_refused(names: list[str], cores: list[int], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        offer_of(names, cache=None, cores=cores, measure=False)


def test_more_cpus_than_cores_are_refused() -> None:
    mine = sorted(os.sched_getaffinity(0))
    try:
        with pytest.raises(UsageError, match="need a core each"):
            offer_of(["cpu:avx2", "cpu:sse"], cache=None, cores=mine[:1], measure=False)
    finally:
        os.sched_setaffinity(0, mine)


def test_a_node_without_a_compiler_offers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(EnvironmentMissing, match="compiler"):
        offer_of(["cpu"], cache=None, measure=False)


def test_folders_of_devices_have_plain_names() -> None:
    assert folder_of("cpu:avx512") == "cpu-avx512" and folder_of("cuda:0/64") == "cuda-0-64"


def test_versions_of_a_node_are_compared() -> None:
    check_labels("node", labels())
    with pytest.raises(EnvironmentMissing, match=r"node b has .*version 0\.0\.9, here"):
        check_labels("b", {**labels(), HAOTUNER: "0.0.9"})
    with pytest.raises(EnvironmentMissing, match="python unknown, here"):
        check_labels("b", {HAOTUNER: labels()[HAOTUNER]})
    check_toolchain("b", {"compiler": "cc 12"}, {"compiler": "cc 12"})
    with pytest.raises(EnvironmentMissing, match="compiler cc 13, here cc 12; tvm missing, here 0.27"):
        check_toolchain("b", {"compiler": "cc 13"}, {"compiler": "cc 12", "tvm": "0.27"})
