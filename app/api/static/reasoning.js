// The model's thinking, folded away.

import { h, icon } from "./dom.js";
import { elapsed } from "./tool_line.js";

export class Reasoning {
  #label = h("span", {}, "Thinking…");
  #text = h("div", { class: "reasoning-text" });
  #since = performance.now();
  #live;

  /** `live`: it comes in now, so how long it takes can be told. */
  constructor(live) {
    this.#live = live;
    const summary = h("summary", {}, icon("chevron", "chevron"), this.#label);
    this.element = h("details", { class: "reasoning" }, summary, this.#text);
    if (!live) this.#label.textContent = "Thoughts";
  }

  append(text) {
    this.#text.append(text);
  }

  /** The model has gone on to something else. */
  end() {
    if (!this.#live) return;
    this.#live = false;
    const took = performance.now() - this.#since;
    this.#label.textContent = took < 500 ? "Thoughts" : `Thought for ${elapsed(took)}`;
  }
}
