/** The fields of the parameters: what they say, and which of them is wrong. */

import { openSettings } from "./drawers.js";

const form = document.getElementById("parameters");
const NUMBERS = [
  "temperature",
  "top_p",
  "top_k",
  "max_tokens",
  "seed",
  "repetition_penalty",
  "frequency_penalty",
  "presence_penalty",
];
/** Fields whose value is JSON: what it must be, and whether it is. */
const JSON_FIELDS = {
  schema: ["an object", (value) => typeof value === "object" && value !== null && !Array.isArray(value)],
  tools: ["a list of tools", Array.isArray],
};
/** Fields of requests that have another name on the page. */
const NAMES = { logprobs: "top_logprobs", response_format: "schema", grammar: "schema" };

/** What the fields say, as fields of a request to `endpoint`; null when one is wrong, which it then shows. */
export function parameters(endpoint) {
  for (const field of form.elements) field.removeAttribute("aria-invalid");
  for (const name of Object.keys(JSON_FIELDS)) explain(name, "");
  if (!form.checkValidity()) {
    openSettings();
    form.reportValidity();
    return null;
  }
  const values = {};
  for (const name of NUMBERS) {
    const text = form.elements[name].value;
    if (text !== "") values[name] = Number(text);
  }
  const stop = form.elements.stop.value.split("\n").filter((line) => line !== "").map(unescaped);
  if (stop.length) values.stop = stop;
  const top = form.elements.top_logprobs.value;
  if (top !== "") Object.assign(values, endpoint.logprobs(Number(top)));
  for (const [name, inRequest] of Object.entries(endpoint.json)) {
    if (form.elements[name].value.trim() === "") continue;
    const value = json(name);
    if (value === undefined) return null;
    Object.assign(values, inRequest(value));
  }
  return values;
}

/** Marks the field that the server has refused; `param` is its name in the request, perhaps with what is within. */
export function markRefused(param) {
  const name = param?.split(/[.[]/)[0];
  const field = form.elements.namedItem(NAMES[name] ?? name ?? "");
  if (!field) return;
  field.setAttribute("aria-invalid", "true");
  openSettings();
}

/** The value of a field with JSON; undefined when it is not what it must be, which the field then says. */
function json(name) {
  const [wanted, fits] = JSON_FIELDS[name];
  const field = form.elements[name];
  let problem = `This must be ${wanted}.`;
  try {
    const value = JSON.parse(field.value);
    if (fits(value)) return value;
  } catch (error) {
    problem = `This is not JSON: ${error.message}`;
  }
  explain(name, problem);
  field.setAttribute("aria-invalid", "true");
  openSettings();
  field.focus();
  return undefined;
}

function explain(name, problem) {
  const place = document.getElementById(`${name}-error`);
  place.textContent = problem;
  place.hidden = !problem;
}

function unescaped(line) {
  const meant = { n: "\n", t: "\t", "\\": "\\" };
  return line.replace(/\\([nt\\])/g, (_, letter) => meant[letter]);
}
