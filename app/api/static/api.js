// The service's HTTP interface, one function for each thing that the page does.

/** A refusal by the service. `code` is the problem's stable code, `retryAfter` seconds or null. */
export class ApiError extends Error {
  constructor(status, problem, retryAfter) {
    super(problem.detail || problem.title || `The service answered ${status}.`);
    this.status = status;
    this.code = problem.code ?? "";
    this.problem = problem;
    this.retryAfter = retryAfter;
  }
}

/** No answer came: the service is down, or the network is. */
export class Unreachable extends Error {
  constructor() {
    // The browser's own words differ, and say nothing to a reader.
    super("The service cannot be reached.");
  }
}

let onUnauthorized = null;

/** `ask()` is called on a 401 and resolves once the reader has signed in; the request is then made again. */
export function whenUnauthorized(ask) {
  onUnauthorized = ask;
}

async function request(method, path, { body, headers = {} } = {}) {
  const init = { method, headers: { Accept: "application/json", ...headers }, credentials: "same-origin" };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers["Content-Type"] = "application/json";
  }
  const response = await reach(path, init);
  if (response.ok) return response.status === 204 ? null : readJson(response);
  if (response.status === 401 && onUnauthorized && path !== "/v1/session") {
    await onUnauthorized();
    return request(method, path, { body, headers });
  }
  throw new ApiError(response.status, (await readJson(response)) ?? {}, Number(response.headers.get("Retry-After")) || null);
}

async function reach(path, init) {
  try {
    return await fetch(path, init);
  } catch {
    throw new Unreachable();
  }
}

async function readJson(response) {
  try {
    return await response.json();
  } catch (error) {
    // A body that is no JSON is one thing, a body that broke off another.
    if (response.ok && !(error instanceof SyntaxError)) throw new Unreachable();
    return null;
  }
}

const part = encodeURIComponent;
const query = (values) => new URLSearchParams(Object.entries(values).filter(([, value]) => value)).toString();

export const api = {
  conversations: (cursor) => request("GET", `/v1/conversations?${query({ limit: "40", cursor })}`),
  conversation: (id) => request("GET", `/v1/conversations/${part(id)}`),
  createConversation: (title) => request("POST", "/v1/conversations", { body: { title } }),
  deleteConversation: (id) => request("DELETE", `/v1/conversations/${part(id)}`),
  activeTurn: (id) => request("GET", `/v1/conversations/${part(id)}/active`),
  turn: (id) => request("GET", `/v1/turns/${part(id)}`),
  cancelTurn: (id) => request("POST", `/v1/turns/${part(id)}/cancel`),
  message: (id) => request("GET", `/v1/messages/${part(id)}`),
  react: (id, reaction) => request("PUT", `/v1/messages/${part(id)}/reaction`, { body: { reaction } }),
  unreact: (id) => request("DELETE", `/v1/messages/${part(id)}/reaction`),
  signIn: (key) => request("POST", "/v1/session", { body: { key } }),
  signOut: () => request("DELETE", "/v1/session"),

  decide: (turnId, approvalId, decision) =>
    request("POST", `/v1/turns/${part(turnId)}/approvals/${part(approvalId)}`, { body: { decision } }),

  /** Every message of a conversation, oldest first. */
  async messages(id) {
    const items = [];
    let cursor = "";
    do {
      const page = await request("GET", `/v1/conversations/${part(id)}/messages?${query({ limit: "100", cursor })}`);
      items.push(...page.items);
      cursor = page.next_cursor ?? "";
    } while (cursor);
    return items;
  },

  /**
   * Starts a turn, and tries again when the answer is lost or the service is full. Every try carries the same `key`, so
   * that however often it arrives there is one turn (H3). `onWait` hears of each wait.
   */
  async startTurn(conversationId, input, key, onWait) {
    const path = `/v1/conversations/${part(conversationId)}/turns`;
    for (let attempt = 1; ; attempt++) {
      try {
        return await request("POST", path, { body: { input, on_busy: "enqueue" }, headers: { "Idempotency-Key": key } });
      } catch (error) {
        const refused = error instanceof ApiError;
        if (attempt >= 5 || (refused && error.status < 500 && error.status !== 429)) throw error;
        if (refused && error.retryAfter > 15) throw error;
        onWait?.(refused ? "The service is busy; trying again…" : "No connection; trying again…");
        const seconds = refused && error.retryAfter ? error.retryAfter : Math.min(8, 2 ** (attempt - 1)) * (0.5 + Math.random() / 2);
        await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
      }
    }
  },
};

/** A fresh key for one send. `crypto.randomUUID` is there only in a secure context; a plain address has none. */
export function newKey() {
  if (crypto.randomUUID) return crypto.randomUUID();
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
