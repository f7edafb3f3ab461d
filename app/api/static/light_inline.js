// What stands inside a line: code, emphasis, links. Part of `light_markdown.js`.

import { h } from "./dom.js";

const ESCAPABLE = /[!-/:-@[-`{-~]/;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', nbsp: "\u00a0" };
const LINK = /^(!?)\[((?:\\.|[^[\]\\]|\[[^[\]]*\])*)\]\(\s*<?((?:\\.|[^\s()<>\\]|\([^\s()]*\))*)>?(?:\s+(?:"([^"]*)"|'([^']*)'))?\s*\)/;
const HALF_LINK = /^!?\[((?:\\.|[^[\]\\])*)(?:\](?:\([^)\n]*)?)?$/;
const AUTOLINK = /^<((?:https?:\/\/|mailto:)[^\s<>]+)>/i;
const MARKS = [
  ["***", "em"],
  ["**", "strong"],
  ["__", "strong"],
  ["~~", "s"],
  ["*", "em"],
  ["_", "em"],
];

const DEEPEST = 20;
let depth = 0;

/** Nodes of one line or paragraph. `open`: the text still grows, so a mark at its end that is not closed yet counts. */
export function inline(text, open) {
  // Looking for closing marks is quadratic; a paragraph of this length is no prose, and the service renders it anyway.
  if (text.length > 20_000 || depth >= DEEPEST) return [document.createTextNode(text)];
  depth++;
  try {
    return pieces(text, open);
  } finally {
    depth--;
  }
}

function pieces(text, open) {
  const nodes = [];
  let plain = "";
  const flush = () => {
    if (plain) nodes.push(document.createTextNode(plain));
    plain = "";
  };
  for (let at = 0; at < text.length; ) {
    const piece = special(text, at, open);
    if (piece === null) plain += text[at++];
    else if (typeof piece.node === "string") {
      plain += piece.node;
      at = piece.end;
    } else {
      flush();
      nodes.push(...piece.node);
      at = piece.end;
    }
  }
  flush();
  return nodes;
}

/** What begins at `at` and is more than a plain letter: `{node, end}`, or null. */
function special(text, at, open) {
  switch (text[at]) {
    case "\\":
      if (text[at + 1] === "\n") return { node: [h("br")], end: at + 1 };
      return ESCAPABLE.test(text[at + 1] ?? "") ? { node: text[at + 1], end: at + 2 } : null;
    case " ":
      return lineBreak(text, at);
    case "&":
      return entity(text, at);
    case "`":
      return code(text, at, open);
    case "<":
      return autolink(text, at);
    case "!":
    case "[":
      return link(text, at, open);
    case "*":
    case "_":
    case "~":
      return emphasis(text, at, open);
    default:
      return null;
  }
}

/** Spaces before a line's end: two or more break the line, one is nothing. */
function lineBreak(text, at) {
  const spaces = /^ +(?=\n)/.exec(text.slice(at, at + 40))?.[0];
  return spaces ? { node: spaces.length > 1 ? [h("br")] : "", end: at + spaces.length } : null;
}

function entity(text, at) {
  const found = /^&(amp|lt|gt|quot|nbsp);/.exec(text.slice(at, at + 6));
  return found ? { node: ENTITIES[found[1]], end: at + found[0].length } : null;
}

function code(text, at, open) {
  const marks = /^`+/.exec(text.slice(at))[0];
  let end = text.indexOf(marks, at + marks.length);
  while (end >= 0 && text[end + marks.length] === "`") {
    while (text[end] === "`") end++;
    end = text.indexOf(marks, end);
  }
  if (end < 0 && !open) return { node: marks, end: at + marks.length };
  let body = text.slice(at + marks.length, end < 0 ? undefined : end).replaceAll("\n", " ");
  if (/^ .*\S.* $/.test(body)) body = body.slice(1, -1);
  return { node: [h("code", {}, body)], end: end < 0 ? text.length : end + marks.length };
}

function autolink(text, at) {
  const found = AUTOLINK.exec(text.slice(at));
  return found ? { node: [anchor(found[1], null, [found[1]])], end: at + found[0].length } : null;
}

function link(text, at, open) {
  if (text[at] === "!" && text[at + 1] !== "[") return null;
  const rest = text.slice(at);
  const found = LINK.exec(rest);
  if (found) {
    const [whole, , words, address, title, otherTitle] = found;
    if (/^(?:javascript|vbscript|file|data):/i.test(address)) return null;
    return { node: [anchor(address, title ?? otherTitle, inline(words, false))], end: at + whole.length };
  }
  const half = open && HALF_LINK.exec(rest);
  return half ? { node: inline(half[1], true), end: text.length } : null;
}

/** A link like the service's own; an address that leads nowhere safe leaves only the words. */
function anchor(address, title, children) {
  const safe = /^(?:https?|mailto):/i.test(address);
  return h("a", { href: safe ? address : null, title, target: "_blank", rel: "noopener noreferrer nofollow" }, children);
}

function emphasis(text, at, open) {
  for (const [mark, tag] of MARKS) {
    if (!text.startsWith(mark, at)) continue;
    const from = at + mark.length;
    const before = text[at - 1] ?? " ";
    if (/\s/.test(text[from] ?? " ") || (mark[0] === "_" && /\w/.test(before))) break;
    const end = closing(text, from, mark);
    const wrap = (words, grows) => [h(tag, {}, mark.length === 3 ? h("strong", {}, inline(words, grows)) : inline(words, grows))];
    if (end > from) return { node: wrap(text.slice(from, end), false), end: end + mark.length };
    if (open && mark[0] !== "_") return { node: wrap(text.slice(from), true), end: text.length };
  }
  const run = new RegExp(`^[${text[at]}]+`).exec(text.slice(at))[0];
  return { node: run, end: at + run.length };
}

/** Where the mark closes, or -1: not after a space, not inside code, and for one star not at two. */
function closing(text, from, mark) {
  for (let at = from; at < text.length; at++) {
    if (text[at] === "\\") at++;
    else if (text[at] === "`") {
      const end = text.indexOf("`", at + 1);
      if (end > 0) at = end;
    } else if (mark.length === 1 && text.startsWith(mark + mark, at)) {
      const inner = text.indexOf(mark + mark, at + 2);
      at = inner > 0 ? inner + 1 : at + 1;
    } else if (text.startsWith(mark, at) && !/\s/.test(text[at - 1])) {
      if (mark[0] !== "_" || !/\w/.test(text[at + mark.length] ?? " ")) return at;
    }
  }
  return -1;
}
