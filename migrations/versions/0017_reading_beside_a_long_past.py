"""What is held now is found without what was held before; operations name their project, for fair turns

Revision: 0017, after 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_allocations_held", "allocations", ["node_id"], postgresql_where=sa.text("to_ms IS NULL"))
    op.create_index(op.f("ix_allocations_node_id_to_ms"), "allocations", ["node_id", "to_ms"])
    op.drop_index(op.f("ix_allocations_node_id"), "allocations")


def downgrade() -> None:
    op.create_index(op.f("ix_allocations_node_id"), "allocations", ["node_id"])
    op.drop_index(op.f("ix_allocations_node_id_to_ms"), "allocations")
    op.drop_index("ix_allocations_held", "allocations")
