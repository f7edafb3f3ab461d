// The conversation on the screen: its history, the turns that run in it, and what the reader does.

import { Announcer, say } from "./announcer.js";
import { api, newKey, Unreachable } from "./api.js";
import { Asked } from "./asked.js";
import { byId } from "./dom.js";
import { TurnStream } from "./stream.js";
import { TurnView } from "./turn_view.js";

const STATES = { live: "", reconnecting: "Reconnecting…", busy: "The service is busy; reconnecting…" };

export class Chat {
  #feed = byId("feed");
  #welcome = byId("welcome");
  #connection = byId("connection");
  #trouble = byId("trouble");
  #scroll;
  #composer;
  #drawer;
  #conversations;
  #id = "";
  // Counts what was opened: an answer to an older question about another conversation is dropped.
  #visit = 0;
  // The trouble on the screen is that nothing came through: it is over with the next word of the service.
  #outOfReach = false;
  #turns = new Map();
  // The history has no HTML: a message's own is asked for once somebody looks at it.
  #seen = new IntersectionObserver((entries) => this.#look(entries), { root: byId("scroller"), rootMargin: "400px" });
  #unseen = new Map();

  constructor({ scroll, composer, drawer, conversations }) {
    this.#scroll = scroll;
    this.#composer = composer;
    this.#drawer = drawer;
    this.#conversations = conversations;
  }

  /** Shows a conversation and goes on with the turn that runs in it; "" is a new one. */
  async open(id) {
    const visit = this.#leave(id);
    if (!id) {
      this.#showWelcome();
      return;
    }
    try {
      const [messages, active] = await Promise.all([api.messages(id), api.activeTurn(id)]);
      if (visit === this.#visit) this.#show(messages, active);
    } catch (error) {
      if (visit !== this.#visit) return;
      this.#tell(error.status === 404 ? "There is no such conversation any more." : error.message);
      this.#showWelcome();
    }
  }

  /** Sends an input, in a new conversation where none is open. */
  async send(input) {
    this.#tell("");
    this.#welcome.hidden = true;
    const asked = new Asked(input);
    const view = this.#view(input);
    this.#feed.append(asked.element, view.element);
    this.#scroll.toEnd();
    this.#composer.focus();
    await this.#start(asked, view, newKey(), this.#visit);
  }

  /** Stops the oldest turn that runs. */
  async stop() {
    const [turnId] = this.#turns.keys();
    if (!turnId) return;
    this.#composer.stopping();
    try {
      await api.cancelTurn(turnId);
    } catch (error) {
      this.#tell(error.message);
      this.#outOfReach = error instanceof Unreachable;
      this.#composer.running(true);
    }
  }

  get current() {
    return this.#id;
  }

  #leave(id) {
    for (const { stream, view } of this.#turns.values()) {
      stream.close();
      view.drop();
    }
    this.#turns.clear();
    this.#seen.disconnect();
    this.#unseen.clear();
    this.#composer.running(false);
    this.#connection.textContent = "";
    this.#tell("");
    this.#feed.replaceChildren();
    this.#welcome.hidden = true;
    this.#id = id;
    this.#conversations.select(id);
    this.#drawer.clear();
    this.#showTitle();
    return ++this.#visit;
  }

  #show(messages, active) {
    let input = "";
    let view = null;
    for (const message of messages) {
      if (message.role === "user") {
        input = message.parts ?? message.text;
        this.#feed.append(new Asked(input).element);
      } else {
        view = this.#view(input);
        view.load(message);
        view.settle(message);
        this.#feed.append(view.element);
        if (message.html === undefined && message.status !== "apology") {
          this.#unseen.set(view.element, view);
          this.#seen.observe(view.element);
        }
      }
    }
    const last = messages[messages.length - 1];
    const pending = active ? { ...recall(this.#id), ...strip(active) } : recall(this.#id);
    const known = messages.some(({ role, turn_id: turn }) => role === "assistant" && turn === pending?.turn_id);
    if (pending?.turn_id && !known) {
      const asked = messages.some(({ role, turn_id: turn }) => role === "user" && turn === pending.turn_id);
      if (!asked && pending.input) this.#feed.append(new Asked(pending.input).element);
      view = this.#view(asked ? input : pending.input);
      this.#feed.append(view.element);
      this.#follow(view, pending.turn_id, { url: pending.events_url, fromSnapshot: true });
    } else if (last?.status === "apology") this.#offerRetry(last, view);
    if (this.#feed.childElementCount === 0) this.#showWelcome();
    this.#scroll.toEnd();
  }

  /** The history does not say whether an apology may be tried again; its turn does, as long as it is kept. */
  async #offerRetry(message, view) {
    const turn = message.terminal ? message : await api.turn(message.turn_id).catch(() => null);
    if (turn?.terminal?.retryable && view.element.isConnected) view.load({ ...message, terminal: turn.terminal });
  }

  #showWelcome() {
    this.#welcome.hidden = false;
    this.#composer.focus();
  }

  #view(input) {
    const view = new TurnView({
      send: (text) => this.send(text),
      retry: () => this.send(input),
      decide: (approvalId, decision) => api.decide(turnOf(this.#turns, view), approvalId, decision),
      react: (messageId, reaction) => (reaction ? api.react(messageId, reaction) : api.unreact(messageId)),
    });
    return view;
  }

  async #start(asked, view, key, visit) {
    try {
      if (!this.#id) await this.#begin(asked.input);
      if (visit !== this.#visit) return;
      const started = await api.startTurn(this.#id, asked.input, key, (words) => asked.say(words));
      asked.say("");
      if (visit !== this.#visit) return;
      remember(this.#id, { turn_id: started.turn_id, events_url: started.events_url, input: asked.input });
      this.#follow(view, started.turn_id, { url: started.events_url });
    } catch (error) {
      if (visit !== this.#visit) return;
      view.element.remove();
      asked.fail(`Not sent: ${error.message}`, () => {
        asked.say("Sending again…");
        asked.element.after(view.element);
        this.#start(asked, view, key, visit);
      });
      say("The message was not sent.");
    }
  }

  async #begin(input) {
    const words = typeof input === "string" ? input.replace(/\s+/g, " ") : "New conversation";
    const conversation = await api.createConversation(words.length > 60 ? `${words.slice(0, 57).trimEnd()}…` : words);
    this.#id = conversation.id;
    history.replaceState(null, "", `#${conversation.id}`);
    this.#conversations.add(conversation);
    this.#conversations.select(conversation.id);
    this.#showTitle();
  }

  #follow(view, turnId, { url, fromSnapshot }) {
    const announcer = new Announcer();
    const stream = new TurnStream(turnId, {
      url,
      fromSnapshot,
      handlers: {
        event: (event, id) => {
          this.#drawer.record(event, id);
          view.apply(event);
          announcer.hear(event);
          if (event.type === "message_saved") this.#settle(view, event.message_id);
          if (view.ended) this.#finished(turnId);
        },
        state: (name) => {
          this.#connection.textContent = STATES[name];
          this.#connection.dataset.state = name;
          if (name === "live" && this.#outOfReach) this.#tell("");
        },
        over: (reason) => this.#over(view, turnId, reason),
      },
    });
    this.#turns.set(turnId, { stream, view });
    this.#composer.running(true);
  }

  /** The answer is whole, though perhaps not yet saved: there is nothing left to stop. */
  #finished(turnId) {
    const running = [...this.#turns].filter(([id, { view }]) => id !== turnId && !view.ended);
    this.#composer.running(running.length > 0);
  }

  async #over(view, turnId, reason) {
    this.#turns.delete(turnId);
    this.#connection.textContent = "";
    this.#composer.running([...this.#turns.values()].some((one) => !one.view.ended));
    if (reason === "gone") view.abandon("This answer is no longer there.");
    else if (!view.saved && view.messageId) await this.#settle(view, view.messageId);
    if (view.saved) forget(this.#id, turnId);
    const id = this.#id;
    if (id) await this.#conversations.refresh(id).catch(() => null);
    if (id === this.#id) this.#showTitle();
  }

  #look(entries) {
    for (const { isIntersecting, target } of entries) {
      const view = isIntersecting && this.#unseen.get(target);
      if (!view) continue;
      this.#unseen.delete(target);
      this.#seen.unobserve(target);
      this.#settle(view, view.messageId);
    }
  }

  /** Takes the service's rendering; without it the light form stays, which has the same words. */
  async #settle(view, messageId) {
    const message = await api.message(messageId).catch(() => null);
    if (message) view.settle(message);
  }

  #showTitle() {
    const title = this.#conversations.title(this.#id);
    byId("title").textContent = title || "New conversation";
    document.title = title ? `${title} · Earlybyte` : "Earlybyte";
  }

  #tell(words) {
    this.#outOfReach = false;
    this.#trouble.textContent = words;
    this.#trouble.hidden = !words;
  }
}

function turnOf(turns, view) {
  for (const [id, turn] of turns) if (turn.view === view) return id;
  return "";
}

function strip({ turn_id: turn, id, events_url: url }) {
  return { turn_id: turn ?? id, events_url: url };
}

// The last turn that this tab began in a conversation. A reload finds it here in the moment in which it is no longer
// open but not saved yet, when neither `active` nor the history has it.
const slot = (conversation) => `earlybyte.turn.${conversation}`;

function remember(conversation, turn) {
  sessionStorage.setItem(slot(conversation), JSON.stringify(turn));
}

function recall(conversation) {
  return JSON.parse(sessionStorage.getItem(slot(conversation)) ?? "null");
}

function forget(conversation, turnId) {
  if (recall(conversation)?.turn_id === turnId) sessionStorage.removeItem(slot(conversation));
}
