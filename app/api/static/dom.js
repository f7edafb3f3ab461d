// Elements from data. Strings become text nodes: nothing that a model, a tool or a person wrote is ever read as markup.

/**
 * An element with attributes and children.
 * `on` holds listeners by event name; an attribute that is null, undefined or false is left out, true is an empty one.
 */
export function h(tag, { on, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  for (const [name, listener] of Object.entries(on ?? {})) element.addEventListener(name, listener);
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const byId = (id) => document.getElementById(id);

const PATHS = {
  alert: "M12 8v5m0 3.2v.1M10.4 4.2 2.9 17.4A1.8 1.8 0 0 0 4.5 20h15a1.8 1.8 0 0 0 1.6-2.6L13.6 4.2a1.8 1.8 0 0 0-3.2 0Z",
  auto: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18Zm0 0v18M12 8h7.4M12 13h8.8M12 18h5.8",
  ban: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18ZM5.7 5.7l12.6 12.6",
  check: "m5 12.5 4.5 4.5L19 7.5",
  chevron: "m9 5 7 7-7 7",
  clock: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18Zm0 4.5V12l3 2",
  close: "M6 6l12 12M18 6 6 18",
  copy: "M9 9h10a1 1 0 0 1 1 1v10a1 1 0 0 1-1 1H9a1 1 0 0 1-1-1V10a1 1 0 0 1 1-1ZM4.5 15A1.5 1.5 0 0 1 3 13.500V4.500A1.5 1.5 0 0 1 4.5 3h9A1.5 1.5 0 0 1 15 4.5",
  dislike: "M17 3v11M17 3h2.500A1.5 1.5 0 0 1 21 4.500v8a1.5 1.5 0 0 1-1.5 1.500H17l-4.2 6.600a1 1 0 0 1-.9.4A2.4 2.4 0 0 1 9.7 18.500L10.5 15H5.200a2 2 0 0 1-2-2.400l1.4-7.600A2.4 2.4 0 0 1 7 3h10",
  down: "M12 5v14m-6-6 6 6 6-6",
  events: "M4 6h2m4 0h10M4 12h2m4 0h6M4 18h2m4 0h8",
  info: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18Zm0 8v5m0-8.200v.1",
  leave: "M14 4H6a1 1 0 0 0-1 1v14a1 1 0 0 0 1 1h8m-4-8h11m-4-4 4 4-4 4",
  like: "M7 21V10m0 11H4.500A1.5 1.5 0 0 1 3 19.500v-8A1.5 1.5 0 0 1 4.5 10H7l4.2-6.600a1 1 0 0 1 .9-.4 2.4 2.4 0 0 1 2.2 2.500L13.5 9h5.300a2 2 0 0 1 2 2.400l-1.4 7.600a2.4 2.4 0 0 1-2.4 2H7",
  menu: "M4 7h16M4 12h16M4 17h16",
  moon: "M20 14.500A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.500Z",
  out: "M8 5H5v14h14v-3M13 4h7v7m0-7-9 9",
  plus: "M12 5v14M5 12h14",
  question: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18Zm-2.5 6.700a2.5 2.5 0 1 1 3.6 2.200c-.7.4-1.1.9-1.1 1.700m0 2.800v.1",
  retry: "M4 12a8 8 0 0 1 13.7-5.600L20 8.500M20 4v4.500h-4.500M20 12a8 8 0 0 1-13.7 5.600L4 15.500M4 20v-4.500h4.5",
  send: "M12 19V5m-6 6 6-6 6 6",
  spinner: "M12 3a9 9 0 1 1-9 9",
  stop: "M8 7h8a1 1 0 0 1 1 1v8a1 1 0 0 1-1 1H8a1 1 0 0 1-1-1V8a1 1 0 0 1 1-1Z",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8Zm0-5.500V4m0 16v1.500M2.5 12H4m16 0h1.500M5.3 5.300l1 1m11.4 11.4 1 1M5.3 18.700l1-1M17.7 6.300l1-1",
  trash: "M4.5 7h15M9.5 7V4.500h5V7M6.5 7l.8 12.500h9.400L17.5 7M10 11v5m4-5v5",
};

/** A drawn sign of 20 px in the colour of its text; hidden from screen readers, so a word must stand beside it. */
export function icon(name, className = "") {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("class", `icon ${className}`.trim());
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}

/** A button that shows only a sign; `label` is its name. */
export function iconButton(name, label, onClick, attributes = {}) {
  const button = { type: "button", class: "icon-button", "aria-label": label, title: label, ...attributes };
  return h("button", { ...button, on: { click: onClick } }, icon(name));
}

/** The address when it may be opened or loaded from here, else null: http(s), and data: pictures where `picture` is set. */
export function safeUrl(address, { picture = false } = {}) {
  let url;
  try {
    url = new URL(address, location.origin);
  } catch {
    return null;
  }
  if (url.protocol === "https:" || url.protocol === "http:") return url.href;
  return picture && /^data:image\/(png|jpeg|gif|webp|svg\+xml)[;,]/i.test(address) ? address : null;
}
