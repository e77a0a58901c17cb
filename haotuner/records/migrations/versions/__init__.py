"""Migrations: from no tables to version 1, and from each version to the next."""
