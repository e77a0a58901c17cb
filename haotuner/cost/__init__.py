"""How fast a micro-kernel will be on a device: an analytic expectation and a learned one."""
