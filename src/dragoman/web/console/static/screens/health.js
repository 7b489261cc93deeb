// Health: what is known to go wrong here and its fix, metrics as small plots, settings, keys, skills.
import { append, h, replace, to } from "../dom.js";
import { badge, capitalize, empty, facts, heading, problem, waiting } from "../states.js";
import { command, quote } from "../copy.js";
import { duration, when } from "../time.js";
import { sparkline } from "../svg.js";
import { loadWhole, table } from "../table.js";
import { act, code, follow, grid, h2, num, p, ref, soft, tabs } from "../parts.js";

export const title = "Health";

const TABS = [["", "Checks"], ["metrics", "Metrics"], ["settings", "Settings"], ["keys", "Keys"], ["skills", "Skills"]];
const PARTS = { "": showChecks, metrics: showMetrics, settings: showSettings, keys: showKeys, skills: showSkills };

export async function show(root, route, ctx) {
  const tab = route.query.get("tab") ?? "";
  root.append(heading("Health", "What is known to go wrong here, and what fixes it?"), tabs("health", tab, TABS));
  if (!ctx.session.rights.includes("registry")) {
    root.append(h("p", { class: "note" }, `You are ${ctx.session.principal}. Checks, metrics, settings and keys are shown to administrators: open the console on the machine of the hub with dragoman console, or sign in with a key that has the role owner.`));
    return undefined;
  }
  return (PARTS[tab] ?? showChecks)(root, ctx);
}

// --- checks ----------------------------------------------------------------------------------------

const ORDER = ["problem", "warning", "info", "ok"];

async function showChecks(root, ctx) {
  const box = h("div", {}, waiting("The doctor looks …"));
  const again = act("Check again", () => check());
  const status = h("div", {});
  const more = h("div", {});
  async function readStatus() {
    const [now, servers] = await Promise.all([ctx.api.get("/api/status", {}, ctx.signal), ctx.api.get("/api/mcp/servers", {}, ctx.signal)]);
    replace(status, describeStatus(now));
    replace(more, describeServers(servers));
  }
  async function check() {
    again.disabled = true;
    try {
      const found = await ctx.api.get("/api/doctor", {}, ctx.signal);
      const checks = [...found.checks].sort((a, b) => ORDER.indexOf(a.level) - ORDER.indexOf(b.level));
      const fine = checks.filter((one) => one.level === "ok");
      const rest = checks.filter((one) => one.level !== "ok");
      const columns = [["Check", (row) => row.check], ["Level", (row) => badge(row.level)], ["Finding", (row) => capitalize(row.said)], ["What to do", (row) => describeFix(row.fix)]];
      replace(box, rest.length ? grid("Findings", columns, rest) : h("p", { class: "sum" }, "No problems."),
        h("details", { class: "more", open: !rest.length }, h("summary", {}, `${fine.length} checks are fine`), grid("What is fine", columns.slice(0, 3), fine)));
    } catch (error) {
      if (error.name !== "AbortError") replace(box, problem(error, check));
    }
    again.disabled = false;
  }
  await readStatus();
  append(root, [status, h("div", { class: "title" }, h2("Doctor"), h("div", { class: "actions" }, again)), box]);
  check().then(() => root.append(more)); // below what has arrived, so that nothing moves
  follow(ctx, "server-changed agent-changed", () => readStatus().catch(() => {}), 2000);
}

/** The words of a fix, and its command apart, to copy. */
function describeFix(fix) {
  const found = /^(.*?(?:: |^))((?:dragoman|chmod|chown|sudo|apt|apt-get|brew|pip|uvx?|npx?|sysctl|mkdir|export|kill|systemctl|loginctl) .+)$/s.exec(fix ?? "");
  if (!found || / (lists|shows|says|and then) /.test(found[2])) return fix ? capitalize(fix) : "";
  return [found[1] ? capitalize(found[1]) : null, command(found[2])];
}

function describeStatus(now) {
  return [
    now.config_problem ? h("div", { class: "problem" }, p("config.toml is not used as it is now: ", now.config_problem), command("dragoman config check")) : null,
    (now.store_problems ?? []).map((one) => h("div", { class: "problem" }, p(typeof one === "string" ? one : JSON.stringify(one)))),
    now.policies?.problem ? h("div", { class: "problem" }, p(now.policies.problem), h("a", { href: "/console/policies" }, "Policies")) : null,
    facts([
      ["Version", now.version], ["Running for", duration(now.uptime_secs * 1000)], ["Address", code(now.url)], ["Home", code(now.home)], ["Process", now.pid],
      ["Servers", h("a", { href: "/console/servers" }, `${now.servers?.connected} of ${now.servers?.total} connected`)], ["Tools", h("a", { href: "/console/tools" }, now.tools)],
      ["Policies", `${now.policies?.mode}${now.policies?.default ? ", the defaults" : ""}`], ["Clients", h("a", { href: "/console/limits" }, Object.values(now.clients ?? {}).reduce((sum, one) => sum + one, 0))],
    ]),
  ];
}

/** Logins that are needed, and the sandbox of each server. */
function describeServers(found) {
  const states = new Map(found.connected.map((one) => [one.name, one]));
  const logins = found.connected.filter((one) => one.state === "needs_login");
  const programs = found.configured.filter((one) => one.transport?.type === "stdio").map((one) => ({ ...one, ...states.get(one.name) }));
  return [
    h2("Logins"), logins.length ? grid("Logins", [["Server", (row) => ref("servers", row.name)], ["Why", (row) => capitalize(row.reason ?? "")], ["What to do", (row) => command(`dragoman servers login ${quote(row.name)}`)]], logins) : soft("No server waits for a login."),
    h2("Sandboxes of servers"), programs.length ? grid("Sandboxes", [["Server", (row) => ref("servers", row.name)], ["Sandbox", (row) => badge(row.sandbox ?? "off")],
      ["Remarks", (row) => row.sandbox_problem ?? ""], ["What to do", (row) => ((row.sandbox ?? "off") === "off" ? command(`dragoman servers harden ${quote(row.name)}`) : "")]], programs) : soft("No server is a program of this machine."),
  ];
}

// --- metrics ---------------------------------------------------------------------------------------

const EVERY_MS = 3000;
const POINTS = 100;
/** The last samples: they stay while the console is open, also when another screen is. */
const samples = [];

function parseMetrics(text) {
  const found = { at: Date.now(), calls: 0, failed: 0, buckets: [] };
  for (const line of text.split("\n")) {
    const match = /^([a-z_]+)(?:\{(.*)\})? ([0-9.e+-]+|\+Inf)$/.exec(line);
    if (!match) continue;
    const [, name, labels, value] = match;
    if (name === "dragoman_calls_total") {
      found.calls += Number(value);
      if (labels.includes('outcome="failed"')) found.failed += Number(value);
    } else if (name === "dragoman_call_seconds_bucket") found.buckets.push([/le="(.*)"/.exec(labels)[1] === "+Inf" ? Infinity : Number(/le="(.*)"/.exec(labels)[1]), Number(value)]);
    else found[name] = (labels ? found[name] ?? 0 : 0) + Number(value);
  }
  return found;
}

/** The bound below which 95 of 100 calls between two samples were, in milliseconds. */
function findSlow(now, before) {
  const counts = now.buckets.map(([bound, count], index) => [bound, count - (before.buckets[index]?.[1] ?? 0)]);
  const all = counts.at(-1)?.[1] ?? 0;
  const found = all ? counts.find(([, count]) => count >= all * 0.95) : null;
  return found ? Math.min(found[0], 60) * 1000 : 0;
}

const rate = (name) => (now, before) => Math.max(0, (now[name] - before[name]) / ((now.at - before.at) / 1000));
const gauge = (name) => (now) => now[name] ?? 0;
const two = (value) => num(value >= 10 ? Math.round(value) : Math.round(value * 100) / 100);
const PLOTS = [
  ["Calls a second", rate("calls"), two], ["Failed or refused a second", rate("failed"), two],
  ["Slow calls (95 %)", findSlow, duration], ["Sessions over HTTP", gauge("dragoman_http_sessions"), two],
  ["Servers connected", gauge("dragoman_servers_connected"), two], ["Tools", gauge("dragoman_tools"), two],
  ["A2A tasks", gauge("dragoman_a2a_tasks"), two], ["Open files and sockets", gauge("process_open_fds"), two],
];

async function showMetrics(root, ctx) {
  const box = h("div", { class: "plots" });
  const said = soft("A sample every three seconds while this screen is visible. For more, let Prometheus read ", code(`${location.origin}/metrics`), ".");
  async function sample() {
    samples.push(parseMetrics(await ctx.api.get("/metrics", {}, ctx.signal)));
    samples.splice(0, samples.length - POINTS);
    draw();
  }
  function draw() {
    replace(box, PLOTS.map(([label, compute, render]) => {
      const values = samples.slice(1).map((one, index) => compute(one, samples[index]));
      const last = values.at(-1) ?? compute(samples[0], samples[0]) ?? 0;
      const text = Number.isFinite(last) ? render(last) : "0";
      const most = values.length ? render(Math.max(...values)) : text;
      return h("figure", { class: "plot" }, h("figcaption", {}, label), h("strong", { class: "number" }, text), sparkline(values.length > 1 ? values : [0, 0], `${label}: now ${text}, at most ${most} lately`, 220, 44), h("span", { class: "soft" }, `at most ${most}`));
    }));
  }
  await sample();
  append(root, [said, box]);
  const timer = setInterval(() => document.hidden || sample().catch((error) => error.name === "AbortError" || replace(box, problem(error, sample))), EVERY_MS);
  return () => clearInterval(timer);
}

// --- settings, keys, skills ------------------------------------------------------------------------

async function showSettings(root, ctx) {
  const first = await ctx.api.get("/api/config", {}, ctx.signal);
  const changed = h("input", { type: "checkbox", checked: true, onchange: () => list.reload() });
  const list = table({
    label: "Settings", search: "Search settings", filters: [h("label", { class: "row" }, changed, "only those that are set")], key: (row) => row.key,
    columns: [{ label: "Setting", key: "key", sort: true, kind: "code" }, { label: "Value", key: "value", render: (row) => code(typeof row.value === "string" ? row.value : JSON.stringify(row.value)) }, { label: "From", key: "origin", sort: true }],
    load: loadWhole(async () => first.settings.filter((one) => !changed.checked || one.origin !== "default"), ["key", "value"]),
    limit: 300,
    empty: () => h("p", { class: "empty" }, "Everything is as by default. Untick the box to see all settings."),
  });
  append(root, [p("Settings in force, without secrets. Change them in ", code(first.file), "; the hub applies most changes at once. Check the file first with ", command("dragoman config check")), list.element]);
}

async function showKeys(root, ctx) {
  const list = table({
    label: "Keys", search: "Search keys", key: (row) => row.name,
    columns: [
      { label: "Key", key: "name", sort: true }, { label: "State", key: "state", sort: true, render: (row) => badge(row.state) }, { label: "Owner", key: "owner", sort: true }, { label: "Org", key: "org" },
      { label: "Roles", key: "roles", render: (row) => (row.roles ?? []).join(", ") }, { label: "Scopes", key: "scopes", render: (row) => (row.scopes ?? []).join(", ") },
      { label: "View", key: "view", render: (row) => (row.view ? ref("views", row.view) : "") },
      { label: "Created", key: "created_at", sort: true, kind: "time" }, { label: "Expires", key: "expires_at", sort: true, render: (row) => when(row.expires_at) || "never" },
    ],
    load: loadWhole(async (signal) => (await ctx.api.get("/api/keys", {}, signal)).keys, ["name", "owner", "org", "state"]),
    empty: () => empty("No keys: only programs of this machine reach the hub.", "Create one for another program or machine:", "dragoman keys create NAME"),
  });
  append(root, [p("The hub stores no key, only its hash. Create one with ", command("dragoman keys create NAME"), " and end one with ", command("dragoman keys revoke NAME")), list.element]);
}

async function showSkills(root, ctx) {
  const list = table({
    label: "Skills", search: "Search skills", key: (row) => row.name,
    columns: [
      { label: "Skill", key: "name", sort: true }, { label: "State", key: "state", sort: true, render: (row) => badge(row.state) },
      { label: "Tools", key: "tools", render: (row) => row.tools.map((one) => [ref("tools", `${row.name}.${one.name}`, one.name), " "]) },
      { label: "Findings", key: "findings", render: (row) => row.findings.map((one) => p(badge(one.level), " ", one.words)) },
      { label: "Description", key: "description", render: (row) => (row.problem ? [capitalize(row.problem), " ", command(`dragoman skills show ${quote(row.name)}`)] : row.description) },
    ],
    load: loadWhole(async (signal) => (await ctx.api.get("/api/skills", {}, signal)).skills, ["name", "description", "state"]),
    empty: () => empty("No skills are installed.", "Add one from a folder:", "dragoman skills add FOLDER"),
  });
  append(root, list.element);
}
