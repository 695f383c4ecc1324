"""Projects that are archived, keys of who owns the installation, and how much may be rented

Revision: 0028, after 0027

The key that could do most so far is the first one: it may make projects from now on. An installation that has rented
before goes on as it was; a new one begins with the limits of a first time.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("projects", sa.Column("archived_ms", sa.BigInteger))
    op.create_table(
        "limits",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("amount", sa.BigInteger),
        sa.Column("changed_ms", sa.BigInteger, nullable=False),
    )
    op.execute(
        "INSERT INTO limits (name, amount, changed_ms)"
        " SELECT name, NULL, 0 FROM (VALUES ('machines'), ('day_micros')) AS every (name)"
        " WHERE EXISTS (SELECT FROM nodes)"
    )
    op.execute(
        "UPDATE api_keys SET scopes = array_append(scopes, 'owner') WHERE id = ("
        " SELECT id FROM api_keys WHERE 'admin' = ANY(scopes) AND revoked_ms IS NULL AND expires_ms IS NULL"
        " AND project_id = (SELECT id FROM projects ORDER BY created_ms, id LIMIT 1)"
        " ORDER BY created_ms, id LIMIT 1)"
    )
    op.create_index("ix_ledger_to_ms", "ledger", ["to_ms"])


def downgrade() -> None:
    op.drop_index("ix_ledger_to_ms", "ledger")
    op.execute("UPDATE api_keys SET scopes = array_remove(scopes, 'owner') WHERE 'owner' = ANY(scopes)")
    op.drop_table("limits")
    op.drop_column("projects", "archived_ms")
