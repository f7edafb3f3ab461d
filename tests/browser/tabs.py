"""A visitor's tab in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from playwright.sync_api import Locator, Page


@dataclass
class Tab:
    """One page, signed to one service, with what went wrong on it.

    `troubles` are script errors and console errors, breaches of the policy among them; `elsewhere` are requests to hosts
    that are not the service.
    """

    page: Page
    url: str
    troubles: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    def open(self) -> Tab:
        """Load the page as a person does who comes for the first time."""
        self.page.goto(self.url)
        self.page.locator(".suggestion").first.wait_for()
        return self

    def ask(self, words: str) -> Locator:
        """Send a message by keyboard; the turn that answers it."""
        before = self.page.locator(".turn").count()
        self.page.locator("#input").fill(words)
        self.page.locator("#input").press("Enter")
        turn = self.page.locator(".turn").nth(before)
        turn.wait_for(state="attached")
        return turn

    def answered(self, words: str) -> Locator:
        """Send a message and wait until its answer is saved."""
        turn = self.ask(words)
        turn.get_by_role("button", name="Good answer").wait_for()
        return turn

    def reload(self) -> None:
        """Load the page again, as F5 does."""
        self.page.reload()


NewTab = Callable[..., Tab]
