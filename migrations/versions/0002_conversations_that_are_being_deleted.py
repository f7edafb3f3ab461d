"""conversations that are being deleted

Revision: 0002. A conversation is marked before its turns are told to stop, so that whoever runs them knows why.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("conversations", sa.Column("deleting", sa.Boolean(), server_default="0", nullable=False))


def downgrade() -> None:
    with op.batch_alter_table("conversations") as table:
        table.drop_column("deleting")
