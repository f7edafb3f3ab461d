// Light, dark, or what the system says.

import { byId, icon } from "./dom.js";

const THEMES = { auto: ["auto", "Theme: automatic"], light: ["sun", "Theme: light"], dark: ["moon", "Theme: dark"] };

export function showTheme() {
  const [sign, words] = THEMES[document.documentElement.dataset.theme ?? "auto"];
  byId("theme").replaceChildren(icon(sign), words);
}

/** Automatic, light, dark, and round again; remembered in this browser. */
export function nextTheme() {
  const names = Object.keys(THEMES);
  const now = document.documentElement.dataset.theme ?? "auto";
  const next = names[(names.indexOf(now) + 1) % names.length];
  if (next === "auto") {
    delete document.documentElement.dataset.theme;
    localStorage.removeItem("earlybyte.theme");
  } else {
    document.documentElement.dataset.theme = next;
    localStorage.setItem("earlybyte.theme", next);
  }
  showTheme();
}
