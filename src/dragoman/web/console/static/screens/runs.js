// Runs of workflows and tasks of agents: what is running, what has failed, what waits for a person.
import { h, replace, to } from "../dom.js";
import { badge, capitalize, empty, facts, heading, linked, problem } from "../states.js";
import { confirm, toast } from "../dialog.js";
import { table } from "../table.js";
import { throttle } from "../live.js";
import { duration, parseTime, when } from "../time.js";
import { askQuestions } from "../calls.js";
import { jsonTree } from "../content.js";
import { drawGraph, frame } from "../graph.js";
import { act, attempt, bold, code, follow, grid, h2, p, ref, setQuery, soft, tabs } from "../parts.js";

export const title = "Runs";

const STATES = ["queued", "running", "waiting", "needs_decision", "completed", "failed", "cancelled"];
const STATUSES = ["running", "completed", "asked", "parked", "failed", "denied", "cancelled"];
const ENDED = new Set(["completed", "failed", "cancelled"]);

export async function show(root, route, ctx) {
  if (route.name) return showOne(root, route, ctx);
  return route.query.get("tab") === "dispatches" ? showDispatches(root, route, ctx) : showAll(root, route, ctx);
}

function head(tab) {
  return [heading("Runs", "What is running, and what has failed?"), tabs("runs", tab, [["", "Workflow runs"], ["dispatches", "Tasks of agents"]])];
}

function choose(label, values, name, route, refresh) {
  return h("select", { "aria-label": label, onchange: (event) => {
    setQuery(name, event.target.value);
    refresh();
  } }, h("option", { value: "" }, label), values.map((one) => h("option", { value: one, selected: route.query.get(name) === one }, one.replaceAll("_", " "))));
}

function only(screen, name, all) {
  return name ? h("span", { class: "row" }, "of ", ref(screen, name), h("a", { href: all }, "show all")) : null;
}

function spent(row, from = "createdAt", until = "endedAt") {
  const start = parseTime(row[from]);
  return start ? Math.max(0, (parseTime(row[until])?.getTime() ?? Date.now()) - start.getTime()) : null;
}

async function showAll(root, route, ctx) {
  let list = null;
  const state = choose("All states", STATES, "state", route, () => list.reload());
  const workflow = route.query.get("workflow") ?? "";
  try {
    await ctx.api.get("/api/runs", { limit: 1 }, ctx.signal);
  } catch (error) {
    if (error.status !== 404) throw error;
    root.append(...head(""), empty("This hub has no workflows.", "Tasks of agents are on the other tab."));
    return;
  }
  list = table({
    label: "Runs", key: (row) => row.id, link: (row) => to("runs", row.id),
    filters: [state, only("workflows", workflow, "/console/runs")],
    columns: [
      { label: "Run", key: "id", render: (row) => code(row.id.slice(0, 12)) },
      { label: "Workflow", key: "workflow" },
      { label: "State", key: "state", render: (row) => badge(row.state) },
      { label: "Started", key: "createdAt", kind: "time" },
      { label: "Took", key: "ms", kind: "number", render: (row) => duration(spent(row)) },
      { label: "By", key: "startedBy", render: (row) => `${row.startedBy}${row.behalf ? ` for ${row.behalf}` : ""}${row.trigger?.kind && row.trigger.kind !== "manual" ? ` (${row.trigger.kind})` : ""}` },
      { label: "Problem", key: "problem", render: (row) => h("span", { class: "clamp" }, row.problem ? capitalize(row.problem) : "") },
    ],
    load: async ({ cursor, limit, signal }) => {
      const found = await ctx.api.get("/api/runs", { state: state.value, workflow, cursor, limit: Math.min(limit, 200) }, signal);
      return { rows: found.runs, nextCursor: found.nextCursor };
    },
    limit: 50,
    empty: () => state.value ? h("p", { class: "empty" }, "No runs in this state.") : empty("No runs yet.", "Start one from a workflow, or with:", "dragoman workflows run NAME"),
  });
  follow(ctx, "run-changed", list.refresh, 1000);
  root.append(...head(""), list.element);
}

function showDispatches(root, route, ctx) {
  let list = null;
  const status = choose("All states", STATUSES, "status", route, () => list.reload());
  const agent = route.query.get("agent") ?? "";
  list = table({
    label: "Tasks of agents", key: (row) => row.dispatchId, link: (row) => (row.traceId ? to("traces", row.traceId) : null),
    filters: [status, only("agents", agent, "/console/runs?tab=dispatches")],
    columns: [
      { label: "Task", key: "dispatchId", render: (row) => code(String(row.taskId ?? row.dispatchId).slice(0, 12)) },
      { label: "Agent", key: "agentName", render: (row) => h("a", { href: to("agents", row.agentName ?? "") }, row.agentName ?? "") },
      { label: "Skill", key: "skillId" },
      { label: "State", key: "status", render: (row) => badge(row.status) },
      { label: "Started", key: "startedAt", kind: "time" },
      { label: "Took", key: "latencyMs", kind: "ms" },
      { label: "By", key: "caller" },
      { label: "Chosen", key: "kind", render: (row) => (row.decisionId ? "by the hub" : "by the caller") },
      { label: "Tokens", key: "costTokens", kind: "number" },
    ],
    load: async ({ cursor, limit, signal }) => {
      const found = await ctx.api.get("/api/a2a/dispatches", { status: status.value, agent, cursor, limit: Math.min(limit, 200) }, signal);
      return { rows: found.dispatches, nextCursor: found.nextCursor };
    },
    limit: 50,
    empty: () => (status.value ? h("p", { class: "empty" }, "No tasks in this state.") : empty("No agent was asked yet.", "Ask one:", "dragoman agents")),
  });
  follow(ctx, "pre-verb post-verb", list.refresh, 1500);
  root.append(...head("dispatches"), list.element);
}

// --- one run ---------------------------------------------------------------------------------------

async function showOne(root, route, ctx) {
  const id = route.name;
  const path = `/api/runs/${encodeURIComponent(id)}`;
  const [top, waits, picture, steps, detail, end] = Array.from({ length: 6 }, () => h("div", {}));
  let chosen = route.query.get("step") ?? "";
  let found = null;
  let graph = null;
  let asked = "";
  let shown = "";

  async function refresh() {
    found = await ctx.api.get(path, {}, ctx.signal);
    graph ??= found.graph ?? (await fetchGraph(ctx, found.run));
    draw();
  }

  function draw() {
    const { run } = found;
    ctx.setTitle(`${run.workflow} ${run.state.replaceAll("_", " ")} · Runs`);
    replace(top, describe(run, found, send));
    drawWaits();
    const states = sumUp(found.steps);
    const held = picture.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label")?.split(",")[0] : "";
    replace(picture, drawGraph(graph ?? found.steps.filter((one) => one.path === one.id).map((one) => ({ ...one, dependsOn: [] })), { states, chosen: base(chosen), choose: select }));
    if (held) [...picture.querySelectorAll("g.node")].find((one) => one.getAttribute("aria-label").startsWith(`${held},`))?.focus({ preventScroll: true });
    replace(steps, listSteps(found.steps, chosen, select));
    drawDetail();
    replace(end, ENDED.has(run.state) && found.output !== undefined && found.output !== null ? [h2("Output"), jsonTree(found.output)] : null,
      found.inputs && Object.keys(found.inputs).length ? h("details", { class: "more" }, h("summary", {}, "Inputs"), jsonTree(found.inputs)) : null);
  }

  function select(step) {
    chosen = step === chosen ? "" : step;
    setQuery("step", chosen);
    draw();
  }

  function drawDetail() {
    const some = chosen ? found.steps.filter((one) => one.path === chosen || one.id === chosen) : [];
    const shape = JSON.stringify(some);
    if (shape === shown) return;
    shown = shape;
    replace(detail, some.slice(0, 20).map((one) => describeStep(one)), some.length > 20 ? soft(`${some.length - 20} more`) : null);
  }

  /** Questions and decisions. A form that someone is filling in stays while the run goes on. */
  function drawWaits() {
    const open = found.steps.filter((one) => one.questions || one.state === "needs_decision" || (one.approval && one.state === "waiting"));
    const key = open.map((one) => `${one.path} ${one.attempt} ${one.state}`).join();
    if (key === asked) return;
    asked = key;
    replace(waits, open.map((one) => (one.questions ? askStep(one) : one.approval ? h("div", { class: "note" }, p(`Step ${one.path} waits for a decision: `, ref("approvals", one.approval, "open the approval"))) : decideStep(one))));
  }

  function askStep(one) {
    const holder = h("div", {});
    const ask = async () => {
      const answers = await askQuestions(holder, one.questions, ctx.signal);
      await send("answer", { step: one.path, answers }, "The answer was sent");
    };
    ask().catch((error) => error.name === "AbortError" || replace(holder, problem(error)));
    return h("section", { "aria-label": `Question of ${one.path}` }, p("Step ", bold(one.path), " asks:"), holder);
  }

  function decideStep(one) {
    const decide = (decision, said) => act(capitalize(decision), () => send("resume", { step: one.path, decision }, said), { class: decision === "fail" ? "danger" : null });
    return h("div", { class: "problem" }, p(bold(one.path), ": ", one.problem || "it is unknown whether this step was done when the hub stopped."),
      h("p", { class: "next" }, "Look at what has happened, then decide: retry runs it again, skip goes on without it, fail ends the run."),
      h("div", { class: "actions" }, decide("retry", "The step runs again"), decide("skip", "The step was skipped"), decide("fail", "The run fails")));
  }

  async function send(action, body, said, ...question) {
    if (question.length && !(await confirm(...question))) return;
    if (!(await attempt(() => ctx.api.post(`${path}/${action}`, body), said))) asked = "";
    await refresh();
  }

  try {
    await refresh();
  } catch (error) {
    if (error.status !== 404) throw error;
    root.append(heading(id), empty(`There is no run "${id}", or you may not see it.`, "Look at all of them:", "dragoman runs"));
    return undefined;
  }
  root.append(top, waits, frame(picture),
    h("div", { class: "bench" }, h("div", {}, h2("Steps"), steps), h("div", {}, detail, end)));
  const again = throttle(() => refresh().catch((error) => error.name === "AbortError" || toast(error.message, "error")), 400);
  for (const event of ["run-changed", "step-changed"]) ctx.onLeave(ctx.live.on(event, (data) => (data.run === id || data.run?.id === id) && again()));
  ctx.onLeave(ctx.live.on("gap", again));
  const timer = setInterval(() => document.hidden || ENDED.has(found.run.state) || again(), 5000);
  return () => clearInterval(timer);
}

async function fetchGraph(ctx, run) {
  try {
    const now = await ctx.api.get(`/api/workflows/${encodeURIComponent(run.workflow)}`, {}, ctx.signal);
    return now.digest === run.digest ? now.graph?.nodes ?? null : null;
  } catch (error) {
    if (error.status) return null;
    throw error;
  }
}

function base(path) {
  return path.split(".").pop().replace(/\[\d+\]/g, "");
}

/** One state for each step: of a step in a loop, the one that needs attention most. */
export function sumUp(steps) {
  const rank = ["failed", "needs_decision", "waiting", "running", "pending", "cancelled", "completed", "skipped"];
  const states = new Map();
  for (const one of steps) {
    const before = states.get(one.id);
    const ms = one.startedAt ? spent(one, "startedAt") : 0;
    if (!before) states.set(one.id, { state: one.state, ms, count: 0 });
    else {
      before.count = (before.count || 1) + 1;
      before.ms += ms;
      if (rank.indexOf(one.state) < rank.indexOf(before.state)) before.state = one.state;
    }
  }
  return states;
}

function describe(run, found, send) {
  const isOver = ENDED.has(run.state);
  return [
    heading(run.workflow, null,
      isOver ? null : act("Cancel", () => send("cancel", {}, "The run was cancelled", "Cancel this run?", "Its running calls are cancelled; what they have done stays done.", "Cancel the run", true), { class: "danger" }),
      run.state === "failed" ? act("Retry", () => send("retry", {}, "The run continues at its failed steps"), { class: "main" }) : null,
      h("a", { class: "button", href: to("workflows", run.workflow) }, "Workflow"),
      run.trace ? h("a", { class: "button", href: to("traces", run.trace) }, "Trace") : null),
    run.problem ? h("div", { class: "problem" }, p(capitalize(run.problem))) : null,
    facts([
      ["State", badge(run.state)], ["Started", when(run.createdAt)], ["Took", duration(spent(run))], ["By", run.behalf ? `${run.startedBy} for ${run.behalf}` : run.startedBy],
      ["Trigger", run.trigger?.kind], ["Run", code(run.id)], ["Part of", run.parent ? ref("runs", run.parent) : null],
      ["Steps", `${found.steps.filter((one) => one.state === "completed").length} of ${found.steps.length} completed`],
    ]),
  ];
}

function listSteps(steps, chosen, select) {
  return [grid("Steps", [
    ["Step", (one) => act(one.path, () => select(one.path), { class: "link", "aria-expanded": String(one.path === chosen || one.id === chosen) })],
    ["State", (one) => [stepBadge(one.state), one.attempt > 1 ? ` attempt ${one.attempt}` : null]],
    ["Took", (one) => (one.startedAt && one.state !== "skipped" ? duration(spent(one, "startedAt")) : null), "number"],
    ["Message", describeMessage],
  ], steps.slice(0, 500)), steps.length > 500 ? soft(`${steps.length - 500} more steps; choose a loop in the graph to see its own.`) : null];
}

function describeMessage(one) {
  const text = one.problem || one.message || (one.wakesAt ? ["goes on ", when(one.wakesAt)] : one.tool || one.agent);
  return text ? h("span", { class: one.problem ? "invalid clamp" : "clamp soft" }, typeof text === "string" ? linked(text) : text) : null;
}

/** A step that has not begun is nothing to worry about. */
function stepBadge(state) {
  return state === "pending" ? h("span", { class: "badge" }, "pending") : badge(state);
}

function describeStep(one) {
  return h("section", { class: "card", "aria-label": `Step ${one.path}` }, h("h3", {}, one.path, " ", stepBadge(one.state)),
    one.problem ? h("p", { class: "invalid" }, capitalize(one.problem)) : null,
    facts([
      ["Does", one.node], ["Tool", one.tool ? ref("tools", one.tool) : null], ["Agent", one.agent ? ref("agents", one.agent) : null],
      ["Approval", one.approval ? ref("approvals", one.approval, "open") : null], ["Run", one.child ? ref("runs", one.child) : null],
      ["Task", one.task ? [code(one.task.id), one.task.at ? h("span", { class: "soft" }, ` ${one.task.at}`) : null] : null],
      ["Started", when(one.startedAt)], ["Ended", when(one.endedAt)], ["Attempt", one.attempt > 1 ? one.attempt : null], ["Says", one.message],
    ]),
    one.output === undefined || one.output === null ? null : [h("h3", {}, "Output"), jsonTree(one.output)]);
}
