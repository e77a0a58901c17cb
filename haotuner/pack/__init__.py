"""The pack: a directory with a manifest and one library. Written aside and renamed; read and verified without TVM."""
