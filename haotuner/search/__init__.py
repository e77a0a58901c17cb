"""The tuning loop: what to measure next, what is known so far, when to stop."""
