/** The page: what the server says of itself, the key, the tabs. */

import { Answer } from "./answer.js";
import { get, key } from "./api.js";
import { Chat } from "./chat.js";
import { drawIcons } from "./dom.js";
import { setUpDrawers } from "./drawers.js";
import { COMPLETION, Generator } from "./generate.js";

const byId = (id) => document.getElementById(id);
const access = byId("access");
const notice = byId("notice");

function say(text) {
  notice.textContent = text;
  notice.hidden = !text;
}

/** The field for a key shows where one is needed or in use. */
function onRefused(error) {
  if (error.status !== 401) return;
  access.hidden = false;
  byId("key").focus();
}

async function describeServer(chat) {
  try {
    const info = await get("info");
    byId("model").textContent = info.model_id;
    byId("model").title = info.model_id;
    byId("welcome-model").textContent = `${info.model_id} answers.`;
    byId("limits").textContent = [
      `prompt up to ${info.max_input_tokens} tokens, with the answer ${info.max_total_tokens}`,
      `${info.max_stop_sequences} stop strings`,
      ...(info.images ? [`images up to ${info.images.max_image_bytes / 1e6} MB`] : []),
      `${info.model_dtype} on ${info.model_device_type}`,
      `version ${info.version}`,
    ].join(" · ");
    document.title = `${info.model_id} · Playground`;
    chat.attached.offer(info.images);
    say("");
    access.hidden = true;
  } catch (error) {
    say(error.message);
    onRefused(error);
  }
}

function setUpKey(chat) {
  byId("key").value = key.get();
  byId("change-key").addEventListener("click", () => {
    access.hidden = false;
    byId("key").focus();
  });
  access.addEventListener("submit", (event) => {
    event.preventDefault();
    key.set(byId("key").value.trim());
    describeServer(chat);
  });
}

/** Tabs as the ARIA Authoring Practices describe them: arrow keys move and select. */
function setUpTabs() {
  const tabs = [...document.querySelectorAll("[role=tab]")];
  const select = (chosen) => {
    for (const tab of tabs) {
      const selected = tab === chosen;
      tab.setAttribute("aria-selected", String(selected));
      tab.tabIndex = selected ? 0 : -1;
      byId(tab.getAttribute("aria-controls")).hidden = !selected;
    }
  };
  tabs.forEach((tab, index) => {
    tab.addEventListener("click", () => select(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = tabs.at((index + step) % tabs.length);
      select(next);
      next.focus();
    });
  });
}

function setUpCompletion() {
  const form = byId("completion-form");
  const prompt = byId("prompt");
  const generator = new Generator(form, byId("completion"), COMPLETION, onRefused);
  let continuation = null;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const begin = () => new Answer(byId("continuation"), true);
    continuation = (await generator.run({ prompt: prompt.value }, begin)) ?? continuation;
  });
  byId("append").addEventListener("click", () => {
    prompt.value += continuation?.message.content ?? "";
    continuation = null;
    byId("continuation").replaceChildren();
    prompt.focus();
  });
}

/** Enter sends a message, and Control or Command with Enter a prompt too; Shift with Enter is a line break. */
function setUpSending() {
  for (const field of [byId("message"), byId("prompt")]) {
    field.addEventListener("keydown", (event) => {
      const sends = event.ctrlKey || event.metaKey || (field.id === "message" && !event.shiftKey);
      /* An input method takes Enter to choose among its proposals; one browser says so by a key code alone. */
      const composes = event.isComposing || event.keyCode === 229;
      if (event.key !== "Enter" || !sends || composes) return;
      event.preventDefault();
      field.form.requestSubmit();
    });
  }
  byId("parameters").addEventListener("submit", (event) => event.preventDefault());
}

/** The field for messages is as high as its text, up to a limit of the style. */
function setUpMessage() {
  const field = byId("message");
  field.addEventListener("input", () => {
    field.style.height = "auto";
    field.style.height = `${field.scrollHeight}px`;
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.isComposing) field.form.querySelector(".stop").click();
  });
}

drawIcons();
setUpDrawers();
setUpMessage();
setUpTabs();
setUpSending();
setUpCompletion();
const chat = new Chat(onRefused);
setUpKey(chat);
describeServer(chat);
