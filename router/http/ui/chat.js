/** The conversation: what was said, and the buttons at each message. */

import { CHAT, Generator } from "./generate.js";

const NAMES = { user: "You", assistant: "Model" };

/** The chat tab. Holds the messages; the page shows them in the same order. */
export class Chat {
  /** [{role, content, element}] */
  #messages = [];

  constructor(onRefused) {
    this.form = document.getElementById("chat-form");
    this.system = document.getElementById("system");
    this.input = document.getElementById("message");
    this.history = document.getElementById("history");
    this.generator = new Generator(this.form, CHAT, onRefused);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    document.getElementById("clear").addEventListener("click", () => this.#clear());
  }

  /** Sends what was typed; without text, asks again for what the last message of the user said. */
  #send() {
    const content = this.input.value;
    if (this.generator.running) return;
    if (content !== "") this.#add("user", content);
    else if (this.#messages.at(-1)?.role !== "user") {
      this.generator.status.textContent = "Type a message first.";
      return;
    }
    this.input.value = "";
    this.#answer();
  }

  async #answer() {
    const system = this.system.value === "" ? [] : [{ role: "system", content: this.system.value }];
    const messages = this.#messages.map(({ role, content }) => ({ role, content }));
    const answer = this.#add("assistant", "");
    answer.element.setAttribute("aria-busy", "true");
    answer.element.scrollIntoView({ block: "nearest" });
    const text = await this.generator.run({ messages: [...system, ...messages] }, answer.body);
    answer.element.removeAttribute("aria-busy");
    if (text) answer.content = text;
    else this.#remove(answer);
  }

  #clear() {
    this.generator.stop();
    this.#messages = [];
    this.history.replaceChildren();
    this.generator.status.textContent = "";
    this.generator.error.hidden = true;
    this.input.focus();
  }

  #add(role, content) {
    const element = document.createElement("article");
    const heading = document.createElement("h2");
    const body = document.createElement("div");
    const actions = document.createElement("div");
    const message = { role, content, element, body };
    element.className = role;
    heading.textContent = NAMES[role];
    body.className = "text";
    body.textContent = content;
    body.setAttribute("aria-label", `${NAMES[role]}:`);
    actions.className = "actions";
    if (role === "user") actions.append(this.#button("Ask again", () => this.#askAgain(message)));
    actions.append(
      this.#button("Edit", () => this.#edit(message)),
      this.#button("Delete", () => {
        this.#remove(message);
        this.input.focus();
      }),
    );
    element.append(heading, body, actions);
    this.history.append(element);
    this.#messages.push(message);
    return message;
  }

  /** A button that does nothing while an answer is written: what it was asked for would change below it. */
  #button(name, act) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.addEventListener("click", () => this.generator.running || act());
    return button;
  }

  #remove(message) {
    this.#messages = this.#messages.filter((other) => other !== message);
    message.element.remove();
  }

  /** Drops what followed the message, and asks for another answer. */
  #askAgain(message) {
    for (const later of this.#messages.slice(this.#messages.indexOf(message) + 1)) this.#remove(later);
    this.#answer();
  }

  #edit(message) {
    const { element, body } = message;
    const field = document.createElement("textarea");
    const actions = element.querySelector(".actions");
    field.value = message.content;
    field.rows = Math.min(12, message.content.split("\n").length + 2);
    field.setAttribute("aria-label", `Text of ${NAMES[message.role]}`);
    const close = () => {
      field.replaceWith(body);
      editing.replaceWith(actions);
      actions.querySelector("button").focus();
    };
    const save = () => {
      /* Changed text is not what the model said: its tokens have no probabilities. */
      if (field.value !== message.content) {
        message.content = field.value;
        body.textContent = field.value;
      }
      close();
    };
    const editing = document.createElement("div");
    editing.className = "actions";
    editing.append(this.#button("Save", save), this.#button("Cancel", close));
    body.replaceWith(field);
    actions.replaceWith(editing);
    field.focus();
  }
}
