"""What the sources may know of the kernels that a target is scored on, and what a program is called on other devices."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from haotuner.hw_profiles.find import find_device
from haotuner.records.codec import trial_of
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.record import Timed
from haotuner.spec.shape import Shape
from haotuner.transfer.device_table import program_keys
from haotuner.transfer.reading import DeviceTables, read_records
from tests.bench.transfer_study.evaluate import Evaluation, evaluate
from tests.bench.transfer_study.permutation import retold
from tests.bench.transfer_study.splits import half_of_kernels, rows_within
from tests.transfer.transfer_examples import COUSIN, WIDE, record, records
from tests.transfer.transfer_examples import find_device as made_up

GPUS = ("titan-rtx", "a4000")


def profile(name: str) -> Device:
    return find_device(name, measure=False)


def gemm(**params: int) -> str:
    usual = {"mwg": 64, "nwg": 64, "kwg": 32, "mdimc": 8, "ndimc": 8, "mdima": 8, "ndimb": 8, "kwi": 2}
    usual |= {"vwm": 1, "vwn": 1, "strm": 0, "strn": 0, "sa": 0, "sb": 0}
    return MicroKernel("clblast_xgemm", tuple((usual | params).items())).name


def conv(**params: int) -> str:
    usual = {"bx": 32, "by": 4, "tx": 1, "ty": 1, "fh": 15, "fw": 15, "ro": 0, "pad": 0, "sh": 1, "cm": 1}
    return MicroKernel("kt_conv2d", tuple((usual | params).items())).name


GEMMS = [
    gemm(mwg=mwg, vwm=vwm, sa=sa, mdima=mdima)
    for mwg, vwm, sa, mdima in product((32, 64, 128), (1, 2, 4), (0, 1), (8, 16, 32))
]
CONVS = [conv(bx=bx, by=by, tx=tx, sh=sh) for bx, by, tx, sh in product((16, 32, 48, 64), (1, 2, 4), (1, 2, 3), (0, 1))]


def measured(*devices: str) -> DeviceTables:
    """Made-up times of GEMM and convolution kernels on GPUs whose profiles ship."""
    rows = []
    for seed, device in enumerate(devices):
        rng = np.random.default_rng(seed)
        for op, kernels, shape in (
            ("dense_n4096_k4096", GEMMS, Shape.of(m=4096)),
            ("conv2d_w4096_h4096_fw15_fh15", CONVS, Shape.of()),
        ):
            trials = [trial_of(op=op, kernel=name, shape=shape, weights="hot") for name in kernels]
            rows += [record(trial, Timed(samples_us=(float(rng.uniform(3e4, 9e4)),)), device) for trial in trials]
    return read_records(rows, profile)


@pytest.fixture(scope="module")
def gpus() -> DeviceTables:
    return measured(*GPUS)


@pytest.mark.parametrize("seed", range(5))
def test_no_program_of_the_scored_half_was_seen_by_a_source_under_any_name(gpus: DeviceTables, seed: int) -> None:
    target, source = gpus.of("clblast_xgemm")
    half = half_of_kernels([target, source], seed)
    hidden, shown = target.take(rows_within(target, half, inside=False)), source.take(rows_within(source, half, inside=True))
    assert 10 < len(hidden) < len(target) - 10 and len(hidden) + len(shown) == len(target)
    assert not set(program_keys(hidden.frame)) & set(program_keys(shown.frame))
    twins = [{gemm(vwm=vwm, mdima=mdima) for mdima in (8, 16, 32)} for vwm in (1, 2, 4)]  # unused without SA
    assert all(len(names & half) in (0, 3) for names in twins)
    other = half_of_kernels([target, source], seed + 5)
    assert half != other and half == half_of_kernels([target, source], seed)


@pytest.mark.parametrize("family", ["clblast_xgemm", "kt_conv2d"])
def test_a_program_has_one_key_whatever_the_width_of_a_wave(gpus: DeviceTables, family: str) -> None:
    (table, _) = gpus.of(family)
    wide = retold(table, replace(table.device, id="wide", wave_width=2 * table.device.wave_width))
    keys = program_keys(table.frame)
    assert (keys == program_keys(wide.frame)).all() and not table.frame.equals(wide.frame)
    unused = [name.replace("_mdima16", "_mdima8").replace("_mdima32", "_mdima8") for name in table.kernels if "_sa0" in name]
    used = [name for name in table.kernels if "_sa0" not in name]
    assert len(np.unique(keys)) == len(set(unused)) + len(used)


def test_the_order_of_import_changes_nothing() -> None:
    rows = [row for seed, device in enumerate((WIDE, COUSIN)) for row in records(device, seed=seed)]
    shuffled = [rows[at] for at in np.random.default_rng(0).permutation(len(rows)).tolist()]
    evaluation = Evaluation(target="cousin", counts=(0, 16), seeds=1)
    assert evaluate(read_records(shuffled, made_up), evaluation) == evaluate(read_records(rows, made_up), evaluation)
