// Home: what is connected, what is happening now, and what waits for a person. An empty hub opens on
// the first steps.
import { h, replace, to } from "../dom.js";
import { badge, capitalize, empty, heading } from "../states.js";
import { command } from "../copy.js";
import { throttle } from "../live.js";
import { duration, when } from "../time.js";
import { CallMap } from "../call_map.js";
import { showFirstSteps } from "../first_steps.js";

export const title = "Home";
const PERIODS = [["15", "15 minutes"], ["60", "hour"], ["1440", "day"]];
const SETTLED_MS = 2500; // calls are recorded by then

export async function show(root, route, ctx) {
  const minutes = PERIODS.some(([value]) => value === route.query.get("minutes")) ? route.query.get("minutes") : "60";
  let data = await ctx.api.get("/api/map", { minutes }, ctx.signal);
  const isEmpty = !data.nodes.length && !data.edges.length;
  if ((isEmpty && ctx.session.rights.includes("registry")) || route.query.has("first")) return showFirstSteps(root, ctx, !isEmpty);

  const map = new CallMap(ctx.navigate);
  map.update(data);
  const rows = h("tbody", {});
  const details = h("details", { ontoggle: () => details.open && drawRows() }, h("summary", {}, "As a table"),
    h("div", { class: "table" }, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Calls" }, h("table", {}, h("thead", {}, h("tr", {},
      ["From", "To"].map((label) => h("th", { scope: "col" }, label)), ["Calls", "Failed", "Refused", "Median", "95 %"].map((label) => h("th", { scope: "col", class: "number" }, label)), h("th", { scope: "col" }, "Last"))), rows))));
  const drawRows = () => replace(rows, map.edges.slice(0, 500).map((edge) => h("tr", {},
    h("td", {}, edge.from), h("td", { dataset: { label: "To" } }, edge.to),
    [["Calls", edge.calls], ["Failed", edge.failed], ["Refused", edge.refused], ["Median", duration(edge.p50_ms)], ["95 %", duration(edge.p95_ms)]].map(([label, value]) =>
      h("td", { class: "number", dataset: { label } }, typeof value === "number" ? value.toLocaleString("en") : value)),
    h("td", { dataset: { label: "Last" } }, edge.trace ? h("a", { href: to("traces", edge.trace) }, when(edge.last)) : when(edge.last)))));

  const period = h("select", { "aria-label": "Period", onchange: () => ctx.navigate(period.value === "60" ? "/console/" : `/console/?minutes=${period.value}`) },
    PERIODS.map(([value, label]) => h("option", { value, selected: value === minutes }, label)));
  const total = h("span", { class: "number soft" });
  const sayTotal = () => {
    const sum = (name) => map.edges.reduce((all, edge) => all + edge[name], 0);
    total.textContent = `${sum("calls").toLocaleString("en")} calls, ${sum("failed").toLocaleString("en")} failed, ${sum("refused").toLocaleString("en")} refused${data.complete === false ? " in the newest records" : ""}`;
  };
  sayTotal();
  const panels = buildPanels(ctx);
  await panels.first;
  root.append(
    heading("Home", "What is connected, and what is happening now?", h("a", { class: "button", href: "/console/?first=1" }, "First steps")),
    h("div", { class: "home-grid" },
      h("section", { class: "home-map", "aria-label": "Call map" },
        h("div", { class: "row map-bar" }, h("h2", {}, "Calls of the last "), period, total),
        data.edges.length ? null : h("p", { class: "soft" }, "No calls in this period. Try a tool in the ", h("a", { href: "/console/playground" }, "playground"), ", or from a shell: ", command("dragoman tools")),
        map.element, details),
      h("div", { class: "home-side" }, panels.element)));

  async function read() {
    try {
      data = await ctx.api.get("/api/map", { minutes }, ctx.signal);
      map.update(data);
      sayTotal();
      if (details.open) drawRows();
    } catch {
      // The next event tries again; the header shows the state of the connection.
    }
  }
  async function settle() {
    await read(); // may be of before the last call: the hub computes one map for all pages, now and then
    if (!ctx.signal.aborted) timer = setTimeout(read, data.nextInMs + 100);
  }
  const soon = throttle(read, 2000);
  let timer = setTimeout(() => {
    settle(); // the events of calls begin a moment after the page
    panels.failures();
  }, SETTLED_MS);
  ctx.onLeave(() => clearTimeout(timer));
  ctx.onLeave(ctx.live.on("activity", (event) => {
    soon();
    clearTimeout(timer);
    timer = setTimeout(settle, SETTLED_MS);
    if (event.failed) panels.failures();
  }));
  for (const name of ["server-changed", "agent-changed", "gap"]) ctx.onLeave(ctx.live.on(name, soon));
}

// --- what waits, what failed, what is wrong -------------------------------------------------------

function buildPanels(ctx) {
  const waiting = h("section", { class: "card" });
  const failures = h("section", { class: "card" });
  const health = h("section", { class: "card" });
  const quietly = (path, query) => ctx.api.get(path, query, ctx.signal).catch((error) => {
    if (error.name === "AbortError") throw error;
    return null;
  });

  async function readWaiting() {
    const { admin } = ctx.session;
    const [approvals, pins, servers] = await Promise.all([
      quietly("/api/approvals", { state: "pending", limit: 50 }),
      admin ? quietly("/api/pins", { state: "held" }) : null,
      quietly("/api/mcp/servers", { tools: 0 }),
    ]);
    const items = [
      ...(approvals?.approvals ?? []).filter((one) => one.canDecide).map((one) => [to("approvals", one.id), one.title, `${one.requester} asks for approval`]),
      ...(pins?.pins ?? []).filter((one) => one.state === "held").map((one) => [`/console/pins?name=${encodeURIComponent(one.name)}`, one.name, "changed since it was approved"]),
      ...(servers?.connected ?? []).filter((one) => one.state === "needs_login").map((one) => [to("servers", one.name), one.name, "needs a login"]),
    ];
    replace(waiting, h("h2", {}, "Waits for you", items.length ? h("span", { class: "tally" }, String(items.length)) : null),
      items.length ? listItems(items) : h("p", { class: "soft" }, "Nothing."));
  }

  async function readFailures() {
    const found = await quietly("/api/traces", { limit: 60 });
    const bad = (found?.traces ?? []).filter((one) => one.failed || one.refused);
    replace(failures, h("h2", {}, "Went wrong lately"),
      bad.length ? h("ul", { class: "plain" }, bad.slice(0, 5).map((one) => h("li", {},
        h("span", { class: "row" }, h("a", { href: to("traces", one.trace) }, one.verb), badge(one.refused ? "refused" : "failed"), h("span", { class: "soft" }, when(one.at))),
        one.problem ? h("div", { class: "clamp soft" }, capitalize(one.problem)) : null)), bad.length > 5 ? h("li", {}, h("a", { href: "/console/traces?q=refused" }, "More")) : null)
        : h("p", { class: "soft" }, "None of the newest calls failed or was refused."));
  }

  async function readHealth() {
    if (!ctx.session.rights.includes("registry")) {
      replace(health, h("h2", {}, "Health"), h("p", { class: "soft" }, "Administrators see the findings of the doctor here."));
      return;
    }
    if (!doctor || Date.now() - doctor.at > 300000) {
      replace(health, h("h2", {}, "Health"), h("p", { class: "soft" }, "The doctor is looking …"));
      const found = await quietly("/api/doctor");
      if (found) doctor = { at: Date.now(), checks: found.checks };
    }
    const bad = (doctor?.checks ?? []).filter((one) => one.level === "problem" || one.level === "warning");
    replace(health, h("h2", {}, "Health"), !doctor ? h("p", { class: "soft" }, "The doctor could not look.") : bad.length
      ? h("ul", { class: "plain" }, bad.slice(0, 5).map((one) => h("li", {}, badge(one.level), " ", h("b", {}, one.check), " ", h("span", { class: "clamp" }, one.said))), h("li", {}, h("a", { href: "/console/health" }, "All checks and fixes")))
      : h("p", { class: "soft" }, `No problem in ${doctor.checks.length} checks.`));
  }

  const again = throttle(() => readWaiting().catch(() => {}), 1000);
  for (const name of ["pin-held", "pin-added", "approval-requested", "approval-decided", "login-needed", "login-changed", "server-changed", "gap"]) ctx.onLeave(ctx.live.on(name, again));
  readHealth().catch(() => {});
  return {
    element: [waiting, failures, health],
    first: Promise.all([readWaiting(), readFailures()]),
    failures: throttle(() => readFailures().catch(() => {}), 2000),
  };
}
let doctor = null;

function listItems(items) {
  return h("ul", { class: "plain" }, items.slice(0, 6).map(([href, name, why]) => h("li", {}, h("a", { href }, name), h("span", { class: "soft" }, ` ${why}`))),
    items.length > 6 ? h("li", { class: "soft" }, `and ${items.length - 6} more`) : null);
}
