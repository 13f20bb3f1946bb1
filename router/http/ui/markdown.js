/** Markdown as elements: what models write, shown while it comes. Markup in it stays text. */

import { make } from "./dom.js";
import { inline } from "./inline.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?= |$)(.*)$/;
const RULE = /^ {0,3}(?:(?:\* *){3,}|(?:- *){3,}|(?:_ *){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: {1,4}|$)/;
const ALIGNMENT = /^:?-+:?$/;
/** Quotes and lists within each other, deeper than anybody reads, are text. */
const DEEPEST = 12;
/** The page itself has headings of two levels. */
const OUTER_HEADINGS = 2;

/** Markdown that comes in pieces, shown in `element`. */
export class Markdown {
  /** The text from the first line that what follows can change, and the elements made of it. */
  #open = "";
  #unsettled = [];

  constructor(element) {
    this.element = element;
    element.replaceChildren();
  }

  push(text) {
    this.#open += text;
    const lines = this.#open.split("\n");
    const found = blocks(lines, 0);
    if (!found.length) return;
    for (const node of this.#unsettled) node.remove();
    for (const { node } of found) this.element.append(node);
    /* The last block can grow; one whose only line is not complete may yet turn out to be part of the block before. */
    const unsettled = found.slice(found.at(-1).start === lines.length - 1 ? -2 : -1);
    this.#unsettled = unsettled.map(({ node }) => node);
    this.#open = lines.slice(unsettled[0].start).join("\n");
  }
}

/** The blocks of `lines`, in order: [{start, node}], where `start` is the index of the first line. */
function blocks(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    const start = at;
    if (blank(lines[at])) at += 1;
    else {
      const block = special(lines, at, depth) ?? paragraph(lines, at, depth);
      found.push({ start, node: block.node });
      at = block.end;
    }
  }
  return found;
}

const nodes = (lines, depth) => blocks(lines, depth).map(({ node }) => node);
const blank = (line) => line.trim() === "";

/** The block that begins at a line, if it is more than a paragraph: {node, end}, or null. */
function special(lines, at, depth) {
  const block = fence(lines, at) ?? heading(lines, at) ?? rule(lines, at) ?? table(lines, at);
  if (block || depth >= DEEPEST) return block;
  return quote(lines, at, depth) ?? list(lines, at, depth);
}

function interrupts(lines, at, depth) {
  const line = lines[at];
  if (blank(line) || FENCE.test(line) || HEADING.test(line) || RULE.test(line) || columns(lines, at)) return true;
  if (depth >= DEEPEST) return false;
  /* A number that happens to begin a line of a sentence begins no list, unless it is 1. */
  return QUOTE.test(line) || /^ *(?:[-*+]|1[.)]) +\S/.test(line);
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && !interrupts(lines, end, depth)) end += 1;
  const text = lines.slice(at, end).map((line) => line.trim()).join("\n");
  return { node: make("p", {}, inline(text)), end };
}

/** Code between fences; to the end of the text, as long as no fence closes it. */
function fence(lines, at) {
  const found = FENCE.exec(lines[at]);
  if (!found) return null;
  const [, mark, info] = found;
  const [language] = info.trim().split(/\s/);
  const indent = lines[at].indexOf(mark);
  const closes = (line) => /^ {0,3}(?:`+|~+) *$/.test(line) && line.trim().startsWith(mark);
  let end = at + 1;
  while (end < lines.length && !closes(lines[end])) end += 1;
  const code = lines.slice(at + 1, end).map((line) => outdented(line, indent)).join("\n");
  const node = make("pre", { tabIndex: 0 }, make("code", {}, code));
  if (language) node.dataset.language = language;
  return { node, end: end + 1 };
}

function heading(lines, at) {
  const found = HEADING.exec(lines[at]);
  if (!found) return null;
  const level = Math.min(6, found[1].length + OUTER_HEADINGS);
  return { node: make(`h${level}`, {}, inline(found[2].trim().replace(/(?:^| )#+$/, ""))), end: at + 1 };
}

function rule(lines, at) {
  return RULE.test(lines[at]) ? { node: make("hr"), end: at + 1 } : null;
}

function quote(lines, at, depth) {
  if (!QUOTE.test(lines[at])) return null;
  let end = at + 1;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return { node: make("blockquote", {}, nodes(inner, depth + 1)), end };
}

/** How the columns of the table are aligned whose head is at a line; null if there is none. */
function columns(lines, at) {
  if (!lines[at].includes("|") || !lines[at + 1]?.includes("-")) return null;
  const below = cells(lines[at + 1]);
  if (!below.every((cell) => ALIGNMENT.test(cell)) || below.length !== cells(lines[at]).length) return null;
  const sides = ["", "left", "right", "center"];
  return below.map((cell) => sides[cell.startsWith(":") + 2 * cell.endsWith(":")]);
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.replaceAll("\\|", "|").trim());
}

function table(lines, at) {
  const sides = columns(lines, at);
  if (!sides) return null;
  const row = (line, tag) => {
    const texts = cells(line);
    const made = sides.map((side, index) => {
      const cell = make(tag, {}, inline(texts[index] ?? ""));
      if (side) cell.style.textAlign = side;
      return cell;
    });
    return make("tr", {}, made);
  };
  let end = at + 2;
  while (end < lines.length && !blank(lines[end]) && lines[end].includes("|")) end += 1;
  const head = make("thead", {}, row(lines[at], "th"));
  const body = lines.slice(at + 2, end).map((line) => row(line, "td"));
  const made = make("table", {}, head, body.length ? make("tbody", {}, body) : []);
  return { node: make("div", { className: "wide-table", tabIndex: 0 }, made), end };
}

/** Items with the same kind of marker. What is indented below an item's marker belongs to it. */
function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  if (!first) return null;
  const kind = first[2].at(-1);
  const items = [];
  let end = at;
  for (;;) {
    const found = end < lines.length ? ITEM.exec(lines[end]) : null;
    if (!found || found[2].at(-1) !== kind || RULE.test(lines[end])) break;
    const item = itemAt(lines, end, found, depth);
    items.push(item.lines);
    end = item.end;
  }
  const loose = lines.slice(at, end).join("\n").trimEnd().split("\n").some(blank);
  const shown = (inner) => nodes(inner, depth + 1).flatMap((node) => (loose ? node : unwrapped(node)));
  const made = items.map((inner) => make("li", {}, shown(inner)));
  const number = Number.parseInt(first[2], 10);
  const node = Number.isNaN(number) ? make("ul", {}, made) : make("ol", { start: number }, made);
  return { node, end };
}

/** Items without empty lines between them are no paragraphs. */
const unwrapped = (node) => (node.tagName === "P" ? [...node.childNodes] : [node]);

/** The lines of the item at a line, without its indentation, up to the line after it. */
function itemAt(lines, at, [marker, spaces, sign], depth) {
  /* Models indent by two what stands below "1.", though its text begins at three. */
  const least = spaces.length + 2;
  const width = marker.trimEnd() === lines[at].trimEnd() ? spaces.length + sign.length + 1 : marker.length;
  const inner = [lines[at].slice(marker.length)];
  let end = at + 1;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    const indented = indentation(line) >= least;
    const inText = !blank(lines[end - 1]) && !FENCE.test(lines[end - 1].trimStart());
    const lazy = inText && !ITEM.test(line) && !interrupts(lines, end, depth);
    if (!blank(line) && !indented && !lazy) break;
    inner.push(outdented(line, width));
  }
  return { lines: inner, end };
}

const indentation = (line) => line.length - line.trimStart().length;
const outdented = (line, width) => line.slice(Math.min(width, indentation(line)));
