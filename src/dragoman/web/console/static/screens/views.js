// Views: what each client is listed, what that costs its model, and how to put the hub into an IDE.
import { append, h, newId, replace, to } from "../dom.js";
import { badge, empty, facts, heading } from "../states.js";
import { codeBlock, command, quote } from "../copy.js";
import { loadWhole, table } from "../table.js";
import { bold, code, follow, h2, num, p, ref, setQuery, soft } from "../parts.js";

export const title = "Views";

const WHOLE = "(without a view)";

export async function show(root, route, ctx) {
  return route.name && route.name !== WHOLE ? showOne(root, route, ctx) : showAll(root, route, ctx);
}

/** A field for the name by which a client introduces itself; names of connected ones are offered. */
async function buildClientField(ctx, value, change) {
  const id = newId("clients");
  const known = new Set(["cursor", "claude-code", "claude-desktop", "vscode", "windsurf", "zed", "codex", "gemini-cli"]);
  if (ctx.session.rights.includes("registry")) {
    const found = await ctx.api.get("/api/clients", {}, ctx.signal).catch(() => ({ clients: [] }));
    for (const one of found.clients) if (one.name) known.add(one.name);
  }
  let timer = 0;
  const input = h("input", { list: id, value, "aria-label": "Name of the client", placeholder: "Name of a client, such as cursor", oninput: () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      setQuery("client", input.value.trim());
      change(input.value.trim());
    }, 250);
  } });
  return h("span", {}, input, h("datalist", { id }, [...known].sort().map((name) => h("option", { value: name }))));
}

async function showAll(root, route, ctx) {
  let client = route.query.get("client") ?? "";
  const said = h("p", { role: "status", class: "sum" });
  const install = h("div", {});
  const list = table({
    label: "Views", key: (row) => row.name, link: (row) => (row.name === WHOLE ? null : `${to("views", row.name)}${client ? `?client=${encodeURIComponent(client)}` : ""}`),
    filters: [await buildClientField(ctx, client, (name) => {
      client = name;
      list.reload();
    })],
    columns: [
      { label: "View", key: "name", sort: true, render: (row) => [row.name, row.chosen ? [" ", badge("chosen")] : null] },
      { label: "Tools", key: "tools", sort: true, kind: "number" },
      { label: "Tokens of all", key: "tokens", sort: true, kind: "number" },
      { label: "Tokens of the list", key: "listed_tokens", sort: true, kind: "number" },
      { label: "Listed as", key: "searching", render: (row) => (row.searching ? "find_tools, call_tool" : "all tools") },
      { label: "Budget", key: "token_budget", kind: "number", render: (row) => (row.token_budget ? num(row.token_budget) : "") },
      { label: "Address", key: "path", kind: "code" },
      { label: "Description", key: "description" },
    ],
    load: loadWhole(async (signal) => {
      const found = await ctx.api.get("/api/views", { client }, signal);
      const gets = found.chosen ?? null;
      replace(said, client ? [bold(client), gets ? [" gets the view ", ref("views", gets)] : " gets everything, unless its address or its key names a view", ": about ",
        bold(num((gets ? found.views.find((one) => one.name === gets) : found.all)?.listed_tokens ?? 0)), " tokens in its list of tools."]
        : ["A client without a view is listed ", bold(num(found.all.tools)), " tools: about ", bold(num(found.all.listed_tokens)), " tokens of its model."]);
      if (!install.hasChildNodes()) append(install, buildInstall("", found.views.map((one) => one.name)));
      return [...found.views.map((one) => ({ ...one, chosen: one.name === gets })), { name: WHOLE, path: "/mcp", description: "", ...found.all, searching: false, chosen: client !== "" && !gets }];
    }, ["name"]),
  });
  follow(ctx, "server-changed policy-changed", list.refresh, 2000);
  await list.ready;
  append(root, [heading("Views", "What does each client see, and what does that cost?"), said, list.element,
    soft("A view is a part of the hub with a name and an address. Add one to config.toml: "), codeBlock('[[views]]\nname = "review"\ninclude = ["github.get_*", "github.list_*"]', "Example"), install]);
}

async function showOne(root, route, ctx) {
  const { name } = route;
  let client = route.query.get("client") ?? "";
  const about = h("div", {});
  let first = null;
  const load = async (signal) => {
    const found = first ?? (await ctx.api.get(`/api/views/${encodeURIComponent(name)}`, { client }, signal));
    first = null;
    replace(about, describe(found));
    return found.list;
  };
  try {
    first = await ctx.api.get(`/api/views/${encodeURIComponent(name)}`, { client }, ctx.signal);
  } catch (error) {
    if (error.status !== 404) throw error;
    append(root, [heading(name), empty(`There is no view "${name}", or your key is bound to another.`, "List them:", "dragoman views list")]);
    return;
  }
  const list = table({
    label: "Tools of the view", search: "Search tools", key: (row) => row.id, link: (row) => to("tools", row.id),
    filters: [await buildClientField(ctx, client, (next) => {
      client = next;
      list.reload();
    })],
    columns: [{ label: "Name in the view", key: "name", sort: true }, { label: "Tool", key: "id", sort: true, kind: "code" }, { label: "Server or agent", key: "server", sort: true }, { label: "Tokens", key: "tokens", sort: true, kind: "number" }],
    load: loadWhole(load, ["name", "id", "server"]),
    empty: () => empty("The view has no tools.", "Its patterns match nothing that you may call. See what is there:", "dragoman tools"),
  });
  await list.ready;
  append(root, [about, list.element, buildInstall(name, [name])]);
}

function describe(found) {
  const rule = found.rule ?? {};
  const patterns = ["include", "exclude", "servers", "agents", "tags"].filter((key) => rule[key]?.length).map((key) => `${key}: ${rule[key].join(", ")}`);
  return [heading(found.name, null), p(found.description ?? ""), facts([
    ["Address", command(`${location.origin}${found.path}`)],
    ["Tools", num(found.tools)],
    ["Tokens", `about ${num(found.tokens)} for all tools`],
    ["A client is listed", found.searching ? `find_tools and call_tool: about ${num(found.listed_tokens)} tokens` : `all of them: about ${num(found.listed_tokens)} tokens`],
    ["Budget", found.token_budget ? `${num(found.token_budget)} tokens, then clients search` : null],
    ["Rules", patterns.length ? h("ul", { class: "bare" }, patterns.map((one) => h("li", {}, code(one)))) : null],
    ["Renamed", rule.rename && Object.keys(rule.rename).length ? Object.entries(rule.rename).map(([from, name]) => `${from} as ${name}`).join(", ") : null],
  ])];
}

// --- putting the hub into an IDE --------------------------------------------------------------------

const mcpServers = (entry) => ({ mcpServers: { dragoman: entry } });
/** By the name that `dragoman install` has: the title, the file's content for a URL, or null. */
const CLIENTS = {
  cursor: ["Cursor", (url) => mcpServers({ url }), (url) => `cursor://anysphere.cursor-deeplink/mcp/install?name=dragoman&config=${encodeURIComponent(btoa(JSON.stringify({ url })))}`],
  vscode: ["VS Code", (url) => ({ servers: { dragoman: { type: "http", url } } }), (url) => `vscode:mcp/install?${encodeURIComponent(JSON.stringify({ name: "dragoman", type: "http", url }))}`],
  "claude-code": ["Claude Code", (url) => mcpServers({ type: "http", url })],
  "claude-desktop": ["Claude Desktop", null],
  windsurf: ["Windsurf", (url) => mcpServers({ serverUrl: url })],
  zed: ["Zed", null],
  "gemini-cli": ["Gemini CLI", (url) => mcpServers({ httpUrl: url })],
  codex: ["Codex", null],
  ...Object.fromEntries(["cline", "roo-code", "continue", "opencode", "copilot-cli", "amp", "goose", "lm-studio", "amazon-q", "kiro", "junie", "antigravity"].map((name) => [name, [name, null]])),
};

function buildInstall(name, views) {
  const box = h("div", {});
  const client = h("select", { "aria-label": "IDE", onchange: () => draw() }, Object.entries(CLIENTS).map(([key, [label]]) => h("option", { value: key }, label)));
  const view = name ? null : h("select", { "aria-label": "View", onchange: () => draw() }, h("option", { value: "" }, "everything"), views.map((one) => h("option", { value: one }, one)));
  function draw() {
    const chosen = name || view?.value || "";
    const url = `${location.origin}/mcp${chosen ? `/v/${encodeURIComponent(chosen)}` : ""}`;
    const [label, build, link] = CLIENTS[client.value];
    let open = null;
    if (link) {
      open = h("a", { class: "button" }, `Install in ${label}`);
      open.href = link(url); // a scheme of the IDE, which safeLink does not know
    }
    replace(box, p("On the machine of the hub, this writes the file of ", label, ":"), p(command(`dragoman install ${client.value}${chosen ? ` --view ${quote(chosen)}` : ""}`)), open ? p(open) : null,
      build ? [p("Or add this to its configuration:"), codeBlock(JSON.stringify(build(url), null, 2), `Configuration of ${label}`)] : [p("To see what it writes:"), command(`dragoman install ${client.value}${chosen ? ` --view ${quote(chosen)}` : ""} --dry-run`)],
      h("p", { class: "hint" }, "A hub with keys also needs one: dragoman keys create NAME", chosen ? ` --view ${chosen} makes one that reaches nothing but this view.` : "."));
  }
  draw();
  return h("section", { "aria-label": "Put it into an IDE" }, h2("Put it into an IDE"), h("p", { class: "row" }, client, view ? ["with ", view] : null), box);
}
