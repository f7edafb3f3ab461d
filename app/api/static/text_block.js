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

  /**
   * Puts the service's sanitised HTML in place. Elements that are equal stay, and with them selection and scroll place.
   * The HTML is the service's own rendering; the page's policy would stop any script in it as well.
   */
  render(html) {
    this.close();
    this.#rendered = true;
    const fresh = new DOMParser().parseFromString(html, "text/html").body;
    for (const table of fresh.querySelectorAll("table")) {
      const place = document.createComment("");
      table.replaceWith(place);
      place.replaceWith(framed(table));
    }
    dropGaps(fresh);
    const old = [...this.element.childNodes];
    const next = [...fresh.childNodes];
    next.forEach((node, index) => {
      if (!old[index]) this.element.append(node);
      else if (!old[index].isEqualNode(node)) old[index].replaceWith(node);
    });
    for (const node of old.slice(next.length)) node.remove();
  }
}

/** Takes out the line ends between block elements, which draw nothing and which the light form does not have. */
function dropGaps(root) {
  const containers = "table, thead, tbody, tr, ul, ol, blockquote";
  for (const parent of [root, ...root.querySelectorAll(`${containers}, li:has(> p)`)]) {
    for (const node of [...parent.childNodes]) if (node.nodeType === Node.TEXT_NODE && !node.data.trim()) node.remove();
  }
}
