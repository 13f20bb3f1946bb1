/** Conversations in the storage of the browser, each under its own name: two tabs do not overwrite each other's. */

import { checkedContent, imagesOf, textOf, withoutImages } from "./content.js";

const PREFIX = "text-generation:conversation:";
/** The conversation of this tab, over a reload. */
const OPEN = "open-conversation";
const ROLES = ["system", "user", "assistant", "tool"];
const LONGEST_TITLE = 60;
const FULL =
  "The browser's storage is full or closed: the last change is not kept. Export this conversation, or delete others.";
const NO_ROOM =
  "The browser has no room for the images of this conversation: it keeps the text. Export it, or delete others.";

/** A conversation: `title` is "" until it is renamed; `messages` are those of a request. */
export function created() {
  const id = `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;
  return { id, title: "", changed: 0, messages: [] };
}

/** Its title, or the first line of what was asked first. */
export function titleOf({ title, messages }) {
  const asked = messages.find(({ role }) => role === "user")?.content ?? "";
  const line = title || textOf(asked).trim().split("\n")[0] || "Untitled";
  return line.length > LONGEST_TITLE ? `${line.slice(0, LONGEST_TITLE)}…` : line;
}

/** All that are kept, the last changed first. */
export function all() {
  const found = names().map((name) => {
    try {
      return { ...checked(JSON.parse(localStorage.getItem(name))), id: name.slice(PREFIX.length) };
    } catch {
      /* Not written by this page. */
      return null;
    }
  });
  return found.filter(Boolean).sort((a, b) => b.changed - a.changed);
}

/**
 * Keeps a conversation, without its images where they have no room; drops one without messages. Throws an Error for
 * people if the browser does not keep all of it.
 */
export function save(conversation) {
  const { id, title, messages } = conversation;
  if (!messages.some(({ role }) => role !== "system")) {
    remove(id);
    return;
  }
  conversation.changed = Date.now();
  const keep = (messages) => {
    localStorage.setItem(PREFIX + id, JSON.stringify({ title, changed: conversation.changed, messages }));
    return true;
  };
  if (attempt(() => keep(messages))) return;
  const hasImages = messages.some(({ content }) => imagesOf(content).length);
  const texts = messages.map((message) => ({ ...message, content: withoutImages(message.content) }));
  throw new Error(hasImages && attempt(() => keep(texts)) ? NO_ROOM : FULL);
}

export function remove(id) {
  attempt(() => localStorage.removeItem(PREFIX + id));
}

export function removeAll() {
  for (const name of names()) attempt(() => localStorage.removeItem(name));
}

/** Which conversation this tab had open; a new one if there was none. */
export function lastOpen() {
  const id = attempt(() => sessionStorage.getItem(OPEN));
  return all().find((conversation) => conversation.id === id) ?? created();
}

export function rememberOpen(id) {
  attempt(() => sessionStorage.setItem(OPEN, id));
}

/** Text for a file; `imported` reads it. */
export function exported(conversations) {
  const kept = conversations.map((conversation) => ({ title: titleOf(conversation), messages: conversation.messages }));
  return JSON.stringify(kept, null, 2);
}

/** The conversations of a file. Throws an Error for people when it is none of ours. */
export function imported(text) {
  try {
    return [JSON.parse(text)].flat().map((conversation) => ({ ...created(), ...checked(conversation) }));
  } catch (error) {
    throw new Error(`This file holds no conversations: ${error.message}`);
  }
}

/** What the page knows of a conversation from outside. */
function checked({ title, changed, messages }) {
  return { title: String(title ?? ""), changed: Number(changed) || 0, messages: messages.map(checkedMessage) };
}

function checkedMessage({ role, content, reasoning_content, tool_calls, tool_call_id, name }) {
  if (!ROLES.includes(role)) throw new Error("a message has no known role");
  const calls = tool_calls?.map(({ id, function: { name, arguments: given } }) => ({
    id: String(id),
    type: "function",
    function: { name: String(name), arguments: String(given) },
  }));
  const message = { role, content: checkedContent(content) };
  if (role !== "user" && imagesOf(message.content).length) throw new Error("only a user's message has images");
  if (reasoning_content) message.reasoning_content = String(reasoning_content);
  if (calls?.length) message.tool_calls = calls;
  if (tool_call_id) message.tool_call_id = String(tool_call_id);
  if (name) message.name = String(name);
  return message;
}

function names() {
  return attempt(() => Object.keys(localStorage).filter((name) => name.startsWith(PREFIX))) ?? [];
}

/** A browser may be told to keep nothing; then every access fails. */
function attempt(access) {
  try {
    return access();
  } catch {
    return null;
  }
}
