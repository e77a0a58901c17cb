"""Tests of haotuner/frontends/hugging_face."""
