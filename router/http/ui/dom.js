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

/** A picture of those in the page: "copy" for the one with the id `icon-copy`. */
export function icon(name) {
  const picture = document.getElementById(`icon-${name}`).cloneNode(true);
  picture.removeAttribute("id");
  picture.setAttribute("aria-hidden", "true");
  return picture;
}

/** A button with a picture; its name is a label for those who do not see it, and a tooltip for the others. */
export function iconButton(picture, name, act) {
  const made = button(icon(picture), act);
  made.setAttribute("aria-label", name);
  made.title = name;
  return made;
}

/** Draws the pictures of the buttons that `index.html` has. */
export function drawIcons() {
  for (const element of document.querySelectorAll("[data-icon]")) {
    element.append(icon(element.dataset.icon));
    element.title = element.getAttribute("aria-label");
  }
}

/** A part that is folded until somebody opens it. */
export function folded(kind, summary, ...children) {
  return make("details", { className: kind }, make("summary", {}, summary), ...children);
}
