/** Reasoning and tool calls of a model, folded, and the form for results of calls. */

import { button, folded, make } from "./dom.js";

/** What the model thought: {element, text}, where `text` takes the thoughts. */
export function reasoningPart() {
  const text = make("div", { className: "prose" });
  text.setAttribute("aria-label", "Reasoning");
  return { element: folded("reasoning", ["Reasoning"], text), text };
}

/** A call of the tool `name`: {element, text}, where `text` takes the arguments. */
export function callPart(name) {
  const text = make("code");
  text.setAttribute("aria-label", `Arguments of ${name}`);
  return { element: folded("call", ["Call of ", make("code", {}, name)], make("pre", { tabIndex: 0 }, text)), text };
}

/** The result of a call of the tool `name`, as its message has it. */
export function resultPart(name, content) {
  return folded("result", ["Result of ", make("code", {}, name)], make("pre", { tabIndex: 0 }, content));
}

/** Asks for the results of `calls`; `give` gets the messages with them. */
export function resultForm(calls, give) {
  const fields = calls.map((call, index) => {
    const id = `result-${index}`;
    const label = make("label", { htmlFor: id }, `Result of ${call.function.name}`);
    return { label, field: make("textarea", { id, rows: 2, placeholder: "What the tool answers" }) };
  });
  const results = () => calls.map((call, index) => ({
    role: "tool",
    tool_call_id: call.id,
    name: call.function.name,
    content: fields[index].field.value,
  }));
  const submit = button(calls.length === 1 ? "Give result" : "Give results", () => give(results()));
  const inner = fields.flatMap(({ label, field }) => [label, field]);
  return make("div", { className: "results" }, inner, make("div", { className: "actions" }, submit));
}

/**
 * JSON with one value a line. Works on the text, so that numbers keep their digits, and what is no JSON stays readable.
 */
export function pretty(text) {
  const pieces = text.match(/"(?:[^"\\]|\\.)*"?|[{}[\],:]|[^\s"{}[\],:]+/g) ?? [];
  let depth = 0;
  let before = "";
  let written = "";
  const newLine = () => `\n${"  ".repeat(Math.max(0, depth))}`;
  for (const piece of pieces) {
    const closes = piece === "}" || piece === "]";
    if (closes) depth -= 1;
    if (closes ? !"{[".includes(before) : before && "{[,".includes(before)) written += newLine();
    written += piece === ":" ? ": " : piece;
    if (piece === "{" || piece === "[") depth += 1;
    before = piece;
  }
  return written;
}
