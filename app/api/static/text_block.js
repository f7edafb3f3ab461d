// One block of answer text: light while it arrives, then the service's rendering in its place.

import { h } from "./dom.js";
import { LightMarkdown, framed } from "./light_markdown.js";

const dirty = new Set();
let frame = 0;

/** Draws, at most once a frame, what has come since the last one. */
function schedule(block) {
  dirty.add(block);
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    for (const waiting of [...dirty]) waiting.paint();
  });
}

export class TextBlock {
  element = h("div", { class: "prose", "data-open": true });
  text = "";
  #light = new LightMarkdown(this.element);
  #rendered = false;

  append(text) {
    this.text += text;
    this.#light.append(text);
    schedule(this);
  }

  paint() {
    dirty.delete(this);
    if (!this.#rendered) this.#light.paint("open" in this.element.dataset);
  }

  /** No more text comes. */
  close() {
    if (!("open" in this.element.dataset)) return;
    delete this.element.dataset.open;
    this.paint();
  }

  /** The caret comes back: a snapshot of a turn that still writes. */
  reopen() {
    this.element.dataset.open = "";
  }

  /** Puts these nodes in place. What is equal stays, and with it the reader's selection and place. */
  show(nodes) {
    this.close();
    this.#rendered = true;
    const old = [...this.element.childNodes];
    nodes.forEach((node, index) => {
      if (!old[index]) this.element.append(node);
      else if (!old[index].isEqualNode(node)) old[index].replaceWith(node);
    });
    for (const node of old.slice(nodes.length)) node.remove();
  }
}

/**
 * Puts the service's rendering of the whole answer into its blocks. Between blocks stand tools and cards, so it must be
 * taken apart again: it is, when it has as many paragraphs, lists and so on as the light form of all blocks together.
 * If not, which takes markdown that runs on over a tool, the light form stays; it has the same words.
 */
export function showRendered(blocks, html) {
  const nodes = parse(html);
  const sizes = blocks.map((block) => block.element.childElementCount);
  if (blocks.length > 1 && sizes.reduce((sum, size) => sum + size, 0) !== nodes.length) return;
  let from = 0;
  blocks.forEach((block, index) => {
    const to = blocks.length > 1 ? from + sizes[index] : nodes.length;
    block.show(nodes.slice(from, to));
    from = to;
  });
}

/** The service's sanitised HTML as nodes. The page's policy would stop any script in it as well. */
function parse(html) {
  const { body } = new DOMParser().parseFromString(html, "text/html");
  for (const table of body.querySelectorAll("table")) {
    const place = document.createComment("");
    table.replaceWith(place);
    place.replaceWith(framed(table));
  }
  dropGaps(body);
  return [...body.childNodes];
}

const BLOCKS = "p, ul, ol, li, pre, blockquote, table, thead, tbody, tr, th, td, hr, h1, h2, h3, h4, h5, h6, div";

/** Takes out the line ends beside block elements, which draw nothing and which the light form does not have. */
function dropGaps(root) {
  const isBlock = (node) => node instanceof Element && node.matches(BLOCKS);
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walker.nextNode()) texts.push(walker.currentNode);
  for (const text of texts) {
    if (text.parentElement.closest("pre")) continue;
    if (isBlock(text.nextSibling)) text.data = text.data.trimEnd();
    if (!text.data.trim() && (isBlock(text.previousSibling) || isBlock(text.nextSibling))) text.remove();
  }
}
