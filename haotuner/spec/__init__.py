"""Values that everybody uses: ops, shapes, kernels, devices, records; and the right numbers of an op."""
