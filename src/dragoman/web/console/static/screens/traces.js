// Traces: what happened in a request, at every hop. The first line of each says what went wrong.
import { h, replace, s, to } from "../dom.js";
import { badge, capitalize, empty, facts, heading, linked, problem } from "../states.js";
import { json } from "../copy.js";
import { table } from "../table.js";
import { throttle } from "../live.js";
import { duration, when } from "../time.js";
import * as records from "../records.js";

export const title = "Traces";

export async function show(root, route, ctx) {
  return route.name ? showOne(root, route, ctx) : showAll(root, route, ctx);
}

async function showAll(root, route, ctx) {
  const chosen = route.query.get("q") ?? "";
  const chips = [["", "All"], ["refused", "Refused"], ["failed", "Failed"]].map(([word, label]) =>
    h("a", { class: "chip", href: word ? `/console/traces?q=${word}` : "/console/traces", "aria-current": chosen === word ? "true" : null }, label));
  const list = table({
    label: "Traces",
    search: "Search tool, caller, outcome",
    filters: [h("span", { class: "chips" }, chips)],
    key: (row) => row.trace,
    link: (row) => to("traces", row.trace),
    columns: [
      { label: "First call", key: "verb", render: (row) => records.word(row.verb) },
      { label: "Began", key: "at", kind: "time" },
      { label: "Caller", key: "caller", render: records.caller },
      { label: "Calls", key: "calls", kind: "number" },
      { label: "Took", key: "duration_ms", kind: "ms" },
      { label: "Outcome", render: (row) => [
        row.calls > 1 && row.refused ? [badge("refused", `${row.refused} of ${row.calls} calls`), " "] : null,
        row.calls > 1 && row.failed ? badge("failed", `${row.failed} of ${row.calls} calls`) : null,
        row.calls === 1 || !(row.refused || row.failed) ? records.outcome(row) : null] },
      { label: "What went wrong", render: (row) => records.clamp(capitalize(row.problem ?? "")) },
    ],
    load: async ({ q, cursor, limit, signal }) => {
      const found = await ctx.api.get("/api/traces", { q, cursor, limit }, signal);
      return { rows: found.traces, nextCursor: found.nextCursor };
    },
    limit: 50,
    empty: () => empty("No calls yet.", "Make one, and its trace appears here:", "dragoman call NAME key=value"),
  });
  const refresh = throttle(list.refresh, 2000);
  for (const name of ["activity", "gap"]) ctx.onLeave(ctx.live.on(name, refresh));
  const timer = setTimeout(refresh, 3000); // the events of calls begin a moment after the page
  ctx.onLeave(() => clearTimeout(timer));
  root.append(heading("Traces", "What happened in each request, at every hop?"), list.element);
}

async function showOne(root, route, ctx) {
  const box = h("div", {});
  const opened = new Set([Number(route.query.get("record"))].filter(Boolean));
  let until = 0; // calls may follow for a while
  let shown = "";
  async function refresh() {
    try {
      const found = await ctx.api.get(`/api/traces/${encodeURIComponent(route.name)}`, {}, ctx.signal);
      const newest = found.records.at(-1);
      until = found.records.some((row) => row.outcome === "running") ? Infinity : (newest.time + 300) * 1000;
      const shape = JSON.stringify(found.records.map((row) => [row.seq, row.outcome]));
      if (shape === shown) return;
      shown = shape;
      draw(box, found, opened);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error.status === 404 || error.status === 400) replace(box, heading("Trace", route.name.slice(0, 40)), empty(capitalize(error.message), "Look at the recent ones:", "dragoman audit tail"));
      else replace(box, heading("Trace"), problem(error, refresh));
    }
  }
  await refresh();
  root.append(box);
  const again = throttle(refresh, 500);
  ctx.onLeave(ctx.live.on("activity", () => Date.now() < until && again()));
  ctx.onLeave(ctx.live.on("gap", again));
}

/** Puts the records of a chain in order: each call after the one that made it. */
function draw(box, found, opened) {
  const rows = found.records;
  const start = Math.min(...rows.map((row) => row.time));
  const end = Math.max(...rows.map((row) => row.time + (row.duration_ms ?? 0) / 1000));
  const first = rows[0];
  const bad = rows.filter((row) => records.toneOf(row.outcome));
  const cause = bad.length ? bad.reduce((one, other) => (other.depth > one.depth ? other : one)) : null; // the deepest
  const spent = records.usage(found.usage.reduce(addUp, {}));
  replace(box,
    heading(first.verb, null, h("a", { class: "button", href: `/console/audit?trace=${found.trace}` }, "In the audit log")),
    h("p", { class: "summary" },
      `${rows.length === 1 ? "One call" : `${rows.length} calls`} in ${duration((end - start) * 1000)} by `, h("b", {}, records.caller(first)), `, ${DOORS[first.door] ?? first.door ?? ""}, `,
      when(first.at), spent ? `. Used ${spent}` : "", ". Trace ", h("code", {}, found.trace)),
    found.complete === false ? h("p", { class: "note" }, `The trace is longer: these are its newest ${rows.length} calls.`) : null,
    cause ? sayTrouble(cause, rows) : null,
    h("div", { class: "waterfall", role: "list", "aria-label": "Calls of this trace" }, rows.map((row) => drawHop(row, start, end, opened, row === cause))),
    found.usage.length ? drawUsage(found.usage) : null);
}

const DOORS = { api: "by the API", "mcp-stdio": "by MCP over stdio", "mcp-http": "by MCP over HTTP", "mcp-sse": "by MCP over SSE", a2a: "by A2A", agent: "by an agent", grpc: "by A2A over gRPC", console: "in the console" };

function addUp(sum, one) {
  for (const [name, value] of Object.entries(one)) if (typeof value === "number") sum[name] = (sum[name] ?? 0) + value;
  return sum;
}

/** Says at the top which call was refused or failed, and why. */
function sayTrouble(cause, rows) {
  const count = rows.filter((row) => records.toneOf(row.outcome)).length;
  return h("div", { class: "problem" },
    h("p", {}, h("b", {}, cause.verb), ` ${VERBS[cause.outcome] ?? cause.outcome}. `, linked(capitalize(records.explain(cause)))),
    cause.decision === "deny" ? h("p", {}, "Decision: ", records.decision(cause), ". ",
      h("a", { href: `/console/policies?principal=${encodeURIComponent(cause.caller)}&tool=${encodeURIComponent(cause.verb)}` }, "Ask the policies why")) : null,
    cause.taint ? h("p", {}, "Taint: ", cause.taint.map((one) => Object.values(one).join(" ")).join("; ")) : null,
    cause.error === "Quarantined" ? h("p", {}, h("a", { href: `/console/pins?name=${encodeURIComponent(cause.verb)}` }, "See what changed, and decide")) : null,
    count > 1 ? h("p", { class: "soft" }, `${count} calls of this trace did not complete; this is the deepest.`) : null);
}

const VERBS = { refused: "was refused", not_found: "was not found", invalid: "was called with invalid arguments", target_failed: "failed at its server or agent", failed: "reported a failure", cancelled: "was cancelled", crashed: "crashed in the hub", unknown: "has no recorded end" };

function drawHop(row, start, end, opened, isCause) {
  const more = h("div", { class: "hop-more", hidden: !opened.has(row.seq) });
  const fill = () => more.hidden || more.firstChild || more.append(...describe(row));
  const button = h("button", { type: "button", class: "hop-name", "aria-expanded": String(!more.hidden), onclick: () => {
    more.hidden = !more.hidden;
    button.setAttribute("aria-expanded", String(!more.hidden));
    if (more.hidden) opened.delete(row.seq);
    else opened.add(row.seq);
    fill();
    const url = new URL(location.href);
    if (more.hidden) url.searchParams.delete("record");
    else url.searchParams.set("record", row.seq);
    history.replaceState(history.state, "", url);
  }, onkeydown: moveFocus }, row.verb);
  const why = records.explain(row);
  const element = h("div", { class: `hop depth-${Math.min(row.depth ?? 0, 8)}`, role: "listitem" },
    h("div", { class: "hop-line" },
      h("div", { class: "hop-left" }, button, h("span", { class: "hop-who" }, records.caller(row), row.labels?.length ? ` · labels ${row.labels.join(", ")}` : null)),
      h("div", { class: "hop-bar" }, drawBar(row, start, end)),
      h("div", { class: "hop-took number" }, row.outcome === "running" ? "…" : duration(row.duration_ms)),
      h("div", { class: "hop-end" }, records.outcome(row))),
    why && !isCause ? h("p", { class: "hop-why" }, linked(capitalize(why)), row.decision === "deny" && row.policies?.length ? [" Policy: ", records.policies(row.policies), "."] : null) : null,
    more);
  fill();
  return element;
}

function moveFocus(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const all = [...document.querySelectorAll(".hop-name")];
  const other = all[all.indexOf(event.target) + step];
  if (other) {
    event.preventDefault();
    other.focus();
  }
}

function drawBar(row, start, end) {
  const all = Math.max(end - start, 1e-6);
  const from = ((row.time - start) / all) * 100;
  const width = Math.max(((row.duration_ms ?? 0) / 1000 / all) * 100, 0.8);
  const offset = duration((row.time - start) * 1000);
  return s("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": `began after ${offset}, took ${duration(row.duration_ms) || "an unknown time"}` },
    s("rect", { x: 0, y: 4.8, width: 100, height: 0.4, class: "rail" }),
    s("rect", { x: Math.min(from, 99.2), y: 1, width: Math.min(width, 100 - Math.min(from, 99.2)), height: 8, class: `bar ${records.toneOf(row.outcome)}` }));
}

function describe(row) {
  const raw = h("div", {});
  const reveal = h("button", { type: "button", class: "quiet", onclick: () => {
    replace(raw, json(row, `Record ${row.seq}`));
    reveal.remove();
  } }, "Show the record as JSON");
  return [
    facts([
      ["Tool", [records.tool(row), row.asked_as && row.asked_as !== row.verb ? h("span", { class: "soft" }, ` asked for as ${row.asked_as}`) : null]],
      ["Server or agent", records.target(row)],
      ["Caller", records.caller(row)],
      ["Entry point", capitalize(DOORS[row.door] ?? row.door ?? "")],
      ["Decision", records.decision(row)],
      ["Policy set", row.policy_set ? h("code", {}, row.policy_set) : null],
      ["In shadow mode", row.shadow ? ["would be denied by ", records.policies(row.shadow.policies)] : null],
      ["Kind of error", row.error ? h("code", {}, row.error) : null],
      ["Said", row.message],
      ["Labels", row.labels?.join(", ")],
      ["Sources of labels", row.sources ? Object.entries(row.sources).map(([label, why]) => h("div", {}, `${label}: ${why}`)) : null],
      ["Taint", row.taint?.map((one) => h("div", {}, Object.entries(one).map(([name, text]) => `${name} ${text}`).join(", ")))],
      ["Approval", row.approval ? h("a", { href: to("approvals", row.approval) }, row.approval) : null],
      ["Usage", row.usage ? records.usage(row.usage) || JSON.stringify(row.usage) : null],
      ["Remote task", row.far_task ? h("code", {}, row.far_task) : null],
      ["Called in", row.chain?.join(" → ")],
      ["Arguments", row.args_bytes === undefined ? null : `${row.args_bytes.toLocaleString("en")} bytes; the audit log does not keep them`],
      ["Began", when(row.at)],
      ["Record", h("a", { href: `/console/audit?record=${row.seq}` }, `number ${row.seq}`)],
    ]),
    reveal, raw,
  ];
}

function drawUsage(rows) {
  return h("section", {}, h("h2", {}, "Tokens and cost"), h("div", { class: "table" }, h("table", {},
    h("thead", {}, h("tr", {}, ["Agent", "Model"].map((one) => h("th", { scope: "col" }, one)), ["Input tokens", "Output tokens", "Cost"].map((one) => h("th", { scope: "col", class: "number" }, one)))),
    h("tbody", {}, rows.map((row) => h("tr", {},
      h("td", {}, h("a", { href: to("agents", row.agent) }, row.agent)), h("td", { dataset: { label: "Model" } }, row.model),
      [row.input_tokens, row.output_tokens].map((value, index) => h("td", { class: "number", dataset: { label: index ? "Output tokens" : "Input tokens" } }, value.toLocaleString("en"))),
      h("td", { class: "number", dataset: { label: "Cost" } }, `$${row.cost.toFixed(5)}`)))))));
}
