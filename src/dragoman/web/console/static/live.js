// The hub's event stream, shared by all parts of the page. Its state is visible in the header.
// A hidden tab closes the stream, so that many open tabs cost nothing.

const EVENTS = document.querySelector('meta[name="events"]').content.split(" ");
// One event for each call and each step: the hub builds them only while a screen listens to them.
const FREQUENT = new Set(["pre-verb", "post-verb", "verb-error", "EXEC:TOOL_CALL", "EXEC:TOOL_RESULT", "cost", "activity"]);
const RETRY_MS = [1000, 2000, 4000, 8000, 15000];
const HIDDEN_MS = 5000;

/** States: `connecting`, `live`, `reconnecting`, `offline`, `paused`, `signed out`. */
export class Live {
  #source = null;
  #phases = "";
  #last = 0;
  #tries = 0;
  #timer = 0;
  #hideTimer = 0;
  #adjustTimer = 0;
  #stopped = false;
  #listeners = new Map();
  #watchers = new Set();
  state = "connecting";

  constructor(check) {
    /** Asks the hub whether the session still exists; throws an ApiError. */
    this.check = check;
    document.addEventListener("visibilitychange", () => this.#followVisibility());
    window.addEventListener("online", () => this.#retryNow());
    window.addEventListener("offline", () => this.#lose());
    window.addEventListener("pagehide", () => this.#close());
    window.addEventListener("pageshow", (event) => event.persisted && this.#open());
  }

  start() {
    if (document.hidden) this.#set("paused");
    else this.#open();
  }

  /**
   * live.on("server-changed", (data) => …) calls back for each event of that name; returns what ends
   * it. After a gap (a connection, or events that were dropped) the event "gap" says that lists
   * should be read again. To follow calls, use "activity": at most one a second, with {calls,
   * failed}. An event for each call ("post-verb" and others) is expensive for the hub: only a screen
   * that shows each call should listen to it.
   */
  on(name, listener) {
    const found = this.#listeners.get(name) ?? new Set();
    found.add(listener);
    this.#listeners.set(name, found);
    this.#adjust();
    return () => {
      found.delete(listener);
      this.#adjust();
    };
  }

  /** Calls back with the state now and whenever it changes; returns what ends it. */
  watch(watcher) {
    this.#watchers.add(watcher);
    watcher(this.state);
    return () => this.#watchers.delete(watcher);
  }

  stop(state) {
    this.#stopped = true;
    this.#close();
    this.#set(state);
  }

  #listPhases() {
    const wanted = [...EVENTS, "activity"].filter((name) => !FREQUENT.has(name) || this.#listeners.get(name)?.size);
    return wanted.join(",");
  }

  /** Opens another stream if other events are wanted now, and closes the old one after that. */
  #adjust() {
    clearTimeout(this.#adjustTimer);
    this.#adjustTimer = setTimeout(() => {
      if (!this.#source || this.#stopped || this.#phases === this.#listPhases()) return;
      const old = this.#source;
      this.#source = null;
      this.#open(() => old.close());
    }, 100);
  }

  #open(onOpen) {
    if (this.#stopped || this.#source) return;
    clearTimeout(this.#timer);
    this.#phases = this.#listPhases();
    const source = new EventSource(`/api/events?${new URLSearchParams({ phase: this.#phases })}`);
    this.#source = source;
    source.onopen = () => {
      onOpen?.();
      // Also at the first time: a screen may have read its rows before.
      const missed = this.#tries > 0 || this.state !== "live";
      this.#tries = 0;
      this.#set("live");
      if (missed) this.#emit("gap", {});
    };
    source.onerror = () => {
      onOpen?.();
      if (this.#source === source) this.#lose();
      else source.close();
    };
    for (const name of this.#phases.split(",")) {
      source.addEventListener(name, (event) => {
        const id = Number(event.lastEventId || 0);
        if (name !== "activity" && id && id <= this.#last) return; // of the stream before
        this.#last = Math.max(this.#last, id);
        this.#emit(name, parse(event.data));
      });
    }
    source.addEventListener("dropped", () => this.#emit("gap", {}));
  }

  #lose() {
    this.#close();
    if (this.#stopped || document.hidden) return;
    // The hub ends a stream after some minutes, which is nothing to report.
    if (this.#tries > 0 || !navigator.onLine) this.#set(this.#tries > 2 ? "offline" : "reconnecting");
    const wait = RETRY_MS[Math.min(this.#tries, RETRY_MS.length - 1)];
    this.#tries += 1;
    this.#timer = setTimeout(() => this.#retry(), wait * (0.75 + Math.random() / 2));
  }

  async #retry() {
    try {
      await this.check();
      this.#open();
    } catch (error) {
      if (error.status === 401) this.stop("signed out");
      else this.#lose();
    }
  }

  #retryNow() {
    if (this.#source || this.#stopped || document.hidden) return;
    clearTimeout(this.#timer);
    this.#retry();
  }

  #followVisibility() {
    clearTimeout(this.#hideTimer);
    if (this.#stopped) return;
    if (!document.hidden) {
      this.#open();
      return;
    }
    this.#hideTimer = setTimeout(() => {
      clearTimeout(this.#timer);
      this.#close();
      this.#set("paused");
    }, HIDDEN_MS);
  }

  #close() {
    this.#source?.close();
    this.#source = null;
  }

  #set(state) {
    this.state = state;
    for (const watcher of this.#watchers) watcher(state);
  }

  #emit(name, data) {
    for (const listener of this.#listeners.get(name) ?? []) listener(data, name);
  }
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}

/** Calls `work` at most once in `ms`, and once more after the last request: for lists that follow
 * many events. */
export function throttle(work, ms = 500) {
  let timer = 0;
  let last = 0;
  return () => {
    if (timer) return;
    timer = setTimeout(() => {
      timer = 0;
      last = Date.now();
      work();
    }, Math.max(0, last + ms - Date.now()));
  };
}
