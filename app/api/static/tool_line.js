// One tool call: what it does, how it stands, how long it takes; its arguments and result are folded away.

import { h, icon } from "./dom.js";
import { forgetRunning, runningSince } from "./tool_clock.js";

// Colour, sign and word say the same: none of them alone.
const STATES = {
  running: ["run", "spinner", "Running"],
  ok: ["good", "check", "Done"],
  error: ["bad", "alert", "Failed"],
  timeout: ["bad", "clock", "Timed out"],
  denied: ["warn", "ban", "Not allowed"],
  cancelled: ["warn", "stop", "Stopped"],
  unknown: ["warn", "question", "Outcome unknown"],
};

const running = new Set();
let ticker = 0;

function tick() {
  for (const line of running) line.showTime();
}

export class ToolLine {
  #id;
  #since = 0;
  #word = h("span", { class: "tool-word" });
  #time = h("span", { class: "tool-time", "aria-hidden": "true" });
  #message = h("span", { class: "tool-message", hidden: true });
  #bar = null;
  #body = h("div", { class: "tool-body" });

  /** `call` has the fields of `tool_start`, and of `tool_end` too when it is over. `id` names it among all calls. */
  constructor(call, id) {
    this.#id = id;
    this.title = call.title || call.name;
    this.sign = h("span", { class: "tool-sign" });
    const title = h("span", { class: "tool-title" }, this.title, this.#message);
    const state = h("span", { class: "tool-state" }, this.#word, this.#time);
    const summary = h("summary", {}, this.sign, title, state, icon("chevron", "chevron"));
    this.element = h("details", { class: "tool" }, summary, this.#body);
    this.#fact("Called", `${call.name}${call.arguments ? ` ${pretty(call.arguments)}` : ""}`);
    if (call.status && call.status !== "running") this.end(call);
    else this.#run();
  }

  progress({ message, fraction }) {
    if (message !== undefined) this.#message.textContent = message;
    this.#message.hidden = !this.#message.textContent;
    if (fraction === undefined) return;
    if (!this.#bar) {
      this.#bar = h("progress", { max: "1", "aria-label": `${this.title}: progress` });
      this.element.querySelector("summary").append(this.#bar);
    }
    this.#bar.value = fraction;
  }

  end({ status, duration_ms: duration, preview, truncated }) {
    this.#show(status);
    this.#stop();
    forgetRunning(this.#id);
    // How long one took whose end nobody saw is not known, and one that was not allowed never ran.
    const timed = duration !== undefined && status !== "unknown" && status !== "denied";
    this.#time.textContent = timed ? elapsed(duration) : "";
    this.#message.hidden = true;
    this.#bar?.remove();
    this.#bar = null;
    if (preview) this.#fact(truncated ? "Result (shortened)" : "Result", pretty(preview));
  }

  /** Takes the line off the clock, when it is thrown away. */
  drop() {
    this.#stop();
  }

  showTime() {
    this.#time.textContent = elapsed(Math.max(100, Date.now() - this.#since));
  }

  #run() {
    this.#show("running");
    this.#since = runningSince(this.#id);
    this.showTime();
    running.add(this);
    ticker ||= setInterval(tick, 100);
  }

  #stop() {
    running.delete(this);
    if (running.size === 0) {
      clearInterval(ticker);
      ticker = 0;
    }
  }

  #show(status) {
    const [tone, sign, word] = STATES[status] ?? STATES.unknown;
    this.element.dataset.tone = tone;
    this.element.dataset.status = status;
    this.sign.replaceChildren(icon(sign, "tool-icon"));
    this.#word.textContent = word;
  }

  #fact(label, text) {
    this.#body.append(h("h3", {}, label), h("pre", { tabindex: "0" }, text));
  }
}

/** "40 ms", "0.4 s", "12.3 s", "2 min 5 s". */
export function elapsed(milliseconds) {
  if (milliseconds < 100) return `${Math.round(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
}

function pretty(value) {
  if (typeof value !== "string") return JSON.stringify(value, null, 2);
  try {
    const parsed = JSON.parse(value);
    return typeof parsed === "object" && parsed !== null ? JSON.stringify(parsed, null, 2) : value;
  } catch {
    return value;
  }
}
