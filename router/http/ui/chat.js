/** The open conversation: shows it, sends it, and takes the answers. */

import { Attached } from "./attached.js";
import { resultForm } from "./calls.js";
import { contentOf, imagesOf } from "./content.js";
import { Conversations } from "./conversations.js";
import { openSettings } from "./drawers.js";
import { CHAT, Generator } from "./generate.js";
import { Message } from "./message.js";

/** Holds the messages; the page shows them in the same order. */
export class Chat {
  #messages = [];
  /** Until the answer that is being written has ended. */
  #answering = Promise.resolve();
  #results = null;

  constructor(onRefused) {
    this.form = document.getElementById("chat-form");
    this.system = document.getElementById("system");
    this.input = document.getElementById("message");
    this.history = document.getElementById("history");
    this.welcome = document.getElementById("welcome");
    this.retry = document.getElementById("retry");
    this.systemNote = document.getElementById("system-note");
    this.attached = new Attached(() => this.#messages.flatMap(({ data }) => imagesOf(data.content)).length);
    this.generator = new Generator(this.form, document.getElementById("chat"), CHAT, onRefused);
    this.conversations = new Conversations((conversation) => this.#open(conversation));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.system.addEventListener("change", () => this.#changed());
    this.retry.addEventListener("click", this.#unlessRunning(() => this.#answer()));
    this.systemNote.addEventListener("click", () => {
      openSettings();
      this.system.focus();
    });
    /* What has come of an answer outlives the page. */
    window.addEventListener("pagehide", () => this.generator.running && this.#save());
  }

  /** Leaves the conversation that was shown, once it has kept what came, and shows another. */
  async #open({ messages }) {
    this.generator.stop();
    await this.#answering;
    this.#messages = [];
    this.history.replaceChildren();
    const hasSystem = messages[0]?.role === "system";
    this.system.value = hasSystem ? messages[0].content : "";
    for (const message of messages.slice(hasSystem ? 1 : 0)) this.#add(message);
    this.generator.status.textContent = "";
    this.generator.error.hidden = true;
    this.#askForWhatIsMissing();
    this.generator.follower.toEnd();
    this.input.focus({ preventScroll: true });
  }

  /** Sends what was typed and attached; without either, asks again for what the last message asked for. */
  async #send() {
    await this.attached.ready();
    if (this.generator.running) return;
    const text = this.input.value;
    const content = contentOf(text.trim() && text, this.attached.take());
    if (content) this.#add({ role: "user", content });
    else if (!this.#isAsked) {
      this.generator.status.textContent = "Type a message first.";
      return;
    }
    this.input.value = "";
    this.input.dispatchEvent(new Event("input"));
    this.#answer();
  }

  /** Whether the model has the word. */
  get #isAsked() {
    return ["user", "tool"].includes(this.#messages.at(-1)?.data.role);
  }

  #answer() {
    this.#changed();
    this.#answering = this.#stream();
  }

  async #stream() {
    const messages = this.#conversation().map((message) => (
      /* As the server says it where there are calls and nothing else. */
      message.tool_calls && !message.content ? { ...message, content: null } : message
    ));
    let message;
    const answer = await this.generator.run({ messages }, () => {
      this.#results?.remove();
      message = this.#add({ role: "assistant", content: "" });
      message.element.setAttribute("aria-busy", "true");
      this.#askForWhatIsMissing();
      return message.stream();
    });
    message?.element.removeAttribute("aria-busy");
    if (answer?.empty) this.#remove(message);
    this.#changed();
  }

  /** The conversation as a request has it. */
  #conversation() {
    const system = this.system.value === "" ? [] : [{ role: "system", content: this.system.value }];
    const said = this.#messages.map(({ data }) => data);
    /* An answer that has not begun is none. */
    return [...system, ...said.filter(({ role, content, tool_calls: calls, reasoning_content: thought }) => (
      role !== "assistant" || content || calls || thought
    ))];
  }

  #save() {
    this.conversations.current.messages = this.#conversation();
    this.conversations.save();
  }

  #changed() {
    this.#save();
    this.#askForWhatIsMissing();
  }

  /** Shows what there is to do beside typing: results to give, an answer that failed to ask for again. */
  #askForWhatIsMissing() {
    const prompt = this.system.value.trim().split("\n")[0];
    this.systemNote.hidden = !prompt;
    this.systemNote.textContent = `System prompt: ${prompt}`;
    this.welcome.hidden = this.#messages.length > 0;
    this.retry.hidden = this.generator.running || !this.#isAsked;
    this.#askForResults();
  }

  #add(data) {
    const message = new Message(data, [
      ...(data.role === "assistant" ? [["again", "Regenerate", (message) => this.#regenerate(message)]] : []),
      ["edit", "Edit", (message) => this.#edit(message)],
      ["delete", "Delete", (message) => this.#delete(message)],
    ].map(([picture, name, act]) => [picture, name, this.#unlessRunning(act)]));
    this.history.append(message.element);
    this.#messages.push(message);
    return message;
  }

  /** Does nothing while an answer is written: what it was asked for would change below it. */
  #unlessRunning(act) {
    return (message) => this.generator.running || act(message);
  }

  #edit(message) {
    const send = () => {
      this.#dropFrom(this.#messages.indexOf(message) + 1);
      this.#answer();
    };
    message.edit(() => this.#changed(), message.data.role === "user" ? send : null, (act) => this.#unlessRunning(act));
  }

  /** With its results, if it made calls: results of no call are refused. */
  #delete(message) {
    const calls = (message.data.tool_calls ?? []).map(({ id }) => id);
    for (const other of this.#messages) if (calls.includes(other.data.tool_call_id)) this.#remove(other);
    this.#remove(message);
    this.#changed();
    this.input.focus();
  }

  #remove(message) {
    this.#messages = this.#messages.filter((other) => other !== message);
    message.element.remove();
  }

  #dropFrom(index) {
    for (const later of this.#messages.slice(index)) this.#remove(later);
  }

  /** Drops an answer with what followed it, and asks for another one. */
  #regenerate(message) {
    const index = this.#messages.indexOf(message);
    if (index === 0) {
      this.generator.status.textContent = "Nothing was asked before this answer.";
      return;
    }
    this.#dropFrom(index);
    this.#answer();
  }

  /** Asks for the results of calls that have none, below the answer that made them; with them the chat goes on. */
  #askForResults() {
    this.#results?.remove();
    this.#results = null;
    if (this.generator.running) return;
    const given = new Set(this.#messages.map(({ data }) => data.tool_call_id));
    const caller = this.#messages.findLast(({ data }) => data.role !== "tool");
    const calls = (caller?.data.tool_calls ?? []).filter(({ id }) => !given.has(id));
    if (!calls.length) return;
    this.#results = resultForm(calls, this.#unlessRunning((results) => {
      for (const result of results) this.#add(result);
      this.#answer();
    }));
    caller.element.append(this.#results);
  }
}
