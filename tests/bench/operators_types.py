"""Other types in the race of operators: dense layers in bf16 and int8 against torch, oneDNN, OpenVINO, ONNX Runtime."""

from __future__ import annotations

TITLE = "Dense in bf16 and int8"
PEERS = "torch,onednn,openvino,onnxruntime"
_ROWS, _RACED = "m=1..256", "m=1,5,37,128,256"
CASES = (
    ("dense:n=768,k=768,dtype=bf16", _ROWS, _RACED),
    ("dense:n=768,k=768,dtype=int8", _ROWS, _RACED),
    ("dense:n=3072,k=768,dtype=bf16", _ROWS, _RACED),
)
