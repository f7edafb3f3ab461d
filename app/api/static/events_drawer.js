// The raw stream, for who wants to see what the service really says.

import { byId, h } from "./dom.js";

const KEPT = 1000;
const TONES = { error: "bad", heartbeat: "quiet", stream_end: "quiet", queued: "quiet" };

export class EventsDrawer {
  #drawer = byId("events");
  #list = byId("events-list");
  #count = byId("events-count");
  #toggle = byId("events-toggle");
  #waiting = [];
  #seen = 0;
  #frame = 0;

  constructor() {
    this.#toggle.addEventListener("click", () => this.#show(this.#drawer.hidden));
    byId("events-close").addEventListener("click", () => this.#show(false));
    byId("events-clear").addEventListener("click", () => this.clear());
    this.#drawer.addEventListener("keydown", (key) => {
      if (key.key !== "Escape") return;
      key.stopPropagation();
      this.#show(false);
    });
  }

  record(event, id) {
    this.#seen++;
    this.#waiting.push([event, id]);
    if (this.#waiting.length > KEPT) this.#waiting.shift();
    if (!this.#drawer.hidden) this.#frame ||= requestAnimationFrame(() => this.#draw());
  }

  clear() {
    this.#seen = 0;
    this.#waiting = [];
    this.#list.replaceChildren();
    this.#count.textContent = "0";
  }

  #show(open) {
    this.#drawer.hidden = !open;
    this.#toggle.setAttribute("aria-expanded", String(open));
    if (open) {
      this.#draw();
      byId("events-close").focus();
    } else this.#toggle.focus();
  }

  #draw() {
    this.#frame = 0;
    const list = this.#list;
    const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
    list.append(...this.#waiting.map(([event, id]) => line(event, id)));
    this.#waiting = [];
    while (list.childElementCount > KEPT) list.firstChild.remove();
    this.#count.textContent = this.#seen.toLocaleString("en");
    if (atEnd) list.scrollTop = list.scrollHeight;
  }
}

function line(event, id) {
  const { type, ...rest } = event;
  const name = h("span", { class: "event-type", "data-tone": TONES[type] }, type);
  // The turn's part of the id is the same on every line; the epoch and the number tell them apart.
  const cursor = id && event.type !== "heartbeat" ? h("span", { class: "event-id", title: id }, id.split("-").slice(-2).join("-")) : "";
  return h("li", {}, name, cursor, h("span", { class: "event-json" }, JSON.stringify(rest)));
}
