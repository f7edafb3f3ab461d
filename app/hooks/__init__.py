"""Hooks: code of an operator that is called at eight places of a turn. Knows nothing of how a turn is run."""

from app.hooks.chain import Denied, HookChain
from app.hooks.hook import Deny, Hook, Replace, hook
from app.hooks.payloads import (
    AfterGeneration,
    AfterTool,
    BeforeGeneration,
    BeforeTool,
    HookEvent,
    Node,
    OnDelivery,
    OnError,
    OnReceive,
    OnTurnEnd,
)

__all__ = [
    "AfterGeneration",
    "AfterTool",
    "BeforeGeneration",
    "BeforeTool",
    "Denied",
    "Deny",
    "Hook",
    "HookChain",
    "HookEvent",
    "Node",
    "OnDelivery",
    "OnError",
    "OnReceive",
    "OnTurnEnd",
    "Replace",
    "hook",
]
