// The message box: grows with its text, Enter sends, Escape stops.

import { byId } from "./dom.js";

export class Composer {
  #form = byId("composer");
  #input = byId("input");
  #send = byId("send");
  #stop = byId("stop");

  /** `onSend(text)` when the reader sends, `onStop()` when the running answer shall stop. */
  constructor({ onSend, onStop }) {
    this.#input.addEventListener("input", () => this.#fit());
    this.#input.addEventListener("keydown", (key) => {
      // While an input method composes, Enter picks a word.
      if (key.key !== "Enter" || key.shiftKey || key.isComposing) return;
      key.preventDefault();
      this.#form.requestSubmit();
    });
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = this.#input.value.trim();
      if (!text) return;
      this.#input.value = "";
      this.#fit();
      onSend(text);
    });
    this.#stop.addEventListener("click", onStop);
    document.addEventListener("keydown", (key) => {
      if (key.key === "Escape" && !key.defaultPrevented && !this.#stop.hidden && !document.querySelector("dialog[open]")) onStop();
    });
    this.#fit();
  }

  focus() {
    // On a touch screen the keyboard would cover the answer.
    if (!matchMedia("(pointer: coarse)").matches) this.#input.focus();
  }

  /** `running`: there is an answer to stop. */
  running(yes) {
    if (!yes && document.activeElement === this.#stop) this.#input.focus();
    this.#stop.hidden = !yes;
    this.#stop.disabled = false;
  }

  stopping() {
    this.#stop.disabled = true;
  }

  #fit() {
    this.#input.style.height = "auto";
    this.#input.style.height = `${this.#input.scrollHeight}px`;
    this.#input.style.overflowY = this.#input.scrollHeight > 200 ? "auto" : "hidden";
    this.#send.disabled = this.#input.value.trim() === "";
  }
}
