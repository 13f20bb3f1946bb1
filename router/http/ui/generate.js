/** One generation at a time for a form: streams it, can stop it, measures it, says what went wrong. */

import { ApiError, stream } from "./api.js";
import { TokenText } from "./tokens.js";

/** The two endpoints, and where their chunks keep text and tokens. */
export const CHAT = {
  path: "v1/chat/completions",
  logprobs: (top) => ({ logprobs: true, top_logprobs: top }),
  text: (choice) => choice.delta.content ?? "",
  tokens: (choice) => (choice.logprobs?.content ?? []).map(({ token, logprob, top_logprobs }) => ({
    token,
    logprob,
    top: top_logprobs,
  })),
};

export const COMPLETION = {
  path: "v1/completions",
  logprobs: (top) => ({ logprobs: top }),
  text: (choice) => choice.text,
  tokens: ({ logprobs }) => (logprobs?.tokens ?? []).map((token, index) => ({
    token,
    logprob: logprobs.token_logprobs[index] ?? -9999,
    top: Object.entries(logprobs.top_logprobs?.[index] ?? {})
      .map(([token, logprob]) => ({ token, logprob }))
      .sort((a, b) => b.logprob - a.logprob),
  })),
};

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

/** What the fields of the parameters say, for one of the endpoints; null when one holds no number. */
function parameters(endpoint) {
  for (const field of form.elements) field.removeAttribute("aria-invalid");
  if (!form.checkValidity()) {
    form.closest("details").open = true;
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
  return { ...values, ...(top === "" ? {} : endpoint.logprobs(Number(top))) };
}

function unescaped(line) {
  const meant = { n: "\n", t: "\t", "\\": "\\" };
  return line.replace(/\\([nt\\])/g, (_, letter) => meant[letter]);
}

/** Runs generations for `form`, which has buttons to send and stop, a status line and a place for errors. */
export class Generator {
  #abort = null;

  /** `onRefused` is told every ApiError. */
  constructor(form, endpoint, onRefused) {
    this.endpoint = endpoint;
    this.onRefused = onRefused;
    this.send = form.querySelector(".send");
    this.stopButton = form.querySelector(".stop");
    this.status = form.querySelector(".status");
    this.error = form.querySelector(".error");
    this.stopButton.addEventListener("click", () => this.stop());
  }

  get running() {
    return this.#abort !== null;
  }

  stop() {
    this.#abort?.abort();
  }

  /** Streams the answer to `body` into `element`. Returns its text, as far as it came; null if nothing was sent. */
  async run(body, element) {
    const settings = parameters(this.endpoint);
    if (this.running || !settings) return null;
    this.#begin();
    const shown = new TokenText(element);
    const clock = new Clock();
    try {
      const request = { ...body, ...settings, stream: true, stream_options: { include_usage: true } };
      for await (const events of stream(this.endpoint.path, request, this.#abort.signal)) {
        const follow = atBottom();
        for (const event of events) this.#take(event, shown, clock);
        this.status.textContent = clock.describe();
        if (follow) element.lastElementChild?.scrollIntoView({ block: "nearest" });
      }
      shown.finish();
    } catch (error) {
      if (error.name === "AbortError") clock.reason = "stopped here";
      else this.#fail(error);
    } finally {
      this.status.textContent = clock.describe();
      this.#end();
    }
    return shown.text;
  }

  #take(event, shown, clock) {
    for (const choice of event.choices) {
      const text = this.endpoint.text(choice);
      const tokens = this.endpoint.tokens(choice);
      if (text || tokens.length) clock.count(tokens.length || 1);
      shown.push(text, tokens);
      if (choice.finish_reason) clock.reason = choice.finish_reason;
    }
    if (event.usage) clock.usage = event.usage;
  }

  #begin() {
    this.#abort = new AbortController();
    this.send.disabled = true;
    this.stopButton.disabled = false;
    this.error.hidden = true;
    this.status.textContent = "Waiting for the first token";
    /* Screen readers wait for the last figures. */
    this.status.setAttribute("aria-busy", "true");
  }

  #end() {
    const hadFocus = document.activeElement === this.stopButton;
    this.#abort = null;
    this.status.removeAttribute("aria-busy");
    this.send.disabled = false;
    this.stopButton.disabled = true;
    /* A disabled button loses the focus, and with it the place of those who use the keyboard. */
    if (hadFocus) this.send.focus();
  }

  #fail(error) {
    const refused = error instanceof ApiError;
    const id = refused && error.requestId ? ` (request ${error.requestId})` : "";
    this.error.textContent = error.message + id;
    this.error.hidden = false;
    if (!refused) return;
    const field = error.param === "logprobs" ? "top_logprobs" : error.param;
    form.elements.namedItem(field)?.setAttribute("aria-invalid", "true");
    this.onRefused(error);
  }
}

function atBottom() {
  const page = document.documentElement;
  return page.scrollHeight - window.innerHeight - window.scrollY < 80;
}

/** Time to first token and tokens per second, as this page sees them. */
class Clock {
  #start = performance.now();
  #first = null;
  #last = null;
  #tokens = 0;
  reason = null;
  usage = null;

  count(tokens) {
    this.#last = performance.now();
    this.#first ??= this.#last;
    this.#tokens += tokens;
  }

  describe() {
    const parts = [];
    const tokens = this.usage?.completion_tokens ?? this.#tokens;
    if (this.#first !== null) {
      parts.push(`first token ${Math.round(this.#first - this.#start)} ms`);
      const seconds = (this.#last - this.#first) / 1000;
      if (tokens > 1 && seconds > 0) parts.push(`${((tokens - 1) / seconds).toFixed(1)} tokens/s`);
      parts.push(`${tokens} tokens`);
    }
    if (this.usage) parts.push(`prompt ${this.usage.prompt_tokens}`);
    if (this.reason) parts.push(this.reason);
    return parts.join(" · ");
  }
}
