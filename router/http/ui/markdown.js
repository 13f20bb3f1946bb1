/** Markdown as elements: what models write, shown while it comes. Markup in it stays text. */

import { codeBlock } from "./code.js";
import { make } from "./dom.js";
import { MarkdownIt } from "./libraries.js";
import { formula, withMath } from "./math.js";
import { patch } from "./patch.js";

/** Quotes and lists within each other, deeper than anybody reads, are text. */
const DEEPEST = 20;
/** The page itself has headings of two levels. */
const OUTER_HEADINGS = 2;

const parser = new MarkdownIt({ html: false, linkify: true, maxNesting: DEEPEST });
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
parser.validateLink = (address) => followed(address) !== null;
parser.inline.ruler.before("autolink", "line_break", lineBreak);
parser.use(withMath);

/** Markdown that comes in pieces, shown in `element` with the next picture of the browser. */
export class Markdown {
  #text = "";
  /** Where in the text that begins which can still change, and how many elements are before it. */
  #open = 0;
  #settled = 0;
  #frame = null;
  /** Addresses that the text gives names to. */
  #env = {};

  constructor(element) {
    this.element = element;
    element.replaceChildren();
  }

  push(text) {
    this.#text += text;
    this.#frame ??= requestAnimationFrame(() => this.#show());
  }

  /** The text is whole: shows it at once. */
  finish() {
    /* A name may be used before it is given. */
    if (this.#env.references) [this.#open, this.#settled] = [0, 0];
    this.#show();
  }

  #show() {
    cancelAnimationFrame(this.#frame);
    this.#frame = null;
    const open = this.#text.slice(this.#open);
    const found = blocks(parser.parse(open, this.#env));
    patch(this.element, this.#settled, found.map(({ tokens }) => elements(tokens)[0]));
    if (!found.length) return;
    const lines = open.split("\n");
    /* The last block can grow; one whose only line is not complete may yet turn out to be part of the block before. */
    const unsettled = found.slice(found.at(-1).start === lines.length - 1 ? -2 : -1);
    this.#settled += found.length - unsettled.length;
    this.#open += lines.slice(0, unsettled[0].start).join("\n").length + (unsettled[0].start > 0);
  }
}

/** The outermost blocks, in order: [{start, tokens}], where `start` is the index of the first line. */
function blocks(tokens) {
  const found = [];
  for (const token of tokens) {
    if (token.level === 0 && token.nesting >= 0) found.push({ start: token.map[0], tokens: [] });
    found.at(-1).tokens.push(token);
  }
  return found;
}

/** The nodes that tokens of the parser stand for. */
function elements(tokens) {
  const root = make("div");
  const open = [root];
  for (const token of tokens) {
    const parent = open.at(-1);
    if (token.type === "inline") parent.append(...elements(token.children));
    /* Items without empty lines between them are no paragraphs. */
    else if (token.hidden) continue;
    else if (token.nesting < 0) open.pop();
    else {
      const node = LEAVES[token.type]?.(token) ?? element(token);
      parent.append(node);
      if (token.nesting > 0) open.push(token.type === "table_open" ? node.firstChild : node);
    }
  }
  return [...root.childNodes];
}

/** What tokens stand for that are no plain elements. */
const LEAVES = {
  text: ({ content }) => content,
  softbreak: () => "\n",
  code_inline: ({ content }) => make("code", {}, content),
  code_block: ({ content }) => codeBlock(content.replace(/\n$/, ""), ""),
  fence: ({ content, info }) => codeBlock(content.replace(/\n$/, ""), info.trim().split(/\s/)[0]),
  math: formula,
  math_block: formula,
  image: (token) => link(token.attrGet("src"), token.content || token.attrGet("src")),
  link_open: (token) => link(token.attrGet("href")),
  heading_open: ({ tag }) => make(`h${Math.min(6, Number(tag[1]) + OUTER_HEADINGS)}`),
  table_open: () => make("div", { className: "wide-table", tabIndex: 0 }, make("table")),
};

function element(token) {
  const made = make(token.tag);
  if (token.attrGet("start")) made.start = token.attrGet("start");
  const side = /text-align:(\w+)/.exec(token.attrGet("style") ?? "");
  if (side) made.style.textAlign = side[1];
  return made;
}

function link(address, children = []) {
  return make("a", { href: followed(address), target: "_blank", rel: "noopener noreferrer" }, children);
}

/** Where a link may lead: the page follows nothing that could run, and no path of its own server. */
function followed(address) {
  try {
    const url = new URL(address);
    return /^(?:https?|mailto):$/.test(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/** The one piece of markup that models use in tables, for want of another way. */
function lineBreak(state, silent) {
  const found = /^<br ?\/?>/.exec(state.src.slice(state.pos, state.pos + "<br />".length));
  if (!found) return false;
  if (!silent) state.push("hardbreak", "br", 0);
  state.pos += found[0].length;
  return true;
}
