// What the reader asked: their words, their pictures, and whether they arrived.

import { h, safeUrl } from "./dom.js";

export class Asked {
  #state = h("p", { class: "asked-state", role: "status" });

  /** `input` is a string or a list of parts, as it was sent. */
  constructor(input) {
    this.input = input;
    const parts = typeof input === "string" ? [{ type: "text", text: input }] : input;
    const pictures = parts.filter(({ type }) => type === "image_url").map((part) => asPicture(part.image_url?.url ?? part.image_url ?? part.url));
    const words = parts.filter(({ type }) => type === "text").map(({ text }) => text).join("\n");
    this.element = h("section", { class: "asked", "aria-label": "You asked" }, pictures, h("div", { class: "asked-text" }, words), this.#state);
  }

  /** A word under the message while it is on its way; "" when it has arrived. */
  say(words) {
    this.#state.dataset.tone = "";
    this.#state.replaceChildren(words);
  }

  /** It did not arrive; `again` sends it once more. */
  fail(words, again) {
    this.#state.dataset.tone = "bad";
    this.#state.replaceChildren(words, " ", h("button", { type: "button", class: "button", on: { click: again } }, "Send again"));
  }
}

function asPicture(address) {
  const url = safeUrl(String(address), { picture: true });
  return url ? h("img", { class: "asked-picture", src: url, alt: "Picture that you sent", referrerpolicy: "no-referrer" }) : "";
}
