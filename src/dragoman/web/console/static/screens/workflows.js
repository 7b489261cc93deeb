// Workflows: their graphs and sources, what is wrong with them by line, and a form that starts a run.
import { append, h, replace, to } from "../dom.js";
import { badge, capitalize, empty, facts, heading, problem } from "../states.js";
import { command, quote } from "../copy.js";
import { confirm } from "../dialog.js";
import { loadWhole, table } from "../table.js";
import { schemaForm } from "../form.js";
import { throttle } from "../live.js";
import { when } from "../time.js";
import { drawGraph, frame } from "../graph.js";
import { act, attempt, code, follow, h2, p, ref, soft } from "../parts.js";

export const title = "Workflows";

export async function show(root, route, ctx) {
  return route.name ? showOne(root, route.name, ctx) : showAll(root, ctx);
}

async function showAll(root, ctx) {
  const question = "Which workflows are there, and are they valid?";
  try {
    await ctx.api.get("/api/workflows", {}, ctx.signal);
  } catch (error) {
    if (error.status !== 404) throw error;
    root.append(heading("Workflows", question), empty("This hub has no workflows."));
    return;
  }
  const list = table({
    label: "Workflows", search: "Search workflows", key: (row) => row.name, link: (row) => to("workflows", row.name),
    columns: [
      { label: "Workflow", key: "name", sort: true },
      { label: "State", key: "state", sort: true, render: (row) => badge(row.state) },
      { label: "Steps", key: "steps", sort: true, kind: "number" },
      { label: "Starts by", key: "kinds" },
      { label: "Description", key: "description", render: (row) => (row.problem ? h("span", { class: "invalid" }, row.problem) : h("span", { class: "clamp" }, row.description)) },
    ],
    load: loadWhole(async (signal) => (await ctx.api.get("/api/workflows", {}, signal)).workflows.map((one) => ({ ...one, kinds: (one.triggers ?? []).map((trigger) => trigger.kind).join(", ") })), ["name", "description", "problem"]),
    empty: () => empty("No workflows yet.", "Write the first one; the hub uses it as soon as the file is there:", "dragoman workflows new hello"),
  });
  follow(ctx, "workflow-changed", list.refresh, 1000);
  root.append(heading("Workflows", question, h("a", { class: "button", href: "/console/runs" }, "Runs")), list.element);
}

async function showOne(root, name, ctx) {
  let found;
  try {
    found = await ctx.api.get(`/api/workflows/${encodeURIComponent(name)}`, {}, ctx.signal);
  } catch (error) {
    if (error.status !== 404) throw error;
    root.append(heading(name), empty(`There is no workflow "${name}", or you may not run it.`, "Look at all of them:", "dragoman workflows list"));
    return;
  }
  const recent = h("div", {}, soft("…"));
  const readRuns = async () => {
    const { runs } = await ctx.api.get("/api/runs", { workflow: name, limit: 8 }, ctx.signal);
    replace(recent, runs.length ? h("ol", { class: "past" }, runs.map((one) => h("li", { class: "row" }, badge(one.state), ref("runs", one.id, one.id.slice(0, 12)), h("span", { class: "line" }, one.problem ?? ""), when(one.createdAt))))
      : soft("It has not run yet."));
  };
  await readRuns().catch((error) => error.name === "AbortError" || replace(recent, problem(error)));
  const again = throttle(() => readRuns().catch(() => {}), 1000);
  ctx.onLeave(ctx.live.on("run-changed", (data) => data.workflow === name && again()));
  const nodes = found.graph?.nodes ?? [];
  const remove = async () => {
    if (!(await confirm(`Delete ${name}?`, `${found.file} is deleted; its running runs finish.`, "Delete", true))) return;
    if (await attempt(() => ctx.api.delete(`/api/workflows/${encodeURIComponent(name)}`), `${name} was deleted`)) ctx.navigate("/console/workflows");
  };
  append(root, [
    heading(name, null, h("a", { class: "button", href: `/console/runs?workflow=${encodeURIComponent(name)}` }, "Its runs"),
      ctx.session.rights.includes("workflows") ? act("Delete", remove, { class: "danger" }) : null),
    found.problem ? h("div", { class: "problem" }, p(capitalize(found.problem)), h("p", { class: "next" }, found.digest ? "The version before it is used until the file is correct. All problems, with their lines:" : "It cannot run until the file is correct. All problems, with their lines:"), command(`dragoman workflows check ${quote(name)}`)) : null,
    p(found.description ?? ""),
    facts([["State", badge(found.state)], ["File", code(found.file ?? "")],
      ["Starts by", (found.triggers ?? []).map(describeTrigger).join("; ") || null], ["Tool of clients", found.expose ? code(`workflow.${name}`) : null],
      ["Version", found.digest ? code(found.digest.slice(0, 12)) : null]]),
    nodes.length ? [
      frame(drawGraph(nodes, { choose: (id) => mark(root, id) })),
      h("div", { class: "bench" }, h("div", {}, h2("Run it"), buildStart(found, ctx)), h("div", {}, h2("Last runs"), recent)),
    ] : null,
    found.source ? h("section", { "aria-label": "Source" }, h2("Source"), numbered(found.source)) : null,
  ]);
}

function describeTrigger(one) {
  const rest = Object.entries(one).filter(([key]) => key !== "kind").map(([key, value]) => `${key} ${typeof value === "object" ? JSON.stringify(value) : value}`);
  return [one.kind, ...rest].join(" ");
}

/** The source with the numbers of its lines, which can be linked to and marked. */
function numbered(text) {
  return h("pre", { class: "source", tabindex: "0", role: "region", "aria-label": "Source" }, text.replace(/\n$/, "").split("\n").map((line, index) => h("span", { class: "text-line", dataset: { line: index + 1 } }, line, "\n")));
}

function mark(root, id) {
  const lines = [...root.querySelectorAll(".text-line")];
  for (const one of lines) one.classList.remove("marked");
  const found = lines.find((one) => new RegExp(`\\bid: *["']?${id.replace(/[^\w-]/g, ".")}\\b`).test(one.textContent));
  found?.classList.add("marked");
  found?.scrollIntoView({ block: "center" });
}

function buildStart(found, ctx) {
  const missing = found.missingAgents ?? [];
  const form = schemaForm(found.inputs ?? {}, {});
  const agents = missing.length ? schemaForm({ type: "object", required: missing, properties: Object.fromEntries(missing.map((one) => [one, { type: "string", title: `Agent for "${one}"`, minLength: 1, maxLength: 100 }])) }, {}) : null;
  const said = h("div", {});
  const send = h("button", { class: "main" }, "Run");
  const none = !Object.keys(found.inputs?.properties ?? {}).length;
  return h("form", { novalidate: true, onsubmit: async (event) => {
    event.preventDefault();
    const inputs = form.read();
    const names = agents?.read();
    if (inputs.problems.length || names?.problems.length) return;
    send.disabled = true;
    try {
      const { run } = await ctx.api.post(`/api/workflows/${encodeURIComponent(found.name)}/run`, { inputs: inputs.value ?? {}, agents: names?.value ?? {} });
      ctx.navigate(to("runs", run.id));
    } catch (error) {
      replace(said, problem(error));
    }
    send.disabled = false;
  } }, none ? soft("It takes no inputs.") : form.element, agents?.element, said, h("div", { class: "actions" }, send));
}
