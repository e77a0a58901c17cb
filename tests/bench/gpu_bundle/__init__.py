"""What travels to a bare GPU machine: the project, packages, compiled kernels, and the run that calls its commands."""
