// Policies: who may do what, what if, and what would a change do? Files are edited in ../policy_editor.js.
import { h, newId, replace, to } from "../dom.js";
import { badge, capitalize, empty, facts, heading, problem, waiting } from "../states.js";
import { codeBlock } from "../copy.js";
import { showDialog } from "../dialog.js";
import { throttle } from "../live.js";
import { when } from "../time.js";
import { policies as policyLinks } from "../records.js";
import { editFile } from "../policy_editor.js";

export const title = "Policies";

const TABS = [["", "Policies"], ["what-if", "What if"], ["shadow", "Shadow report"]];

export async function show(root, route, ctx) {
  if (!ctx.session.rights.includes("policies")) {
    root.append(heading("Policies", "Who may do what, and what would a change do?"), empty("Only administrators see and change policies.", "Sign in as the owner of the hub:", "dragoman console"));
    return;
  }
  if (route.name) return editFile(root, route, ctx);
  const { query } = route;
  const tab = query.get("tab") ?? (query.get("principal") || query.get("tool") ? "what-if" : "");
  root.append(heading("Policies", "Who may do what, and what would a change do?",
    h("button", { type: "button", class: "main", onclick: () => createFile(ctx) }, "New file")),
  h("div", { class: "tabs", role: "navigation", "aria-label": "Parts" }, TABS.map(([name, label]) => h("a", { href: name ? `/console/policies?tab=${name}` : "/console/policies", "aria-current": name === tab ? "page" : null }, label))));
  if (tab === "what-if") return whatIf(root, query, ctx);
  if (tab === "shadow") return shadowReport(root, query, ctx);
  return overview(root, query, ctx);
}

async function overview(root, query, ctx) {
  const box = h("div", {});
  const wanted = query.get("policy");
  let shown = "";
  async function refresh() {
    const found = await ctx.api.get("/api/policies", {}, ctx.signal);
    const shape = JSON.stringify(found);
    if (shape === shown) return;
    shown = shape;
    replace(box, describe(found, wanted));
  }
  await refresh();
  root.append(box);
  if (wanted) requestAnimationFrame(() => box.querySelector("tr.chosen")?.scrollIntoView({ block: "center" }));
  const again = throttle(() => refresh().catch(() => {}), 500);
  for (const name of ["policy-changed", "gap"]) ctx.onLeave(ctx.live.on(name, again));
}

function describe(found, wanted) {
  const rows = found.files.flatMap((file) => (file.policies.length ? file.policies : [{ id: "", effect: "", line: 0 }]).map((one) => ({ ...one, file })));
  const guards = found.guardrails.map((one) => ({ ...one, effect: "forbid", guardrail: true }));
  const known = [...rows, ...guards].some((row) => row.id === wanted);
  return [
    found.problem ? h("div", { class: "problem" }, h("p", {}, `The newest files are not in force: ${found.problem}`), h("p", { class: "next" }, "The previous set stays in force until the files are valid. Open the file below.")) : null,
    found.mode === "shadow" ? h("p", { class: "note" }, "Shadow mode: policies are evaluated and recorded, but only the guardrails are enforced. ", h("a", { href: "/console/policies?tab=shadow" }, "See what they would have refused")) : null,
    found.warnings.length ? h("div", { class: "note" }, found.warnings.map((text) => h("p", {}, text))) : null,
    wanted && !known ? h("p", { class: "note" }, `There is no policy "${wanted}" now: it was removed, renamed or disabled.`) : null,
    h("p", { class: "summary" }, found.default ? "No policies of your own: the defaults apply. " : "", "Mode ", badge(found.mode), " of the set ", h("code", {}, found.snapshot), " from ", h("code", {}, found.folder)),
    h("div", { class: "table" }, h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Policy", "Effect", "File", "State"].map((label) => h("th", { scope: "col" }, label)))),
      h("tbody", {}, rows.map((row) => h("tr", { class: row.id && row.id === wanted ? "chosen" : null },
        h("td", {}, h("a", { href: `${to("policies", row.file.name)}${row.line ? `?line=${row.line}` : ""}` }, row.id || h("span", { class: "soft" }, "no policies"))),
        h("td", { dataset: { label: "Effect" } }, row.effect),
        h("td", { dataset: { label: "File" } }, h("a", { href: to("policies", row.file.name) }, `${row.file.name}.cedar`), row.line ? h("span", { class: "soft" }, ` line ${row.line}`) : null),
        h("td", { dataset: { label: "State" } }, row.file.problem ? [badge("invalid"), " ", row.file.problem] : row.file.enabled ? badge("active") : badge("disabled")))))))),
    rows.length ? null : empty("The folder has no policies of its own.", "Write the defaults to files, or press New file:", "dragoman policy init"),
    h("h2", {}, "Guardrails"),
    h("p", { class: "soft" }, "Part of the hub: always enforced, in shadow mode too."),
    h("dl", { class: "facts" }, guards.map((one) => [h("dt", { class: one.id === wanted ? "chosen" : null }, h("code", {}, one.id)), h("dd", {}, capitalize(one.description))])),
  ];
}

async function createFile(ctx) {
  const name = await showDialog("New policy file", (close) => {
    const id = newId("file");
    const input = h("input", { id, pattern: "[A-Za-z0-9][A-Za-z0-9_.\\-]*", maxlength: "60", required: true, autocomplete: "off" });
    return h("form", { onsubmit: (event) => {
      event.preventDefault();
      close(input.value.trim().replace(/\.cedar$/, ""));
    } }, h("div", { class: "field" }, h("label", { for: id }, "Name"), h("p", { class: "hint" }, "Letters, digits, - and _. It becomes NAME.cedar."), input),
    h("div", { class: "actions" }, h("button", { type: "button", onclick: () => close() }, "Cancel"), h("button", { class: "main" }, "Write it")));
  });
  if (name) ctx.navigate(`${to("policies", name)}?new=1`);
}

// --- what if --------------------------------------------------------------------------------------

async function whatIf(root, query, ctx) {
  const tools = h("datalist", { id: newId("tools") });
  const people = h("datalist", { id: newId("people") });
  const field = (name, label, hint, more = {}) => {
    const id = newId(name);
    return h("div", { class: "field" }, h("label", { for: id }, label), hint ? h("p", { class: "hint" }, hint) : null,
      h(more.rows ? "textarea" : "input", { id, name, value: query.get(name) ?? more.value ?? "", spellcheck: "false", autocomplete: "off", ...more, dataset: more.search ? { search: "" } : {} }));
  };
  const answer = h("section", { "aria-live": "polite", "aria-label": "Answer" });
  const form = h("form", { class: "card", onsubmit: (event) => {
    event.preventDefault();
    const given = Object.fromEntries(new FormData(form));
    const url = new URL(location.href);
    url.search = new URLSearchParams([["tab", "what-if"], ...Object.entries(given).filter(([, value]) => value)]);
    history.replaceState(history.state, "", url);
    ask(given);
  } }, h("div", { class: "fields" },
    field("principal", "Who", "A principal: owner:owner, key:NAME, agent:NAME", { list: people.id, required: true, search: true }),
    field("tool", "calls which tool", null, { list: tools.id, required: true, oninput: (event) => suggest(event.target.value) }),
    field("roles", "with the roles", "Instead of its own, separated by spaces; then the principal need not exist"),
    field("args", "with the arguments", "JSON, such as {\"project\": \"site\"}", { rows: "1", class: "code" }),
    field("context", "in which context", "JSON, such as {\"labels\": [\"external_network\"], \"depth\": 2}", { rows: "1", class: "code" })),
  h("div", { class: "actions" }, h("button", { class: "main" }, "Ask the policies")), tools, people);
  root.append(h("div", { class: "columns" }, form, answer));
  let timer = 0;
  const suggest = (text) => {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const found = await ctx.api.get("/api/tools", { q: text, limit: 30 }, ctx.signal).catch(() => ({ tools: [] }));
      replace(tools, found.tools.map((one) => h("option", { value: one.id })));
    }, 200);
  };
  suggest("");
  ctx.api.get("/api/keys", {}, ctx.signal).then((found) => replace(people, ["owner:owner", ...found.keys.map((one) => `key:${one.name}`)].map((value) => h("option", { value }))), () => {});
  async function ask(given) {
    const question = { principal: given.principal.trim(), tool: given.tool.trim() };
    try {
      if (given.roles?.trim()) question.roles = given.roles.trim().split(/[\s,]+/);
      if (given.context?.trim()) question.context = JSON.parse(given.context);
      if (given.args?.trim()) question.context = { ...question.context, args: JSON.parse(given.args) };
      replace(answer, describeAnswer(await ctx.api.post("/api/policies/explain", question, ctx.signal)));
    } catch (error) {
      if (error.name === "AbortError") return;
      replace(answer, problem(error instanceof SyntaxError ? { message: `The arguments and the context must be JSON: ${error.message}` } : error));
    }
  }
  if (query.get("principal") && query.get("tool")) await ask(Object.fromEntries(query));
  else replace(answer, h("p", { class: "empty" }, "The answer says which policies decided, and what would have to change."));
}

function describeAnswer(found) {
  const one = (policy) => h("div", { class: "policy" },
    h("p", {}, badge(policy.effect === "permit" ? "permit" : "deny", policy.effect), " ",
      policy.guardrail ? h("code", {}, policy.id) : h("a", { href: `${to("policies", policy.file.replace(/\.cedar$/, ""))}?line=${policy.line}` }, policy.id), policy.annotations?.why ? ` ${policy.annotations.why}` : ""),
    codeBlock(policy.text, `Policy ${policy.id}`));
  return [
    h("p", { class: "verdict" }, badge(found.allowed ? "allow" : "deny"), " ", h("b", {}, capitalize(found.words))),
    found.why ? h("p", {}, capitalize(found.why)) : null,
    found.needed ? h("div", { class: "note" }, h("p", {}, "To change it: ", found.needed), found.example ? codeBlock(found.example, "Example") : null) : null,
    facts([["Action", h("code", {}, found.action)], ["Listed for it", found.listed ? "yes" : "no"], ["Needs an approval", found.approval ? [found.approval.reason, found.approval.approvers?.length ? h("span", { class: "soft" }, ` by ${found.approval.approvers.join(" or ")}`) : null] : null], ["Mode", found.mode === "shadow" ? "shadow: the call is made, and recorded as denied" : null], ["Errors", found.errors.length ? found.errors.join("; ") : null]]),
    found.forbids.length ? [h("h2", {}, "Forbids it"), found.forbids.map(one)] : null,
    found.permits.length ? [h("h2", {}, "Permits it"), found.permits.map(one)] : null,
    found.nearly.length ? [h("h2", {}, "Nearly permits it"), found.nearly.map((each) => (each.text ? one(each) : h("p", {}, typeof each === "string" ? each : JSON.stringify(each))))] : null,
    Object.keys(found.attributes).length ? h("details", {}, h("summary", {}, "What the policies looked at"), facts(Object.entries(found.attributes).map(([name, value]) => [h("code", {}, name), h("code", {}, typeof value === "string" ? value : JSON.stringify(value))]))) : null,
  ];
}

// --- shadow ---------------------------------------------------------------------------------------

const MAX_PAGES = 10;

async function shadowReport(root, query, ctx) {
  const box = h("div", {}, waiting());
  root.append(box);
  const { mode } = await ctx.api.get("/api/policies", {}, ctx.signal);
  const since = Math.floor(Date.now() / 1000) - 7 * 86400;
  const groups = new Map();
  let cursor = null;
  let pages = 0;
  do {
    const found = await ctx.api.get("/api/audit", { decision: "shadow", since, limit: 500, cursor }, ctx.signal);
    for (const row of found.records) {
      const key = `${row.caller}\n${row.verb}\n${row.shadow.policies?.join(" ")}`;
      const one = groups.get(key) ?? { ...row, count: 0 };
      one.count += 1;
      groups.set(key, one);
    }
    cursor = found.nextCursor;
    pages += 1;
  } while (cursor && pages < MAX_PAGES);
  const rows = [...groups.values()].sort((a, b) => b.count - a.count);
  if (!rows.length) {
    const isShadow = mode === "shadow";
    replace(box, h("div", { class: "empty" },
      h("p", {}, isShadow ? "In the last 7 days the policies would have refused nothing." : "The policies are enforced. In shadow mode, what they would have refused is listed here."),
      h("p", {}, isShadow ? "If all usual work has been done, enforce them in config.toml:" : "To try policies without refusing anything, set in config.toml:"),
      codeBlock(`[policy]\nmode = "${isShadow ? "enforce" : "shadow"}"`, "config.toml")));
    return;
  }
  const count = rows.reduce((sum, row) => sum + row.count, 0);
  replace(box, h("p", { class: "summary" }, `${count === 1 ? "One call" : `${count.toLocaleString("en")} calls`} of the last 7 days would have been refused.${cursor ? " There are more: these are the newest." : ""}`),
    h("div", { class: "table" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Caller"), h("th", { scope: "col" }, "Tool"), h("th", { scope: "col", class: "number" }, "Calls"), h("th", { scope: "col" }, "Refused by"), h("th", { scope: "col" }, "Last"))),
      h("tbody", {}, rows.map((row) => h("tr", {},
        h("td", {}, h("a", { href: `/console/policies?${new URLSearchParams({ principal: row.caller, tool: row.verb })}` }, row.caller)),
        h("td", { dataset: { label: "Tool" } }, h("a", { href: to("tools", row.verb) }, row.verb)),
        h("td", { class: "number", dataset: { label: "Calls" } }, row.count.toLocaleString("en")),
        h("td", { dataset: { label: "Refused by" } }, row.shadow.policies?.length ? policyLinks(row.shadow.policies) : "no policy permits it"),
        h("td", { dataset: { label: "Last" } }, h("a", { href: to("traces", row.trace) }, when(row.at)))))))));
}
