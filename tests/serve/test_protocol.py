"""The protocol by Triton's client library: health, metadata, answers with the bits of ``pack.model``, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import haotuner
from tests.serve.nets import drawn

http = pytest.importorskip("tritonclient.http")
grpc = pytest.importorskip("tritonclient.grpc")
utils = pytest.importorskip("tritonclient.utils")

DATATYPES = {"float32": "FP32", "int64": "INT64"}


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: Any) -> Any:
    if request.param == "http":
        connection = http.InferenceServerClient(f"127.0.0.1:{server.port}", network_timeout=30, connection_timeout=30)
    else:
        connection = grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")
    yield connection
    connection.close()


def inputs_of(client: Any, arrays: dict[str, Any], **options: Any) -> list[Any]:
    library = http if isinstance(client, http.InferenceServerClient) else grpc
    more = options if library is http else {}
    result = []
    for name, array in arrays.items():
        tensor = library.InferInput(name, list(array.shape), DATATYPES[array.dtype.name])
        tensor.set_data_from_numpy(array, **more)
        result.append(tensor)
    return result


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("rows") and client.is_model_ready("rows", "1")
    assert not client.is_model_ready("other") if isinstance(client, http.InferenceServerClient) else True
    metadata = client.get_server_metadata()
    name = metadata["name"] if isinstance(metadata, dict) else metadata.name
    assert name == "haotuner"
    model = client.get_model_metadata("masked")
    if isinstance(model, dict):
        assert model["inputs"][1] == {"name": "mask", "datatype": "INT64", "shape": [-1, -1]}
        assert [end["datatype"] for end in model["outputs"]] == ["FP32"]
    else:
        assert (model.inputs[1].name, model.inputs[1].datatype, list(model.inputs[1].shape)) == ("mask", "INT64", [-1, -1])


@pytest.mark.parametrize("model", ["rows", "masked", "centred", "chosen"])
def test_answers_have_the_bits_of_the_pack(client: Any, server: Any, model: str) -> None:
    with haotuner.load(server.paths[0], threads=1) as pack:
        served = pack.model(model)
        for sizes in ({"batch": 1, "seq": 5}, {"batch": 3, "seq": 17}, {"batch": 7, "seq": 1}):
            arrays = {}
            for seed, end in enumerate(served.inputs):
                shape = [sizes.get(extent, 5) if isinstance(extent, str) else extent for extent in end.shape]
                values = drawn(seed, *shape)
                arrays[end.name] = values if end.dtype == np.float32 else (values > 0).astype(end.dtype)
            expected = served.run(arrays)
            result = client.infer(model, inputs_of(client, arrays), request_id="7")
            for name, array in expected.items():
                answer = result.as_numpy(name)
                assert answer.dtype == array.dtype and answer.tobytes() == array.tobytes()


def test_json_tensors_and_chosen_outputs(server: Any) -> None:
    client = http.InferenceServerClient(f"127.0.0.1:{server.port}")
    x = drawn(1, 2, 3)
    tensors = inputs_of(client, {"x": x}, binary_data=False)
    names = [end.name for end in server.repository.batcher("rows").model.outputs]
    result = client.infer("rows", tensors, outputs=[http.InferRequestedOutput(names[1], binary_data=False)])
    assert result.as_numpy(names[0]) is None
    np.testing.assert_array_equal(result.as_numpy(names[1]), x.sum(axis=1, dtype=np.float32).reshape(2), strict=False)
    client.close()


REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("other", "", {"x": drawn(0, 2, 3)}, "no model 'other' is served; there are"),
    ("rows", "9", {"x": drawn(0, 2, 3)}, "has no version '9'"),
    ("rows", "", {"y": drawn(0, 2, 3)}, "has no input"),
    ("rows", "", {"x": np.ones((2, 3), np.int64)}, "must be of FP32, got 'INT64'"),
    ("rows", "", {"x": drawn(0, 3)}, "must have 2 axes"),
    ("masked", "", {"x": drawn(0, 2, 3, 4)}, "input mask is missing"),
    ("masked", "", {"x": drawn(0, 2, 3, 5), "mask": np.ones((2, 3), np.int64)}, "must have the shape"),
    ("masked", "", {"x": drawn(0, 2, 3, 4), "mask": np.ones((2, 4), np.int64)}, "another input has seq=3"),
]


@pytest.mark.parametrize(("model", "version", "arrays", "words"), REFUSED)
def test_what_is_wrong_is_told_in_the_protocol_s_form(
    client: Any, model: str, version: str, arrays: dict[str, Any], words: str
) -> None:
    with pytest.raises(utils.InferenceServerException, match=words):
        client.infer(model, inputs_of(client, arrays), model_version=version)
    assert client.is_server_live()


def test_an_output_that_there_is_none_of_is_refused(client: Any) -> None:
    library = http if isinstance(client, http.InferenceServerClient) else grpc
    with pytest.raises(utils.InferenceServerException, match="has no output 'z'; it has"):
        client.infer("rows", inputs_of(client, {"x": drawn(0, 1, 2)}), outputs=[library.InferRequestedOutput("z")])


def test_a_body_beyond_the_limit_is_refused(client: Any) -> None:
    with pytest.raises(utils.InferenceServerException, match="1048576|larger than max|exceeded|RESOURCE"):
        client.infer("rows", inputs_of(client, {"x": drawn(0, 64, 8192)}))
    assert client.is_server_live()


def test_the_index_names_models_and_loads_hand_over(client: Any, server: Any) -> None:
    before = server.repository.hand_overs
    client.load_model("rows")
    assert server.repository.hand_overs == before + 1
    index = client.get_model_repository_index()
    names = {row["name"] for row in index} if isinstance(index, list) else {row.name for row in index.models}
    assert names == {"rows", "masked", "centred", "chosen"}
    with pytest.raises(utils.InferenceServerException, match="not unloaded one by one"):
        client.unload_model("rows")
    with pytest.raises(utils.InferenceServerException, match="no model 'other'"):
        client.load_model("other")
