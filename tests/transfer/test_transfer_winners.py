"""Winners without times: the space, what the order learns, what it may not read."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.hw_profiles.table import known_named
from haotuner.records.clblast import PARAMETERS, Configs, Winner, Winners, xgemm_space
from tests.bench.transfer_study.winners.evaluate import FREQUENCY, PRIOR, evaluate_winners
from tests.bench.transfer_study.winners.features import analysis, facts, program
from tests.bench.transfer_study.winners.prior import WinnersPrior

NAMES = (
    "gtx-970",
    "rtx-3070",
    "rx-5700",
    "rx-6800-xt",
    "mi100",
    "hd-530",
    "uhd-620",
    "mali-g68-mc4",
    "apple-m1",
    "adreno-640",
)


@cache
def space() -> Configs:
    """All configurations that the tuner allows."""
    return xgemm_space()


def winners() -> Winners:
    """All devices like large staged tiles with wide vectors, each another of them."""
    at = {name: column for column, name in enumerate(PARAMETERS)}
    columns = space()
    staged = columns[:, at["SA"]] + columns[:, at["SB"]] == 2
    liked = columns[staged & (columns[:, at["MWG"]] == 128) & (columns[:, at["VWM"]] >= 4)]
    drawn = np.random.default_rng(0).permutation(liked)[: len(NAMES)]
    entries = []
    for name, values in zip(NAMES, drawn.tolist(), strict=True):
        device = known_named(name)
        assert device is not None
        entries.append(Winner(device=device, values=tuple(values)))
    return Winners(winners=tuple(entries))


def test_the_space_is_what_the_tuner_allows() -> None:
    c = dict(zip(PARAMETERS, space().T, strict=True))
    assert len(space()) == len(np.unique(space(), axis=0)) == 249_036
    assert (c["MWG"] % (c["MDIMC"] * c["VWM"]) == 0).all() and (c["NWG"] % (c["NDIMC"] * c["VWN"]) == 0).all()
    staged = c["GEMMK"] == 0
    assert (c["KWG"][staged] % (c["MDIMC"] * c["NDIMC"] // c["MDIMA"])[staged] == 0).all()
    assert (c["SA"][~staged] == 0).all() and (c["KREG"][~staged] % c["VWN"][~staged] == 0).all()


def test_winners_of_other_vendors_bring_a_vendors_winner_to_the_front() -> None:
    document = evaluate_winners(winners(), sample=1500)
    assert document["median"][PRIOR] < 0.05 < document["median"][FREQUENCY]
    assert document["median"][FREQUENCY] == pytest.approx(0.5, abs=0.01), "no winner wins twice: all others tie"
    assert set(document["vendors"]) == {"amd", "apple", "arm", "intel", "nvidia", "qualcomm"}
    assert document["devices"]["gtx-970"]["vendor"] == "nvidia"


def test_the_order_does_not_read_the_winner_it_is_judged_by() -> None:
    table = winners()
    some, target = space()[:500], table.winners[0]
    model = WinnersPrior(table.winners[2:], space()[::100])
    other = replace(target, values=tuple(space()[-1].tolist()))
    assert model.scores(some, target).tolist() == model.scores(some, other).tolist()


def test_what_is_not_known_of_a_device_is_nan_and_the_analysis_still_answers() -> None:
    unknown = replace(winners().winners[0].device, facts={}, arch="")
    assert np.isnan(facts(unknown)[1:]).all()
    assert np.isfinite(analysis(space()[::500], unknown)).all()
    assert np.isfinite(program(space()[::500])).all()


def test_one_vendor_is_too_few() -> None:
    table = winners()
    with pytest.raises(UsageError, match="winners of two vendors are needed, found nvidia"):
        evaluate_winners(Winners(winners=table.winners[:2]))
