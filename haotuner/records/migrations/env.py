"""Alembic's environment: it runs the migrations on the connection that ``postgres.py`` hands over, in its transaction."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"], version_table_schema=context.config.attributes["schema"]
)
context.run_migrations()
