"""The light formatting of arriving text is the same as the service's, for what answers are made of."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from app.api.markdown import render
from tests.browser.tabs import Tab
from tests.service import Service

pytestmark = pytest.mark.slow

# Draws pieces one after the other as a stream would, then compares with the service's HTML, put in place as the page does.
DRAW = """async ([pieces, html]) => {
    const { TextBlock, showRendered } = await import('/static/text_block.js');
    const block = new TextBlock();
    for (const piece of pieces) {
        block.append(piece);
        block.paint();
    }
    block.close();
    const light = block.element.cloneNode(true);
    showRendered([block], html);
    return [light.isEqualNode(block.element), light.innerHTML, block.element.innerHTML];
}"""
SAMPLES = [
    "Plain words.",
    "Two lines\nof one paragraph.\n\nAnd another one.",
    "A *word*, a **strong** one, ***both***, `code`, ~~gone~~, and [a link](https://a.example/?x=1&y=2).",
    "snake_case_words stay, and 2 * 3 * 4 too, and a_b.",
    "# One\n\n## Two\n\n### Three ###\n\nText right after.\n# Four\nmore",
    "- one\n- two\n  - deep\n  - deeper **b**\n- three",
    "1. one\n2. two\n   - inner\n3. three",
    "7. seven\n8. eight",
    "- loose\n\n- items\n\n- here",
    "- item\n\n  with a second paragraph\n- next",
    "* star\n* list\n\nafter",
    "Items:\n- one\n- two\n\nEnd.",
    "> quoted **words**\n> over lines\n\nafter",
    "> - list in quote\n> - more",
    "```py\ndef f(x):\n    return x * 2  # *not em*\n\nprint(f(2))\n```\n\ndone",
    "```\nplain\n```",
    "~~~sh title\nls | wc\n~~~",
    "    indented code\n\n    more\n\ntext",
    "| a | b |\n|---|---:|\n| 1 | **2** |\n| 3 | `4` |\n\nafter",
    "| left | mid | right |\n|:---|:---:|---:|\n| x | y |\n| a | b | c |",
    "text\n\n---\n\nmore\n\n***\n\nend",
    "Title\n=====\n\nSub\n---\n\ntext",
    "line  \nbreak and\\\nbreak",
    "escaped \\*stars\\* and \\_lines\\_ and \\`ticks\\`",
    "&amp; &lt;b&gt; & <b>raw</b> <script>alert(1)</script>",
    "<https://auto.example/x> and https://bare.example",
    '[empty]() [bad](javascript:alert(1)) [title](https://a.example "T") [paren](https://a.example/x_(y))',
    "Unclosed **bold and `code and [link](https://a.exa",
    "*a **b** c* and **a *b* c**",
    "price: -€1,450.00 | not a table",
    "A list\n\n1. first\n\n   more\n\n2. second\n\nEnd of it all.",
    "emoji 👩‍👩‍👧 and ünïcödé **日本語** text",
]


@pytest.fixture(scope="module")
def tab(browser: Browser, demo: Service) -> Iterator[Tab]:
    """One open page for all samples; they share nothing but it."""
    page = browser.new_page()
    yield Tab(page, demo.url).open()
    page.close()


@pytest.mark.parametrize("sample", SAMPLES)
def test_light_form_equals_the_rendered_one(tab: Tab, sample: str) -> None:
    """However the text is cut into deltas, what stands there in the end is what the service renders."""
    cuts = random.Random(sample)
    for size in (1, 3, 10, 10_000):
        pieces: list[str] = []
        at = 0
        while at < len(sample):
            end = at + cuts.randint(1, size)
            pieces.append(sample[at:end])
            at = end
        equal, light, rendered = tab.page.evaluate(DRAW, [pieces, render(sample)])
        assert equal, (pieces, light, rendered)


def test_a_long_answer_is_drawn_in_good_time(tab: Tab) -> None:
    """Each delta draws only the last block: ten thousand of them, 100 KB of text, take seconds at most."""
    text = "".join(f"Paragraph {n} with **bold** and `code`.\n\n- one\n- two\n\n" for n in range(1600))
    pieces = [text[at : at + 10] for at in range(0, len(text), 10)]
    took = tab.page.evaluate(
        """async pieces => {
            const { TextBlock } = await import('/static/text_block.js');
            const block = new TextBlock();
            const begin = performance.now();
            for (const piece of pieces) { block.append(piece); block.paint(); }
            return performance.now() - begin;
        }""",
        pieces,
    )
    assert took < 10_000


def test_hostile_length_does_not_hang_the_page(tab: Tab) -> None:
    """Text that is built to be slow is drawn in a moment too."""
    for attack in (
        "[" * 20_000,
        "*a " * 6_000,
        "`a" * 9_000,
        "_a" * 9_000,
        "> " * 2_000 + "a",
        "- " * 400 + "a",
        "|" * 19_000,
    ):
        _, light, _ = tab.page.evaluate(DRAW, [[attack], ""])
        assert light
