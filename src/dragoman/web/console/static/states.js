// What a screen shows instead of data: errors, emptiness, waiting. And badges for states.
import { h, to } from "./dom.js";
import { command } from "./copy.js";

const COMMANDS = /dragoman (?:pins (?:diff|approve) ('[^']*'|[^\s`;,]+)|approvals (?:show|approve) ([\w-]+))/g;

/** A sentence of the hub: a command that a screen of the console does as well is a link to it. */
export function linked(text) {
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(COMMANDS)) {
    const [command, pin, approval] = match;
    const href = approval ? to("approvals", approval) : `/console/pins?name=${encodeURIComponent(pin.replace(/^'(.*)'$/, "$1"))}`;
    parts.push(text.slice(from, match.index), h("a", { href }, command));
    from = match.index + command.length;
  }
  return [...parts, text.slice(from)];
}

/** An error with what to do; `again` adds a button. Links in its message are the better advice. */
export function problem(error, again) {
  const message = linked(capitalize(error.message ?? String(error)));
  return h("div", { class: "problem", role: "alert" },
    h("p", {}, message),
    error.next && message.length === 1 ? h("p", { class: "next" }, error.next) : null,
    error.trace ? h("p", {}, h("a", { href: `/console/traces/${encodeURIComponent(error.trace)}` }, "Show the trace")) : null,
    again ? h("button", { type: "button", onclick: again }, "Try again") : null);
}

/** An empty state: what is missing, the next step, and a command to copy. */
export function empty(text, next, shell) {
  return h("div", { class: "empty" }, h("p", {}, text), next ? h("p", {}, next) : null, shell ? command(shell) : null);
}

export function waiting(text = "Loading …") {
  return h("p", { class: "waiting", role: "status" }, text);
}

const TONES = {
  good: ["connected", "healthy", "completed", "ok", "valid", "active", "approved", "permit", "live", "allow"],
  warn: ["starting", "idle", "degraded", "needs_login", "warning", "pending", "waiting", "needs_decision", "queued", "held", "new", "minor", "reconnecting", "expired", "unknown"],
  bad: ["failed", "unreachable", "problem", "refused", "denied", "deny", "target_failed", "crashed", "invalid", "revoked", "offline", "break", "signed out"],
};

/** A state in words with a semantic colour; never colour alone. */
export function badge(state, title) {
  const text = String(state ?? "");
  const tone = Object.keys(TONES).find((name) => TONES[name].includes(text)) ?? "plain";
  return h("span", { class: `badge ${tone}`, title }, text.replaceAll("_", " "));
}

export function capitalize(text) {
  return text ? text[0].toUpperCase() + text.slice(1) : text;
}

/** A title with the question that the screen answers, and its actions. */
export function heading(title, question, ...actions) {
  return h("div", { class: "title" }, h("h1", {}, title), question ? h("p", { class: "question" }, question) : null,
    actions.length ? h("div", { class: "actions" }, actions) : null);
}

/** Facts as a list: facts([["Server", node], ["State", badge("connected")]]); empty ones are left out. */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs
    .filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
    .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}
