"""GPUs as Devices: driver and NVML joined; either, both or none of them answering."""

from dataclasses import replace

import pytest

from haotuner.errors import EnvironmentMissing, UnknownDevice
from haotuner.hw_profiles.cpu import find_compiler
from haotuner.hw_profiles.gpu import gpu_device, gpu_devices
from haotuner.hw_profiles.gpu_queries import ATTRIBUTES, DriverGpu, NoGpu, query_driver
from haotuner.spec.device import Device
from tests.hw_profiles.hw_gpus import H200_ATTRIBUTES, LOST, NOT_SUPPORTED, Board, FakeNvml, cuda_driver
from tests.hw_profiles.hw_machines import machine


@pytest.fixture
def host(tmp_path):
    """A machine with one H200 that NVML and CUDA both describe."""

    def with_gpus(*boards, nvml=True, cuda=True, nvml_fails=None, **settings):
        library = str(tmp_path / "none.so")
        if cuda:
            compiler = find_compiler()
            if compiler is None:
                pytest.skip("compiler: no C compiler")
            library = cuda_driver(tmp_path, compiler, COUNT=len(boards), **settings)
        module = FakeNvml(*boards, **(nvml_fails or {})) if nvml else FakeNvml(nvmlInit=12)
        return replace(machine(tmp_path), nvml=module, cuda_library=library)

    return with_gpus


def only(host) -> Device:
    (device,) = gpu_devices(host)
    assert isinstance(device, Device), device
    return device


def test_both_answers_joined_every_number_with_its_source(host):
    device = only(host(Board()))
    assert (device.id, device.kind, device.name, device.arch, device.mig) == ("h200", "cuda", "NVIDIA H200", "sm_90a", False)
    assert (device.compute_units, device.wave_width, device.fma_pipes) == (132, 32, 4)
    assert (device.l1_bytes, device.shared_per_block_bytes, device.l2_bytes) == (233472, 232448, 62914560)
    assert (device.threads_per_unit, device.threads_per_block, device.blocks_per_unit) == (2048, 1024, 32)
    assert device.memory_bytes == 150115581952  # what a program can have, less than the board's
    assert device.memory_gbps == pytest.approx(3201 * 2 * 6144 / 8 / 1000)
    assert device.peak_gflops == pytest.approx(2 * 128 * 132 * 1.980)
    assert device.sources["compute_units"] == device.sources["l2_bytes"] == device.sources["clock_mhz"] == "queried"
    assert device.sources["peak_gflops"] == device.sources["memory_gbps"] == "derived"
    assert device.sources["tensor_tflops"] == "datasheet"
    assert set(device.sources) == set(device.numbers())


def test_without_the_cuda_driver_nvml_and_the_profile_remain(host):
    device = only(host(Board(), cuda=False))
    assert (device.id, device.compute_units, device.arch) == ("h200", 132, "sm_90a")
    assert device.sources["compute_units"] == "derived"  # cores over cores of an SM
    assert device.sources["memory_bytes"] == "queried"
    assert device.sources["shared_per_block_bytes"] == "datasheet"


def test_without_nvml_the_cuda_driver_remains(host):
    device = only(host(Board(), nvml=False))
    assert (device.id, device.compute_units, device.clock_mhz, device.mig) == ("h200", 132, 1980.0, None)
    assert device.memory_gbps == pytest.approx(4916.7, rel=1e-4)


def test_a_gpu_that_nobody_wrote_a_profile_for(host):
    device = only(host(Board(name="NVIDIA RTX 9999"), NAME="NVIDIA RTX 9999"))
    assert (device.id, device.compute_units) == ("nvidia-rtx-9999", 132)
    # What its tensor cores do follows of its compute capability, as the H200's datasheet has it within a tenth.
    assert device.tensor_tflops == pytest.approx(989.4, rel=0.1) and device.sources["tensor_tflops"] == "derived"
    assert "datasheet" not in device.sources.values()


@pytest.mark.parametrize("name, share", [("NVIDIA RTX 9999 Ada Generation", 1), ("NVIDIA GeForce RTX 9999", 2)])
def test_tensor_cores_of_a_geforce_board_do_half(host, name, share):
    attributes = {**H200_ATTRIBUTES, 75: 8, 76: 9}
    device = only(host(Board(name=name), NAME=name, attributes=attributes, nvml=False))
    assert device.tensor_tflops == pytest.approx(2e-6 * 512 * 132 * 1980 / share)


def test_an_unknown_compute_capability_has_no_invented_peak(host):
    attributes = {**H200_ATTRIBUTES, 75: 77}
    device = only(host(Board(name="NVIDIA X"), NAME="NVIDIA X", attributes=attributes, nvml=False))
    assert (device.arch, device.fma_pipes, device.peak_gflops, device.tensor_tflops) == ("sm_770", None, None, None)


def test_a_mig_instance_is_what_cuda_shows(host):
    attributes = {**H200_ATTRIBUTES, 16: 16}
    name = "NVIDIA H200 MIG 1g.18gb"
    device = only(host(Board(mig=(1, 1), instance=(16, 18176)), NAME=name, attributes=attributes, MEMORY=19058917376))
    assert (device.id, device.mig, device.compute_units) == ("nvidia-h200-mig-1g-18gb", True, 16)
    assert (device.memory_bytes, device.memory_gbps) == (19058917376, None)
    assert device.peak_gflops == pytest.approx(2 * 128 * 16 * 1.980)
    assert "datasheet" not in device.sources.values()


def test_a_mig_instance_through_nvml_alone(host):
    device = only(host(Board(mig=(1, 1), instance=(16, 18176)), cuda=False))
    assert (device.id, device.compute_units, device.memory_bytes) == ("nvidia-h200-mig", 16, 18176 << 20)


def test_mig_without_an_instance_is_no_device(host):
    (answer,) = gpu_devices(host(Board(mig=(1, 1)), cuda=False))
    assert isinstance(answer, NoGpu)
    assert "MIG is on" in answer.detail
    with pytest.raises(EnvironmentMissing, match="MIG is on"):
        gpu_device(0, host=host(Board(mig=(1, 1)), cuda=False))


def test_cuda_order_wins_and_boards_are_matched_by_bus(host):
    boards = (Board(bus_id="00000000:19:00.0", sm_mhz=1111), Board(sm_mhz=2222))  # CUDA shows bus 18 first
    first, second = gpu_devices(host(*boards))
    assert isinstance(first, Device) and isinstance(second, Device)
    assert (first.clock_mhz, second.clock_mhz) == (2222, 1111)


def test_a_lost_gpu_among_sound_ones_is_named_when_asked_for(host):
    present = host(Board(), Board(fails={"nvmlDeviceGetName": LOST}), cuda=False)
    assert gpu_device(0, host=present).id == "h200"
    with pytest.raises(EnvironmentMissing, match=r"cuda:1: the GPU does not answer.*code 15"):
        gpu_device(1, host=present)
    with pytest.raises(UnknownDevice, match="this host has cuda:0, cuda:1"):
        gpu_device(2, host=present)


def test_no_gpu_at_all_says_what_to_do(host):
    with pytest.raises(EnvironmentMissing, match=r"no usable GPU.*install the NVIDIA driver"):
        gpu_device(0, host=host(nvml=False, cuda=False))


def test_a_gpu_that_tells_nothing_is_an_answer(host):
    silent = {call: NOT_SUPPORTED for call in ("nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetName")}
    (answer,) = gpu_devices(host(Board(fails=silent), cuda=False))
    assert isinstance(answer, NoGpu)
    assert "compute capability" in answer.detail


@pytest.mark.parametrize(
    ("status", "reason"), [(100, "no-gpu"), (34, "no-driver"), (803, "no-driver"), (999, "no-driver"), (12345, "no-driver")]
)
def test_the_cuda_driver_failing_to_start(host, status, reason):
    answer = query_driver(host(Board(), INIT=status).cuda_library)
    assert isinstance(answer, NoGpu)
    assert (answer.reason, f"({status})" in answer.detail) == (reason, True)


def test_the_cuda_driver_with_no_device(host):
    answer = query_driver(host().cuda_library)
    assert isinstance(answer, NoGpu)
    assert answer.reason == "no-gpu"


def test_an_old_driver_that_lacks_attributes(host):
    attributes = {code: value for code, value in H200_ATTRIBUTES.items() if code not in (97, 106)}
    device = only(host(Board(), attributes=attributes))
    assert device.sources["shared_per_block_bytes"] == device.sources["blocks_per_unit"] == "datasheet"


def test_a_driver_that_hides_the_bus_cannot_be_matched_and_is_used_alone(host):
    device = only(host(Board(sm_mhz=1), BUS_RC=1))
    assert device.clock_mhz == 1980.0


def test_every_attribute_that_is_asked_for_is_answered_by_the_recording():
    assert set(ATTRIBUTES.values()) == set(H200_ATTRIBUTES)


def test_what_the_driver_says_of_one_gpu(host):
    (gpu,) = query_driver(host(Board()).cuda_library)  # type: ignore[misc]
    assert isinstance(gpu, DriverGpu)
    assert (gpu.name, gpu.bus_id, gpu.attributes["compute_units"]) == ("NVIDIA H200", "0000:18:00.0", 132)
