// What stands beside the text: pictures, cards, remarks, notices.

import { h, icon, safeUrl } from "./dom.js";

/** A picture with its words; the words alone when it may not or cannot be loaded. */
export function picture({ url, alt, width, height }) {
  const address = safeUrl(url, { picture: true });
  if (!address) return h("p", { class: "notice" }, icon("alert"), alt);
  // The words are the picture's own for a screen reader; on the screen a whole table of them would only repeat it.
  const caption = alt.length <= 90 ? h("figcaption", { "aria-hidden": "true" }, alt) : "";
  const figure = h("figure", { class: "picture" }, caption);
  // With both sizes the browser keeps the room, and nothing jumps when the bytes arrive.
  const image = h("img", { src: address, alt, width, height, decoding: "async", referrerpolicy: "no-referrer" });
  image.addEventListener("error", () => image.replaceWith(h("p", { class: "notice" }, icon("alert"), `The picture could not be loaded: ${alt}`)));
  figure.prepend(image);
  return figure;
}

/** A card with fields and things to do; `send(text)` sends the next input. */
export function card({ kind, title, fields = [], actions = [] }, send) {
  const pairs = fields.map(({ label, value }) => [h("dt", {}, label), h("dd", {}, value)]);
  return h(
    "section",
    { class: "card", "aria-label": title },
    kind ? h("p", { class: "card-kind" }, kind.replaceAll("_", " ")) : "",
    h("h3", { class: "card-title" }, title),
    pairs.length ? h("dl", { class: "pairs" }, pairs) : "",
    actions.length ? h("div", { class: "actions" }, actions.map((action) => cardAction(action, send))) : "",
  );
}

function cardAction({ title, url, input }, send) {
  if (input !== undefined) {
    return h("button", { type: "button", class: "button", on: { click: () => send(input) } }, title);
  }
  const address = safeUrl(url ?? "");
  if (!url || !address) return h("button", { type: "button", class: "button", disabled: true }, title);
  const where = { href: address, target: "_blank", rel: "noopener noreferrer" };
  return h("a", { class: "button", ...where }, title, icon("out"), h("span", { class: "visually-hidden" }, "(new tab)"));
}

export const commentary = ({ text }) => h("p", { class: "commentary" }, text);

const TONES = { warning: "warn", error: "bad" };

export function notice({ level, text }) {
  const tone = TONES[level] ?? "plain";
  return h("p", { class: "notice", "data-tone": tone }, icon(tone === "plain" ? "info" : "alert"), h("span", {}, text));
}
