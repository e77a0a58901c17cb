"""Tests of derivation."""
