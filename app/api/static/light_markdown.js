// Light formatting while text arrives: the common part of markdown, drawn as DOM nodes. The service renders the saved
// text properly; this makes the same elements for the common cases, so that the rendered form replaces it without a jump.

import { h } from "./dom.js";
import { inline } from "./light_inline.js";

const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +(?=\S)|$)/;
const UNDERLINE = /^ {0,3}(=+|-+)[ \t]*$/;
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
// A last line of markup alone may become anything: a rule, a list, a table. It waits for its next character.
const UNDECIDED = /^ {0,3}(?:[-*_=`~#>|+: ]+|\d{1,9}[.)]? *)$/;
const BLANK = /^[ \t]*$/;
// Quotes in lists in quotes: deeper than this is no answer, only a way to exhaust the stack.
const DEEPEST = 20;

/** A text that grows: only its last block is drawn anew, all before it are final. */
export class LightMarkdown {
  #root;
  #tail = "";
  #final = 0;

  constructor(root) {
    this.#root = root;
  }

  append(text) {
    this.#tail += text;
  }

  /** Draws what has come. `open`: more will come, so unclosed marks count as closed and an undecided line waits. */
  paint(open) {
    let text = this.#tail;
    const lastLine = text.slice(text.lastIndexOf("\n") + 1);
    if (open && lastLine && UNDECIDED.test(lastLine)) text = text.slice(0, text.length - lastLine.length);
    const blocks = split(text.split("\n"), open);
    const nodes = blocks.map((block, index) => draw(block, open && index === blocks.length - 1));
    while (this.#root.childNodes.length > this.#final) this.#root.lastChild.remove();
    this.#root.append(...nodes);
    if (blocks.length > 1) {
      const last = blocks[blocks.length - 1].line;
      let at = 0;
      for (let line = 0; line < last; line++) at = this.#tail.indexOf("\n", at) + 1;
      this.#tail = this.#tail.slice(at);
      this.#final += blocks.length - 1;
    }
  }
}

/** The blocks of some lines, each with the number of its first `line`. */
function split(lines, open) {
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    if (BLANK.test(lines[at])) at++;
    else {
      const block = take(lines, at, open);
      blocks.push({ ...block, line: at });
      at = block.end;
    }
  }
  return blocks;
}

function take(lines, at, open) {
  const line = lines[at];
  let found;
  if ((found = FENCE.exec(line))) return takeFence(lines, at, found);
  if (/^ {4}/.test(line)) return takeIndented(lines, at);
  if ((found = HEADING.exec(line))) return { kind: "heading", level: found[1].length, text: found[2], end: at + 1 };
  if (RULE.test(line)) return { kind: "rule", end: at + 1 };
  if (QUOTE.test(line)) return takeQuote(lines, at);
  if (ITEM.test(line)) return takeList(lines, at);
  if (line.includes("|") && isTable(lines, at, open)) return takeTable(lines, at);
  return takeParagraph(lines, at, open);
}

function takeFence(lines, at, [, indent, marks, language]) {
  const close = new RegExp(`^ {0,3}${marks[0]}{${marks.length},}[ \\t]*$`);
  let end = at + 1;
  while (end < lines.length && !close.test(lines[end])) end++;
  const strip = new RegExp(`^ {0,${indent.length}}`);
  const body = lines.slice(at + 1, end).map((line) => line.replace(strip, ""));
  if (end === lines.length && body[body.length - 1] === "") body.pop();
  return { kind: "code", language, text: body.map((line) => `${line}\n`).join(""), end: Math.min(end + 1, lines.length) };
}

function takeIndented(lines, at) {
  let end = at;
  while (end < lines.length && (/^ {4}/.test(lines[end]) || BLANK.test(lines[end]))) end++;
  while (BLANK.test(lines[end - 1])) end--;
  return { kind: "code", language: "", text: lines.slice(at, end).map((line) => `${line.slice(4)}\n`).join(""), end };
}

function takeQuote(lines, at) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end++;
  return { kind: "quote", lines: lines.slice(at, end).map((line) => line.replace(QUOTE, "")), end };
}

function takeList(lines, at) {
  const marker = ITEM.exec(lines[at])[2];
  const ordered = marker.length > 1;
  const sort = marker[marker.length - 1];
  const items = [];
  let end = at;
  let indent = 0;
  let loose = false;
  for (let line = at; line < lines.length; line++) {
    const found = ITEM.exec(lines[line]);
    if (found && found[1].length < Math.max(indent, 1) && !RULE.test(lines[line])) {
      if (found[2][found[2].length - 1] !== sort) break;
      loose ||= items.length > 0 && BLANK.test(lines[line - 1]);
      indent = found[1].length + found[2].length + Math.max(found[3].length, 1);
      items.push([lines[line].slice(indent)]);
    } else if (BLANK.test(lines[line])) {
      items[items.length - 1].push("");
      continue;
    } else if (/^ */.exec(lines[line])[0].length >= indent) {
      const body = items[items.length - 1];
      loose ||= body[body.length - 1] === "" && body.length > 1;
      body.push(lines[line].slice(indent));
    } else if (BLANK.test(lines[line - 1]) || startsBlock(lines[line])) break;
    else items[items.length - 1].push(lines[line].trimStart());
    end = line + 1;
  }
  return { kind: "list", ordered, start: ordered ? parseInt(marker, 10) : 1, items, loose, end };
}

/** Whether a table begins here. While text comes, a last line that opens with a bar is taken for its head. */
function isTable(lines, at, open) {
  const next = lines[at + 1];
  const head = lines[at].trimStart().startsWith("|");
  if (next === undefined || (next === "" && at + 2 === lines.length)) return open && head;
  return DELIMITERS.test(next) && next.includes("-") && cells(lines[at]).length === cells(next).length;
}

function takeTable(lines, at) {
  let end = at + 1;
  while (end < lines.length && !BLANK.test(lines[end]) && (end === at + 1 || !startsBlock(lines[end]))) end++;
  const align = cells(lines[at + 1] ?? "").map((cell) => {
    if (cell.startsWith(":")) return cell.endsWith(":") ? "center" : "left";
    return cell.endsWith(":") ? "right" : null;
  });
  return { kind: "table", align, rows: [lines[at], ...lines.slice(at + 2, end)].map(cells), end };
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function takeParagraph(lines, at, open) {
  let end = at + 1;
  while (end < lines.length && !BLANK.test(lines[end])) {
    const under = UNDERLINE.exec(lines[end]);
    if (under && !(open && end === lines.length - 1)) {
      const text = lines.slice(at, end).join("\n");
      return { kind: "heading", level: under[1][0] === "=" ? 1 : 2, text, end: end + 1 };
    }
    if (startsBlock(lines[end], true)) break;
    end++;
  }
  const text = lines.slice(at, end).map((line) => line.trimStart()).join("\n");
  return { kind: "paragraph", text: text.trimEnd(), end };
}

function startsBlock(line, afterText = false) {
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line)) return true;
  const item = ITEM.exec(line);
  return Boolean(item && item[3] && (!afterText || item[2].length === 1 || parseInt(item[2], 10) === 1));
}

function draw(block, open) {
  switch (block.kind) {
    case "heading":
      return h(`h${block.level}`, {}, inline(block.text, open));
    case "rule":
      return h("hr");
    case "code": {
      const language = block.language ? `language-${block.language}` : null;
      return h("pre", {}, h("code", { class: language }, block.text));
    }
    case "quote":
      return h("blockquote", {}, drawAll(block.lines, open));
    case "list":
      return drawList(block, open);
    case "table":
      return drawTable(block, open);
    default:
      return h("p", {}, inline(block.text, open));
  }
}

let depth = 0;

function drawAll(lines, open) {
  if (depth >= DEEPEST) return [document.createTextNode(lines.join("\n"))];
  depth++;
  try {
    const blocks = split(lines, open);
    return blocks.map((block, index) => draw(block, open && index === blocks.length - 1));
  } finally {
    depth--;
  }
}

function drawList({ ordered, start, items, loose }, open) {
  const drawn = items.map((lines, index) => {
    const here = open && index === items.length - 1;
    const nodes = drawAll(lines, here);
    // In a tight list a paragraph is only its words.
    return h("li", {}, loose ? nodes : nodes.flatMap((node) => (node.tagName === "P" ? [...node.childNodes] : [node])));
  });
  return h(ordered ? "ol" : "ul", { start: ordered && start !== 1 ? String(start) : null }, drawn);
}

function drawTable({ align, rows }, open) {
  const [head, ...body] = rows;
  const row = (tag, line, last) =>
    h("tr", {}, head.map((_, column) => h(tag, { align: align[column] }, inline(line[column] ?? "", open && last))));
  const table = h("table", {}, h("thead", {}, row("th", head, body.length === 0)));
  if (body.length) table.append(h("tbody", {}, body.map((line, index) => row("td", line, index === body.length - 1))));
  return framed(table);
}

const MONTH = "jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?";
// Digits with signs, units and currencies of up to three letters, and months: a date or an amount, torn apart by no line.
const WHOLE = new RegExp(`^(?=.{1,28}$)(?=.*\\d)(?:[^\\p{L}]|(?<!\\p{L})(?:${MONTH}|\\p{L}{1,3})(?!\\p{L}))+$`, "iu");

/** A table in a frame that scrolls sideways, by keyboard too. Its dates and amounts are marked, so that they stay whole. */
export function framed(table) {
  for (const cell of table.querySelectorAll("td")) if (WHOLE.test(cell.textContent.trim())) cell.classList.add("whole");
  return h("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": "Table" }, table);
}
