"""A tuning run, from a request to a published pack."""
