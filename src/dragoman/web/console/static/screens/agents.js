// Agents: those of this hub and external ones, what each cost today, whether it is well, and a chat.
import { h, replace, to } from "../dom.js";
import { badge, capitalize, empty, facts, heading, problem } from "../states.js";
import { command, json, quote } from "../copy.js";
import { confirm, showDialog, toast } from "../dialog.js";
import { loadWhole, table } from "../table.js";
import { schemaForm } from "../form.js";
import { duration, money, when } from "../time.js";
import { meter, sparkline } from "../svg.js";
import { chat } from "../chat.js";
import { act, attempt, bold, code, follow, h2, num, p, ref, soft, tryLink } from "../parts.js";

export const title = "Agents";

export async function show(root, route, ctx) {
  return route.name ? showOne(root, route.name, ctx) : showAll(root, ctx);
}

/** What agents have used today (UTC, as budgets count), by their name. */
async function fetchToday(ctx, signal) {
  const { usage } = await ctx.api.get("/api/usage", { by: "agent,day", days: 1 }, signal);
  const today = new Date().toISOString().slice(0, 10);
  return new Map(usage.filter((one) => one.day === today).map((one) => [one.agent, one]));
}

async function fetchAgents(ctx, signal) {
  const [local, remote, used] = await Promise.all([ctx.api.get("/api/agents", { grants: "no" }, signal), ctx.api.get("/api/a2a/agents", {}, signal), fetchToday(ctx, signal)]);
  const rows = local.agents.map((one) => ({ ...one, kind: "local", state: "active", where: one.model ?? one.runtime ?? "", problem: "" }));
  for (const [name, why] of Object.entries(local.failed ?? {})) rows.push({ name, kind: "local", state: "failed", where: "", problem: why });
  for (const one of remote.agents) {
    rows.push({ ...one, kind: "external", state: one.enabled === false ? "off" : one.held ? "held" : one.health, where: one.url, skillCount: one.skills?.length ?? 0, problem: one.reason || one.held || "" });
  }
  for (const row of rows) {
    const found = used.get(row.name);
    Object.assign(row, { cost: found?.cost ?? 0, tokens: found ? found.input_tokens + found.output_tokens : 0, messages: found?.messages ?? 0 });
  }
  return { rows, used };
}

async function showAll(root, ctx) {
  const kind = h("select", { "aria-label": "Kind", onchange: () => list.reload() }, [["", "All agents"], ["local", "Of this hub"], ["external", "External"]].map(([value, label]) => h("option", { value }, label)));
  const sum = h("p", { class: "sum", role: "status" }, "Today: …");
  const list = table({
    label: "Agents", search: "Search agents", filters: [kind], key: (row) => `${row.kind} ${row.name}`, link: (row) => to("agents", row.name),
    columns: [
      { label: "Agent", key: "name", sort: true },
      { label: "State", key: "state", sort: true, render: (row) => [badge(row.state), row.kind === "external" ? h("span", { class: "soft" }, " external") : null] },
      { label: "Cost today", key: "cost", sort: true, kind: "number", render: (row) => describeCost(row) },
      { label: "Tokens today", key: "tokens", sort: true, kind: "number", render: (row) => row.tokens ? num(row.tokens) : "" },
      { label: "Messages", key: "messages", sort: true, kind: "number", render: (row) => row.messages || "" },
      { label: "Model or address", key: "where", sort: true, render: (row) => h("span", { class: "clamp" }, row.where) },
      { label: "Skills", key: "skillCount", kind: "number" },
      { label: "Remarks", key: "problem", render: (row) => row.problem ? capitalize(row.problem) : h("span", { class: "clamp soft" }, row.description ?? row.card?.description ?? "") },
    ],
    load: loadWhole(async (signal) => {
      const { rows, used } = await fetchAgents(ctx, signal);
      const all = [...used.values()];
      const add = (name) => all.reduce((total, one) => total + (one[name] ?? 0), 0);
      replace(sum, bold(money(add("cost"))), " today (UTC) for ", bold(num(add("input_tokens") + add("output_tokens"))), ` tokens in ${num(add("messages"))} messages`,
        ctx.session.rights.includes("registry") ? "" : " of yours");
      return rows.filter((one) => !kind.value || one.kind === kind.value);
    }, ["name", "where", "state", "problem", "description"]),
    empty: () => [empty("No agents yet.", "Create one of your own, or add one by its URL:", "dragoman agents new helper --from assistant"), command("dragoman demo add")],
  });
  follow(ctx, "agent-changed cost", list.refresh, 1500);
  root.append(heading("Agents", "Which agents are there, what did they cost today, and are they well?",
    act("Add an agent", () => add(ctx), { class: "main", disabled: !ctx.session.rights.includes("registry"), title: ctx.session.rights.includes("registry") ? null : "Adding an agent needs admin" })), sum, list.element);
}

function describeCost(row) {
  const most = row.budget?.cost;
  if (!most) return row.cost ? money(row.cost) : "";
  return h("span", { class: "budget" }, `${money(row.cost)} of ${money(most)}`, meter(row.cost, most, `${money(row.cost)} of ${money(most)} a day`, 90));
}

async function showOne(root, name, ctx) {
  const box = h("div", {});
  const side = h("div", {});
  let current = "";
  let talked = "";
  async function refresh() {
    const { rows, used } = await fetchAgents(ctx, ctx.signal);
    const row = rows.find((one) => one.name === name || one.slug === name || one.id === name);
    if (!row) return replace(box, heading(name), empty(`There is no agent "${name}", or you may not see it.`, "Look at all of them:", "dragoman agents"));
    const whole = row.kind === "external" ? { ...(await ctx.api.get(`/api/a2a/agents/${encodeURIComponent(row.id)}`, {}, ctx.signal)), ...pick(row) } : { ...row, ...(await ctx.api.get("/api/agents", { name: row.name }, ctx.signal)).agents[0] };
    const shape = JSON.stringify([whole, used.get(name)], (key, value) => (/^(latencyMs|lastFetchedAt|lastSeenAt)$/.test(key) ? 0 : value));
    if (shape !== current) {
      current = shape;
      replace(box, row.kind === "external" ? describeExternal(whole, ctx, refresh) : describeLocal(whole, used.get(row.name)));
      if (row.kind === "local") await addUsage(box, row.name, ctx);
    }
    const tool = row.kind === "local" ? row.tool : whole.tools?.find((one) => one.endsWith(".message"));
    if (tool && tool !== talked) {
      talked = tool;
      const found = await ctx.api.get(`/api/tools/${encodeURIComponent(tool)}`, {}, ctx.signal).catch(() => null);
      replace(side, h2("Chat"), found ? chat(ctx, found.name, { name: row.name, keeps: "context" in (found.definition?.inputSchema?.properties ?? {}) })
        : soft("You may see this agent, and not call it."));
    } else if (!tool && !talked) replace(side, h2("Chat"), soft("It cannot be talked to now: the hub has no approved definition of it."));
    return undefined;
  }
  await refresh();
  root.append(h("div", { class: "bench" }, box, side));
  follow(ctx, "agent-changed cost", () => refresh().catch((error) => error.name === "AbortError" || replace(box, heading(name), problem(error, refresh))), 1000);
}

function pick(row) {
  return { kind: row.kind, state: row.state, problem: row.problem };
}

function describeLocal(row, used) {
  const tokens = used ? used.input_tokens + used.output_tokens : 0;
  const limits = row.budget ?? {};
  return [
    heading(row.name, null, row.tool ? h("a", { class: "button", href: tryLink(row.tool) }, "Playground") : null),
    row.problem ? h("div", { class: "problem" }, p(capitalize(row.problem)), command(`dragoman agents check ${quote(row.name)}`)) : null,
    p(row.description ?? ""),
    facts([
      ["Cost today", h("span", { class: "row" }, bold(money(used?.cost ?? 0)), limits.cost ? [`of ${money(limits.cost)}`, meter(used?.cost ?? 0, limits.cost, "Share of the budget of today")] : h("span", { class: "soft" }, "no limit"))],
      ["Tokens today", h("span", { class: "row" }, num(tokens), limits.tokens ? [`of ${num(limits.tokens)}`, meter(tokens, limits.tokens, "Share of the tokens of today")] : null)],
      ["Messages today", used ? `${used.messages} with ${used.model_calls} answers of the model and ${used.tool_calls} tool calls` : "none"],
      ["Runs as", row.runtime], ["Model", row.model], ["Fallback models", row.fallbacks?.join(", ")], ["Started by", row.parent ? ref("agents", row.parent) : null],
      ["Manifest", row.source ? code(row.source) : null],
      ["Schedules", row.schedules?.length ? h("ul", { class: "bare" }, row.schedules.map((one) => h("li", {}, describeSchedule(one)))) : null],
      ["Calls", h("a", { href: `/console/audit?q=${encodeURIComponent(row.name)}` }, "in the audit log")],
    ]),
    row.grants ? [h2(`Tools that it may call (${row.grants.length})`), row.grants.length ? h("ul", { class: "chips" }, row.grants.map((one) => h("li", {}, ref("tools", one)))) : soft("None: grant some in its manifest.")] : null,
  ];
}

function describeSchedule(one) {
  return [`${one.schedule} ${one.timeZone ?? ""}`, one.nextRun ? [", next ", when(one.nextRun)] : null, one.lastRun ? [`, last ${one.lastOutcome} `, when(one.lastRun)] : null];
}

async function addUsage(box, name, ctx) {
  const { usage } = await ctx.api.get("/api/usage", { by: "day", days: 14, agent: name }, ctx.signal);
  if (usage.length < 2) return;
  const days = [...usage].sort((a, b) => a.day.localeCompare(b.day));
  const total = days.reduce((sum, one) => sum + one.cost, 0);
  box.append(h2("The last two weeks"), p(sparkline(days.map((one) => one.cost || one.input_tokens + one.output_tokens), `Cost per day, ${money(total)} in all`, 280, 40), " ", money(total)));
}

function describeExternal(row, ctx, refresh) {
  const path = `/api/a2a/agents/${encodeURIComponent(row.id)}`;
  const change = (label, work, said, ...more) => act(label, async (event) => {
    if (more.length && !(await confirm(...more))) return;
    event.target.disabled = true;
    if (!(await attempt(work, said))) event.target.disabled = false;
    else if (label === "Remove") ctx.navigate("/console/agents");
    else await refresh();
    event.target.disabled = false;
  }, { disabled: !ctx.session.rights.includes("registry"), title: ctx.session.rights.includes("registry") ? null : "This needs admin" });
  const off = row.enabled === false;
  return [
    heading(row.name, null,
      change("Check now", () => ctx.api.post(`${path}/refetch`), `${row.name} was checked`),
      change(off ? "Enable" : "Disable", () => ctx.api.patch(path, { enabled: off }), `${row.name} is ${off ? "enabled" : "disabled"}`),
      row.source === "api" ? change("Remove", () => ctx.api.delete(path), `${row.name} was removed`, `Remove ${row.name}?`, "Its skills disappear from every client; its cards are deleted.", "Remove", true) : null),
    row.problem ? h("div", { class: "problem" }, p(capitalize(row.problem)), row.held ? p(h("a", { href: "/console/pins" }, "Look at what has changed")) : h("p", { class: "next" }, "Is it running, and is the address right? Check it with:"), row.held ? null : command(`dragoman agents show ${quote(row.name)}`)) : null,
    row.findings?.length ? h("div", { class: "note" }, row.findings.map((one) => p(typeof one === "string" ? one : JSON.stringify(one)))) : null,
    p(row.card?.description ?? ""),
    facts([
      ["Health", badge(row.state)], ["Address", code(row.url)], ["Dialect", row.dialect], ["Answers in", row.latencyMs === null || row.latencyMs === undefined ? null : duration(row.latencyMs)],
      ["Last seen", when(row.lastSeenAt)], ["Card fetched", when(row.lastFetchedAt)], ["Trust", row.trustLevel], ["Pin", row.pin], ["Version", row.card?.version], ["From", row.source === "config" ? "config.toml" : "added while the hub ran"],
      ["Login", row.credentials?.token ? `token ${row.credentials.token}` : null], ["Running calls", row.active || null],
      ["Calls", h("a", { href: `/console/runs?tab=dispatches&agent=${encodeURIComponent(row.name)}` }, "its tasks")],
    ]),
    h2(`Skills (${row.skills?.length ?? 0})`),
    row.skills?.length ? h("ul", { class: "bare" }, row.skills.map((one) => h("li", {}, h("a", { href: `/console/playground?tool=${encodeURIComponent(`${row.slug}.${one.id}`)}` }, one.name || one.id), " ", h("span", { class: "soft" }, one.description ?? ""), (one.tags ?? []).map((tag) => [" ", badge(tag)])))) : soft("None that are approved."),
    row.card ? h("details", { class: "more" }, h("summary", {}, "Card"), json(row.card, "Card")) : null,
  ];
}

const FORM = {
  type: "object", required: ["url"],
  properties: {
    url: { type: "string", title: "URL", format: "url", minLength: 1, maxLength: 2000, description: "Of the agent or of its card, such as https://agents.example.com" },
    name: { type: "string", title: "Name", maxLength: 60, description: "By default, the name on its card." },
    token: { type: "string", title: "Token", maxLength: 200, description: "A reference, never the token: env:NAME, or file:tokens/NAME" },
    allow_private: { type: "boolean", title: "It may be on a private address of this network", default: false },
  },
};

function add(ctx) {
  return showDialog("Add an agent", (close) => {
    const form = schemaForm(FORM, {});
    const said = h("div", {});
    const send = h("button", { class: "main" }, "Add");
    return h("form", { novalidate: true, onsubmit: async (event) => {
      event.preventDefault();
      const { value, problems } = form.read();
      if (problems.length) return;
      send.disabled = true;
      try {
        const added = await ctx.api.post("/api/a2a/agents", value);
        close();
        toast(`${added.name} was added`);
        ctx.navigate(to("agents", added.name));
      } catch (error) {
        replace(said, problem(error));
      }
      send.disabled = false;
    } }, form.element, said, h("div", { class: "actions" }, act("Cancel", () => close()), send));
  });
}
