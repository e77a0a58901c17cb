"""The parts of the tuning loop: what to measure for a kernel, what is known so far, what to measure next."""
