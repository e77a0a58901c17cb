"""Convolutions in the race of operators: layers of ResNet-50 (He et al. 2015), MobileNetV3 (Howard et al. 2019), 1-d."""

from __future__ import annotations

TITLE = "Convolutions"
PEERS = "torch,onednn,openvino,onnxruntime"
_IMAGES = "b=1..4;h=7..57;w=h"
_RACED = "b=1,4;h=7,14,28,57;w=h"
CASES = (
    ("conv2d:c=64,f=64,r=3,s=3,pad=1", _IMAGES, _RACED),
    ("conv2d:c=128,f=128,r=3,s=3,pad=1,stride=2", _IMAGES, _RACED),
    ("conv2d:c=256,f=64,r=1,s=1", _IMAGES, _RACED),
    ("conv2d:c=64,f=64,r=3,s=3,pad=1,layout=nhwc", _IMAGES, _RACED),
    ("conv2d:c=16,f=64,r=1,s=1,layout=nhwc", _IMAGES, _RACED),
    ("conv2d:c=72,f=72,r=5,s=5,pad=2,groups=72", _IMAGES, _RACED),
    ("conv2d:c=72,f=72,r=3,s=3,pad=1,groups=72,layout=nhwc", _IMAGES, _RACED),
    ("conv1d:c=64,f=96,s=5,pad=2", "b=1..2;w=500..4000", "b=1;w=500,1500,4000"),
    ("conv1d:c=64,f=96,s=5,pad=4,dilation=2,layout=nwc", "b=1..2;w=500..4000", "b=1;w=500,1500,4000"),
    ("conv1d:c=192,f=192,s=3,pad=1", "b=1..2;w=500..4000", "b=1;w=700,3000"),
    ("conv1d:c=32,f=32,s=11,pad=25,dilation=5", "b=1..2;w=500..4000", "b=1;w=700,3000"),
    ("conv_transpose2d:c=64,f=64,r=2,s=2,stride=2", _IMAGES, _RACED),
    ("conv_transpose1d:c=128,f=64,s=8,stride=4,pad=2", "b=1..2;w=100..2000", "b=1;w=100,700,2000"),
)
