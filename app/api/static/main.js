// Puts the page together.

import { whenUnauthorized } from "./api.js";
import { Chat } from "./chat.js";
import { Composer } from "./composer.js";
import { Conversations } from "./conversations.js";
import { byId, h, icon } from "./dom.js";
import { EventsDrawer } from "./events_drawer.js";
import { Scroll } from "./scroll.js";
import { askForKey } from "./sign_in.js";
import { nextTheme, showTheme } from "./theme_switch.js";

const SUGGESTIONS = [
  ["Last month", "Show me the transactions of last month"],
  ["An invoice", "Create an invoice for Northwind Traders over 1200 euros"],
  ["A bill to pay", "Pay the electricity bill of 84.50 euros"],
  ["A question", "What is a VAT number?"],
  ["What can you do?", "help"],
];

for (const button of document.querySelectorAll("[data-icon]")) button.prepend(icon(button.dataset.icon));
whenUnauthorized(askForKey);

const composer = new Composer({ onSend: (text) => chat.send(text), onStop: () => chat.stop() });
const conversations = new Conversations({
  onDeleted: (id) => {
    if (id === chat.current) location.hash = "";
  },
  onTrouble: showTrouble,
});
const chat = new Chat({ scroll: new Scroll(), composer, drawer: new EventsDrawer(), conversations });

byId("suggestions").append(
  ...SUGGESTIONS.map(([title, words]) =>
    h("button", { type: "button", class: "suggestion", on: { click: () => chat.send(words) } }, h("strong", {}, title), h("span", {}, words)),
  ),
);

const sidebar = byId("sidebar");
const opener = byId("sidebar-open");

/** On a phone the list lies over the page. While it is closed its links are out of reach, for the keyboard too. */
function showSidebar(open) {
  sidebar.toggleAttribute("data-open", open);
  byId("backdrop").hidden = !open;
  opener.setAttribute("aria-expanded", String(open));
  if (open) byId("sidebar-close").focus();
}

opener.addEventListener("click", () => showSidebar(true));
for (const id of ["sidebar-close", "backdrop"]) {
  byId(id).addEventListener("click", () => {
    showSidebar(false);
    opener.focus();
  });
}
sidebar.addEventListener("keydown", (key) => {
  if (key.key !== "Escape" || !sidebar.hasAttribute("data-open")) return;
  key.preventDefault();
  showSidebar(false);
  opener.focus();
});

byId("new-conversation").addEventListener("click", () => {
  showSidebar(false);
  if (location.hash.length > 1) location.hash = "";
  else chat.open("");
  composer.focus();
});
byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("input").focus();
});
byId("theme").addEventListener("click", nextTheme);
showTheme();

function showTrouble(words) {
  byId("trouble").textContent = words;
  byId("trouble").hidden = false;
}

function openFromAddress() {
  showSidebar(false);
  return chat.open(location.hash.slice(1));
}

addEventListener("hashchange", openFromAddress);

/** The list first: it has the titles, and on a service that asks for a key it is what asks. */
async function begin() {
  try {
    await conversations.load();
  } catch (error) {
    showTrouble(error.message);
  }
  await openFromAddress();
}

begin();
