"""The log of each turn's events, and reading it: replay, then live, with a cursor (PROTOCOL 4)."""

from app.turn_log.log import TurnLog, TurnLogs
from app.turn_log.subscription import Subscription

__all__ = ["Subscription", "TurnLog", "TurnLogs"]
