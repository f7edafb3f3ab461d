"""Markdown as safe HTML, for the demo page and every other client that shows an answer.

An answer is written by a model, which may repeat what a stranger wrote: it is hostile input. Three walls, each enough by
itself: the parser emits no raw HTML, the sanitiser keeps a short list of tags and attributes, and the page's
Content-Security-Policy runs no script that is not a file of ours.
"""

from __future__ import annotations

import re

import nh3
from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

_TAGS = {
    *("h1", "h2", "h3", "h4", "h5", "h6", "p", "blockquote", "pre", "hr", "ul", "ol", "li"),
    *("table", "thead", "tbody", "tr", "th", "td"),
    *("a", "br", "code", "em", "img", "s", "strong"),
}
_ATTRIBUTES = {
    "a": {"href", "title"},
    "code": {"class"},
    "img": {"src", "alt", "title"},
    "ol": {"start"},
    "td": {"align"},
    "th": {"align"},
}
_LANGUAGE = re.compile(r"language-[0-9A-Za-z+#_.-]{1,40}\Z")
_PICTURE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[0-9A-Za-z+/=]+\Z")
_LINK = re.compile(r"(?:https?|mailto):", re.IGNORECASE)
_ALIGNMENT = re.compile(r"text-align:(left|center|right)\Z")


def render(text: str) -> str:
    """Sanitised HTML of `text`: CommonMark, tables and strikethrough.

    Raw HTML is shown as the text that it is. Links open in a new tab without a referrer, and only absolute `http`,
    `https` and `mailto` ones lead anywhere. A picture is shown only when its bytes are in the text (`data:`); any other
    picture becomes a link to it. To load it unasked would tell a host that the model chose what the model put into the
    URL, which is how an injected prompt carries a conversation away. Tools show pictures with the `image` event, whose
    URL is not the model's.

    Never raises, and holds no state between calls. About two seconds of CPU per million characters: call it in a
    worker thread when the text is long.
    """
    return nh3.clean(
        _MARKDOWN.render(text),
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        attribute_filter=_attribute,
        url_schemes={"http", "https", "mailto", "data"},
        link_rel="noopener noreferrer nofollow",
        set_tag_attribute_values={"a": {"target": "_blank"}},
        strip_comments=True,
    )


def _attribute(tag: str, name: str, value: str) -> str | None:
    """The value to keep, or None to drop the attribute."""
    match tag, name:
        case "code", "class":
            return value if _LANGUAGE.match(value) else None
        case "img", "src":
            return value if _PICTURE.match(value) else None
        case "a", "href":
            # Stricter than the sanitiser's list, which has `data` for pictures and lets any relative address pass.
            return value if _LINK.match(value) else None
        case _:
            return value


def _tame(state: StateCore) -> None:
    """Turns far pictures into links, and alignment from a style, which the policy forbids, into an attribute."""
    for token in state.tokens:
        if token.type in ("th_open", "td_open") and (found := _ALIGNMENT.match(str(token.attrGet("style") or ""))):
            token.attrs = {"align": found[1]}
        if token.children:
            token.children = _with_picture_links(token.children)


def _with_picture_links(tokens: list[Token]) -> list[Token]:
    tame: list[Token] = []
    depth = 0
    for token in tokens:
        depth += token.nesting if token.type in ("link_open", "link_close") else 0
        source = str(token.attrGet("src") or "")
        if token.type != "image" or _PICTURE.match(source):
            tame.append(token)
            continue
        words = Token("text", "", 0, content=token.content or source)
        # A link inside a link is not HTML: a picture that is a link already keeps only its words.
        link = [Token("link_open", "a", 1, attrs={"href": source}), words, Token("link_close", "a", -1)]
        tame.extend([words] if depth else link)
    return tame


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False, "typographer": False})
    parser.enable(["table", "strikethrough"])
    parser.core.ruler.push("tame", _tame)
    return parser


_MARKDOWN = _parser()
