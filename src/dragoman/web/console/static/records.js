// Records of the audit log in words: how a call ended, why, who decided, and where its names lead.
import { h, to } from "./dom.js";
import { badge, linked } from "./states.js";

const WORDS = {
  refused: "The hub refused it; nothing was sent.",
  not_found: "There is no such tool, or the caller may not see it.",
  invalid: "The arguments were not valid; nothing was sent.",
  target_failed: "The server or agent failed, or did not answer.",
  failed: "The tool itself reported a failure.",
  cancelled: "The caller cancelled it.",
  crashed: "The hub made a mistake; its log says more.",
  asked: "It asked a question instead of a result.",
  running: "It has not ended yet.",
  parked: "The target continues it as a task; a later record has the outcome.",
  unknown: "The hub stopped before the end was recorded.",
  break: "Records are missing here.",
};

export const OUTCOMES = ["completed", "failed", "asked", "parked", "refused", "not_found", "invalid", "target_failed", "cancelled", "crashed", "running", "unknown", "break"];

/** Whether the call did not do what was asked: `bad`, `warn` or "". */
export function toneOf(outcome) {
  if (["failed", "target_failed", "crashed", "break", "refused", "invalid"].includes(outcome)) return "bad";
  if (["not_found", "cancelled", "unknown"].includes(outcome)) return "warn";
  return "";
}

/** The outcome as a badge. */
export function outcome(row) {
  return badge(row.outcome, WORDS[row.outcome]);
}

/** Why a call ended as it did, in a sentence; "" for one that completed. */
export function explain(row) {
  if (row.outcome === "completed") return "";
  return row.message || WORDS[row.outcome] || "";
}

/** Two lines of a longer text; nothing for no text. */
export function clamp(text) {
  return text ? h("span", { class: "clamp" }, linked(text)) : "";
}

/** The policies that decided, as links. */
export function policies(names) {
  return (names ?? []).map((id, index) => [index ? ", " : "", h("a", { href: `/console/policies?policy=${encodeURIComponent(id)}` }, word(id))]);
}

/** The decision in words: "denied by nobody-wipes". */
export function decision(row) {
  if (!row.decision) return "";
  const word = row.decision === "permit" ? "permitted" : "denied";
  return [word, row.policies?.length ? [" by ", policies(row.policies)] : row.decision === "deny" ? ": no policy permits it" : ""];
}

/** A name that is not broken in a narrow column, unless it is long. */
export function word(text) {
  return String(text ?? "").length > 36 ? text : h("span", { class: "word" }, text);
}

export function caller(row) {
  return [word(row.caller), row.on_behalf_of && row.on_behalf_of !== row.caller ? h("span", { class: "soft" }, ` for ${row.on_behalf_of}`) : null];
}

/** The tool of a call as a link; actions of administrators have no page. */
export function tool(row) {
  if (!row.target || row.target === "nowhere") return h("code", {}, row.verb ?? "");
  return h("a", { href: to("tools", row.verb) }, word(row.verb));
}

/** The server or agent that a call went to. */
export function target(row) {
  if (!row.target || row.target === "nowhere") return "";
  const isAgent = row.agent || String(row.verb).endsWith(".message");
  return h("a", { href: to(isAgent ? "agents" : "servers", row.agent ?? row.target) }, row.target);
}

export function traceLink(row, text) {
  return row.trace ? h("a", { href: to("traces", row.trace) }, text ?? h("code", {}, row.trace.slice(0, 8))) : "";
}

/** Saves text as a file of the browser. */
export function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = h("a", { download: name });
  link.href = url;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** Numbers as a person reads them: tokens, cost, seconds. */
export function usage(all) {
  const words = [];
  const tokens = (all.input_tokens ?? 0) + (all.output_tokens ?? 0);
  if (tokens) words.push(`${tokens.toLocaleString("en")} tokens`);
  if (all.cost) words.push(`$${all.cost.toFixed(all.cost < 0.01 ? 5 : 3)}`);
  if (all.model_calls) words.push(`${all.model_calls} model calls`);
  return words.join(", ");
}
