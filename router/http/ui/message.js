/** One message of a conversation on the page: its parts, its buttons, and its text while it is edited. */

import { Answer } from "./answer.js";
import { resultPart } from "./calls.js";
import { copyButton } from "./clipboard.js";
import { contentOf, imagesOf, textOf } from "./content.js";
import { button, iconButton, make } from "./dom.js";
import { pictures } from "./picture.js";

const NAMES = { user: "You", assistant: "Model", tool: "Tool" };

export class Message {
  /** `data`: the message as requests have it. `actions`: [[picture, name of a button, what it does with this message]]. */
  constructor(data, actions) {
    this.data = data;
    this.body = make("div", { className: "body" });
    const buttons = actions.map(([picture, name, act]) => iconButton(picture, name, () => act(this)));
    this.actions = make("div", { className: "actions" }, copyButton("Copy", () => textOf(this.data.content)), buttons);
    const heading = make("h2", { className: "unseen" }, NAMES[data.role]);
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
      answer.settle();
      answer.finish();
    } else if (role === "tool") this.body.replaceChildren(resultPart(name ?? "a tool", content));
    else {
      const images = imagesOf(content);
      const text = make("div", { className: "text" }, textOf(content));
      this.body.replaceChildren(...(images.length ? [pictures(images)] : []), text);
    }
  }

  /**
   * Shows a field with the text; images stay. Calls `saved` when it has changed, and `sent`, if there is one, when it is to be
   * answered anew. `guarded` makes functions of its buttons.
   */
  edit(saved, sent, guarded) {
    const { data, body, actions } = this;
    const before = textOf(data.content);
    const rows = Math.min(12, before.split("\n").length + 2);
    const field = make("textarea", { value: before, rows });
    field.setAttribute("aria-label", `Text of ${NAMES[data.role]}`);
    const close = () => {
      field.replaceWith(body);
      editing.replaceWith(actions);
      this.element.classList.remove("edited");
      actions.querySelector("button").focus({ preventScroll: true });
    };
    const save = () => {
      const changed = field.value !== before;
      if (changed) {
        data.content = contentOf(field.value, imagesOf(data.content));
        /* Changed text is not what the model said: its tokens have no probabilities. */
        this.#show();
      }
      close();
      if (changed) saved();
    };
    const send = () => {
      save();
      sent();
    };
    const buttons = [button("Save", guarded(save)), button("Cancel", guarded(close))];
    if (sent) buttons.unshift(Object.assign(button("Save and send", guarded(send)), { className: "send" }));
    const editing = make("div", { className: "actions" }, buttons);
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") guarded(close)();
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) guarded(sent ? send : save)();
    });
    this.element.classList.add("edited");
    body.replaceWith(field);
    actions.replaceWith(editing);
    field.focus();
  }
}
