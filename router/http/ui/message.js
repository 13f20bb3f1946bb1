/** One message of a conversation on the page: its parts, its buttons, and its text while it is edited. */

import { Answer } from "./answer.js";
import { resultPart } from "./calls.js";
import { button, make } from "./dom.js";

const NAMES = { system: "System", user: "You", assistant: "Model", tool: "Tool" };

export class Message {
  /** `data`: the message as requests have it. `actions`: [[name of a button, what it does with this message]]. */
  constructor(data, actions) {
    this.data = data;
    this.body = make("div", { className: "body" });
    const buttons = actions.map(([name, act]) => button(name, () => act(this)));
    this.actions = make("div", { className: "actions" }, buttons);
    const heading = make("h2", {}, NAMES[data.role]);
    this.element = make("article", { className: data.role }, heading, this.body, this.actions);
    this.#show();
  }

  /** Takes what comes of an answer. The message is then what the answer holds. */
  stream() {
    const answer = new Answer(this.body);
    this.data = answer.message;
    return answer;
  }

  #show() {
    const { role, name, content } = this.data;
    if (role === "assistant") {
      const answer = new Answer(this.body);
      answer.push(this.data);
      answer.finish();
    } else if (role === "tool") this.body.replaceChildren(resultPart(name ?? "a tool", content));
    else this.body.replaceChildren(make("div", { className: "text" }, content));
  }

  /** Shows a field with the text; calls `saved` when it has changed. `guarded` makes functions of its buttons. */
  edit(saved, guarded) {
    const { data, body, actions } = this;
    const rows = Math.min(12, data.content.split("\n").length + 2);
    const field = make("textarea", { value: data.content, rows });
    field.setAttribute("aria-label", `Text of ${NAMES[data.role]}`);
    const close = () => {
      field.replaceWith(body);
      editing.replaceWith(actions);
      actions.querySelector("button").focus();
    };
    const save = () => {
      if (field.value !== data.content) {
        data.content = field.value;
        /* Changed text is not what the model said: its tokens have no probabilities. */
        this.#show();
        saved();
      }
      close();
    };
    const buttons = [button("Save", guarded(save)), button("Cancel", guarded(close))];
    const editing = make("div", { className: "actions" }, buttons);
    body.replaceWith(field);
    actions.replaceWith(editing);
    field.focus();
  }
}
