// The feed follows its end only for a reader who is there.

import { byId } from "./dom.js";

const NEAR = 64;

export class Scroll {
  #scroller = byId("scroller");
  #button = byId("to-end");
  #pinned = true;
  #top = 0;

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

  /** Only a move upwards lets go: when a picture has just come, the end is far although nobody went away from it. */
  #look() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    const near = scrollHeight - scrollTop - clientHeight < NEAR;
    this.#pinned = near || (this.#pinned && scrollTop >= this.#top);
    this.#top = scrollTop;
    this.#button.hidden = this.#pinned;
  }

  #follow() {
    if (this.#pinned) this.#scroller.scrollTop = this.#scroller.scrollHeight;
    this.#look();
  }
}
