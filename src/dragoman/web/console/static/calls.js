// Calls of tools and agents from the console: progress, pieces of an answer, questions and what to
// do about a refusal. The playground and the chat with agents are made of these.
import { h, replace } from "./dom.js";
import { schemaForm } from "./form.js";
import { badge, capitalize, linked } from "./states.js";
import { command, quote } from "./copy.js";
import { duration } from "./time.js";
import { jsonTree, showContent } from "./content.js";
import { act, code, p, ref, soft } from "./parts.js";

const ROUNDS = 20;
const CONTEXT = "dragoman.hub/context";

function newHex(bytes) {
  return [...crypto.getRandomValues(new Uint8Array(bytes))].map((one) => one.toString(16).padStart(2, "0")).join("");
}

/**
 * Calls a tool, as an agent of the hub if `agent` names one, and continues the call while it asks
 * questions.
 *   follow(name, data)   gets the events `progress` and `artifact`
 *   ask(questions)       resolves with the answers
 * Returns {result, trace, ms}, or throws an ApiError with `trace`. `signal` cancels it.
 */
export async function callTool(api, tool, given, { follow, ask, signal, agent = "" }) {
  const trace = newHex(16);
  const body = { ...(agent ? { tool } : {}), arguments: given, can: ["form", "url"] };
  const path = agent ? `/api/agents/${encodeURIComponent(agent)}/call` : `/api/tools/${encodeURIComponent(tool)}/call`;
  let waited = 0;
  const begun = performance.now();
  try {
    for (let round = 0; round < ROUNDS; round += 1) {
      const result = await api.call(path, body, follow, signal, { traceparent: `00-${trace}-${newHex(8)}-01` });
      if (!result.questions) return { result, trace, ms: performance.now() - begun - waited };
      const asked = performance.now();
      Object.assign(body, { answers: await ask(result.questions), handle: result.handle });
      waited += performance.now() - asked;
    }
  } catch (error) {
    error.trace ||= trace;
    error.ms = performance.now() - begun - waited;
    throw error;
  }
  throw new Error(`The tool asked more than ${ROUNDS} times; the call was not continued.`);
}

/** The conversation that an agent's answer belongs to; null if it keeps none. */
export function findContext(result) {
  const found = result.extra?._meta?.[CONTEXT];
  return typeof found === "string" ? found : null;
}

/** Shows questions in `holder` and resolves with the answers. */
export function askQuestions(holder, questions, signal) {
  return new Promise((resolve, reject) => {
    signal?.addEventListener("abort", () => {
      replace(holder);
      reject(new DOMException("cancelled", "AbortError"));
    }, { once: true });
    const parts = Object.entries(questions).map(([key, one]) => ({ key, ...(one.kind === "url" ? askUrl(one) : askForm(one)) }));
    const finish = (answers) => {
      replace(holder);
      resolve(answers);
    };
    const send = (event) => {
      event.preventDefault();
      const problems = [];
      const answers = {};
      for (const { key, read } of parts) answers[key] = { action: "accept", ...read(problems) };
      if (problems.length) holder.querySelector('[aria-invalid="true"]')?.focus();
      else finish(answers);
    };
    const decline = (action) => finish(Object.fromEntries(parts.map(({ key }) => [key, { action }])));
    const isUrl = parts.length === 1 && Object.values(questions)[0].kind === "url";
    replace(holder, h("form", { class: "question-form", "aria-label": "Question", novalidate: true, onsubmit: send }, parts.map((one) => one.element),
      h("div", { class: "actions" }, h("button", { class: "main" }, isUrl ? "I have done it" : "Answer"),
        act("Decline", () => decline("decline")),
        act("Dismiss", () => decline("cancel"), { class: "quiet" }))));
    holder.querySelector("input, textarea, select, button")?.focus({ preventScroll: true });
    holder.scrollIntoView?.({ block: "nearest" });
  });
}

function askForm(question) {
  const schema = structuredClone(question.requestedSchema ?? {});
  const members = Object.values(schema.properties ?? {});
  if (members.length === 1 && members[0].title === question.message) members[0].title = "Your answer";
  const form = schemaForm(schema, {});
  return { element: h("div", {}, h("p", { class: "asked" }, question.message ?? "The tool asks:"), form.element), read(problems) {
    const found = form.read();
    problems.push(...found.problems);
    return { content: found.value };
  } };
}

function askUrl(question) {
  const url = String(question.url ?? "");
  let host = "";
  try {
    host = new URL(url).host;
  } catch {
    // It is shown as text only.
  }
  return { element: h("div", {}, h("p", { class: "asked" }, question.message ?? "The tool asks you to open a page:"),
    p(code(url)),
    host ? p(h("a", { class: "button", href: url, target: "_blank", rel: "noopener noreferrer" }, `Open ${host} in a new tab`), h("span", { class: "hint" }, " The server chose this address: check it before you sign in.")) : null), read: () => ({}) };
}

/** Progress, steps of agents and the text as it is written. */
export function showProgress(holder) {
  const bar = h("progress", { max: "1", value: "0", hidden: true, "aria-label": "Progress" });
  const said = h("span", { class: "soft", role: "status" });
  const steps = h("ol", { class: "steps done" });
  const open = new Map();
  const texts = new Map();
  replace(holder, h("div", { class: "row" }, bar, said), steps);
  const box = h("div", { class: "content" });
  holder.append(box);
  return {
    text: () => [...texts.values()].map((one) => one.text).join("\n"),
    clearText() {
      replace(box);
      texts.clear();
    },
    end() {
      bar.hidden = true;
      said.textContent = "";
    },
    follow(name, data) {
      if (name === "progress") {
        if (data.step) return addStep(data.step);
        if (typeof data.total === "number" && data.total > 0) {
          bar.hidden = false;
          bar.max = data.total;
          bar.value = Math.min(data.progress ?? 0, data.total);
        }
        said.textContent = data.message ?? (data.total ? `${data.progress} of ${data.total}` : String(data.progress ?? ""));
      } else if (name === "artifact") addArtifact(data);
      return undefined;
    },
  };

  function addStep(step) {
    const key = `${step.agent} ${step.tool}`;
    const tool = String(step.tool ?? "").replace(/\.message$/, "");
    if (!step.outcome) {
      const row = h("li", {}, h("span", { class: "soft" }, `${step.agent} `), ref("tools", step.tool, tool), h("span", { class: "soft" }, " …"));
      open.set(key, [...(open.get(key) ?? []), row]);
      steps.append(row);
      return;
    }
    const row = open.get(key)?.shift() ?? steps.appendChild(h("li", {}));
    replace(row, h("span", { class: "soft" }, `${step.agent} `), ref("tools", step.tool, tool), " ", badge(step.outcome), h("span", { class: "soft" }, ` ${duration(step.durationMs)}`),
      step.problem ? h("span", { class: "invalid" }, ` ${step.problem}`) : null);
  }

  function addArtifact(data) {
    const id = data.id ?? data.name ?? "";
    let one = texts.get(id);
    if (!one) {
      one = { text: "", element: h("pre", { class: "said live-text" }) };
      texts.set(id, one);
      box.append(one.element);
    }
    const blocks = Array.isArray(data.content) ? data.content : [];
    const text = blocks.filter((block) => block.type === "text").map((block) => block.text ?? "").join("");
    one.text = data.append ? one.text + text : text;
    one.element.textContent = one.text;
    const others = blocks.filter((block) => block.type !== "text");
    if (others.length) box.append(showContent(others));
  }
}

/** A whole result; `api` reads resources that it links to. */
export function showResult(result, api) {
  const content = result.content ?? [];
  const isSame = content.length === 1 && content[0].type === "text" && isTextOf(content[0].text, result.structured);
  return [
    isSame ? null : showContent(content, api),
    result.structured !== undefined ? [isSame || !content.length ? null : h("h3", {}, "Structured content"), jsonTree(result.structured)] : null,
    !content.length && result.structured === undefined ? soft("The result is empty.") : null,
  ];
}

function isTextOf(text, structured) {
  if (structured === undefined) return false;
  try {
    return JSON.stringify(JSON.parse(text)) === JSON.stringify(structured);
  } catch {
    return false;
  }
}

const ADVICE = {
  Denied: ["A policy decides this. See which one, and try a change, on the screen Policies:", "/console/policies", "Policies"],
  NotGranted: ["The agent's manifest does not grant this tool.", "/console/agents", "Agents"],
  RateLimited: ["It is free again soon; the screen Limits says when:", "/console/limits", "Limits"],
  Quarantined: ["Its definition has changed since it was approved. Look at the change:", "/console/pins", "Pins"],
  Tainted: ["Data from an untrusted source would reach a place where it can do harm. The trace shows from where.", "", ""],
  Full: ["The hub has too much to do. Try again in a moment; the screen Health says more:", "/console/health", "Health"],
  Unreachable: ["The server or agent cannot be reached. The screen Servers says why:", "/console/servers", "Servers"],
  TimedOut: ["The server or agent took too long. Its log may say why:", "/console/servers", "Servers"],
  LoginRequired: ["The server needs a login, then call it again.", "", ""],
  Looping: ["The same chain of calls came back to itself. The trace shows the chain.", "", ""],
  WorkFailed: ["The call reached the server or agent, and failed there.", "", ""],
  InvalidInput: ["Correct the arguments; nothing was sent.", "", ""],
  NotFound: ["It may have been removed or renamed, or you may not see it:", "/console/tools", "Tools"],
};

/** Why a call failed, whether something has happened, and what to do. */
export function showFailure(error, tool) {
  const [advice, href, label] = ADVICE[error.kind] ?? [error.next || "", "", ""];
  const wait = error.retryAfter ? ` Free again in ${duration(error.retryAfter)}.` : "";
  return h("div", { class: "problem", role: "alert" },
    p(error.kind ? badge(error.kind) : null, " ", linked(capitalize(error.message ?? String(error)))),
    advice || wait ? h("p", { class: "next" }, advice, wait, href ? [" ", h("a", { href }, label)] : null) : null,
    error.url ? p(h("a", { class: "button", href: error.url, target: "_blank", rel: "noopener noreferrer" }, "Sign in at the server")) : null,
    error.kind === "Denied" && tool ? h("p", { class: "next" }, "Or ask the hub: ", command(`dragoman policy who-can ${quote(tool)}`)) : null);
}
