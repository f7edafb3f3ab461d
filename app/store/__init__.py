"""What outlives the process: conversations, messages, turns, journal, keys. The only place that knows SQL.

Functions take an open connection and never commit; `Store.write` and `Store.read` own transactions. Nothing here is
held while a model or a tool works.
"""
