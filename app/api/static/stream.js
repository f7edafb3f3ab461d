// One turn's events, from wherever we are to its end, over as many connections as that takes (protocol section 4).

import { api, ApiError } from "./api.js";

const WATCHDOG_MS = 45_000;
const FIRST_DELAY_MS = 500;
// A restart takes seconds: waiting longer from try to try would only add to it. A full service says by `retry:` or
// `Retry-After` how long it wants to be left alone, and is.
const LAST_DELAY_MS = 2_000;

/**
 * Follows a turn. `handlers`: `event(event, id)` for every event in order, each once; `state(name)` with `live`,
 * `reconnecting` or `busy`; `over(reason)` once: `done`, or `gone` when the service knows no such turn.
 *
 * The order and the single delivery are the service's: each connection asks for what comes after the last id that we
 * have. A `snapshot` replaces all before it.
 */
export class TurnStream {
  #url;
  #turnId;
  #handlers;
  #source = null;
  #cursor = "";
  #fromSnapshot;
  #failures = 0;
  #timer = 0;
  #watchdog = 0;
  #closed = false;
  // After `stream_end` with `resume`: the source itself comes back, after the service's `retry:` and with the last id.
  #resting = false;

  constructor(turnId, { url, fromSnapshot = false, handlers }) {
    this.#turnId = turnId;
    this.#url = url ?? `/v1/turns/${encodeURIComponent(turnId)}/events`;
    this.#fromSnapshot = fromSnapshot;
    this.#handlers = handlers;
    addEventListener("online", this.#wake);
    document.addEventListener("visibilitychange", this.#wake);
    this.#connect();
  }

  close() {
    this.#closed = true;
    this.#drop();
    removeEventListener("online", this.#wake);
    document.removeEventListener("visibilitychange", this.#wake);
  }

  #connect() {
    this.#drop();
    const url = new URL(this.#url, location.origin);
    url.searchParams.set("heartbeat", "data");
    if (this.#cursor) url.searchParams.set("last_event_id", this.#cursor);
    else if (this.#fromSnapshot) url.searchParams.set("from", "snapshot");
    this.#source = new EventSource(url);
    this.#source.onopen = () => {
      this.#feedWatchdog();
      this.#handlers.state("live");
    };
    this.#source.onmessage = (message) => this.#take(message);
    this.#source.onerror = () => {
      if (this.#resting && this.#source.readyState === EventSource.CONNECTING) this.#resting = false;
      else this.#failed();
    };
    this.#feedWatchdog();
  }

  #drop() {
    clearTimeout(this.#timer);
    clearTimeout(this.#watchdog);
    this.#timer = 0;
    this.#resting = false;
    this.#source?.close();
    this.#source = null;
  }

  #feedWatchdog() {
    clearTimeout(this.#watchdog);
    this.#watchdog = setTimeout(() => this.#failed(), WATCHDOG_MS);
  }

  #take(message) {
    this.#feedWatchdog();
    let event;
    try {
      event = JSON.parse(message.data);
    } catch {
      return this.#failed();
    }
    if (message.lastEventId) this.#cursor = message.lastEventId;
    if (event.type !== "stream_end") {
      this.#failures = 0;
      this.#handlers.state("live");
      this.#handlers.event(event, message.lastEventId);
      return undefined;
    }
    this.#handlers.event(event, "");
    if (!event.resume) return this.#finish("done");
    this.#resting = true;
    this.#handlers.state(event.reason === "busy" || event.reason === "draining" ? "busy" : "reconnecting");
    return undefined;
  }

  #failed(leastSeconds = 0) {
    if (this.#closed || this.#timer) return;
    const refused = this.#source?.readyState === EventSource.CLOSED;
    this.#drop();
    this.#handlers.state("reconnecting");
    const usual = Math.min(LAST_DELAY_MS, FIRST_DELAY_MS * 2 ** this.#failures) * (0.5 + Math.random() / 2);
    const delay = Math.max(usual, leastSeconds * 1000);
    this.#failures++;
    this.#timer = setTimeout(() => (refused ? this.#ask() : this.#connect()), delay);
  }

  /** An EventSource that was answered 204, 401 or 404 cannot say so: ask in a way that can. */
  async #ask() {
    try {
      const turn = await api.turn(this.#turnId);
      if (this.#closed) return;
      if (turn.status !== "done") this.#connect();
      else {
        this.#handlers.event({ ...turn, type: "snapshot", turn_id: this.#turnId }, "");
        this.#finish("done");
      }
    } catch (error) {
      if (this.#closed) return;
      if (error instanceof ApiError && (error.status === 404 || error.status === 403)) this.#finish("gone");
      else {
        this.#timer = 0;
        this.#failed(error instanceof ApiError ? (error.retryAfter ?? 0) : 0);
      }
    }
  }

  #finish(reason) {
    if (this.#closed) return;
    this.close();
    this.#handlers.over(reason);
  }

  /** The network is back, or the reader is: no reason to wait any longer. */
  #wake = () => {
    if (!this.#closed && this.#timer && document.visibilityState === "visible") this.#connect();
  };
}
