/** Requests to the server this page came from, and what can go wrong with them. */

const KEY = "api-key";
const CUT_OFF = "The connection ended before the answer did.";

/** The key lives as long as the tab: conversations outlive it, the key must not. */
export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

/** A refusal of the server, before or in a stream. `status` is 0 in a stream, `param` the field that is wrong or null. */
export class ApiError extends Error {
  constructor(status, body, retryAfter = null) {
    const error = body?.error;
    super(readable(status, error?.message ?? error, body?.error_type, retryAfter));
    this.status = status;
    this.param = error?.param ?? null;
    this.requestId = body?.request_id ?? null;
  }
}

function readable(status, message, type, retryAfter) {
  const text = message || `The server answered with status ${status}.`;
  const wait = retryAfter ? ` Try again in ${retryAfter} s.` : "";
  if (status === 401) return key.get() ? "The server does not know this API key." : "This server asks for an API key.";
  if (status === 429) return `The server is busy: ${text}.${wait}`;
  if (status === 503) return `The server cannot answer now: ${text}.${wait}`;
  if (type === "template_error") return `${text}. The completion tab needs no chat template.`;
  return text;
}

function headers() {
  const bytes = new TextEncoder().encode(key.get());
  /* Headers take bytes as characters up to U+00FF. */
  return bytes.length ? { Authorization: `Bearer ${String.fromCharCode(...bytes)}` } : {};
}

async function checked(response) {
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new ApiError(response.status, body, response.headers.get("retry-after"));
}

/** What browsers say of a broken connection differs, and helps nobody. */
const broken = (text) => (error) => {
  throw error.name === "AbortError" ? error : new Error(text);
};

async function request(path, options) {
  const answer = fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
  return checked(await answer.catch(broken("The server cannot be reached.")));
}

/** GET of a JSON document. Throws an ApiError for a refusal, an Error when the server cannot be reached. */
export async function get(path) {
  return (await request(path, { cache: "no-store" })).json();
}

/**
 * POST that is answered by a stream of events. Yields lists of events, those of one network read together.
 * Throws an ApiError for a refusal and for an error event, an AbortError when `signal` says so, and an Error when the
 * stream ends before `[DONE]`, or the server cannot be reached.
 */
export async function* stream(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  const response = await request(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  const text = response.body.pipeThrough(new TextDecoderStream());
  const lines = new Lines();
  for await (const piece of pieces(text)) {
    const data = lines.push(piece).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim());
    const done = data.indexOf("[DONE]");
    const events = (done < 0 ? data : data.slice(0, done)).map((line) => JSON.parse(line));
    const failed = events.findIndex((event) => event.error);
    if (failed >= 0) {
      yield events.slice(0, failed);
      throw new ApiError(0, events[failed]);
    }
    yield events;
    if (done >= 0) return;
  }
  throw new Error(CUT_OFF);
}

/** What a stream brings; leaving the loop lets go of the connection. Not every browser can iterate over streams. */
async function* pieces(stream) {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(broken(CUT_OFF));
      if (done) return;
      yield value;
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

/** Cuts text that comes in pieces into whole lines. */
class Lines {
  #rest = "";

  push(piece) {
    const lines = (this.#rest + piece).split("\n");
    this.#rest = lines.pop();
    return lines;
  }
}
