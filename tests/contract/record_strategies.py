"""Records made by hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from haotuner.records.codec import trial_of
from haotuner.spec.record import REASONS, STAGES, Failed, Outcome, Record, Timed
from haotuner.spec.shape import Shape

_text = st.text(max_size=12)
_positive = st.floats(min_value=1e-9, max_value=1e12, allow_nan=False)
_names = st.from_regex(r"[a-z]{1,4}", fullmatch=True)

outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Timed, samples_us=st.lists(_positive, min_size=1, max_size=8).map(tuple), max_error=st.floats(0, 1)),
    st.builds(Failed, stage=st.sampled_from(STAGES), reason=st.sampled_from(REASONS), detail=st.text(max_size=40)),
)
records: st.SearchStrategy[Record] = st.builds(
    Record,
    trial=st.builds(
        trial_of,
        op=_text,
        kernel=_text,
        shape=st.dictionaries(_names, st.integers(0, 2**31 - 1), max_size=3).map(Shape.of),
        threads=st.integers(1, 512),
        weights=st.sampled_from(("cold", "hot")),
        split=st.sampled_from(("n", "m")),
        repeat=st.one_of(st.just(0), st.integers(0, 2**63 - 1)),
    ),
    outcome=outcomes,
    device_id=st.sampled_from(("cpu", "h200")),
    fingerprint=st.sampled_from(("f", "g")),
    session=st.sampled_from(("s", "t")),
    when=st.floats(0, 4e9),
    seed=st.integers(0, 2**63 - 1),
    facts=st.dictionaries(_text, st.one_of(st.floats(allow_nan=False, allow_infinity=False), _text), max_size=4),
)
