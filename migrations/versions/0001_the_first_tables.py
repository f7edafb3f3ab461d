"""the first tables

Revision: 0001, the first. Equal to `app.store.tables` at version 0.1.0; a test holds one against the other.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def number() -> sa.types.TypeEngine[int]:
    """64 bits on both databases."""
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("key_hash", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), server_default="", nullable=False),
        sa.Column("role", sa.Text(), server_default="user", nullable=False),
        sa.Column("created_at", number(), nullable=False),
        sa.Column("expires_at", number(), nullable=True),
        sa.Column("revoked_at", number(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("key_hash", name=op.f("uq_api_keys_key_hash")),
    )
    op.create_table(
        "conversations",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), server_default="", nullable=False),
        sa.Column("title", sa.Text(), nullable=True),
        sa.Column("profile", sa.Text(), nullable=True),
        sa.Column("metadata", sa.Text(), nullable=True),
        sa.Column("created_at", number(), nullable=False),
        sa.Column("updated_at", number(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_conversations")),
    )
    op.create_index("ix_conversations_owner", "conversations", ["tenant", "user_id", "created_at", "id"])
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("conversation_id", sa.Text(), nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("body_hash", sa.Text(), nullable=False),
        sa.Column("created_at", number(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "user_id", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index("ix_idempotency_keys_created", "idempotency_keys", ["created_at"])
    op.create_table(
        "ledger_invoices",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("customer", sa.Text(), nullable=False),
        sa.Column("cents", number(), nullable=False),
        sa.Column("currency", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("created_at", number(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_invoices")),
        sa.UniqueConstraint("user_id", "number", name=op.f("uq_ledger_invoices_user_id_number")),
        sa.UniqueConstraint("user_id", "idempotency_key", name=op.f("uq_ledger_invoices_user_id_idempotency_key")),
    )
    op.create_table(
        "ledger_payments",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("payee", sa.Text(), nullable=False),
        sa.Column("iban", sa.Text(), nullable=True),
        sa.Column("cents", number(), nullable=False),
        sa.Column("currency", sa.Text(), nullable=False),
        sa.Column("reference", sa.Text(), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("created_at", number(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_payments")),
        sa.UniqueConstraint("user_id", "idempotency_key", name=op.f("uq_ledger_payments_user_id_idempotency_key")),
    )
    op.create_table(
        "ledger_transactions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("booked_on", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("category", sa.Text(), nullable=False),
        sa.Column("cents", number(), nullable=False),
        sa.Column("currency", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_transactions")),
    )
    op.create_index("ix_ledger_transactions_user", "ledger_transactions", ["user_id", "booked_on"])
    op.create_table(
        "messages",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("conversation_id", sa.Text(), nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("place", number(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("model_messages", sa.Text(), nullable=True),
        sa.Column("created_at", number(), nullable=False),
        sa.ForeignKeyConstraint(
            ["conversation_id"], ["conversations.id"], name=op.f("fk_messages_conversation_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_messages")),
        sa.UniqueConstraint("turn_id", "role", name=op.f("uq_messages_turn_id_role")),
    )
    op.create_index("ix_messages_conversation", "messages", ["conversation_id", "place"])
    op.create_table(
        "sessions",
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("api_key_id", sa.Text(), nullable=False),
        sa.Column("created_at", number(), nullable=False),
        sa.Column("expires_at", number(), nullable=False),
        sa.ForeignKeyConstraint(["api_key_id"], ["api_keys.id"], name=op.f("fk_sessions_api_key_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("pk_sessions")),
    )
    op.create_index("ix_sessions_key", "sessions", ["api_key_id"])
    op.create_table(
        "turns",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("conversation_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), server_default="", nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("user_message_id", sa.Text(), nullable=False),
        sa.Column("profile", sa.Text(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=True),
        sa.Column("on_disconnect", sa.Text(), server_default="continue", nullable=False),
        sa.Column("place", number(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), server_default="1", nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), server_default="0", nullable=False),
        sa.Column("received", sa.Boolean(), server_default="0", nullable=False),
        sa.Column("created_at", number(), nullable=False),
        sa.Column("started_at", number(), nullable=True),
        sa.Column("deadline_at", number(), nullable=True),
        sa.Column("ended_at", number(), nullable=True),
        sa.Column("last_seq", sa.Integer(), server_default="0", nullable=False),
        sa.Column("terminal", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["conversation_id"], ["conversations.id"], name=op.f("fk_turns_conversation_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_turns")),
    )
    op.create_index("ix_turns_conversation", "turns", ["conversation_id", "place"])
    op.create_index("ix_turns_status", "turns", ["status"])
    op.create_table(
        "approvals",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("tool_call_id", sa.Text(), nullable=False),
        sa.Column("expires_at", number(), nullable=False),
        sa.Column("decision", sa.Text(), nullable=True),
        sa.Column("decided_by", sa.Text(), nullable=True),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("decided_at", number(), nullable=True),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name=op.f("fk_approvals_turn_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_approvals")),
    )
    op.create_index("ix_approvals_turn", "approvals", ["turn_id"])
    op.create_table(
        "journal",
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("n", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", number(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name=op.f("fk_journal_turn_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("turn_id", "n", name=op.f("pk_journal")),
    )
    op.create_table(
        "reactions",
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("reaction", sa.Text(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("created_at", number(), nullable=False),
        sa.Column("updated_at", number(), nullable=False),
        sa.ForeignKeyConstraint(["message_id"], ["messages.id"], name=op.f("fk_reactions_message_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("message_id", "user_id", name=op.f("pk_reactions")),
    )
    op.create_table(
        "tickets",
        sa.Column("ticket_hash", sa.Text(), nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), server_default="", nullable=False),
        sa.Column("created_at", number(), nullable=False),
        sa.Column("used_at", number(), nullable=True),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name=op.f("fk_tickets_turn_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("ticket_hash", name=op.f("pk_tickets")),
    )
    op.create_index("ix_tickets_turn", "tickets", ["turn_id"])


def downgrade() -> None:
    op.drop_table("tickets")
    op.drop_table("reactions")
    op.drop_table("journal")
    op.drop_table("approvals")
    op.drop_table("turns")
    op.drop_table("sessions")
    op.drop_table("messages")
    op.drop_table("ledger_transactions")
    op.drop_table("ledger_payments")
    op.drop_table("ledger_invoices")
    op.drop_table("idempotency_keys")
    op.drop_table("conversations")
    op.drop_table("api_keys")
