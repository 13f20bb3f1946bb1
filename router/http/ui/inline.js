/** Markdown within a paragraph: emphasis, code spans, links, line breaks. */

import { make } from "./dom.js";

/** What may begin something; what no alternative matches is text. */
const SPECIAL =
  /\\[!-\/:-@[-`{-~\n]|`+|\*+|_+|~~|!?\[|\]|<(?:https?:|mailto:)[^\s<>]*>|<br ?\/?>|(?<!\w)https?:\/\/[^\s<>"'`\[\]]+/g;
const DESTINATION =
  /\(\s?(<[^<>\n]*>|[^\s()<]*(?:\([^\s()]*\)[^\s()]*)*)(?:\s{1,3}(?:"[^"]*"|'[^']*'))?\s?\)/y;
/** At the end of an address, these belong to the sentence around it. */
const TRAILING = /[.,;:!?*_~]/;
/** Emphasis within each other, deeper than anybody reads, is text; so are longer runs of delimiters. */
const DEEPEST = 12;
const LONGEST_RUN = 3;

/**
 * The nodes of `text`. Follows CommonMark with strikethrough, but for this: line breaks stay, markup is text, an image
 * is a link to it, and emphasis does not ask which character stands beside it. The time is in proportion to the text.
 */
export function inline(text) {
  return new Inline(text).nodes();
}

/** Whether a link may lead to `address`: the page follows nothing that could run. */
function followed(address) {
  try {
    const url = new URL(address);
    return /^(?:https?|mailto):$/.test(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function link(href, children) {
  return make("a", { href, target: "_blank", rel: "noopener noreferrer" }, children);
}

/** One walk through a text. A part is a node, text, or a run of delimiters: {mark, count, opens, closes}. */
class Inline {
  #parts = [];
  /** Where open brackets are in the parts. */
  #brackets = [];
  /** Lengths of runs of backticks that nothing closes any more. */
  #unclosed = new Set();

  constructor(text) {
    this.text = text;
    this.at = 0;
  }

  nodes() {
    for (;;) {
      SPECIAL.lastIndex = this.at;
      const found = SPECIAL.exec(this.text);
      this.#push(this.text.slice(this.at, found?.index));
      if (!found) return emphasised(this.#parts);
      this.at = found.index + found[0].length;
      this.#special(found[0], found.index);
    }
  }

  #push(part) {
    if (part !== "") this.#parts.push(part);
  }

  #special(found, start) {
    switch (found[0]) {
      case "`":
        return this.#code(found);
      case "*":
      case "_":
      case "~":
        return this.#push(found.length > LONGEST_RUN ? found : this.#run(found, start));
      case "[":
      case "!":
        this.#brackets.push(this.#parts.length);
        return this.#push(found);
      case "]":
        return this.#bracket();
      case "<":
        if (found.startsWith("<br")) return this.#push(make("br"));
        return this.#address(found.slice(1, -1), found);
      case "h":
        return this.#bareAddress(found);
      default:
        return this.#push(found[1]);
    }
  }

  #code(ticks) {
    const { text, at } = this;
    if (!this.#unclosed.has(ticks.length)) {
      for (const { 0: run, index } of text.slice(at).matchAll(/`+/g)) {
        if (run.length !== ticks.length) continue;
        const code = text.slice(at, at + index).replaceAll("\n", " ");
        this.at = at + index + run.length;
        const padded = code.startsWith(" ") && code.endsWith(" ") && code.trim() !== "";
        return this.#push(make("code", {}, padded ? code.slice(1, -1) : code));
      }
      this.#unclosed.add(ticks.length);
    }
    return this.#push(ticks);
  }

  #run(found, start) {
    const before = this.text[start - 1] ?? " ";
    const after = this.text[this.at] ?? " ";
    const inWord = found[0] === "_" && [before, after].every((character) => /[\p{L}\p{N}_]/u.test(character));
    return {
      mark: found[0],
      count: found.length,
      opens: /\S/.test(after) && !inWord,
      closes: /\S/.test(before) && !inWord,
    };
  }

  #address(address, written) {
    const href = followed(address);
    this.#push(href ? link(href, [address]) : written);
  }

  #bareAddress(found) {
    let address = found;
    let unopened = found.split(")").length - found.split("(").length;
    while (TRAILING.test(address.at(-1)) || (address.endsWith(")") && unopened > 0)) {
      if (address.endsWith(")")) unopened -= 1;
      address = address.slice(0, -1);
    }
    this.at -= found.length - address.length;
    /* The text of a link holds no other link. */
    if (this.#brackets.length) this.#push(address);
    else this.#address(address, address);
  }

  /** The end of a link's text, if an address follows it and a bracket was open. */
  #bracket() {
    const from = this.#brackets.pop();
    if (from === undefined) return this.#push("]");
    DESTINATION.lastIndex = this.at;
    const found = DESTINATION.exec(this.text);
    const href = found && followed(found[1].replace(/^<|>$/g, ""));
    if (!href) return this.#push("]");
    this.at += found[0].length;
    const children = emphasised(this.#parts.splice(from).slice(1));
    this.#brackets = [];
    this.#push(link(href, children.length ? children : [href]));
  }
}

/** Makes elements of the runs that match: each that closes takes the nearest that opens with the same mark. */
function emphasised(parts) {
  const done = [];
  /** Of runs that may yet be closed, where they are in `done`. */
  const open = [];
  const waiting = { "*": 0, _: 0, "~": 0 };
  for (const part of parts) {
    if (part.mark === undefined) {
      done.push(part);
      continue;
    }
    while (part.closes && part.count && waiting[part.mark]) close(part, done, open, waiting);
    if (!part.count) continue;
    if (part.opens && open.length < DEEPEST) {
      open.push(done.length);
      waiting[part.mark] += 1;
    }
    done.push(part);
  }
  return done.map((part) => (part.mark === undefined ? part : part.mark.repeat(part.count)));
}

function close(part, done, open, waiting) {
  for (;;) {
    const at = open.pop();
    const opener = done[at];
    waiting[opener.mark] -= 1;
    if (opener.mark !== part.mark) continue;
    const used = Math.min(2, opener.count, part.count);
    const tag = part.mark === "~" ? "s" : used === 2 ? "strong" : "em";
    const inner = done.splice(at + 1).map((node) => (node.mark === undefined ? node : node.mark.repeat(node.count)));
    opener.count -= used;
    part.count -= used;
    if (opener.count) {
      open.push(at);
      waiting[opener.mark] += 1;
    } else done.pop();
    done.push(make(tag, {}, inner));
    return;
  }
}
