/** One generation at a time for a form: streams it, can stop it, measures it, says what went wrong. */

import { ApiError, stream } from "./api.js";
import { Follower } from "./follow.js";
import { markRefused, parameters } from "./parameters.js";

/**
 * The two endpoints: how they ask for what the fields of the parameters say, and where their chunks keep what was said
 * (as a delta of a chat) and the tokens.
 */
export const CHAT = {
  path: "v1/chat/completions",
  logprobs: (top) => ({ logprobs: true, top_logprobs: top }),
  json: {
    /* Strict: the server names what it cannot enforce instead of leaving it out. */
    schema: (schema) => ({
      response_format: { type: "json_schema", json_schema: { name: "answer", strict: true, schema } },
    }),
    tools: (tools) => ({ tools }),
  },
  delta: (choice) => choice.delta,
  tokens: (choice) => (choice.logprobs?.content ?? []).map(({ token, logprob, top_logprobs }) => ({
    token,
    logprob,
    top: top_logprobs,
  })),
};

export const COMPLETION = {
  path: "v1/completions",
  logprobs: (top) => ({ logprobs: top }),
  json: {},
  delta: (choice) => ({ content: choice.text }),
  tokens: ({ logprobs }) => (logprobs?.tokens ?? []).map((token, index) => ({
    token,
    logprob: logprobs.token_logprobs[index] ?? -9999,
    top: Object.entries(logprobs.top_logprobs?.[index] ?? {})
      .map(([token, logprob]) => ({ token, logprob }))
      .sort((a, b) => b.logprob - a.logprob),
  })),
};

/** Runs generations for `form`, which has buttons to send and stop, a status line and a place for errors. */
export class Generator {
  #abort = null;

  /** `panel` holds the form and what the answer is shown in; `onRefused` is told every ApiError. */
  constructor(form, panel, endpoint, onRefused) {
    this.follower = new Follower(panel);
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

  /** Streams the answer to `body` into the Answer that `begin` makes. Returns what came of it; null if none began. */
  async run(body, begin) {
    const settings = parameters(this.endpoint);
    if (this.running || !settings) return null;
    this.#begin();
    const answer = begin();
    this.follower.begin();
    const clock = new Clock();
    try {
      const request = { ...body, ...settings, stream: true, stream_options: { include_usage: true } };
      for await (const events of stream(this.endpoint.path, request, this.#abort.signal)) {
        for (const event of events) this.#take(event, answer, clock);
        this.status.textContent = clock.describe();
      }
      answer.finish();
    } catch (error) {
      if (error.name === "AbortError") clock.reason = "stopped here";
      else this.#fail(error);
    } finally {
      answer.settle();
      this.status.textContent = clock.describe();
      this.#end();
    }
    return answer;
  }

  #take(event, answer, clock) {
    for (const choice of event.choices) {
      const delta = this.endpoint.delta(choice);
      const tokens = this.endpoint.tokens(choice);
      const something = delta.content || delta.reasoning_content || delta.tool_calls;
      if (something || tokens.length) clock.count(tokens.length || 1);
      answer.push(delta, tokens);
      if (choice.finish_reason) clock.reason = choice.finish_reason;
    }
    if (event.usage) clock.usage = event.usage;
  }

  #begin() {
    this.#abort = new AbortController();
    this.send.hidden = true;
    this.stopButton.hidden = false;
    this.error.hidden = true;
    this.status.textContent = "Waiting for the first token";
    /* Screen readers wait for the last figures. */
    this.status.setAttribute("aria-busy", "true");
  }

  #end() {
    const hadFocus = document.activeElement === this.stopButton;
    this.#abort = null;
    this.status.removeAttribute("aria-busy");
    this.send.hidden = false;
    this.stopButton.hidden = true;
    /* A hidden button loses the focus, and with it the place of those who use the keyboard. */
    if (hadFocus) this.send.focus();
    this.follower.end();
  }

  #fail(error) {
    const refused = error instanceof ApiError;
    const id = refused && error.requestId ? ` (request ${error.requestId})` : "";
    this.error.textContent = error.message + id;
    this.error.hidden = false;
    if (!refused) return;
    markRefused(error.param);
    this.onRefused(error);
  }
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
