"""Traces: real traffic from files, and files that are not what they should be."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haotuner.errors import UsageError
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.spec.traffic import Traffic, arrivals_of, is_trace, read_trace, traffic_of

OP = Op.parse("dense:n=2304,k=768")
ROW = st.tuples(st.integers(1, 2**31 - 1), st.integers(1, 1000))


def trace(folder: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def weights(path: Path, op: Op = OP) -> dict[int, float]:
    return {shape["m"]: round(weight, 6) for shape, weight in traffic_of(str(path), op)}


@pytest.mark.parametrize("spec", ["conv2d:c=8,f=8,r=7,s=7", "max_pool:kernel=7"])
def test_shapes_without_a_result_are_refused_in_words(spec: str) -> None:
    axes = "b=1;h=4..64;w=h" if spec.startswith("conv") else "b=1;c=8;h=4..64;w=h"
    with pytest.raises(UsageError, match="h=4.*has no result .*larger than the padded image; ask for larger"):
        arrivals_of(axes).traffic(Op.parse(spec))
    assert len(arrivals_of(axes.replace("=4..", "=7..")).traffic(Op.parse(spec))) > 1


def test_each_op_takes_the_range_that_has_its_axes() -> None:
    conv, product = Op.parse("conv2d:c=3,f=8,r=3,s=3,pad=1"), Op.parse("batch_matmul:k=4,layout=nt")
    arrivals = arrivals_of("m=1..8", "b=1..2;h=4..8;w=h")
    assert arrivals.text == "m=1..8 and b=1..2;h=4..8;w=h"
    assert {tuple(shape.as_dict()) for shape, _ in arrivals.traffic(OP)} == {("m",)}
    assert {tuple(shape.as_dict()) for shape, _ in arrivals.traffic(conv)} == {("b", "h", "w")}
    with pytest.raises(UsageError, match="needs exactly b, m, n"):
        arrivals.traffic(product)
    for more, words in (("m=4", "twice for the axes m"), ("t.csv", "one of them a trace")):
        with pytest.raises(UsageError, match=words):
            arrivals_of("m=1..8", more)


@pytest.mark.parametrize(
    "text",
    [
        "m\n8\n8\n16\n32\n",
        "m,weight\n8,2\n16,1\n32,1\n",
        "weight,m\n1e0,8\n1,8\n1,16\n1,32\n",
        "op,m\n,8\ndense_n2304_k768,8\ndense_n2304_k768,16\ndense_n768_k768,5\ndense_n2304_k768,32\n",
        'op,m\n"dense:n=2304,k=768",8\n,8\n,16\n,32\n',
        "m \r\n 8\r\n8\r\n16 \r\n32\r\n",
        b"\xef\xbb\xbfm\n8\n8\n16\n32\n",
        "m\n0000000000000008\n8\n16\n\n\n32",
    ],
)
def test_rows_of_a_csv_become_weights(text: str | bytes, tmp_path: Path) -> None:
    assert weights(trace(tmp_path, text)) == {8: 0.5, 16: 0.25, 32: 0.25}


@pytest.mark.parametrize(
    "text",
    [
        '{"m": 8}\n{"m": 8}\n{"m": 16}\n\n  \n{"m": 32}\n',
        '{"m": 8, "weight": 2}\n{"weight": 1.0, "m": 16}\n{"m": "32", "weight": "1"}',
        '{"op": null, "m": 8}\n{"op": "", "m": 8}\n{"op": "dense_n2304_k768", "m": 16}\n{"op": "dense_n8"}\n{"m": 32}',
    ],
)
def test_lines_of_json_become_weights(text: str, tmp_path: Path) -> None:
    assert weights(trace(tmp_path, text, "t.JSONL")) == {8: 0.5, 16: 0.25, 32: 0.25}


@settings(max_examples=30)
@given(rows=st.lists(ROW, min_size=1, max_size=20))
def test_both_formats_say_the_same(rows: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("both")
    table = trace(folder, "m,weight\n" + "".join(f"{m},{weight}\n" for m, weight in rows))
    lines = trace(folder, "".join(json.dumps({"m": m, "weight": weight}) + "\n" for m, weight in rows), "t.jsonl")
    expected = Traffic.of((Shape.of(m=m), float(weight)) for m, weight in rows)
    assert traffic_of(str(table), OP) == traffic_of(str(lines), OP) == expected


def test_a_range_is_not_a_trace(tmp_path: Path) -> None:
    assert [is_trace(text) for text in ("m=1..8", "dynamic", "a.csv", "B.JSONL", "c.json")] == [
        False,
        False,
        True,
        True,
        False,
    ]
    assert traffic_of("m=4", OP).shapes() == (Shape.of(m=4),)
    with pytest.raises(UsageError, match="give the axes n; dense_n2304_k768 needs exactly m"):
        traffic_of("n=4", OP)
    with pytest.raises(UsageError, match="leaves no axis to run time, .* --shapes, as in b=2"):
        traffic_of("m=4", Op.parse("batch_matmul:b=2,m=4,n=3,k=5"))


HOSTILE_CSV: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "no row for dense_n2304_k768"),
    "header only": ("m\n", "no row for"),
    "other ops only": ("op,m\ndense_n8_k8,4\n", "its column op must name it"),
    "no weight at all": ("m,weight\n4,0\n", "positive weight"),
    "another axis": ("n\n4\n", "give the axes n; dense_n2304_k768 needs exactly m"),
    "one axis too many": ("m,n\n4,4\n", "give the axes m, n"),
    "a column twice": ("m,m\n4,5\n", "names a column twice: m,m"),
    "a column twice but for blanks": ("m, m\n4,5\n", "names a column twice"),
    "a row too long": ("m\n4\n4,5\n", "line 3: the header has 1 columns"),
    "a row too short": ("m,weight\n4,1\n4\n", "line 3: the header has 2 columns"),
    "no number": ("m\n4\nfour\n", "line 3: m='four' is not a whole number"),
    "a fraction": ("m\n4.0\n", "m='4.0'"),
    "zero": ("m\n0\n", "m='0'"),
    "negative": ("m\n-4\n", "m='-4'"),
    "other digits": ("m\n٤\n", "is not a whole number"),
    "over the limit": (f"m\n{2**31}\n", r"in 1..2\^31-1"),
    "over the limit behind zeros": (f"m\n{'0' * 11}1{'0' * 20}\n", r"in 1..2\^31-1"),
    "five thousand digits": (f"m\n{'0' * 11}1{'0' * 5000}\n", r"in 1..2\^31-1"),
    "a weight that is no number": ("m,weight\n4,much\n", "line 2: weight 'much' is not a number"),
    "a weight of nan": ("m,weight\n4,nan\n", "weight 'nan'"),
    "an infinite weight": ("m,weight\n4,1e999\n", "weight '1e999'"),
    "a negative weight": ("m,weight\n4,-1\n", "weight '-1'"),
    "an op that cannot be read": ("op,m\ndense_x,4\n", "line 2: op 'dense_x': cannot read 'x'"),
    "an open quote": ('m\n"4\n5\n', "unexpected end of data"),
    "a quote in the middle": ('m\n"4"5\n', "line 2"),
    "a field without end": ("m\n" + "4" * 200_000 + "\n", "line 2: field larger than"),
    "not text": (b"m\n\xff\xfe4\n", "is not UTF-8 text"),
    "nulls": ("m\n\0\0\n", "line 2"),
}
HOSTILE_JSON = {
    "not json": ('{"m": 4}\n{m: 4}\n', "line 2: not JSON"),
    "a list": ("[4]\n", r'line 1: expected an object such as \{"m": 37\}'),
    "a number": ("4\n", "expected an object"),
    "a fraction": ('{"m": 4.0}\n', "m='4.0'"),
    "true": ('{"m": true}\n', "m='True'"),
    "null": ('{"m": null}\n', "m='None'"),
    "nothing": ("{}\n", "give the axes ; dense_n2304_k768 needs exactly m"),
    "a list in it": ('{"m": [4]}\n', "is not a whole number"),
    "weight nan": ('{"m": 4, "weight": NaN}\n', "weight 'nan'"),
    "weight null": ('{"m": 4, "weight": null}\n', "weight 'None'"),
    "weight infinite": ('{"m": 4, "weight": -Infinity}\n', "weight '-inf'"),
    "an op that is no text": ('{"op": 5, "m": 4}\n', "line 1: unknown op kind '5'"),
    "nested without end": ("[" * 100_000 + "\n", "line 1: not JSON"),
    "five thousand digits": ('{"m": ' + "9" * 5000 + "}\n", "line 1: not JSON"),
    "cut off": ('{"m": 4}\n{"m": 4', "line 2: not JSON"),
}


@pytest.mark.parametrize("case", HOSTILE_CSV)
def test_a_bad_csv_says_where_and_what(case: str, tmp_path: Path) -> None:
    text, words = HOSTILE_CSV[case]
    with pytest.raises(UsageError, match=words) as error:
        traffic_of(str(trace(tmp_path, text)), OP)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize("case", HOSTILE_JSON)
def test_bad_json_lines_say_where_and_what(case: str, tmp_path: Path) -> None:
    text, words = HOSTILE_JSON[case]
    with pytest.raises(UsageError, match=words) as error:
        traffic_of(str(trace(tmp_path, text, "t.jsonl")), OP)
    assert len(str(error.value)) < 600


@settings(max_examples=100)
@given(data=st.binary(max_size=200), name=st.sampled_from(["t.csv", "t.jsonl"]))
def test_any_bytes_are_a_trace_or_a_usage_error(data: bytes, name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = trace(tmp_path_factory.mktemp("bytes"), data, name)
    try:
        rows = list(read_trace(path))
    except UsageError:
        return
    assert all(weight >= 0 for _, _, weight in rows)


def test_what_is_no_file_is_a_usage_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "folder.csv").mkdir()
    for name, words in (("missing.csv", "No such file"), ("folder.csv", "regular file"), ("pipe.csv", "regular file")):
        with pytest.raises(UsageError, match=words):
            traffic_of(str(tmp_path / name), OP)


def test_a_file_over_the_limit_is_refused_unread(tmp_path: Path) -> None:
    path = trace(tmp_path, "m\n4\n")
    os.truncate(path, (1 << 30) + 1)  # sparse
    with pytest.raises(UsageError, match="more than 1 GiB.*sample a larger one"):
        traffic_of(str(path), OP)
