"""The tables. `migrations/` creates the same; a test holds one against the other.

Ids are text (`app.ids`), moments are epoch milliseconds, documents are JSON text encoded by msgspec. A time column ends
in `_at`. No table is read by a model or a tool while a transaction is open.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
_Number = BigInteger().with_variant(Integer, "sqlite")

conversations = Table(
    "conversations",
    metadata,
    Column("id", Text, primary_key=True),
    Column("user_id", Text, nullable=False),
    Column("tenant", Text, nullable=False, server_default=""),
    Column("title", Text),
    Column("profile", Text),
    Column("metadata", Text),
    Column("created_at", _Number, nullable=False),
    Column("updated_at", _Number, nullable=False),
    # Gone for its user; the row goes when the turns that were running have stopped.
    Column("deleting", Boolean, nullable=False, server_default="0"),
    Index("ix_conversations_owner", "tenant", "user_id", "created_at", "id"),
)

turns = Table(
    "turns",
    metadata,
    Column("id", Text, primary_key=True),
    Column("conversation_id", Text, ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
    Column("user_id", Text, nullable=False),
    Column("tenant", Text, nullable=False, server_default=""),
    Column("message_id", Text, nullable=False),
    Column("user_message_id", Text, nullable=False),
    Column("profile", Text, nullable=False),
    # What the user sent, kept raw until the end of `on_receive`; JSON: a string or a list of parts.
    Column("input", Text, nullable=False),
    Column("metadata", Text),
    Column("on_disconnect", Text, nullable=False, server_default="continue"),
    # accepted order within the conversation: the turn with the smallest open `place` is next.
    Column("place", _Number, nullable=False),
    # queued, running, waiting, ended (terminal event stored, message not yet), done
    Column("status", Text, nullable=False),
    Column("epoch", Integer, nullable=False, server_default="1"),
    # Which process runs it (a fresh id of each start); NULL when nobody does.
    Column("owner", Text),
    Column("cancel_requested", Boolean, nullable=False, server_default="0"),
    Column("received", Boolean, nullable=False, server_default="0"),
    Column("created_at", _Number, nullable=False),
    Column("started_at", _Number),
    # The deadline as wall-clock time, without the waits for approvals.
    Column("deadline_at", _Number),
    Column("ended_at", _Number),
    Column("last_seq", Integer, nullable=False, server_default="0"),
    # The terminal event as JSON, once there is one.
    Column("terminal", Text),
    Index("ix_turns_conversation", "conversation_id", "place"),
    Index("ix_turns_status", "status"),
)

# What must survive a crash, in order: events and transcript pieces of one turn that is not done.
journal = Table(
    "journal",
    metadata,
    Column("turn_id", Text, ForeignKey("turns.id", ondelete="CASCADE"), primary_key=True),
    Column("n", Integer, primary_key=True, autoincrement=False),
    Column("epoch", Integer, nullable=False),
    # events: a JSON list of events (deltas merged) · step: the assistant's part of a step · result: one tool's result
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at", _Number, nullable=False),
)

messages = Table(
    "messages",
    metadata,
    Column("id", Text, primary_key=True),
    Column("conversation_id", Text, ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
    Column("turn_id", Text, nullable=False),
    # Order in the conversation: the turn's place times two, plus one for the reply.
    Column("place", _Number, nullable=False),
    Column("role", Text, nullable=False),
    # user messages: `complete`; replies: complete, partial, cancelled, apology
    Column("status", Text, nullable=False),
    Column("text", Text, nullable=False),
    # JSON. For a reply: blocks, tools, extras, reasoning, approvals, terminal, last_seq, epoch (what a snapshot holds).
    # For a user's message: the parts of the input.
    Column("content", Text, nullable=False),
    # JSON: what the model is shown of this message, in Chat Completions form; NULL for nothing.
    Column("model_messages", Text),
    Column("created_at", _Number, nullable=False),
    UniqueConstraint("turn_id", "role"),
    Index("ix_messages_conversation", "conversation_id", "place"),
)

approvals = Table(
    "approvals",
    metadata,
    Column("id", Text, primary_key=True),
    Column("turn_id", Text, ForeignKey("turns.id", ondelete="CASCADE"), nullable=False),
    Column("tool_call_id", Text, nullable=False),
    Column("expires_at", _Number, nullable=False),
    # approve, deny, expired, cancelled; NULL while open
    Column("decision", Text),
    Column("decided_by", Text),
    Column("comment", Text),
    Column("decided_at", _Number),
    Index("ix_approvals_turn", "turn_id"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("user_id", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("conversation_id", Text, nullable=False),
    Column("turn_id", Text, nullable=False),
    # SHA-256 of the body as canonical JSON
    Column("body_hash", Text, nullable=False),
    Column("created_at", _Number, nullable=False),
    Index("ix_idempotency_keys_created", "created_at"),
)

reactions = Table(
    "reactions",
    metadata,
    Column("message_id", Text, ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True),
    Column("user_id", Text, primary_key=True),
    Column("reaction", Text, nullable=False),
    Column("comment", Text),
    Column("created_at", _Number, nullable=False),
    Column("updated_at", _Number, nullable=False),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Text, primary_key=True),
    # SHA-256 of the key; keys have 256 random bits, so no slow hash is needed.
    Column("key_hash", Text, nullable=False, unique=True),
    Column("user_id", Text, nullable=False),
    Column("tenant", Text, nullable=False, server_default=""),
    Column("role", Text, nullable=False, server_default="user"),
    Column("created_at", _Number, nullable=False),
    Column("expires_at", _Number),
    Column("revoked_at", _Number),
)

sessions = Table(
    "sessions",
    metadata,
    Column("token_hash", Text, primary_key=True),
    Column("api_key_id", Text, ForeignKey("api_keys.id", ondelete="CASCADE"), nullable=False),
    Column("created_at", _Number, nullable=False),
    Column("expires_at", _Number, nullable=False),
    # For the cascade.
    Index("ix_sessions_key", "api_key_id"),
)

tickets = Table(
    "tickets",
    metadata,
    Column("ticket_hash", Text, primary_key=True),
    Column("turn_id", Text, ForeignKey("turns.id", ondelete="CASCADE"), nullable=False),
    Column("user_id", Text, nullable=False),
    Column("tenant", Text, nullable=False, server_default=""),
    Column("created_at", _Number, nullable=False),
    # When the first event with an id was sent under it; NULL until then.
    Column("used_at", _Number),
    # For the cascade.
    Index("ix_tickets_turn", "turn_id"),
)

# The rows of the demo's bookkeeping assistant.
ledger_transactions = Table(
    "ledger_transactions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("user_id", Text, nullable=False),
    Column("booked_on", Text, nullable=False),
    Column("description", Text, nullable=False),
    Column("category", Text, nullable=False),
    # Cents; negative is money going out.
    Column("cents", _Number, nullable=False),
    Column("currency", Text, nullable=False),
    Index("ix_ledger_transactions_user", "user_id", "booked_on"),
)

ledger_invoices = Table(
    "ledger_invoices",
    metadata,
    Column("id", Text, primary_key=True),
    Column("user_id", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("customer", Text, nullable=False),
    Column("cents", _Number, nullable=False),
    Column("currency", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("idempotency_key", Text, nullable=False),
    Column("created_at", _Number, nullable=False),
    UniqueConstraint("user_id", "number"),
    UniqueConstraint("user_id", "idempotency_key"),
)

ledger_payments = Table(
    "ledger_payments",
    metadata,
    Column("id", Text, primary_key=True),
    Column("user_id", Text, nullable=False),
    Column("payee", Text, nullable=False),
    Column("iban", Text),
    Column("cents", _Number, nullable=False),
    Column("currency", Text, nullable=False),
    Column("reference", Text),
    Column("idempotency_key", Text, nullable=False),
    Column("created_at", _Number, nullable=False),
    UniqueConstraint("user_id", "idempotency_key"),
)
