// Audit: who did what, and is the record whole? Filtered by the server; exported page by page.
import { append, h, replace, to } from "../dom.js";
import { capitalize, empty, facts, heading, linked, problem } from "../states.js";
import { json } from "../copy.js";
import { toast } from "../dialog.js";
import { table } from "../table.js";
import { throttle } from "../live.js";
import { when } from "../time.js";
import * as records from "../records.js";

export const title = "Audit";

const PERIODS = [["", "All times", 0], ["1h", "Last hour", 3600], ["24h", "Last day", 86400], ["7d", "Last 7 days", 604800]];
const MAX_EXPORT = 10000;
const PAGE = 500;

export async function show(root, route, ctx) {
  const filters = buildFilters(route.query, () => {
    writeUrl();
    list.reload();
  });
  function writeUrl() {
    const url = new URL(location.href);
    for (const [name, value] of Object.entries(filters.values())) {
      if (value) url.searchParams.set(name, value);
      else url.searchParams.delete(name);
    }
    history.replaceState(history.state, "", url);
  }
  const list = table({
    label: "Records",
    search: "Search all members",
    filters: filters.elements,
    key: (row) => String(row.seq),
    link: (row) => `/console/audit?record=${row.seq}`,
    columns: [
      { label: "Record", key: "seq", kind: "number" },
      { label: "At", key: "at", kind: "time" },
      { label: "Caller", key: "caller", render: records.caller },
      { label: "Tool or action", key: "verb", render: (row) => records.tool(row) },
      { label: "Outcome", render: records.outcome },
      { label: "Decided by", render: (row) => records.policies(row.policies) },
      { label: "Took", key: "duration_ms", kind: "ms" },
      { label: "Why", render: (row) => records.clamp(records.explain(row)) },
      { label: "Chain", key: "trace", kind: "trace", render: (row) => records.traceLink(row) },
    ],
    load: async ({ q, cursor, limit, signal }) => {
      const found = await ctx.api.get("/api/audit", { q, ...filters.query(), cursor, limit }, signal);
      return { rows: found.records, nextCursor: found.nextCursor };
    },
    limit: 100,
    empty: () => (filters.active() ? h("p", { class: "empty" }, "No record matches these filters.") : empty("No records yet.", "Every call is recorded here. Make one:", "dragoman call NAME key=value")),
  });
  const verdict = h("div", { "aria-live": "polite" });
  const one = h("div", {});
  if (route.query.get("record")) replace(one, await showRecord(Number(route.query.get("record")), ctx));
  append(root, [
    heading("Audit", "Who did what, and is the record whole?",
      h("button", { type: "button", disabled: !ctx.session.rights.includes("users"), title: ctx.session.rights.includes("users") ? null : "Verifying needs admin", onclick: (event) => verify(event.target, verdict, ctx) }, "Verify"),
      h("button", { type: "button", onclick: (event) => exportAll(event.target, () => ({ q: list.state.q, ...filters.query() }), ctx) }, "Export")),
    ctx.session.rights.includes("users") ? null : h("p", { class: "note" }, "These are your own calls. The whole log needs admin."),
    verdict, one, list.element]);
  const refresh = throttle(() => window.scrollY < 200 && list.refresh(), 2000);
  for (const name of ["activity", "policy-changed", "gap"]) ctx.onLeave(ctx.live.on(name, refresh));
}

function buildFilters(query, changed) {
  let timer = 0;
  const later = () => {
    clearTimeout(timer);
    timer = setTimeout(changed, 300);
  };
  const text = (name, label) => h("input", { type: "text", class: "short", "aria-label": label, placeholder: label, value: query.get(name) ?? "", spellcheck: "false", oninput: later });
  const select = (label, options, now) => h("select", { "aria-label": label, onchange: changed },
    options.map(([value, name]) => h("option", { value, selected: value === now }, name)));
  const fields = {
    verb: text("verb", "Tool or action"),
    caller: text("caller", "Caller"),
    agent: text("agent", "Server or agent"),
    trace: text("trace", "Trace"),
    outcome: select("Outcome", [["", "All outcomes"], ...records.OUTCOMES.map((word) => [word, word.replaceAll("_", " ")])], query.get("outcome") ?? ""),
    decision: select("Decision", [["", "All decisions"], ["permit", "permitted"], ["deny", "denied"], ["shadow", "denied in shadow mode"]], query.get("decision") ?? ""),
    period: select("Period", PERIODS, query.get("period") ?? ""),
  };
  const values = () => Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, field.value.trim()]));
  return {
    elements: Object.values(fields),
    values,
    active: () => Object.values(values()).some(Boolean),
    query() {
      const { period, ...others } = values();
      const seconds = PERIODS.find(([name]) => name === period)?.[2];
      return { ...others, since: seconds ? Math.floor(Date.now() / 1000) - seconds : "" };
    },
  };
}

/** One record, for links to it. */
async function showRecord(seq, ctx) {
  try {
    const found = await ctx.api.get("/api/audit", { cursor: seq + 1, limit: 1 }, ctx.signal);
    const row = found.records[0];
    if (!row || row.seq !== seq) return h("p", { class: "note" }, `There is no record ${seq}, or you may not see it.`);
    return h("section", { class: "card", "aria-label": "Chosen record" },
      h("h2", {}, `Record ${seq}: ${row.verb}`),
      facts([
        ["At", when(row.at)], ["Caller", records.caller(row)], ["Outcome", [records.outcome(row), " ", linked(capitalize(records.explain(row)))]],
        ["Decision", records.decision(row)], ["Server or agent", records.target(row)],
        ["Chain", row.trace ? h("a", { href: `${to("traces", row.trace)}?record=${seq}` }, "Show this chain") : null],
      ]),
      json(row, `Record ${seq}`), h("p", {}, h("a", { href: "/console/audit" }, "Close")));
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return problem(error);
  }
}

async function verify(button, box, ctx) {
  button.disabled = true;
  replace(box, h("p", { class: "note" }, "Reading the whole log …"));
  try {
    const found = await ctx.api.post("/api/audit/verify", {}, ctx.signal);
    const count = Number(found.entries ?? 0).toLocaleString("en");
    replace(box, found.ok
      ? h("p", { class: "note" }, `The record is whole: ${count} entries, none changed, moved or missing.`)
      : h("div", { class: "problem" },
        h("p", {}, `The record is not whole. ${capitalize(found.problem ?? "")}`),
        h("p", { class: "next" }, `${count} entries before that are intact. Keep this home as it is, and compare it with a backup. See: dragoman docs operations`)));
  } catch (error) {
    if (error.name !== "AbortError") replace(box, problem(error));
  }
  button.disabled = false;
}

/** Downloads what the filters find as JSON lines, at most MAX_EXPORT records. */
async function exportAll(button, query, ctx) {
  button.disabled = true;
  const lines = [];
  let cursor = null;
  try {
    do {
      const found = await ctx.api.get("/api/audit", { ...query(), cursor, limit: PAGE }, ctx.signal);
      for (const row of found.records) lines.push(JSON.stringify(row));
      cursor = found.nextCursor;
      button.textContent = `Export … ${lines.length.toLocaleString("en")}`;
    } while (cursor && lines.length < MAX_EXPORT);
    records.download("audit.jsonl", `${lines.join("\n")}\n`, "application/jsonl");
    toast(cursor ? `Exported the newest ${lines.length.toLocaleString("en")} records; narrow the filters for the rest, or use: dragoman audit tail --json` : `Exported ${lines.length.toLocaleString("en")} records`);
  } catch (error) {
    if (error.name !== "AbortError") toast(error.message, "error");
  }
  button.disabled = false;
  button.textContent = "Export";
}
