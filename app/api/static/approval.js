// A question before a tool runs: approve or deny, until it expires.

import { h, icon } from "./dom.js";

const ANSWERS = {
  approve: ["check", "Approved"],
  deny: ["ban", "Denied"],
  expired: ["clock", "Expired without an answer"],
  cancelled: ["stop", "No longer asked"],
};

export class Approval {
  #left = h("span", { class: "approval-left", role: "timer" });
  #trouble = h("p", { class: "approval-trouble", role: "alert" });
  #buttons = [];
  #timer = 0;
  #hadFocus = false;
  #question;
  #decide;

  /** `question` has the fields of `approval_required`; `decide(decision)` sends the answer and may fail. */
  constructor(question, decide) {
    this.#question = question;
    this.#decide = decide;
    this.element = h("section", { class: "approval", "aria-label": `Approval: ${question.title || question.name}` });
    if (question.decision) this.resolve(question);
    else this.#ask();
  }

  /** Shows the answer, whoever gave it. */
  resolve({ decision, by }) {
    clearInterval(this.#timer);
    // Where the buttons go away, the focus of a keyboard would be lost.
    const hadFocus = this.#hadFocus || this.element.contains(document.activeElement);
    const [sign, word] = ANSWERS[decision] ?? ANSWERS.cancelled;
    const who = decision === "approve" || decision === "deny" ? whoIs(by) : "";
    const words = h("span", { class: "approval-title" }, `${word}${who}: ${this.#question.title || this.#question.name}`);
    delete this.element.dataset.open;
    this.element.dataset.decision = decision;
    this.element.replaceChildren(h("p", { class: "approval-head" }, icon(sign), words));
    if (hadFocus) document.getElementById("input")?.focus();
  }

  drop() {
    clearInterval(this.#timer);
  }

  #ask() {
    const { title, name, prompt, arguments: given } = this.#question;
    this.element.dataset.open = "";
    const pairs = Object.entries(given ?? {}).map(([key, value]) => [
      h("dt", {}, labelOf(key)),
      h("dd", {}, typeof value === "string" ? value : JSON.stringify(value)),
    ]);
    const button = (decision, label, kind, sign) =>
      h("button", { type: "button", class: `button ${kind}`, on: { click: () => this.#answer(decision) } }, icon(sign), label);
    this.#buttons = [button("approve", "Approve", "primary", "check"), button("deny", "Deny", "", "ban")];
    this.element.replaceChildren(
      h("h3", { class: "approval-head" }, icon("question"), h("span", { class: "approval-title" }, title || name), this.#left),
      h("p", { class: "approval-prompt" }, prompt),
      pairs.length ? h("dl", { class: "pairs" }, pairs) : "",
      h("div", { class: "actions" }, this.#buttons),
      this.#trouble,
    );
    this.#countDown();
    this.#timer = setInterval(() => this.#countDown(), 1000);
  }

  async #answer(decision) {
    this.#trouble.textContent = "";
    this.#hadFocus = this.element.contains(document.activeElement);
    for (const button of this.#buttons) button.disabled = true;
    try {
      await this.#decide(decision);
      // The event that tells the answer may have come first, or comes now; this is for a stream that is down.
      if (this.element.dataset.open !== undefined) this.resolve({ decision });
    } catch (error) {
      this.#trouble.textContent = error.message;
      for (const button of this.#buttons) button.disabled = false;
      if (this.#hadFocus) this.#buttons[0].focus();
    }
  }

  #countDown() {
    const seconds = Math.max(0, Math.ceil((this.#question.expires_at - Date.now()) / 1000));
    const clock = `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
    this.#left.textContent = seconds ? `${clock} left` : "Expiring…";
  }
}

/** An argument's name as a person would write it: "due_date" is "Due date". */
function labelOf(name) {
  const words = name.replaceAll("_", " ").trim() || name;
  return words[0].toUpperCase() + words.slice(1);
}

function whoIs(by) {
  return by && by !== "local" && by !== "system" ? ` by ${by}` : "";
}
