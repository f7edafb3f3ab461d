// What a turn looks like: one renderer for live events, for a snapshot, and for a message from the history.

import { AnswerFoot } from "./answer_foot.js";
import { Approval } from "./approval.js";
import { h, icon } from "./dom.js";
import { endingOf } from "./endings.js";
import { card, commentary, notice, picture } from "./extras.js";
import { Reasoning } from "./reasoning.js";
import { showRendered, TextBlock } from "./text_block.js";
import { forgetRunning } from "./tool_clock.js";
import { ToolLine } from "./tool_line.js";

/**
 * `does` is what a turn may ask of the page: `send(text)`, `retry()`, `decide(approvalId, decision)`,
 * `react(messageId, reaction)`.
 */
export class TurnView {
  messageId = "";
  ended = false;
  saved = false;
  #does;
  #flow = h("div", { class: "flow" });
  #word = h("span", {}, "Working…");
  #waiting = h("p", { class: "waiting" }, h("span", { class: "waiting-dots", "aria-hidden": "true" }, h("i"), h("i"), h("i")), this.#word);
  #foot = new AnswerFoot();
  #blocks = new Map();
  #tools = new Map();
  #approvals = new Map();
  #reasoning = null;
  // What `attempt_restarted` takes back: the thinking since the last tool's end.
  #unsettled = [];
  #tokens = null;

  constructor(does) {
    this.#does = does;
    this.element = h("article", { class: "turn", "aria-label": "Answer", "aria-busy": "true" }, this.#flow, this.#waiting, this.#foot.element);
  }

  get text() {
    return this.#texts().reduce((before, text) => (/\n\s*$/.test(before) || !before ? before + text : `${before}\n\n${text}`), "");
  }

  /** Shows one event. Kinds that this page does not know are left alone: that is how the contract grows. */
  apply(event) {
    switch (event.type) {
      case "turn_started":
        this.messageId = event.message_id;
        this.#wait("Working…");
        break;
      case "queued":
        this.#wait(event.position > 1 ? `Waiting: ${event.position - 1} ahead of this` : "Waiting: next in line");
        break;
      case "text_delta":
        this.#endReasoning();
        this.#block(event.block).append(event.text);
        this.#wait(null);
        break;
      case "reasoning_delta":
        this.#think(event.text, true);
        break;
      case "commentary":
        this.#put(commentary(event));
        break;
      case "tool_start":
        this.#endReasoning();
        forgetRunning(this.#callId(event));
        this.#tool(event);
        break;
      case "tool_progress":
        this.#tools.get(event.tool_call_id)?.progress(event);
        break;
      case "tool_end":
        this.#endReasoning();
        this.#unsettled = [];
        this.#tools.get(event.tool_call_id)?.end(event);
        this.#wait("Working…");
        break;
      case "image":
      case "action_card":
        this.#extra(event);
        break;
      case "approval_required":
        this.#approval(event);
        this.#wait(null);
        break;
      case "approval_resolved":
        this.#approvals.get(event.approval_id)?.resolve(event);
        this.#wait("Working…");
        break;
      case "attempt_restarted":
        for (const thought of this.#unsettled) thought.element.remove();
        this.#unsettled = [];
        this.#reasoning = null;
        this.#wait(`Trying again (attempt ${event.attempt})…`);
        break;
      case "notice":
        this.#put(notice(event));
        break;
      case "usage":
        this.#count(event);
        break;
      case "completion":
      case "error":
        this.#end(event);
        break;
      case "message_saved":
        this.saved = true;
        this.#foot.unsaved(false);
        break;
      case "message_save_failed":
        if (event.code !== "conversation_deleted") this.#foot.unsaved(true);
        break;
      case "snapshot":
        this.load(event);
        break;
    }
  }

  /** Shows a snapshot or a stored message in the place of all that was shown. */
  load(content) {
    this.#clear();
    this.messageId = content.message_id ?? content.id;
    const thoughts = (content.reasoning ?? []).map(({ text }) => text.trim()).join("\n\n");
    if (thoughts) this.#think(thoughts, false);
    this.#endReasoning();
    const blocks = content.blocks ?? [];
    const last = Math.max(0, ...blocks.map(({ block }) => block));
    const beside = inOrder(content);
    for (let block = 0; block <= last; block++) {
      const text = blocks.find((one) => one.block === block);
      if (text) this.#whole(text);
      for (const piece of beside.filter(({ after_block: after = 0 }) => Math.min(after, last) === block)) this.#beside(piece);
    }
    const over = Boolean(content.terminal || content.role);
    const questions = content.approvals ?? [];
    for (const question of questions) this.#approval(over && !question.decision ? { ...question, decision: "cancelled" } : question);
    const open = questions.some(({ decision }) => !decision);
    const busy = content.tools?.some(({ status }) => !status || status === "running");
    if (content.usage) this.#count(content.usage);
    if (content.terminal) this.#end(content.terminal);
    else if (over) this.#endStored(content);
    else if (open) this.#wait(null);
    else if (content.status === "queued") this.#wait("Waiting…");
    else {
      const writing = blocks.length > 0 && !beside.some(({ after_block: after }) => after >= last);
      if (writing) this.#blocks.get(last)?.reopen();
      this.#wait(writing || busy ? null : "Working…");
    }
  }

  /** The message is stored: the service's rendering takes the place of ours, and the reader may react. */
  settle(message) {
    this.saved = true;
    this.messageId = message.id;
    this.#foot.unsaved(false);
    this.#closeText();
    if (message.html !== undefined) showRendered(this.#inOrder(), message.html);
    if (message.status === "apology") return;
    this.#foot.reactable(message.reaction?.reaction ?? message.reaction, (reaction) => this.#does.react(message.id, reaction));
    this.#foot.copyable(this.text);
  }

  /** The connection went for good before the end was seen. */
  abandon(words) {
    if (!this.ended) this.#end({ type: "error", message: words, retryable: false });
  }

  /** Takes its clocks off; the element may then be thrown away. */
  drop() {
    for (const tool of this.#tools.values()) tool.drop();
    for (const approval of this.#approvals.values()) approval.drop();
  }

  #clear() {
    this.drop();
    for (const kept of [this.#blocks, this.#tools, this.#approvals]) kept.clear();
    this.#reasoning = null;
    this.#unsettled = [];
    this.#tokens = null;
    this.ended = false;
    const foot = new AnswerFoot();
    this.#foot.element.replaceWith(foot.element);
    this.#foot = foot;
    this.#flow.replaceChildren();
  }

  #wait(words) {
    this.#waiting.hidden = words === null || this.ended;
    if (words) this.#word.textContent = words;
  }

  #put(element) {
    this.#closeText();
    this.#flow.append(element);
  }

  #closeText() {
    for (const block of this.#blocks.values()) block.close();
  }

  #block(number) {
    let block = this.#blocks.get(number);
    if (!block) {
      this.#closeText();
      block = new TextBlock();
      this.#blocks.set(number, block);
      this.#flow.append(block.element);
    }
    return block;
  }

  #whole({ block: number, text }) {
    const block = this.#block(number);
    block.append(text);
    block.close();
  }

  #think(text, live) {
    if (!this.#reasoning) {
      this.#reasoning = new Reasoning(live);
      this.#unsettled.push(this.#reasoning);
      this.#put(this.#reasoning.element);
    }
    this.#reasoning.append(text);
    if (live) this.#wait(null);
  }

  #endReasoning() {
    this.#reasoning?.end();
    this.#reasoning = null;
  }

  #tool(call) {
    const line = new ToolLine(call, this.#callId(call));
    this.#tools.get(call.tool_call_id)?.drop();
    this.#tools.set(call.tool_call_id, line);
    this.#put(line.element);
    this.#wait(null);
  }

  /** A model may number its calls from one in every turn. */
  #callId({ tool_call_id: id }) {
    return `${this.messageId} ${id}`;
  }

  #extra(piece) {
    if (piece.type === "image") this.#put(picture(piece));
    else if (piece.type === "action_card") this.#put(card(piece, this.#does.send));
    else if (piece.type === "commentary") this.#put(commentary(piece));
    else if (piece.type === "notice") this.#put(notice(piece));
  }

  #beside(piece) {
    if ("name" in piece && "tool_call_id" in piece) this.#tool(piece);
    else this.#extra(piece);
  }

  #approval(question) {
    const decide = (decision) => this.#does.decide(question.approval_id, decision);
    const approval = new Approval(question, decide);
    this.#approvals.set(question.approval_id, approval);
    const line = this.#tools.get(question.tool_call_id);
    if (line) line.element.before(approval.element);
    else this.#put(approval.element);
  }

  /** The model's name stays out: a stored answer has the sums only, and a reload should show the same. */
  #count({ input_tokens: read, output_tokens: written }) {
    const { input_tokens: readBefore = 0, output_tokens: writtenBefore = 0 } = this.#tokens ?? {};
    this.#tokens = { input_tokens: readBefore + read, output_tokens: writtenBefore + written };
  }

  #end(terminal) {
    this.#endReasoning();
    this.#closeText();
    this.ended = true;
    this.#wait(null);
    this.element.setAttribute("aria-busy", "false");
    if (terminal.type === "error") {
      this.#apologise(terminal.message, terminal.retryable);
      return;
    }
    if (terminal.replaced && terminal.text !== undefined && terminal.text !== this.#texts().join("")) this.#replace(terminal.text);
    const tokens = { ...this.#tokens, ...terminal.usage };
    if (tokens.input_tokens !== undefined) this.#foot.usage(tokens);
    const ending = endingOf(terminal.status, terminal.finish_reason);
    if (ending) this.#foot.ending(ending);
    if (ending && terminal.status === "partial") this.#explain(ending);
    this.#foot.copyable(this.text);
  }

  #inOrder() {
    return [...this.#blocks].sort(([a], [b]) => a - b).map(([, block]) => block);
  }

  #texts() {
    return this.#inOrder().map((block) => block.text);
  }

  /** An after-generation hook changed the answer: its text is the only one there is. */
  #replace(text) {
    for (const block of this.#blocks.values()) block.element.remove();
    this.#blocks.clear();
    if (text) this.#whole({ block: 1, text });
  }

  #endStored({ status, text, finish_reason: reason }) {
    if (status === "apology") this.#end({ type: "error", message: text, retryable: false });
    else this.#end({ type: "completion", status, finish_reason: reason });
  }

  /** Why the answer breaks off, and a way on. It shows on the last answer only, as every `way-on` does. */
  #explain({ why }) {
    const on = { click: () => this.#does.send("Please go on.") };
    const button = h("button", { type: "button", class: "button way-on", on }, icon("chevron"), "Go on");
    this.#flow.append(h("div", { class: "unfinished" }, h("p", {}, why), button));
  }

  #apologise(words, retryable) {
    const on = { click: () => this.#does.retry() };
    const retry = h("button", { type: "button", class: "button way-on", on }, icon("retry"), "Try again");
    // An apology has its words as text too when it is stored; they are shown once.
    for (const block of this.#blocks.values()) block.element.remove();
    this.#blocks.clear();
    this.#flow.append(h("div", { class: "apology" }, icon("alert"), h("p", {}, words), retryable ? retry : ""));
    this.#foot.element.hidden = true;
  }
}

/** Tools and extras in the order in which they came, as far as a snapshot tells it: an extra stands behind its tool. */
function inOrder({ tools = [], extras = [] }) {
  const own = extras.filter(({ tool_call_id: id }) => !tools.some((tool) => tool.tool_call_id === id));
  const remarks = own.filter(({ type }) => type === "commentary");
  const behind = tools.flatMap((tool) => [tool, ...extras.filter(({ tool_call_id: id }) => id === tool.tool_call_id)]);
  return [...remarks, ...behind, ...own.filter((piece) => !remarks.includes(piece))];
}
