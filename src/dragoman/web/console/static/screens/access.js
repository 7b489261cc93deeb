// Access: who can call a tool, and what can a principal call? Answered by the engine that decides calls.
import { h, newId, replace, to } from "../dom.js";
import { badge, capitalize, empty, heading, problem } from "../states.js";
import { table, loadWhole } from "../table.js";
import { throttle } from "../live.js";
import { download, policies } from "../records.js";

export const title = "Access";

export async function show(root, route, ctx) {
  root.append(heading("Access", "Who can call this, and what can they call?"));
  if (!ctx.session.rights.includes("policies")) {
    root.append(empty("Only administrators see what others may call.", "Your own tools are on the screen Tools. Sign in as the owner of the hub:", "dragoman console"));
    return;
  }
  const tool = route.query.get("tool") ?? "";
  const principal = route.query.get("principal") ?? "";
  const result = h("div", {});
  const [tools, people] = await Promise.all([suggestTools(ctx), suggestPrincipals(ctx)]);
  root.append(h("div", { class: "columns ask" },
    ask("Who can call", "tool", tool, tools, "A tool, such as github.search"),
    ask("What can call", "principal", principal, people, "A principal, such as key:ci")), result);
  if (!tool && !principal) {
    replace(result, h("p", { class: "empty" }, "Choose a tool or a principal. The answer comes from the engine that decides calls, so that it is what would happen now."));
    return;
  }
  await answer(result, tool, principal, ctx);
  function ask(label, name, value, list, hint) {
    const id = newId("ask");
    return h("form", { class: "card", onsubmit: (event) => {
      event.preventDefault();
      const wanted = event.currentTarget.elements[0].value.trim();
      if (wanted) ctx.navigate(`/console/access?${new URLSearchParams({ [name]: wanted })}`);
    } },
    h("label", { for: id }, name === "tool" ? "Who can call this tool?" : "What can this principal call?"),
    h("div", { class: "row" },
      h("input", { id, type: "search", list: list.id, value, placeholder: hint, autocomplete: "off", spellcheck: "false", required: true, oninput: list.more }),
      h("button", { class: value ? "" : "main", "aria-label": label }, "Show")), list.element);
  }
}

/** Names for an input, read again while a person types. */
async function suggestTools(ctx) {
  const id = newId("tools");
  const element = h("datalist", { id });
  const read = async (q) => {
    const found = await ctx.api.get("/api/tools", { q, limit: 30 }, ctx.signal).catch(() => ({ tools: [] }));
    replace(element, found.tools.map((one) => h("option", { value: one.id })));
  };
  await read("");
  let timer = 0;
  return { id, element, more: (event) => {
    const text = event.target.value;
    clearTimeout(timer);
    timer = setTimeout(() => read(text), 200);
  } };
}

async function suggestPrincipals(ctx) {
  const id = newId("principals");
  const found = await Promise.all([
    ctx.api.get("/api/keys", {}, ctx.signal).then((data) => data.keys.map((one) => `key:${one.name}`), () => []),
    ctx.api.get("/api/agents", { grants: "no" }, ctx.signal).then((data) => data.agents.map((one) => `agent:${one.name}`), () => []),
  ]);
  return { id, element: h("datalist", { id }, ["owner:owner", ...found.flat()].map((value) => h("option", { value }))) };
}

async function answer(box, tool, principal, ctx) {
  const path = tool ? "/api/policies/who-can" : "/api/policies/what-can";
  const asked = tool ? { tool } : { principal };
  const member = tool ? "principals" : "tools";
  const read = async (signal) => {
    if (!isFresh) last = await ctx.api.get(path, asked, signal);
    isFresh = true; // searching and sorting ask the policies nothing
    return last[member].filter((row) => !only.value || String(row.allowed) === only.value).map((row) => ({ ...row, verdict: verdict(row) }));
  };
  let last;
  let isFresh = false;
  const only = h("select", { "aria-label": "Which", onchange: () => list.reload() },
    [["", "All"], ["true", "Permitted"], ["false", "Denied"]].map(([value, label]) => h("option", { value }, label)));
  try {
    await read(ctx.signal);
  } catch (error) {
    if (error.name === "AbortError") return;
    replace(box, error.status === 404 ? empty(capitalize(error.message), tool ? "Look for it among all tools:" : "Principals are keys, agents and users:", tool ? "dragoman tools" : "dragoman keys list") : problem(error));
    return;
  }
  const list = table({
    label: tool ? `Who can call ${tool}` : `What ${principal} can call`,
    search: tool ? "Search principals" : "Search tools",
    filters: [only, h("button", { type: "button", onclick: () => save("csv") }, "Export CSV"), h("button", { type: "button", onclick: () => save("json") }, "Export JSON")],
    key: (row) => row.name,
    link: (row) => (tool ? `/console/access?principal=${encodeURIComponent(row.name)}` : to("tools", row.name)),
    columns: [
      { label: tool ? "Principal" : "Tool", key: "name", sort: true },
      { label: "Call", key: "verdict", sort: true, render: (row) => [badge(row.allowed ? "allow" : "deny", row.verdict), row.approval ? " with approval" : null] },
      { label: "Listed", key: "listed", sort: true, render: (row) => (row.listed ? "yes" : "no") },
      { label: "Decided by", key: "policies", render: (row) => (row.policies.length ? policies(row.policies) : h("span", { class: "soft" }, "no policy permits it")) },
      { label: "Why", key: "why", render: (row) => row.why },
      { label: "Reasons", render: (row) => h("a", { href: `/console/policies?${new URLSearchParams({ principal: tool ? row.name : principal, tool: tool || row.name })}` }, "Explain") },
    ],
    load: loadWhole(read, ["name", "verdict", "why"]),
    empty: () => h("p", { class: "empty" }, tool ? "No principal, besides the owner, exists." : "This principal sees no tool."),
  });
  function save(kind) {
    const rows = last[member];
    const name = `${tool ? "who-can" : "what-can"}-${(tool || principal).replace(/[^A-Za-z0-9_.-]+/g, "_")}`;
    if (kind === "json") return download(`${name}.json`, JSON.stringify(last, null, 2), "application/json");
    const lines = rows.map((row) => [row.name, verdict(row), row.listed ? "yes" : "no", row.policies.join(" "), row.why]);
    return download(`${name}.csv`, [[tool ? "principal" : "tool", "decision", "listed", "policies", "why"], ...lines].map((line) => line.map(cell).join(",")).join("\r\n"), "text/csv");
  }
  const shadow = last.mode === "shadow" ? h("p", { class: "note" }, "The policies are in shadow mode: denied calls are made and recorded.") : null;
  replace(box, h("h2", {}, tool ? ["Who can call ", h("a", { href: to("tools", tool) }, tool)] : `What ${principal} can call`), shadow, list.element);
  const refresh = throttle(() => {
    isFresh = false;
    list.refresh();
  }, 1000);
  for (const event of ["policy-changed", "server-changed", "agent-changed", "gap"]) ctx.onLeave(ctx.live.on(event, refresh));
}

function verdict(row) {
  return row.approval ? "approval" : row.allowed ? "permit" : "deny";
}

/** A cell of CSV; one that a spreadsheet would take for a formula begins with an apostrophe. */
function cell(text) {
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return `"${safe.replaceAll('"', '""')}"`;
}
