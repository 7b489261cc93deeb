// Small parts of screens: plain tables, tabs, links, buttons, numbers.
import { h, to } from "./dom.js";
import { throttle } from "./live.js";
import { toast } from "./dialog.js";

/** grid("Keys", [["Name", (row) => row.name], ["Streams", (row) => row.streams, "number"]], rows) */
export function grid(label, columns, rows) {
  return h("div", { class: "table" }, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, h("table", {},
    h("thead", {}, h("tr", {}, columns.map(([name, , kind]) => h("th", { scope: "col", class: kind }, name)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, columns.map(([name, render, kind]) => h("td", { class: kind, dataset: { label: name } }, render(row)))))))));
}

/** Links to the parts of a screen: tabs("health", "keys", [["", "Checks"], ["keys", "Keys"]]). */
export function tabs(screen, current, parts) {
  return h("p", { class: "tabs", role: "navigation", "aria-label": "Parts of this screen" }, parts.map(([key, label]) =>
    h("a", { href: `/console/${screen}${key ? `?tab=${key}` : ""}`, "aria-current": key === current ? "page" : null }, label)));
}

/** A link to something by its name: ref("tools", "time.now"). */
export const ref = (screen, name, label = name) => h("a", { href: to(screen, name) }, label);
export const tryLink = (tool) => `/console/playground?tool=${encodeURIComponent(tool)}`;
export const soft = (...text) => h("p", { class: "soft" }, text);
export const h2 = (...text) => h("h2", {}, text);
export const p = (...text) => h("p", {}, text);
export const bold = (...text) => h("strong", {}, text);
export const code = (...text) => h("code", {}, text);
export const num = (value) => Number(value).toLocaleString("en");
/** A button that does not send a form: act("Restart", f, {class: "danger"}). */
export const act = (label, onclick, more) => h("button", { type: "button", onclick, ...more }, label);

/** Writes a parameter into the address without loading anything; empty removes it. */
export function setQuery(name, value) {
  const url = new URL(location.href);
  if (value) url.searchParams.set(name, value);
  else url.searchParams.delete(name);
  window.history.replaceState(window.history.state, "", url);
}

/** Calls `work` soon after events of these names, and after a gap in the events. */
export function follow(ctx, names, work, ms) {
  const soon = throttle(work, ms);
  for (const name of [...names.split(" "), "gap"]) ctx.onLeave(ctx.live.on(name, soon));
}

/** Does something and says so, or says what was wrong; returns whether it was done. */
export async function attempt(work, said) {
  try {
    await work();
    toast(said);
    return true;
  } catch (error) {
    toast(error.message, "error");
    return false;
  }
}
