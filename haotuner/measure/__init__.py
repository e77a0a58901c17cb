"""Measuring: jobs, the isolated worker that runs them, verification before a time counts."""
