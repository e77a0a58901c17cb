"""Tables that name one best configuration a device, without times: an order of a space in which winners come early."""
