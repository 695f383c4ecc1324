"""What is held now is found without what was held before; deletions of content are counted; operations
name their project, for turns

Revision: 0017, after 0016
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_allocations_held", "allocations", ["node_id"], postgresql_where=sa.text("to_ms IS NULL"))
    op.create_index(op.f("ix_allocations_node_id_to_ms"), "allocations", ["node_id", "to_ms"])
    op.drop_index(op.f("ix_allocations_node_id"), "allocations")
    op.add_column("provider_operations", sa.Column("project_id", sa.Text, nullable=False, server_default=sa.text("''")))
    op.execute(
        "UPDATE provider_operations SET project_id = nodes.project_id FROM nodes "
        "WHERE nodes.id = provider_operations.node_id AND provider_operations.state = 'pending'"
    )
    op.create_index(
        "ix_provider_operations_turns",
        "provider_operations",
        ["project_id", "not_before_ms", "id"],
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index(
        "ix_provider_operations_leased",
        "provider_operations",
        ["project_id"],
        postgresql_where=sa.text("state = 'pending' AND lease_until IS NOT NULL"),
    )
    op.add_column("projects", sa.Column("deletions", sa.BigInteger, nullable=False, server_default=sa.text("0")))


def downgrade() -> None:
    op.drop_column("projects", "deletions")
    op.drop_index("ix_provider_operations_leased", "provider_operations")
    op.drop_index("ix_provider_operations_turns", "provider_operations")
    op.drop_column("provider_operations", "project_id")
    op.create_index(op.f("ix_allocations_node_id"), "allocations", ["node_id"])
    op.drop_index(op.f("ix_allocations_node_id_to_ms"), "allocations")
    op.drop_index("ix_allocations_held", "allocations")
