"""Hooks that only one profile of the tests has."""

from __future__ import annotations

from app.hooks import Deny, HookEvent, hook
from tests.hooks_for_tests import note


@hook("on_receive", order=10)
async def no_shouting(event: HookEvent) -> Deny | None:
    note("no_shouting", event)
    return Deny("Please do not shout.") if event.text.isupper() else None  # type: ignore[attr-defined]  # it has one
