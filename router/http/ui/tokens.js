/** Tokens of an answer as coloured spans, and the tooltip that explains the one that is pointed at. */

/** From a span to the tokens whose text it shows: [{token, logprob, top: [{token, logprob}]}]. */
const explained = new WeakMap();
const tip = document.getElementById("tip");
let current = null;

/** Shows the tokens of one answer; the spans of an element together have exactly the text that it was given. */
export class TokenText {
  #held = [];

  /**
   * Takes tokens whose text follows. Text may come later than its token: it waits where it may begin a stop string or
   * is half a character. Such tokens are explained where the text shows.
   */
  hold(tokens) {
    this.#held.push(...tokens);
  }

  push(text, element) {
    this.#append(text, element, "token");
  }

  /** Shows what ended the answer, as an end-of-sequence token, which has no text. */
  finish(element) {
    if (this.#held.length) this.#append("", element, "token end");
  }

  #append(text, element, kind) {
    const span = document.createElement("span");
    span.textContent = text;
    if (this.#held.length) {
      const likelihood = Math.min(...this.#held.map((token) => Math.exp(token.logprob)));
      span.className = kind;
      span.style.setProperty("--probability", likelihood.toFixed(3));
      explained.set(span, this.#held);
      this.#held = [];
    }
    watch(element);
    element.append(span);
  }
}

function watch(element) {
  if (element.dataset.watched) return;
  element.dataset.watched = "true";
  element.tabIndex = 0;
  element.setAttribute("role", "group");
  const spanOf = (event) => event.target.closest(".token");
  element.addEventListener("pointerover", (event) => show(spanOf(event)));
  element.addEventListener("pointerleave", () => show(null));
  element.addEventListener("click", (event) => show(spanOf(event)));
  element.addEventListener("blur", () => show(null));
  element.addEventListener("keydown", (event) => walk(element, event));
}

function walk(element, event) {
  if (event.target !== element) return;
  if (event.key === "Escape") return show(null);
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const spans = [...element.querySelectorAll(".token")];
  if (!step || !spans.length) return;
  event.preventDefault();
  const at = spans.indexOf(current);
  const next = at < 0 ? (step > 0 ? 0 : spans.length - 1) : Math.max(0, Math.min(spans.length - 1, at + step));
  show(spans[next]);
  current.scrollIntoView({ block: "nearest" });
}

function show(span) {
  current?.classList.remove("current");
  current?.parentElement?.removeAttribute("aria-describedby");
  current = span;
  tip.hidden = !span;
  if (!span) return;
  span.classList.add("current");
  span.parentElement.setAttribute("aria-describedby", "tip");
  tip.replaceChildren(...explained.get(span).map(table));
  place(span.getClientRects()[0] ?? span.getBoundingClientRect());
}

/** Below the token, or above it where there is no room; never outside of the window. */
function place(token) {
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.max(4, Math.min(token.left, document.documentElement.clientWidth - width - 4));
  const below = token.bottom + 6;
  const above = token.top - height - 6;
  tip.style.left = `${left}px`;
  tip.style.top = `${below + height > window.innerHeight && above > 0 ? above : below}px`;
}

function table(token) {
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  for (const name of ["token", "probability", "log-probability"]) {
    const cell = document.createElement("th");
    cell.textContent = name;
    head.append(cell);
  }
  const chosen = (other) => other.token === token.token && other.logprob === token.logprob;
  const rows = token.top.some(chosen) ? token.top : [...token.top, token];
  for (const other of rows) {
    const row = table.insertRow();
    const cells = [visible(other.token), percent(other.logprob), decimals(other.logprob, 3)];
    for (const cell of cells) row.insertCell().textContent = cell;
    if (chosen(other)) row.className = "chosen";
  }
  return table;
}

/** White space as one can see it. */
function visible(text) {
  return JSON.stringify(text);
}

function percent(logprob) {
  const value = 100 * Math.exp(logprob);
  return `${value >= 0.1 || value === 0 ? decimals(value, 1) : "< 0.1"} %`;
}

/** Rounded, without the sign of a zero. */
function decimals(value, digits) {
  return (Number(value.toFixed(digits)) || 0).toFixed(digits);
}

/* A tooltip that stays while its token scrolls away would point at another one. */
window.addEventListener("scroll", () => current && place(current.getClientRects()[0] ?? current.getBoundingClientRect()), {
  passive: true,
  capture: true,
});
