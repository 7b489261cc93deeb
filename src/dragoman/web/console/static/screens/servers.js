// Servers: which are connected, and what is wrong with the others, in words.
import { h, replace, to } from "../dom.js";
import { badge, capitalize, empty, facts, heading, problem } from "../states.js";
import { codeBlock, command, json, quote } from "../copy.js";
import { confirm, showDialog, toast } from "../dialog.js";
import { table, loadWhole } from "../table.js";
import { schemaForm } from "../form.js";
import { throttle } from "../live.js";

export const title = "Servers";

export async function show(root, route, ctx) {
  return route.name ? showOne(root, route.name, ctx) : showAll(root, ctx);
}

async function fetchServers(ctx, signal) {
  const found = await ctx.api.get("/api/mcp/servers", { tools: 0 }, signal);
  const configured = new Map(found.configured.map((one) => [one.name, one]));
  return found.connected.map((one) => ({ ...configured.get(one.name), ...one, problem: one.connected ? "" : one.reason ?? "" }));
}

async function showAll(root, ctx) {
  const list = table({
    label: "Servers",
    search: "Search servers",
    key: (row) => row.name,
    link: (row) => to("servers", row.name),
    columns: [
      { label: "Server", key: "name", sort: true },
      { label: "State", key: "state", sort: true, render: (row) => badge(row.state) },
      { label: "Tools", key: "tools_count", sort: true, kind: "number" },
      { label: "Revision", key: "protocol_version", render: (row) => (row.protocol_version ? `${row.protocol_version}${row.era === "modern" ? "" : ` (${row.era})`}` : "") },
      { label: "Sandbox", key: "sandbox", sort: true },
      { label: "What is wrong", key: "problem", render: (row) => explain(row) },
    ],
    load: loadWhole((signal) => fetchServers(ctx, signal), ["name", "state", "problem", "protocol_version"]),
    empty: () => empty("No MCP servers yet.", "Import those of your IDE, or add one:", "dragoman import"),
  });
  const refresh = throttle(list.refresh);
  for (const name of ["server-changed", "pin-held", "gap"]) ctx.onLeave(ctx.live.on(name, refresh));
  root.append(heading("Servers", "Which servers are connected, and what is wrong?",
    h("button", { type: "button", class: "main", disabled: !ctx.session.rights.includes("registry"), title: ctx.session.rights.includes("registry") ? null : "Adding a server needs admin", onclick: () => add(ctx, refresh) }, "Add a server")), list.element);
}

/** What is wrong with a server, in words, and what to do about it. */
function explain(row) {
  const remarks = [...(row.problems ?? []), ...(row.remarks ?? [])].map(String);
  if (row.connected) return remarks.length ? h("span", { class: "soft" }, remarks.join("; ")) : "";
  if (row.state === "off") return h("span", { class: "soft" }, row.reason);
  return [capitalize(row.reason ?? ""), row.sandbox_problem ? ` ${row.sandbox_problem}` : ""];
}

function next(row, ctx) {
  if (row.connected) return null;
  if (row.state === "needs_login") return buildLogin(row, ctx);
  if (row.state === "off") return [h("p", {}, "Enable it:"), command(`dragoman servers enable ${quote(row.name)}`)];
  return [h("p", {}, "The log below usually says why. The doctor checks the command and its environment:"), command("dragoman doctor")];
}

async function showOne(root, name, ctx) {
  const box = h("div", {});
  const logs = h("div", {});
  let current = "";
  async function refresh() {
    try {
      const row = (await fetchServers(ctx, ctx.signal)).find((one) => one.name === name);
      const shape = JSON.stringify(row ?? null);
      if (shape !== current) {
        current = shape;
        replace(box, row ? describe(row, ctx, refresh) : [heading(name), empty(`There is no server "${name}".`, "Look at all of them:", "dragoman servers")]);
      }
      if (row && ctx.session.rights.includes("registry")) await readLog();
    } catch (error) {
      if (error.name !== "AbortError") replace(box, heading(name), problem(error, refresh));
    }
  }
  let shown = null;
  async function readLog() {
    const { stderr } = await ctx.api.get(`/api/mcp/servers/${encodeURIComponent(name)}/logs`, {}, ctx.signal);
    if (stderr === shown) return;
    shown = stderr;
    replace(logs, h("h2", {}, "Log"), stderr ? codeBlock(stderr, `Log of ${name}`) : h("p", { class: "soft" }, "The server has written nothing to stderr."));
    logs.querySelector("pre")?.scrollTo(0, 1e9);
  }
  await refresh();
  root.append(box, logs);
  const again = throttle(refresh, 1000);
  for (const event of ["server-changed", "gap"]) ctx.onLeave(ctx.live.on(event, again));
  const timer = setInterval(() => document.hidden || refresh(), 5000);
  return () => clearInterval(timer);
}

function describe(row, ctx, refresh) {
  const restart = async (event) => {
    if (!(await confirm(`Restart ${row.name}?`, "Calls that are running on it fail.", "Restart"))) return;
    event.target.disabled = true;
    try {
      await ctx.api.post(`/api/mcp/servers/${encodeURIComponent(row.name)}/restart`);
      toast(`${row.name} is restarting`);
    } catch (error) {
      toast(error.message, "error");
    }
    event.target.disabled = false;
    refresh();
  };
  const remarks = [...(row.problems ?? []), ...(row.remarks ?? [])];
  return [
    heading(row.name, null,
      h("a", { class: "button", href: `/console/tools?server=${encodeURIComponent(row.name)}` }, `${row.tools_count ?? 0} tools`),
      h("button", { type: "button", disabled: !ctx.session.rights.includes("registry") || row.state === "off", onclick: restart }, row.connected ? "Restart" : "Reconnect"),
      h("button", { type: "button", class: "danger", disabled: !ctx.session.rights.includes("registry"), onclick: () => remove(row.name, ctx) }, "Remove")),
    row.connected ? null : h("div", { class: "problem" }, h("p", {}, capitalize(row.reason ?? "")), next(row, ctx)),
    remarks.length ? h("div", { class: "note" }, remarks.map((one) => h("p", {}, typeof one === "string" ? one : JSON.stringify(one)))) : null,
    facts([
      ["State", badge(row.state)],
      ["Era", row.era],
      ["Revision", row.protocol_version],
      ["Sandbox", row.sandbox === "off" && row.transport?.type === "stdio" ? h("span", { class: "row" }, "off: it can read your files. ", command(`dragoman servers harden ${quote(row.name)}`)) : row.sandbox],
      ["Sandbox problem", row.sandbox_problem],
      ["Transport", row.transport?.type],
      ["Command", row.transport?.command ? h("code", {}, [row.transport.command, ...(row.transport.args ?? [])].join(" ")) : null],
      ["URL", row.transport?.url ? h("code", {}, row.transport.url) : null],
      ["Environment", row.env?.length ? h("code", {}, row.env.join(" ")) : null],
      ["Prompts", row.prompts_count || null],
      ["Resources", row.resources_count || null],
      ["Restarts", row.restarts || null],
      ["Sessions of its own", row.own_sessions],
    ]),
    row.server_info ? [h("h2", {}, "What the server says of itself"), json(row.server_info)] : null,
  ];
}

/** Begins a login at a server: a link to open, and what has become of it. */
function buildLogin(row, ctx) {
  const said = h("div", { role: "status" });
  const follow = async (id, tries) => {
    const { state, problem: why } = await ctx.api.get(`/api/logins/${encodeURIComponent(id)}`, {}, ctx.signal);
    if (state === "done") replace(said, "You are logged in; the server connects.");
    else if (state === "failed") replace(said, h("p", { class: "invalid" }, why ?? "The login failed."));
    else if (tries) setTimeout(() => follow(id, tries - 1).catch(() => {}), 2000);
  };
  const begin = async () => {
    try {
      const login = await ctx.api.post(`/api/mcp/servers/${encodeURIComponent(row.name)}/login`, {});
      replace(said, h("p", {}, h("a", { class: "button", href: login.url, target: "_blank", rel: "noopener noreferrer" }, `Open ${new URL(login.url).host} in a new tab`)));
      follow(login.id, 150).catch(() => {});
    } catch (error) {
      replace(said, problem(error));
    }
  };
  return [h("p", {}, "The server needs a login. ", h("button", { type: "button", onclick: begin }, "Log in"), " or ", command(`dragoman servers login ${quote(row.name)}`)), said];
}

async function remove(name, ctx) {
  if (!(await confirm(`Remove ${name}?`, "It is removed from config.toml; its tools disappear from every client.", "Remove", true))) return;
  try {
    await ctx.api.delete(`/api/mcp/servers/${encodeURIComponent(name)}`);
    toast(`${name} was removed`);
    ctx.navigate("/console/servers");
  } catch (error) {
    toast(error.message, "error");
  }
}

const COMMAND = {
  type: "object", required: ["name", "command"],
  properties: {
    name: { type: "string", title: "Name", minLength: 1, maxLength: 60 },
    command: { type: "string", title: "Command line", minLength: 1, maxLength: 200, description: "As in a shell: uvx mcp-server-time --local-timezone UTC" },
  },
};
const URL_FORM = {
  type: "object", required: ["name", "url"],
  properties: {
    name: { type: "string", title: "Name", minLength: 1, maxLength: 60 },
    url: { type: "string", title: "URL", format: "url", minLength: 1, maxLength: 200 },
  },
};

/** Splits a command line as a shell does: words, quotes, backslashes. */
function splitWords(text) {
  const words = text.match(/(?:[^\s"'\\]|\\.|"(?:\\.|[^"\\])*"|'[^']*')+/g) ?? [];
  return words.map((word) => word.replace(/'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)/g, (_, single, double, escaped) => single ?? double?.replace(/\\(["\\$`])/g, "$1") ?? escaped));
}

/** Asks for a server and adds it to config.toml. Only the owner may add a command. */
async function add(ctx, refresh) {
  const isOwner = ctx.session.kind === "owner";
  await showDialog("Add a server", (close) => {
    const kinds = isOwner ? [["A program on this machine", COMMAND], ["A server on the network", URL_FORM]] : [["A server on the network", URL_FORM]];
    const holder = h("div", {});
    const said = h("div", {});
    let form;
    const choose = (schema) => {
      form = schemaForm(schema, {});
      replace(holder, form.element);
    };
    choose(kinds[0][1]);
    const select = h("select", { "aria-label": "Kind of server", onchange: () => choose(kinds[Number(select.value)][1]) }, kinds.map(([label], index) => h("option", { value: String(index) }, label)));
    const send = async (event) => {
      event.preventDefault();
      const { value, problems } = form.read();
      if (problems.length) return;
      try {
        const [program, ...args] = value.command ? splitWords(value.command) : [];
        await ctx.api.post("/api/mcp/servers", program ? { name: value.name, command: program, args } : value);
        toast(`${value.name} was added`);
        refresh();
        close();
      } catch (error) {
        replace(said, problem(error));
      }
    };
    return h("form", { onsubmit: send }, h("p", {}, select), holder, said,
      isOwner ? null : h("p", { class: "hint" }, "Programs on the machine of the hub can only be added by its owner: open the console with dragoman console."),
      h("div", { class: "actions" }, h("button", { type: "button", onclick: () => close() }, "Cancel"), h("button", { class: "main" }, "Add")));
  });
}
