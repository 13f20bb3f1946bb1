/** The list of conversations: opens, renames, exports, imports and deletes them. */

import { button, make } from "./dom.js";
import { closeCovering } from "./drawers.js";
import * as store from "./store.js";

const byId = (id) => document.getElementById(id);

export class Conversations {
  /** The one that is shown; the chat changes its messages. */
  current = store.created();

  /** `show` is told which conversation is open from now on, and may take its time to leave the one before. */
  constructor(show) {
    this.show = show;
    this.list = byId("conversation-list");
    this.error = byId("storage-error");
    const actions = {
      "new-chat": () => this.#open(store.created()),
      rename: () => this.#rename(),
      export: () => this.#download([this.current]),
      delete: () => this.#delete(),
      "export-all": () => this.#download(store.all()),
      "delete-all": () => this.#deleteAll(),
    };
    for (const [id, act] of Object.entries(actions)) byId(id).addEventListener("click", act);
    byId("import").addEventListener("change", (event) => this.#import(event.target));
    /* Another tab has changed what is kept. */
    window.addEventListener("storage", () => this.#refresh());
    this.#open(store.lastOpen());
  }

  /** Keeps what the current conversation holds now. */
  save() {
    this.#attempt(() => store.save(this.current));
    this.#refresh();
  }

  async #open(conversation) {
    closeCovering();
    byId("chat-tab").click();
    await this.show(conversation);
    this.current = conversation;
    store.rememberOpen(conversation.id);
    this.error.hidden = true;
    this.#refresh();
  }

  #refresh() {
    const kept = store.all();
    const items = kept.map((conversation) => {
      const title = button(store.titleOf(conversation), () => this.#open(conversation));
      if (conversation.id === this.current.id) title.setAttribute("aria-current", "true");
      return make("li", {}, title);
    });
    this.list.replaceChildren(...items);
    byId("conversation-count").textContent = kept.length ? `(${kept.length})` : "";
    const isKept = kept.some(({ id }) => id === this.current.id);
    for (const id of ["rename", "export", "delete"]) byId(id).disabled = !isKept;
    for (const id of ["export-all", "delete-all"]) byId(id).disabled = !kept.length;
  }

  #rename() {
    const title = window.prompt("Title of this conversation", store.titleOf(this.current));
    if (title === null) return;
    this.current.title = title.trim();
    this.save();
  }

  async #delete() {
    if (!window.confirm(`Delete “${store.titleOf(this.current)}”?`)) return;
    const { id } = this.current;
    await this.#open(store.created());
    store.remove(id);
    this.#refresh();
  }

  async #deleteAll() {
    if (!window.confirm("Delete all conversations of this browser?")) return;
    await this.#open(store.created());
    store.removeAll();
    this.#refresh();
  }

  #download(conversations) {
    const name = conversations.length === 1 ? store.titleOf(conversations[0]) : "conversations";
    const file = new Blob([store.exported(conversations)], { type: "application/json" });
    const href = URL.createObjectURL(file);
    make("a", { href, download: `${name.replace(/[^\p{L}\p{N}]+/gu, "-")}.json` }).click();
    URL.revokeObjectURL(href);
  }

  async #import(field) {
    const text = await field.files[0].text();
    field.value = "";
    this.#attempt(() => store.imported(text).forEach(store.save));
    this.#refresh();
  }

  /** Says below the chat what could not be done. */
  #attempt(act) {
    this.error.hidden = true;
    try {
      act();
    } catch (error) {
      this.error.textContent = error.message;
      this.error.hidden = false;
    }
  }
}
