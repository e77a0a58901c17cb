"""Version 2: a trial may be repeated."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "2", "1"


def upgrade() -> None:
    """Add the number of the repeat; what is there was measured once."""
    column = sa.Column("repeat", sa.BigInteger(), nullable=False, server_default="0")
    op.add_column("record", column, schema="haotuner")
