// Limits: who is near one, what was refused, when it is free again, and who holds streams.
import { append, h, replace } from "../dom.js";
import { badge, heading, problem } from "../states.js";
import { command } from "../copy.js";
import { duration, money, when } from "../time.js";
import { meter } from "../svg.js";
import { loadWhole, table } from "../table.js";
import { bold, follow, grid, h2, num, p, ref, soft } from "../parts.js";

export const title = "Limits";

const EVERY_MS = 4000;
const NAMES = { calls_in_flight: "Calls at once", target_calls: "Calls to one server or agent", tasks: "Tasks of A2A clients", connections: "Connections" };
const SCOPES = { owner: "owner", principal: "key or user", org: "org", address: "address without a key" };

export async function show(root, route, ctx) {
  const { admin } = ctx.session;
  const [budgets, spent, running, refused] = Array.from({ length: 4 }, () => h("div", {}));
  const sum = h("p", { class: "sum", role: "status" });
  let open = [];
  let clients = null;

  async function refresh() {
    const [limits, found] = await Promise.all([ctx.api.get("/api/limits", {}, ctx.signal), admin ? ctx.api.get("/api/clients", {}, ctx.signal) : null]);
    open = found?.clients ?? [];
    clients?.refresh();
    replace(sum, sumUp(limits, open));
    replace(budgets, showBudgets(limits, admin));
    replace(running, showConcurrency(limits.concurrency));
  }
  const readSpent = async () => replace(spent, showSpent(await fetchSpent(ctx)));
  async function readRefused() {
    const { records } = await ctx.api.get("/api/audit", { outcome: "refused", limit: 15 }, ctx.signal);
    replace(refused, records.length ? grid("Refused calls", [
      ["When", (row) => when(row.at)], ["Who", (row) => row.caller], ["Tool", (row) => ref("tools", row.verb)],
      ["Why", (row) => h("span", { class: "clamp" }, row.error?.message ?? row.error ?? row.decision ?? "")], ["Trace", (row) => (row.trace ? ref("traces", row.trace, row.trace.slice(0, 8)) : "")],
    ], records) : soft("Nothing was refused."), records.length ? p(h("a", { href: "/console/audit?outcome=refused" }, "All refused calls")) : null);
  }
  await Promise.all([refresh(), readSpent()]);
  if (admin) clients = buildClients(() => open);
  append(root, [
    heading("Limits", "Who is near a limit, what was refused, and when is it free again?"), sum,
    h2("Rate limits"), budgets,
    clients ? [h2("Clients and their streams"), clients.element] : soft("Clients and the budgets of others are shown to administrators."),
    h2("At once"), running,
    h2("Money and tokens today"), spent,
    h2("Refused lately"), refused,
  ]);
  readRefused().catch(() => {}); // a long log may take a second
  const again = () => document.hidden || refresh().catch((error) => error.name === "AbortError" || replace(budgets, problem(error, again)));
  const timer = setInterval(again, EVERY_MS);
  follow(ctx, "verb-error", () => readRefused().catch(() => {}), 1500);
  follow(ctx, "cost", () => readSpent().catch(() => {}), 1500);
  return () => clearInterval(timer);
}

/** The two answers at a glance: who is nearest to a limit, and who holds the most streams. */
function sumUp(limits, clients) {
  const nearest = (limits.lowest ?? limits.budgets)[0];
  const share = nearest ? Math.round((nearest.remaining / nearest.burst) * 100) : 100;
  const most = clients[0];
  return [
    nearest && share < 90 ? [bold(nearest.name), ` has ${share} % of its rate left, and all of it in ${duration(nearest.full_in_secs * 1000)}. `] : "Nobody is near a rate limit. ",
    most?.streams ? [bold(most.name || most.principal), most.name ? ` (${most.principal})` : "", " holds the most streams: ", bold(num(most.streams)), "."] : null,
  ];
}

function showBudgets(limits, admin) {
  const rows = admin ? limits.lowest ?? [] : limits.budgets;
  return [
    rows.length ? grid("Budgets", [
      ["Who", (row) => row.name], ["Kind", (row) => SCOPES[row.scope] ?? row.scope],
      ["Left", (row) => h("span", { class: "row" }, meter(row.burst - row.remaining, row.burst, `${Math.floor(row.remaining)} of ${row.burst} are left`, 120), `${num(Math.floor(row.remaining))} of ${num(row.burst)}`)],
      ["Refills a minute", (row) => num(row.per_minute), "number"],
      ["Full again", (row) => (row.full_in_secs > 0.05 ? `in ${duration(row.full_in_secs * 1000)}` : "now"), "number"],
    ], rows) : soft("Nobody has used any of it lately."),
    h("details", { class: "more" }, h("summary", {}, "What operations cost, and the settings"),
      grid("Costs", [["Operation", (row) => row[0]], ["Tokens of the budget", (row) => row[1], "number"]], Object.entries(limits.costs)),
      grid("Rates", [["Budget of", (row) => SCOPES[row[0]] ?? row[0]], ["A minute", (row) => num(row[1].per_minute), "number"], ["At once", (row) => num(row[1].burst), "number"]], Object.entries(limits.rates)),
      p("Change them in [limits.rate] of config.toml; see "), command("dragoman docs rate-limits")),
  ];
}

function showConcurrency(found) {
  return grid("At once", [
    ["What", (row) => NAMES[row[0]] ?? row[0]],
    ["Running", (row) => (row[1].running === undefined ? "" : h("span", { class: "row" }, meter(row[1].running, row[1].limit, `${row[1].running} of ${row[1].limit}`, 120), num(row[1].running)))],
    ["At most", (row) => num(row[1].limit), "number"], ["Each principal", (row) => row[1].each ? num(row[1].each) : "", "number"],
  ], Object.entries(found));
}

/** What agents and callers have used today, with the budgets of agents. */
async function fetchSpent(ctx) {
  const today = new Date().toISOString().slice(0, 10);
  const read = async (by) => (await ctx.api.get("/api/usage", { by: `${by},day`, days: 1 }, ctx.signal)).usage.filter((one) => one.day === today);
  const [agents, origins, local] = await Promise.all([read("agent"), read("origin"), ctx.api.get("/api/agents", { grants: "no" }, ctx.signal)]);
  const budgets = new Map(local.agents.map((one) => [one.name, one.budget]));
  return [
    ...agents.map((one) => ({ ...one, who: ref("agents", one.agent), kind: "agent", budget: budgets.get(one.agent) })),
    ...origins.map((one) => ({ ...one, who: one.origin, kind: "caller" })),
  ];
}

function showSpent(rows) {
  if (!rows.length) return soft("No agent has used a model today.");
  const tokens = (row) => row.input_tokens + row.output_tokens;
  const left = (row) => {
    const most = row.budget?.cost || row.budget?.tokens;
    if (!most) return h("span", { class: "soft" }, "no limit");
    const used = row.budget.cost ? row.cost : tokens(row);
    return h("span", { class: "row" }, meter(used, most, "Share of the budget", 120), used >= most ? badge("refused") : null, row.budget.cost ? `of ${money(most)}` : `of ${num(most)} tokens`, h("span", { class: "soft" }, ` renewed in ${duration(untilMidnight())}`));
  };
  return grid("Money and tokens today", [["Who", (row) => row.who], ["Kind", (row) => row.kind], ["Cost", (row) => money(row.cost), "number"], ["Tokens", (row) => num(tokens(row)), "number"], ["Messages", (row) => row.messages, "number"], ["Budget of the day", left]], rows);
}

function untilMidnight() {
  return Math.floor((86_400_000 - (Date.now() % 86_400_000)) / 60_000) * 60_000;
}

function buildClients(list) {
  return table({
    label: "Clients", search: "Search clients", key: (row) => `${row.principal} ${row.name} ${row.transport} ${row.view}`,
    columns: [
      { label: "Client", key: "name", sort: true, render: (row) => row.name || h("span", { class: "soft" }, row.transport === "api-events" ? "events (console or API)" : "without a name") },
      { label: "Streams", key: "streams", sort: true, kind: "number", render: (row) => bold(num(row.streams)) },
      { label: "Sessions", key: "sessions", sort: true, kind: "number" },
      { label: "Principal", key: "principal", sort: true }, { label: "Transport", key: "transport", sort: true }, { label: "Revision", key: "revision" },
      { label: "View", key: "view", render: (row) => (row.view ? ref("views", row.view) : "") },
    ],
    load: loadWhole(async () => list(), ["name", "principal", "transport", "view"]),
    empty: () => soft("No client is connected. Put the hub into an IDE on the screen ", h("a", { href: "/console/views" }, "Views"), "."),
  });
}
