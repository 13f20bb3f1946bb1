/** LaTeX in Markdown: `$x$` and `\(x\)` in a line, `$$x$$` and `\[x\]` on their own. It is shown as MathML. */

import { make } from "./dom.js";
import { renderMath } from "./libraries.js";

/** Longest first: what opens, what closes, whether it is a formula of its own. */
const DELIMITERS = [
  ["$$", "$$", true],
  ["\\[", "\\]", true],
  ["\\(", "\\)", false],
  ["$", "$", false],
];
const WORD = /[\p{L}\p{N}]/u;
const OPTIONS = { throwOnError: true, trust: false, maxSize: [20, 100], maxExpand: 500 };

/** Teaches a parser of markdown-it the formulas. Tokens are `math` and `math_block`, with LaTeX as content. */
export function withMath(parser) {
  parser.inline.ruler.before("escape", "math", inline);
  parser.block.ruler.before("fence", "math_block", block, { alt: ["paragraph", "blockquote", "list"] });
}

/** The formula of a token; LaTeX with a mistake is shown as it is. */
export function formula({ content, meta: { display } }) {
  const place = make(display ? "div" : "span", { className: "math" });
  try {
    renderMath(content, place, { ...OPTIONS, displayMode: display });
  } catch {
    place.replaceChildren(make("code", {}, content));
  }
  return place;
}

function inline(state, silent) {
  const { src, pos } = state;
  const [open, close, display] = DELIMITERS.find(([mark]) => src.startsWith(mark, pos)) ?? [];
  /* What nothing closes is not looked for again. */
  state.unclosedMath ??= new Set();
  if (!open || state.unclosedMath.has(close)) return false;
  const start = pos + open.length;
  const end = src.indexOf(close, start);
  if (end < 0) state.unclosedMath.add(close);
  const content = src.slice(start, end);
  if (end < 0 || content.trim() === "") return false;
  if (open === "$" && !isFormula(content, src[pos - 1] ?? "", src[end + 1] ?? "")) return false;
  if (!silent) Object.assign(state.push("math", "", 0), { content, meta: { display } });
  state.pos = end + close.length;
  return true;
}

/** Whether what is between two dollars is a formula, and they are no prices or variables. */
function isFormula(content, before, after) {
  return !/^\s|[\s\\]$/.test(content) && !WORD.test(before) && !WORD.test(after);
}

/** A formula that begins a line and ends one. */
function block(state, first, end, silent) {
  if (state.sCount[first] - state.blkIndent >= 4) return false;
  const line = (at) => state.src.slice(state.bMarks[at] + state.tShift[at], state.eMarks[at]).trimEnd();
  const [open, close] = DELIMITERS.find(([mark, , display]) => display && line(first).startsWith(mark)) ?? [];
  /* Up to where it is known that no such formula begins: whatever does would end at the same line. */
  state.noMath ??= {};
  if (!open || first <= state.noMath[open]) return false;
  const lines = [line(first).slice(open.length)];
  let last = first;
  while (!lines.at(-1).includes(close) && last + 1 < end && state.sCount[last + 1] >= state.blkIndent) {
    last += 1;
    lines.push(line(last));
  }
  const at = lines.at(-1).indexOf(close);
  if (at < 0 || at + close.length !== lines.at(-1).length) {
    state.noMath[open] = last;
    return false;
  }
  if (silent) return true;
  const content = lines.join("\n").slice(0, -close.length).trim();
  Object.assign(state.push("math_block", "", 0), { content, meta: { display: true }, map: [first, last + 1] });
  state.line = last + 1;
  return true;
}
