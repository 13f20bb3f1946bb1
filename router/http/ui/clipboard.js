/** Buttons that copy text. */

import { icon, iconButton } from "./dom.js";

/** How long a button says that it has copied, in milliseconds. */
const SHOWN = 1500;

/** A button that copies what `text` returns. */
export function copyButton(name, text) {
  const made = iconButton("copy", name, async () => {
    const done = await copied(text());
    made.replaceChildren(icon(done ? "done" : "close"));
    made.title = done ? "Copied" : "This browser does not let the page copy";
    setTimeout(() => {
      made.replaceChildren(icon("copy"));
      made.title = name;
    }, SHOWN);
  });
  return made;
}

/** Whether the text is in the clipboard. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedBySelection(text);
  }
}

/** Browsers lend the clipboard to pages from HTTPS or this machine alone; a selection can be copied on any. */
function copiedBySelection(text) {
  const focused = document.activeElement;
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "unseen";
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  focused?.focus({ preventScroll: true });
  return done;
}
