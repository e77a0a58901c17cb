"""batch_matmul in the race of operators: the sixteen shapes of DietCode (Zheng et al., MLSys 2022) and attention's products.

DietCode's are the two products of attention in BERT-base, 16 sentences of 12 heads, at eight lengths tuned for at once.
"""

from __future__ import annotations

TITLE = "Batched products"
PEERS = "torch,onednn,openvino,onnxruntime"
_LENGTHS = "5,24,43,62,81,100,119,128"
CASES = (
    ("batch_matmul:k=64,layout=nt", "b=192;m=1..128;n=m", f"b=192;m={_LENGTHS};n=m"),
    ("batch_matmul:n=64,layout=nn", "b=192;m=1..128;k=m", f"b=192;m={_LENGTHS};k=m"),
    ("batch_matmul:k=64,layout=nt", "b=12..96;m=1..512;n=m", "b=12,96;m=1,16,77,200,512;n=m"),
    ("batch_matmul:n=64,layout=nn", "b=12..96;m=1..512;k=m", "b=12,96;m=1,16,77,200,512;k=m"),
)
