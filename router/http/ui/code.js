/** Blocks of code: their language, a button that copies them, and colours. */

import { copyButton } from "./clipboard.js";
import { make } from "./dom.js";
import { lowlight } from "./libraries.js";

/** Longer code, in characters, has no colours: they would be looked for again with each piece that comes. */
const LONGEST = 40_000;

/** The code `text` in a `language`, "" if it is not said. */
export function codeBlock(text, language) {
  const code = make("code", {}, coloured(text, language));
  const pre = make("pre", { tabIndex: 0 }, code);
  const head = make("div", { className: "code-head" }, make("span", {}, language || "text"));
  head.append(copyButton("Copy code", () => code.textContent));
  return make("div", { className: "code-block" }, head, pre);
}

function coloured(text, language) {
  const name = language.toLowerCase();
  if (text.length > LONGEST || !lowlight.registered(name)) return text;
  return spans(lowlight.highlight(name, text).children);
}

/** The nodes of a tree of lowlight: text, and elements with classes. */
function spans(children) {
  return children.map(({ value, properties, children: inner }) => (
    inner ? make("span", { className: properties.className.join(" ") }, spans(inner)) : value
  ));
}
