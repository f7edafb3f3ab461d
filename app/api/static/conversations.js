// The list of conversations: newest first, open one, begin one, delete one.

import { api } from "./api.js";
import { byId, h, iconButton } from "./dom.js";

const UNTITLED = "Untitled conversation";

export class Conversations {
  #list = byId("conversations");
  #older = byId("older-conversations");
  #items = [];
  #current = "";
  #cursor = "";
  #onDeleted;
  #onTrouble;

  /** `onDeleted(id)` is called once a conversation is gone, `onTrouble(words)` when something could not be done. */
  constructor({ onDeleted, onTrouble }) {
    this.#onDeleted = onDeleted;
    this.#onTrouble = onTrouble;
    this.#older.addEventListener("click", () => this.#orTell(this.#loadOlder()));
  }

  async load() {
    const page = await api.conversations();
    this.#items = page.items;
    this.#cursor = page.next_cursor ?? "";
    this.#draw();
  }

  /** Puts a new or changed conversation on top. */
  add(conversation) {
    this.#items = [conversation, ...this.#items.filter(({ id }) => id !== conversation.id)];
    this.#draw();
  }

  select(id) {
    this.#current = id;
    this.#draw();
  }

  title(id) {
    const found = this.#items.find((one) => one.id === id);
    return found ? found.title || UNTITLED : "";
  }

  /** Takes a fresh title from the service, where it has one. */
  async refresh(id) {
    const fresh = await api.conversation(id);
    this.#items = this.#items.map((one) => (one.id === id ? fresh : one));
    this.#draw();
  }

  #orTell(doing) {
    return doing.catch((error) => this.#onTrouble(error.message));
  }

  async #loadOlder() {
    const page = await api.conversations(this.#cursor);
    this.#items.push(...page.items);
    this.#cursor = page.next_cursor ?? "";
    this.#draw();
  }

  #draw() {
    const focused = this.#list.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    this.#list.replaceChildren(...this.#items.map((one) => this.#row(one)));
    if (this.#items.length === 0) this.#list.append(h("li", { class: "conversations-empty" }, "Nothing here yet."));
    if (focused) this.#list.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus();
    this.#older.hidden = !this.#cursor;
  }

  #row({ id, title }) {
    const words = title || UNTITLED;
    const current = id === this.#current ? "page" : null;
    const link = h("a", { class: "conversation-link", href: `#${id}`, "aria-current": current, title: words }, words);
    const remove = iconButton("trash", `Delete “${words}”`, () => this.#orTell(this.#delete(id, words)));
    return h("li", { class: "conversation" }, link, remove);
  }

  async #delete(id, words) {
    if (!(await confirmed(`“${words}” and all its messages will be gone.`))) return;
    await api.deleteConversation(id);
    this.#items = this.#items.filter((one) => one.id !== id);
    this.#draw();
    this.#onDeleted(id);
  }
}

/** Whether the reader says yes. */
function confirmed(words) {
  const dialog = byId("confirm");
  byId("confirm-text").textContent = words;
  dialog.returnValue = "";
  dialog.showModal();
  byId("confirm-no").focus();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

byId("confirm-no").addEventListener("click", () => byId("confirm").close("no"));
byId("confirm-form").addEventListener("submit", (event) => {
  event.preventDefault();
  byId("confirm").close("yes");
});
