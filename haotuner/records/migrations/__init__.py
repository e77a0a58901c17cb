"""Versions of the tables in PostgreSQL, for Alembic: a file each, never changed once it was released."""
