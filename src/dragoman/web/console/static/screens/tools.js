// Tools: found by the server's search; one tool with its schema, cost and names.
import { h, replace, to } from "../dom.js";
import { badge, empty, facts, heading, problem } from "../states.js";
import { json } from "../copy.js";
import { table } from "../table.js";
import { throttle } from "../live.js";

export const title = "Tools";

export async function show(root, route, ctx) {
  return route.name ? showOne(root, route.name, ctx) : showAll(root, route, ctx);
}

async function showAll(root, route, ctx) {
  const server = route.query.get("server") ?? "";
  const source = h("select", { "aria-label": "Source", onchange: () => list.reload() },
    h("option", { value: "" }, "All sources"), h("option", { value: "mcp" }, "MCP servers"),
    h("option", { value: "a2a" }, "A2A agents"), h("option", { value: "agent" }, "Local agents"));
  const list = table({
    label: "Tools",
    search: "Search tools",
    filters: [source, server ? h("span", { class: "row" }, "of ", h("a", { href: to("servers", server) }, server), h("a", { href: "/console/tools" }, "show all")) : null],
    key: (row) => row.id,
    link: (row) => to("tools", row.name),
    columns: [
      { label: "Tool", key: "name", sort: true },
      { label: "Server or agent", key: "server", sort: true, render: (row) => (row.source === "mcp" ? h("a", { href: to("servers", row.server) }, row.server) : row.server) },
      { label: "Tokens", key: "tokens", sort: true, kind: "number" },
      { label: "Description", key: "description", render: (row) => row.description ? h("span", { class: "clamp" }, row.description) : "" },
    ],
    load: async ({ q, sort, descending, cursor, limit, signal }) => {
      const found = await ctx.api.get("/api/tools", { q, server, source: source.value, sort: sort ? `${descending ? "-" : ""}${sort}` : "", cursor, limit }, signal);
      return { rows: found.tools, total: found.total, nextCursor: found.nextCursor };
    },
    empty: () => empty("No tools yet.", "Add a server, and its tools appear here:", "dragoman servers add time -- uvx mcp-server-time"),
  });
  const refresh = throttle(list.refresh, 2000);
  for (const name of ["server-changed", "agent-changed", "policy-changed", "pin-held", "gap"]) ctx.onLeave(ctx.live.on(name, refresh));
  root.append(heading("Tools", "Which tools can be called, and what do they cost to list?"), list.element);
}

async function showOne(root, name, ctx) {
  let tool;
  try {
    tool = await ctx.api.get(`/api/tools/${encodeURIComponent(name)}`, {}, ctx.signal);
  } catch (error) {
    if (error.status !== 404) throw error;
    root.append(heading(name), empty(`There is no tool "${name}", or you may not see it.`, "A tool that changed may be quarantined:", "dragoman pins list"));
    return;
  }
  const definition = tool.definition ?? {};
  const who = h("div", {}, h("p", { class: "soft" }, "Loading …"));
  root.append(
    heading(tool.name, null, h("a", { class: "button", href: `/console/playground?tool=${encodeURIComponent(tool.name)}` }, "Try it"),
      h("a", { class: "button", href: `/console/access?tool=${encodeURIComponent(tool.id)}` }, "Who can call it")),
    h("p", {}, tool.description || h("span", { class: "soft" }, "The server gives no description.")),
    facts([
      ["Server or agent", tool.source === "mcp" ? h("a", { href: to("servers", tool.server) }, tool.server) : h("a", { href: to("agents", tool.server) }, tool.server)],
      ["Source", tool.source],
      ["Id", h("code", {}, tool.id)],
      ["Name at the server", definition.name && definition.name !== tool.name ? h("code", {}, definition.name) : null],
      ["Cost in a list", tool.tokens === undefined ? null : `about ${tool.tokens.toLocaleString("en")} tokens`],
      ["Hints of the server", hints(definition.annotations)],
      ["Recent calls", h("a", { href: `/console/audit?verb=${encodeURIComponent(tool.id)}` }, "in the audit log")],
    ]),
    h("h2", {}, "Arguments"), describeArguments(definition.inputSchema),
    h("div", { class: "columns" },
      h("section", {}, h("h2", {}, "Input schema"), json(definition.inputSchema ?? {}, "Input schema")),
      definition.outputSchema ? h("section", {}, h("h2", {}, "Output schema"), json(definition.outputSchema, "Output schema")) : null),
    h("h2", {}, "Who can call it"), who);
  ctx.api.get("/api/policies/who-can", { tool: tool.id }, ctx.signal).then(
    (found) => replace(who, describeWho(found)),
    (error) => error.name === "AbortError" || replace(who, error.status === 403 ? h("p", { class: "soft" }, "Only administrators see who can call a tool.") : problem(error)),
  );
}

function hints(annotations) {
  const names = { readOnlyHint: "reads only", destructiveHint: "may destroy", idempotentHint: "idempotent", openWorldHint: "reaches the outside" };
  const found = Object.keys(names).filter((key) => annotations?.[key] === true);
  return found.length ? h("span", { class: "row" }, found.map((key) => badge(names[key]))) : null;
}

function describeArguments(schema) {
  const members = Object.entries(schema?.properties ?? {});
  if (!members.length) return h("p", { class: "soft" }, "None.");
  const needed = new Set(schema.required ?? []);
  return h("div", { class: "table" }, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Arguments" }, h("table", {},
    h("thead", {}, h("tr", {}, ["Argument", "Type", "Needed", "Description"].map((label) => h("th", { scope: "col" }, label)))),
    h("tbody", {}, members.map(([name, one]) => h("tr", {},
      h("td", {}, h("code", {}, name)),
      h("td", { dataset: { label: "Type" } }, [one?.type ?? (one?.enum ? "choice" : "any")].flat().join(" or ")),
      h("td", { dataset: { label: "Needed" } }, needed.has(name) ? "yes" : "no"),
      h("td", { dataset: { label: "Description" } }, one?.description ?? "")))))));
}

function describeWho(found) {
  const may = found.principals.filter((one) => one.allowed);
  if (!may.length) return h("p", { class: "soft" }, "Nobody.");
  return h("p", { class: "row" }, may.map((one) => h("span", { class: "badge", title: one.policies.join(", ") }, one.name)));
}
