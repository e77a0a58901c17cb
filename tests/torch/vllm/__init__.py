"""Tests of haotuner/torch/vllm."""
