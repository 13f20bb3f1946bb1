/** Elements of the page. Text stays text: nothing here takes markup. */

/** An element with `properties` (as of the object: `className`) and `children`: nodes, text, lists of both. */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  for (const child of children.flat()) element.append(child);
  return element;
}

/** A button that submits nothing. */
export function button(name, act) {
  const made = make("button", { type: "button" }, name);
  made.addEventListener("click", act);
  return made;
}

/** A part that is folded until somebody opens it. */
export function folded(kind, summary, ...children) {
  return make("details", { className: kind }, make("summary", {}, summary), ...children);
}
