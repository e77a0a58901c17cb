"""Value types of all packages: ops, shapes, kernels, devices, records; and the right numbers of an op."""
