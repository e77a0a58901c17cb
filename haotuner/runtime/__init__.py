"""Serving: open a pack, bind weights, call. Needs numpy and tvm-ffi only."""
