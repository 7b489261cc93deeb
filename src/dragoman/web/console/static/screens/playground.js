// Playground: calls any tool, skill or agent, as the session's principal or as an agent of the hub: a
// form of its schema, progress, questions, the result, and the call as text to copy.
import { h, newId, replace } from "../dom.js";
import { badge, empty, heading, problem } from "../states.js";
import { codeBlock } from "../copy.js";
import { showDialog } from "../dialog.js";
import { schemaForm } from "../form.js";
import { duration } from "../time.js";
import { askQuestions, callTool, showProgress, showFailure, showResult } from "../calls.js";
import { jsonTree } from "../content.js";
import { buildCurl, buildPython, buildShell, buildTest } from "../snippets.js";
import { act, bold, h2, num, p, ref, setQuery, soft, tryLink } from "../parts.js";

export const title = "Playground";

const KEPT = 30;
/** The last calls of this tab, the newest first. They are gone when the page is reloaded. */
const history = [];

export async function show(root, route, ctx) {
  const name = route.query.get("tool") || route.name;
  const picker = buildPicker(ctx, name);
  root.append(heading("Playground", "Does it work?"), picker.element);
  if (!name) {
    root.append(soft("Choose a tool, a skill of an agent or an agent. Nothing is called until you press Call."), picker.list, listHistory(ctx));
    await picker.begin();
    return;
  }
  let tool;
  try {
    tool = await ctx.api.get(`/api/tools/${encodeURIComponent(name)}`, {}, ctx.signal);
  } catch (error) {
    if (error.status !== 404) throw error;
    root.append(picker.list, empty(`There is no tool "${name}", or you may not see it.`, "Search for another one above. A tool that has changed may be quarantined:", "dragoman pins list"));
    return;
  }
  ctx.setTitle(`${tool.name} · Playground`);
  const again = history.find((one) => String(one.id) === route.query.get("call"));
  const agents = ctx.session.rights.includes("registry") ? (await ctx.api.get("/api/agents", { grants: "no" }, ctx.signal)).agents : [];
  root.append(picker.list, buildBench(tool, again, buildActor(agents, again?.agent ?? route.query.get("as") ?? ""), ctx));
}

/** Chooses who calls: the session's principal, or an agent of the hub for it. */
function buildActor(agents, chosen) {
  return h("select", { "aria-label": "Call as", hidden: !agents.length, onchange: (event) => setQuery("as", event.target.value) },
    h("option", { value: "" }, "as yourself"), agents.map((one) => h("option", { value: one.name, selected: one.name === chosen }, `as agent ${one.name}`)));
}

/** A field that searches on the server, and the list of what it found. */
function buildPicker(ctx, name) {
  const id = newId("found");
  let control = null;
  const list = h("ul", { class: "found", id, role: "listbox", "aria-label": "Tools, skills and agents", hidden: Boolean(name) });
  const input = h("input", { type: "search", role: "combobox", "aria-expanded": String(!name), "aria-controls": id, "aria-autocomplete": "list", "aria-label": "Search tools, skills and agents",
    placeholder: "Search tools, skills and agents ( / )", dataset: { search: "" }, oninput: () => begin(), onfocus: () => name && begin(), onkeydown: move });
  const source = h("select", { "aria-label": "Source", onchange: () => begin() }, [["", "Everything"], ["mcp", "MCP servers"], ["a2a", "Skills of A2A agents"], ["agent", "Agents"]]
    .map(([value, label]) => h("option", { value }, label)));
  const count = h("span", { class: "count", role: "status" });
  let chosen = -1;
  let pending = null;
  const begin = () => (pending = search());

  async function search() {
    control?.abort();
    control = new AbortController();
    try {
      const found = await ctx.api.get("/api/tools", { q: input.value.trim(), source: source.value, limit: 30 }, control.signal);
      chosen = -1;
      count.textContent = found.total > found.tools.length ? `${found.tools.length} of ${num(found.total)}` : String(found.total);
      replace(list, found.tools.map((one, index) => h("li", { role: "none" },
        h("a", { role: "option", id: `${id}-${index}`, "aria-selected": "false", href: tryLink(one.name), tabindex: "-1" }, h("span", { class: "row" }, bold(one.name), h("span", { class: "soft" }, one.server)),
          h("span", { class: "clamp soft" }, one.description)))),
      found.tools.length ? null : h("li", { role: "option", "aria-selected": "false", "aria-disabled": "true" }, input.value ? "Nothing matches the search." : empty("No tools yet.", "Add a server, and call its tools here:", "dragoman servers add time -- uvx mcp-server-time")));
      list.hidden = false;
      input.setAttribute("aria-expanded", "true");
    } catch (error) {
      if (error.name !== "AbortError") list.before(problem(error));
    }
  }

  function close() {
    if (!name) return;
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
  }

  function move(event) {
    if (event.key === "Enter") {
      event.preventDefault();
      const wanted = chosen;
      return void Promise.resolve(pending).then(() => list.querySelectorAll("a")[Math.max(wanted, 0)]?.click());
    }
    const options = [...list.querySelectorAll("a")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") return close();
    if (!step || !options.length) return undefined;
    event.preventDefault();
    options[chosen]?.setAttribute("aria-selected", "false");
    chosen = (chosen + step + options.length) % options.length;
    options[chosen].setAttribute("aria-selected", "true");
    options[chosen].scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", options[chosen].id);
    return undefined;
  }
  return { element: h("div", { class: "search", role: "search" }, input, source, count), list, begin };
}

/** The form of one tool at the left, what comes back at the right. */
function buildBench(tool, again, actor, ctx) {
  const schema = tool.definition?.inputSchema ?? {};
  const form = schemaForm(schema, again?.given ?? {});
  const text = h("textarea", { class: "code", rows: "8", "aria-label": "Arguments as JSON", spellcheck: "false" });
  const wrong = h("p", { class: "invalid", role: "alert" });
  const fields = h("div", {}, form.element);
  let raw = false;
  const none = Object.keys(schema.properties ?? {}).length === 0 && !schema.oneOf && !schema.anyOf && !schema.$ref;
  if (none) replace(fields, soft("It takes no arguments."));
  const swap = act("JSON", () => {
    wrong.textContent = "";
    if (!raw) text.value = JSON.stringify(form.read().value ?? {}, null, 2);
    else {
      const found = parse();
      if (!found) return;
      form.set(found);
    }
    raw = !raw;
    swap.textContent = raw ? "Form" : "JSON";
    swap.setAttribute("aria-pressed", String(raw));
    replace(fields, raw ? text : none ? soft("It takes no arguments.") : form.element);
  }, { class: "quiet", "aria-pressed": "false" });
  function parse() {
    try {
      const found = JSON.parse(text.value || "{}");
      if (found === null || typeof found !== "object" || Array.isArray(found)) throw new Error("the arguments are one object: {…}");
      return found;
    } catch (error) {
      wrong.textContent = `Not valid JSON: ${error.message}`;
      return null;
    }
  }

  function read() {
    wrong.textContent = "";
    if (raw) return parse();
    const { value, problems } = form.read();
    if (!problems.length) return value ?? {};
    wrong.textContent = problems.length === 1 ? "One field needs another value." : `${problems.length} fields need another value.`;
    fields.querySelector('[aria-invalid="true"]')?.focus();
    return null;
  }

  const out = h("div", { class: "out" }, soft("The result appears here."));
  const send = h("button", { class: "main" }, "Call");
  const stop = act("Cancel", () => running?.abort(), { hidden: true });
  let running = null;
  ctx.onLeave(() => running?.abort());

  async function call(event) {
    event.preventDefault();
    const given = read();
    if (!given || running) return;
    const control = new AbortController();
    running = control;
    send.disabled = true;
    stop.hidden = false;
    const asked = h("div", {});
    const follower = h("div", { class: "follow" });
    const head = h("p", { class: "row" }, badge("running"), clockOf(control.signal));
    replace(out, head, follower, asked);
    out.setAttribute("aria-busy", "true");
    const watch = showProgress(follower);
    const done = { id: history.length ? history[0].id + 1 : 1, tool: tool.name, given, agent: actor.value, at: new Date().toISOString() };
    try {
      const { result, trace, ms } = await callTool(ctx.api, tool.name, given, { agent: done.agent, follow: watch.follow, ask: (questions) => askQuestions(asked, questions, control.signal), signal: control.signal });
      Object.assign(done, { result, trace, ms, outcome: result.failed ? "failed" : "completed" });
      watch.clearText();
    } catch (error) {
      Object.assign(done, { error, trace: error.trace, ms: error.ms, outcome: error.name === "AbortError" ? "cancelled" : "failed" });
    }
    watch.end();
    control.abort();
    running = null;
    history.unshift(done);
    history.splice(KEPT);
    out.removeAttribute("aria-busy");
    replace(out, showOutcome(done, tool, ctx), follower.querySelector(".steps > li, .said") ? follower : null);
    send.disabled = false;
    stop.hidden = true;
    replace(past, listHistory(ctx, tool.name));
  }

  const past = h("div", {}, listHistory(ctx, tool.name));
  if (again) replace(out, showOutcome(again, tool, ctx));
  const copy = act("Copy as …", () => {
    const given = read();
    if (given) showSnippets(tool, given, actor.value, history.find((one) => one.tool === tool.name && one.result)?.result);
  });
  return h("div", { class: "bench" },
    h("section", { "aria-label": "Call" },
      h2(ref("tools", tool.name), " ", h("span", { class: "soft" }, tool.server)),
      tool.description ? h("p", { class: "clamp" }, tool.description) : null,
      h("form", { novalidate: true, onsubmit: call }, fields, wrong,
        h("div", { class: "actions" }, send, actor, stop, copy, h("span", { class: "grow" }), swap))),
    h("section", { "aria-label": "Result" }, h2("Result"), out, past));
}

function clockOf(signal) {
  const begun = performance.now();
  const clock = h("span", { class: "soft number" }, "0 s");
  const timer = setInterval(() => (clock.textContent = duration(Math.floor((performance.now() - begun) / 100) * 100)), 200);
  signal.addEventListener("abort", () => clearInterval(timer), { once: true });
  return clock;
}

function showOutcome(done, tool, ctx) {
  const meta = done.result?.extra;
  return [
    h("p", { class: "row", role: "status" }, badge(done.outcome), done.ms ? h("span", { class: "soft number" }, duration(done.ms)) : null,
      done.agent ? h("span", { class: "soft" }, `as agent ${done.agent}`) : null, done.trace ? ref("traces", done.trace, "Trace") : null),
    done.outcome === "cancelled" ? soft("You cancelled the call. What the server had begun may have happened.") : null,
    done.error && done.outcome !== "cancelled" ? showFailure(done.error, tool.id) : null,
    done.result ? h("div", { class: done.result.failed ? "problem" : "" }, done.result.failed ? p("The tool says that it failed:") : null, showResult(done.result, ctx.api)) : null,
    meta && Object.keys(meta).length ? h("details", { class: "more" }, h("summary", {}, "More of the result"), jsonTree(meta)) : null,
  ];
}

function listHistory(ctx, name) {
  if (!history.length) return "";
  return h("section", { "aria-label": "Last calls" }, h2("Last calls in this tab"),
    h("ol", { class: "past" }, history.slice(0, name ? 10 : KEPT).map((one) => h("li", { class: "row" },
      badge(one.outcome), h("a", { href: `/console/playground?tool=${encodeURIComponent(one.tool)}&call=${one.id}` }, one.tool),
      h("code", { class: "line" }, JSON.stringify(one.given)), h("span", { class: "soft number" }, duration(one.ms))))));
}

function showSnippets(tool, given, agent, result) {
  const origin = location.origin;
  const kinds = [["curl", () => buildCurl(origin, tool.name, given, agent)]];
  // The others speak MCP or use the command line, which cannot act as an agent.
  if (!agent) kinds.push(["Command line", () => buildShell(tool.name, given)], ["Python", () => buildPython(origin, tool.name, given)], ["Test (pytest)", () => buildTest(origin, tool.name, given, result)]);
  return showDialog("Copy this call", (close) => {
    const box = h("div", {});
    const buttons = kinds.map(([label, build], index) => h("button", { type: "button", "aria-pressed": String(index === 0), onclick: (event) => {
      for (const one of buttons) one.setAttribute("aria-pressed", String(one === event.currentTarget));
      replace(box, codeBlock(build(), label));
    } }, label));
    replace(box, codeBlock(kinds[0][1](), kinds[0][0]));
    return [h("div", { class: "row pills" }, buttons), box,
      h("p", { class: "hint" }, "A hub with keys needs one in the variable DRAGOMAN_KEY: dragoman keys create NAME"),
      h("div", { class: "actions" }, act("Close", () => close(), { autofocus: true }))];
  });
}
