// The first steps: add the example, call it, see the call, and put the hub into an IDE.
import { h, newId, replace, to } from "./dom.js";
import { badge, capitalize, empty, heading, problem } from "./states.js";
import { codeBlock, command } from "./copy.js";
import { throttle } from "./live.js";
import { duration } from "./time.js";
import { CallMap } from "./call_map.js";

const CLIENTS = ["cursor", "vscode", "claude-desktop", "claude-code", "windsurf", "zed", "gemini-cli", "codex", "cline", "roo-code", "continue", "opencode", "copilot-cli", "amp", "goose", "lm-studio", "kiro", "junie"];
const EXAMPLES = [
  { tool: "guide.message", member: "message", label: "Ask the agent “guide”", value: "What is a pin?", says: "The guide asks another agent, which uses a tool of an MCP server: three calls in one trace." },
  { tool: "glossary.define", member: "term", label: "Call the tool “glossary.define”", value: "pin", says: "One call to a tool of an MCP server." },
];

export async function showFirstSteps(root, ctx, hasSome) {
  const steps = h("ol", { class: "steps" });
  const add = h("li", {});
  const call = h("li", {});
  const see = h("li", {});
  const ide = h("li", {}, h("h2", {}, "Put it into your IDE"), drawInstall());
  const map = new CallMap(ctx.navigate);
  let trace = "";
  steps.append(add, call, see, ide);
  root.append(heading(hasSome ? "First steps" : "Welcome to your hub", "From nothing to the first call in a minute", hasSome ? h("a", { class: "button", href: "/console/" }, "The call map") : null), steps);

  async function findExample() {
    const tools = (await ctx.api.get("/api/tools", { q: "", limit: 200 }, ctx.signal)).tools;
    return { known: EXAMPLES.filter((one) => tools.some((tool) => tool.id === one.tool)), other: tools.find((tool) => !tool.id.startsWith("dragoman.")), count: tools.length };
  }
  async function refresh() {
    const found = await findExample();
    drawAdd(found);
    drawCall(found);
    drawSee();
  }

  function drawAdd({ known, other, count }) {
    const said = h("div", { "aria-live": "polite" });
    const isOwner = ["owner", "local"].includes(ctx.session.kind);
    const button = h("button", { type: "button", class: "main", disabled: !isOwner, onclick: async () => {
      button.disabled = true;
      replace(said, h("p", { class: "waiting" }, "Adding two agents and a server …"));
      try {
        const done = await ctx.api.post("/api/demo", {}, ctx.signal);
        await refresh();
        if (done.notes?.length) add.append(h("p", { class: "soft" }, done.notes.map(capitalize).join(" ")));
        call.querySelector("button.main")?.focus();
      } catch (error) {
        if (error.name === "AbortError") return;
        button.disabled = false;
        replace(said, problem(error));
      }
    } }, "Add the example");
    const isDone = known.length > 0;
    replace(add, h("h2", {}, "Add something to call", isDone ? badge("ok", "done") : null),
      isDone
        ? h("p", {}, "The example is installed: the agents ", h("a", { href: to("agents", "guide") }, "guide"), " and ", h("a", { href: to("agents", "librarian") }, "librarian"), ", and the server ", h("a", { href: to("servers", "glossary") }, "glossary"), ". Remove them any time: ", command("dragoman demo remove"))
        : [h("p", {}, "An example that needs no key and no network: two agents and an MCP server, which come with the hub."),
          h("div", { class: "actions" }, button), isOwner ? null : h("p", { class: "soft" }, "A server is a program: only the owner of the hub adds it."), said,
          h("p", {}, "Or your own: the servers of an IDE, or one of many on the network."), h("p", { class: "row" }, command("dragoman import"), command("dragoman servers add time -- uvx mcp-server-time"))],
      !isDone && other ? h("p", { class: "soft" }, `The hub has ${count} tools already.`) : null);
  }

  function drawCall({ known, other }) {
    if (!known.length) {
      replace(call, h("h2", {}, "Call it"), other ? h("p", {}, "Try one of your tools in the ", h("a", { href: `/console/playground?tool=${encodeURIComponent(other.id)}` }, "playground"), ".") : h("p", { class: "soft" }, "As soon as there is a tool, you can call it here."));
      return;
    }
    replace(call, h("h2", {}, "Call it"), known.map((one) => drawForm(one)));
  }

  function drawForm(example) {
    const id = newId("call");
    const input = h("input", { id, value: example.value, autocomplete: "off" });
    const result = h("div", { "aria-live": "polite", class: "call-result" });
    const button = h("button", { class: "main" }, "Call");
    const run = async (event) => {
      event.preventDefault();
      button.disabled = true;
      const started = performance.now();
      try {
        const found = await ctx.api.post(`/api/tools/${encodeURIComponent(example.tool)}/call`, { arguments: { [example.member]: input.value } }, ctx.signal);
        const text = (found.content ?? []).map((one) => one.text ?? "").join("\n") || JSON.stringify(found.structured ?? found.content);
        replace(result, codeBlock(text, "Result"), h("p", { class: "soft" }, `The hub answered within ${duration(performance.now() - started)}.`));
        await findTrace(example.tool);
      } catch (error) {
        if (error.name !== "AbortError") replace(result, problem(error));
      }
      button.disabled = false;
    };
    return h("form", { class: "try", onsubmit: run }, h("label", { for: id }, example.label), h("p", { class: "hint" }, example.says), h("div", { class: "row" }, input, button), result);
  }

  async function findTrace(tool) {
    const found = await ctx.api.get("/api/traces", { q: tool, limit: 1 }, ctx.signal);
    trace = found.traces[0]?.trace ?? "";
    await readMap();
    drawSee();
  }

  async function readMap() {
    map.update(await ctx.api.get("/api/map", { minutes: 60 }, ctx.signal));
  }

  function drawSee() {
    replace(see, h("h2", {}, "See what happened", trace ? badge("ok", "done") : null),
      trace
        ? [h("p", {}, h("a", { class: "button", href: to("traces", trace) }, "Open the trace"), " shows every hop: who called what, for whom, and which policy decided. The map shows who calls whom:"), map.element]
        : h("p", { class: "soft" }, "After the first call, its trace and the map are here."));
  }

  try {
    await Promise.all([refresh(), readMap()]);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    replace(add, empty(capitalize(error.message), "Is the hub running?", "dragoman status"));
  }
  const again = throttle(() => readMap().catch(() => {}), 2000);
  for (const name of ["activity", "server-changed"]) ctx.onLeave(ctx.live.on(name, again));
}

function drawInstall() {
  const id = newId("client");
  const line = h("span", {}, command("dragoman install cursor"));
  const select = h("select", { id, onchange: () => replace(line, command(`dragoman install ${select.value}`)) }, CLIENTS.map((name) => h("option", { value: name }, name)));
  return [
    h("p", {}, "One command adds the hub to the configuration of a client. Restart the client, and the tools are there."),
    h("div", { class: "row" }, h("label", { for: id }, "Client"), select, line),
    h("p", { class: "soft" }, "dragoman install alone lists all clients and which of them have the hub."),
  ];
}
