"""NVML: what it says, and each way it can fail."""

import sys

import pytest

from haotuner.hw_profiles.gpu_queries import NoGpu, NvmlGpu, NvmlHost, query_nvml
from tests.hw_profiles.hw_gpus import LOST, NO_PERMISSION, NOT_SUPPORTED, UNKNOWN, Board, FakeNvml


def asked(*boards: Board, **fails: int) -> NvmlHost:
    module = FakeNvml(*boards, **fails)
    host = query_nvml(module)
    assert not module.open
    assert isinstance(host, NvmlHost), host
    return host


def test_everything_it_says():
    host = asked(Board())
    assert (host.driver, host.cuda) == ("580.82.07", "13.0")
    (gpu,) = host.gpus
    assert gpu == NvmlGpu(
        index=0,
        name="NVIDIA H200",
        bus_id="00000000:18:00.0",
        capability=(9, 0),
        memory_bytes=150754820096,
        clock_mhz=1980,
        memory_clock_mhz=3201,
        bus_bits=6144,
        fp32_cores=16896,
        mig=False,
        mig_units=None,
        mig_memory_bytes=None,
    )


@pytest.mark.parametrize(
    ("code", "reason", "remedy"),
    [
        (12, "no-library", "install the NVIDIA driver"),
        (9, "no-driver", "nvidia-smi"),
        (4, "no-permission", "--gpus all"),
        (18, "mismatch", "reboot"),
        (17, "no-permission", "device files"),
        (15, "lost", "dmesg"),
        (10, "timeout", "dmesg"),
        (999, "unknown", "nvidia-smi"),
        (4711, "unknown", "nvidia-smi"),
    ],
)
@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount"])
def test_a_failure_at_the_start_is_an_answer_with_a_remedy(code, reason, remedy, call):
    no_gpu = query_nvml(FakeNvml(Board(), **{call: code}))
    assert isinstance(no_gpu, NoGpu)
    assert no_gpu.reason == reason
    assert f"code {code}" in no_gpu.detail
    assert remedy in no_gpu.remedy


def test_no_python_module(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    no_gpu = query_nvml()
    assert isinstance(no_gpu, NoGpu)
    assert (no_gpu.reason, ".[tune]" in no_gpu.remedy) == ("no-module", True)


def test_the_real_module_on_this_machine_gives_a_clean_answer():
    answer = query_nvml()
    assert isinstance(answer, (NvmlHost, NoGpu))


def test_a_driver_without_gpus():
    no_gpu = query_nvml(FakeNvml())
    assert isinstance(no_gpu, NoGpu)
    assert no_gpu.reason == "no-gpu"


QUESTIONS = {
    "nvmlDeviceGetMemoryInfo": "memory_bytes",
    "nvmlDeviceGetPciInfo": "bus_id",
    "nvmlDeviceGetCudaComputeCapability": "capability",
    "nvmlDeviceGetMemoryBusWidth": "bus_bits",
    "nvmlDeviceGetNumGpuCores": "fp32_cores",
    "nvmlDeviceGetMigMode": "mig",
    "nvmlDeviceGetMaxClockInfo": "clock_mhz",
}


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, UNKNOWN, 2, 13])
@pytest.mark.parametrize(("call", "name"), QUESTIONS.items())
def test_a_refused_question_leaves_the_others_answered(code, call, name):
    (gpu,) = asked(Board(fails={call: code})).gpus
    assert isinstance(gpu, NvmlGpu)
    assert getattr(gpu, name) is None
    assert gpu.name == "NVIDIA H200"
    assert len(gpu.refused) >= 1
    answered = set(QUESTIONS.values()) - {name}
    assert all(getattr(gpu, other) is not None for other in answered)


def test_a_gpu_without_a_name_is_still_a_gpu():
    (gpu,) = asked(Board(fails={"nvmlDeviceGetName": UNKNOWN})).gpus
    assert isinstance(gpu, NvmlGpu)
    assert gpu.name == "NVIDIA GPU"


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", *QUESTIONS])
@pytest.mark.parametrize("code", [LOST, 16, 28])
def test_a_lost_gpu_keeps_its_place_between_sound_ones(call, code):
    host = asked(Board(), Board(fails={call: code}), Board())
    first, lost, last = host.gpus
    assert isinstance(first, NvmlGpu) and isinstance(last, NvmlGpu)
    assert isinstance(lost, NoGpu)
    assert lost.reason == "lost"
    assert (first.index, last.index) == (0, 2)


def test_a_gpu_whose_handle_is_not_permitted_is_an_answer():
    (gpu,) = asked(Board(fails={"nvmlDeviceGetHandleByIndex": NO_PERMISSION})).gpus
    assert isinstance(gpu, NoGpu)
    assert gpu.reason == "no-permission"


def test_a_shutdown_that_fails_loses_nothing():
    host = query_nvml(FakeNvml(Board(), nvmlShutdown=LOST))
    assert isinstance(host, NvmlHost)


def test_versions_that_are_refused_are_unknown():
    host = asked(Board(), nvmlSystemGetDriverVersion=UNKNOWN, nvmlSystemGetCudaDriverVersion_v2=NOT_SUPPORTED)
    assert (host.driver, host.cuda) == (None, None)


def test_mig_gives_the_first_instance():
    (gpu,) = asked(Board(mig=(1, 1), instance=(16, 18176))).gpus
    assert isinstance(gpu, NvmlGpu)
    assert (gpu.mig, gpu.mig_units, gpu.mig_memory_bytes) == (True, 16, 18176 << 20)


@pytest.mark.parametrize(
    "fails", [{}, {"nvmlDeviceGetMaxMigDeviceCount": NOT_SUPPORTED}, {"nvmlDeviceGetAttributes": NO_PERMISSION}]
)
def test_mig_without_a_readable_instance(fails):
    instance = (16, 18176) if fails else None
    (gpu,) = asked(Board(mig=(1, 1), instance=instance, fails=fails)).gpus
    assert isinstance(gpu, NvmlGpu)
    assert (gpu.mig, gpu.mig_units, gpu.mig_memory_bytes) == (True, None, None)
