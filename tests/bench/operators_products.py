"""batch_matmul in the race of operators: DietCode's kind of shapes and attention's two products."""

from __future__ import annotations

TITLE = "Batched products"
PEERS = "torch,onnxruntime"
CASES = (
    ("batch_matmul:k=64,layout=nt", "b=12..96;m=1..512;n=m", "b=12,96;m=1,16,128,512;n=m"),
    ("batch_matmul:n=64,layout=nn", "b=12..96;m=1..512;k=m", "b=12,96;m=16,128,512;k=m"),
)
