"""Version 1: sessions, records and claims, as SQLite's version 1 has them."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "1", None
SCHEMA = "haotuner"


def upgrade() -> None:
    """Make the tables."""

    def column(name: str, kind: sa.types.TypeEngine, **settings: bool) -> sa.Column:
        return sa.Column(name, kind, **{"nullable": False, **settings})

    op.create_table(
        "session", column("id", sa.Text(), primary_key=True), column("seq", sa.BigInteger()),
        column("fingerprint", sa.Text()), column("started", sa.Double()), column("what", sa.Text()), schema=SCHEMA,
    )  # fmt: skip
    texts = ("digest", "session", "fingerprint", "device_id", "op", "kernel", "shape", "weights", "split", "trial_key",
             "status", "outcome", "facts")  # fmt: skip
    op.create_table(
        "record",
        sa.Column("seq", sa.BigInteger(), sa.Identity(), primary_key=True),
        column("id", sa.Text(), unique=True),
        *(column(name, sa.Text()) for name in texts),
        *(column(name, sa.BigInteger()) for name in ("record_schema", "threads", "seed")),
        column("median_us", sa.Double(), nullable=True),
        column("measured_at", sa.Double()),
        schema=SCHEMA,
    )
    op.create_index("record_by_trial", "record", ["session", "trial_key"], schema=SCHEMA)
    op.create_index("record_by_fingerprint", "record", ["fingerprint", "op"], schema=SCHEMA)
    op.create_table(
        "claim", column("session", sa.Text(), primary_key=True), column("trial_key", sa.Text(), primary_key=True),
        column("owner", sa.Text()), column("expires", sa.Double()), schema=SCHEMA,
    )  # fmt: skip
