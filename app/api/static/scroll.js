// The feed follows its end only for a reader who is there.

import { byId } from "./dom.js";

const NEAR = 64;

export class Scroll {
  #scroller = byId("scroller");
  #button = byId("to-end");
  #pinned = true;

  constructor() {
    this.#scroller.addEventListener("scroll", () => this.#look(), { passive: true });
    this.#button.addEventListener("click", () => this.toEnd());
    const watch = new ResizeObserver(() => this.#follow());
    watch.observe(byId("feed"));
    watch.observe(this.#scroller);
  }

  /** Goes to the end and stays there. */
  toEnd() {
    this.#pinned = true;
    this.#follow();
  }

  #look() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    this.#pinned = scrollHeight - scrollTop - clientHeight < NEAR;
    this.#button.hidden = this.#pinned;
  }

  #follow() {
    if (this.#pinned) this.#scroller.scrollTop = this.#scroller.scrollHeight;
    this.#look();
  }
}
