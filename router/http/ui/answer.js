/** One answer on the page: what the model thinks, says and calls, each in its place, as it comes. */

import { callPart, pretty, reasoningPart } from "./calls.js";
import { make } from "./dom.js";
import { Markdown } from "./markdown.js";
import { TokenText } from "./tokens.js";

/** Shows an answer in `body`. With the tokens' probabilities the text is that of the tokens, else Markdown. */
export class Answer {
  #tokens = new TokenText();
  #byToken;
  #markdown = new Map();
  #reasoning = null;
  #calls = [];

  /** The answer as a message; grows as the answer does. */
  message = { role: "assistant", content: "" };

  /** `plain`: the text is never Markdown. */
  constructor(body, plain = false) {
    this.body = body;
    this.#byToken = plain;
    this.text = make("div", { className: "text" });
    this.text.setAttribute("aria-label", "Answer");
    body.replaceChildren(this.text);
  }

  /** Whether there is anything to keep. */
  get empty() {
    return !this.message.content && !this.#reasoning && !this.#calls.length;
  }

  /** Adds a delta of a stream, or a whole message; `tokens` belong to what comes first in it. */
  push({ reasoning_content: thought, content, tool_calls: calls }, tokens = []) {
    this.#tokens.hold(tokens);
    this.#byToken ||= tokens.length > 0;
    if (thought) {
      if (!this.#reasoning) {
        this.#reasoning = reasoningPart();
        this.body.prepend(this.#reasoning.element);
      }
      this.message.reasoning_content = (this.message.reasoning_content ?? "") + thought;
      this.#write(this.#reasoning.text, thought);
    }
    if (content) {
      this.message.content += content;
      this.#write(this.text, content);
    }
    (calls ?? []).forEach((call, position) => this.#call(call, call.index ?? position));
  }

  /** No more comes: shows all that has come. */
  settle() {
    for (const markdown of this.#markdown.values()) markdown.finish();
  }

  /** The answer is whole. */
  finish() {
    this.#tokens.finish(this.#calls.at(-1)?.text ?? this.text);
    if (this.#byToken) return;
    this.#calls.forEach(({ text }) => (text.textContent = pretty(text.textContent)));
  }

  #write(element, text) {
    if (this.#byToken) return this.#tokens.push(text, element);
    if (!this.#markdown.has(element)) {
      element.classList.add("prose");
      this.#markdown.set(element, new Markdown(element));
    }
    return this.#markdown.get(element).push(text);
  }

  #call({ id, function: { name, arguments: fragment = "" } }, index) {
    if (!this.#calls[index]) {
      const part = callPart(name);
      this.body.append(part.element);
      this.#calls[index] = part;
      (this.message.tool_calls ??= [])[index] = { id, type: "function", function: { name, arguments: "" } };
    }
    if (!fragment) return;
    const { text } = this.#calls[index];
    this.message.tool_calls[index].function.arguments += fragment;
    if (this.#byToken) this.#tokens.push(fragment, text);
    else text.append(fragment);
  }
}
