// The hub's API with the session of this console.

const csrf = document.querySelector('meta[name="csrf"]')?.content ?? "";

/** What went wrong, and what to do: `message` is a sentence of the hub, `next` a hint or "". */
export class ApiError extends Error {
  constructor(status, message, more = {}) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.kind = more.kind ?? "";
    this.trace = more.trace ?? "";
    this.url = more.url ?? "";
    this.retryAfter = more.retry_after ?? 0;
    this.details = more;
    this.next = HINTS[status] ?? "";
  }
}

const HINTS = {
  0: "The hub does not answer. Is it running? See: dragoman status",
  401: "Open the console again with: dragoman console",
  403: "Your session may not do this. Sign in as the owner with: dragoman console",
  404: "",
  429: "Wait a moment and try again. See the screen Limits.",
  503: "Try again in a moment; the screen Health says more.",
};

const listeners = new Set();
/** Calls `listener` when the session has ended. */
export function onSignedOut(listener) {
  listeners.add(listener);
}

function query(given) {
  const pairs = Object.entries(given ?? {}).filter(
    ([, value]) => value !== null && value !== undefined && value !== "",
  );
  return pairs.length ? `?${new URLSearchParams(pairs)}` : "";
}

async function send(method, path, body, options = {}) {
  const headers = { "x-csrf-token": csrf, accept: options.accept ?? "application/json", ...options.headers };
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path + query(options.query), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: options.signal,
      credentials: "same-origin",
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the hub cannot be reached");
  }
  return response;
}

async function read(response) {
  const text = await response.text();
  let data = text;
  if ((response.headers.get("content-type") ?? "").includes("json")) {
    try {
      data = JSON.parse(text);
    } catch {
      throw new ApiError(response.status, "the hub answered with invalid JSON");
    }
  }
  if (response.ok) return data;
  if (response.status === 401) for (const listener of listeners) listener();
  throw buildError(response.status, data);
}

function buildError(status, data) {
  const error = data?.error ?? {};
  return new ApiError(status, error.message ?? `the hub answered with status ${status}`, error);
}

export const api = {
  /** api.get("/api/tools", {q: "git", limit: 50}); empty members of the query are left out. */
  get: async (path, given, signal) => read(await send("GET", path, undefined, { query: given, signal })),
  post: async (path, body = {}, signal) => read(await send("POST", path, body, { signal })),
  patch: async (path, body = {}) => read(await send("PATCH", path, body)),
  delete: async (path, given) => read(await send("DELETE", path, undefined, { query: given })),

  /**
   * A call with progress: `follow(name, data)` gets the events `progress` and `artifact`; returns
   * the result or throws an ApiError. Abort `signal` to cancel the call.
   */
  async call(path, body, follow, signal, headers) {
    const response = await send("POST", path, body, { accept: "text/event-stream, application/json", signal, headers });
    if (!(response.headers.get("content-type") ?? "").startsWith("text/event-stream")) return read(response);
    for await (const event of readEvents(response.body)) {
      if (event.name === "result") return event.data;
      if (event.name === "error") throw buildError(500, event.data);
      follow?.(event.name, event.data);
    }
    throw new ApiError(0, "the connection was closed before the result arrived");
  },
};

async function* readEvents(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      let name = "message";
      const data = [];
      for (const line of part.split("\n")) {
        if (line.startsWith("event:")) name = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      }
      if (data.length) yield { name, data: JSON.parse(data.join("\n")) };
    }
  }
}
