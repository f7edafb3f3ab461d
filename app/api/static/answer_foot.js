// The line under an answer: how it ended, copy, like and dislike, the small print.

import { h, icon, iconButton } from "./dom.js";

export class AnswerFoot {
  #chips = h("span", { class: "chips" });
  #buttons = h("span", { class: "chips" });
  #print = h("span", { class: "small-print" });
  #unsaved = null;
  #reaction = null;
  #pressed = {};

  constructor() {
    this.element = h("footer", { class: "answer-foot" }, this.#buttons, this.#chips, this.#print);
  }

  /** Marks how the answer ended; see `endingOf`. */
  ending({ words, sign, tone, name }) {
    this.#chips.prepend(h("span", { class: "chip", "data-tone": tone, "data-reason": name }, icon(sign), words));
  }

  copyable(text) {
    if (!text || this.#buttons.querySelector("[data-does=copy]")) return;
    const button = iconButton("copy", "Copy the answer", async () => {
      if (!(await copy(text))) return;
      button.replaceChildren(icon("check"));
      button.setAttribute("aria-label", "Copied");
      setTimeout(() => {
        button.replaceChildren(icon("copy"));
        button.setAttribute("aria-label", "Copy the answer");
      }, 1600);
    }, { "data-does": "copy" });
    this.#buttons.prepend(button);
  }

  /** Shows like and dislike; `save(reaction)` stores one, or takes it back for null. */
  reactable(reaction, save) {
    this.#reaction = reaction ?? null;
    if (!this.#pressed.like) {
      for (const [name, label] of [["like", "Good answer"], ["dislike", "Bad answer"]]) {
        this.#pressed[name] = iconButton(name, label, () => this.#toggle(name, save));
        this.#buttons.append(this.#pressed[name]);
      }
    }
    this.#press();
  }

  usage({ input_tokens: read, output_tokens: written }) {
    const count = (number) => Number(number).toLocaleString("en");
    this.#print.textContent = `${count(read)} ${read === 1 ? "token" : "tokens"} in · ${count(written)} out`;
  }

  unsaved(yes) {
    if (yes && !this.#unsaved) {
      this.#unsaved = h("span", { class: "chip", "data-reason": "unsaved" }, icon("alert"), "Not saved yet");
      this.#chips.append(this.#unsaved);
    } else if (!yes) {
      this.#unsaved?.remove();
      this.#unsaved = null;
    }
  }

  async #toggle(name, save) {
    const before = this.#reaction;
    this.#reaction = before === name ? null : name;
    this.#press();
    try {
      await save(this.#reaction);
    } catch {
      this.#reaction = before;
      this.#press();
    }
  }

  #press() {
    for (const [name, button] of Object.entries(this.#pressed)) button.setAttribute("aria-pressed", String(this.#reaction === name));
  }
}

/** Copies where the browser allows it: `navigator.clipboard` is missing on a plain address. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { class: "visually-hidden" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
