"""Machines that tune together through Ray."""
