// What a screen reader hears: the answer in whole pieces as it comes, and what happens around it.

import { byId, h } from "./dom.js";
import { endingOf } from "./endings.js";

const PIECE = 240;

/** Says some words once the reader is free. */
export function say(words) {
  const line = h("p", {}, words);
  byId("announcer").append(line);
  setTimeout(() => line.remove(), 30_000);
}

/** Says one turn. Words by the letter would be noise: a piece is said when it ends in a line or a sentence. */
export class Announcer {
  #text = "";
  #titles = new Map();

  hear(event) {
    switch (event.type) {
      case "text_delta":
        this.#text += event.text;
        this.#sayWholePieces();
        break;
      case "tool_start":
        this.#sayRest();
        this.#titles.set(event.tool_call_id, event.title);
        say(`${event.title}…`);
        break;
      case "tool_end":
        if (event.status !== "ok") say(`${this.#titles.get(event.tool_call_id) ?? "The tool"}: ${WORDS[event.status] ?? event.status}`);
        break;
      case "approval_required":
        this.#sayRest();
        say(`Your approval is needed. ${event.prompt}`);
        break;
      case "commentary":
      case "notice":
        say(event.text);
        break;
      case "image":
        say(`Picture: ${event.alt}`);
        break;
      case "action_card":
        say(`Card: ${event.title}`);
        break;
      case "completion":
        this.#sayRest();
        if (event.status === "cancelled") say("Stopped.");
        else if (event.status !== "complete") say(`The answer is not whole. ${endingOf(event.status, event.finish_reason)?.why ?? ""}`.trim());
        break;
      case "error":
        say(event.message);
        break;
    }
  }

  #sayWholePieces() {
    if (this.#text.length < PIECE) return;
    const end = Math.max(this.#text.lastIndexOf("\n"), this.#text.lastIndexOf(". "), this.#text.lastIndexOf("? "));
    if (end < PIECE / 2) return;
    say(plain(this.#text.slice(0, end + 1)));
    this.#text = this.#text.slice(end + 1);
  }

  #sayRest() {
    const rest = plain(this.#text);
    this.#text = "";
    if (rest) say(rest);
  }
}

const WORDS = {
  error: "failed",
  timeout: "timed out",
  denied: "not allowed",
  cancelled: "stopped",
  unknown: "the outcome is unknown",
};

/** The words without the marks of markdown. */
const plain = (text) => text.replace(/[*_`~#>|]+/g, " ").replace(/\[([^\]]*)\]\([^)]*\)/g, "$1").replace(/\s+/g, " ").trim();
