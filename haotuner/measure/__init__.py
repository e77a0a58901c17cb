"""Measurements: builders and runners in child processes; a program is verified before its time counts."""
