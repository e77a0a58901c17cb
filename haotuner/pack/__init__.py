"""The pack format: a folder with a manifest, one library and weights. Read and written without TVM."""
