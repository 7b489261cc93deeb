// A conversation with an agent: the text as it is written, its steps, its questions.
import { h, replace } from "./dom.js";
import { badge } from "./states.js";
import { duration } from "./time.js";
import { askQuestions, callTool, findContext, showProgress, showFailure, showResult } from "./calls.js";
import { act, ref, soft } from "./parts.js";

/** The conversations of this tab, by the agent's tool. They are gone when the page is reloaded. */
const kept = new Map();

/** chat(ctx, "dragoman_agent_guide", {name, keeps}); `keeps`: the agent continues conversations. */
export function chat(ctx, tool, { name, keeps }) {
  const talk = kept.get(tool) ?? { context: null, log: h("div", { class: "log", role: "log", "aria-label": `Conversation with ${name}`, tabindex: "0" }) };
  kept.set(tool, talk);
  const input = h("textarea", { rows: "2", "aria-label": `Message to ${name}`, placeholder: `Message to ${name}`, onkeydown: (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  } });
  const submit = h("button", { class: "main" }, "Send");
  const stop = act("Cancel", () => running?.abort(), { hidden: true });
  const fresh = act("New conversation", () => {
    running?.abort();
    talk.context = null;
    replace(talk.log);
    note.textContent = "";
    input.focus();
  }, { class: "quiet" });
  const note = h("span", { class: "hint" }, talk.context ? "The conversation continues." : "");
  let running = null;
  ctx.onLeave(() => running?.abort());

  async function send() {
    const message = input.value.trim();
    if (!message || running) return;
    const control = new AbortController();
    running = control;
    input.value = "";
    stop.hidden = false;
    submit.disabled = true;
    const asked = h("div", {});
    const follower = h("div", {});
    const turn = h("div", { class: "turn theirs" }, h("p", { class: "by" }, name), follower, asked);
    talk.log.append(h("div", { class: "turn mine" }, h("p", { class: "by" }, "You"), h("pre", { class: "said" }, message)), turn);
    const watch = showProgress(follower);
    const down = () => talk.log.scrollTo(0, talk.log.scrollHeight);
    down();
    const given = keeps && talk.context ? { message, context: talk.context } : { message };
    const end = h("p", { class: "row soft" });
    try {
      const { result, trace, ms } = await callTool(ctx.api, tool, given, {
        follow: (...event) => {
          watch.follow(...event);
          down();
        },
        ask: (questions) => askQuestions(asked, questions, control.signal), signal: control.signal,
      });
      if (keeps) talk.context = findContext(result) ?? talk.context;
      watch.clearText();
      turn.append(h("div", { class: result.failed ? "problem" : "" }, showResult(result, ctx.api)), end);
      replace(end, result.failed ? badge("failed") : null, duration(ms), ref("traces", trace, "Trace"));
      if (talk.context) note.textContent = "The conversation continues.";
    } catch (error) {
      if (error.name === "AbortError") turn.append(soft("The answer was cancelled."));
      else {
        if (talk.context && /unknown conversation/.test(error.message)) {
          talk.context = null;
          note.textContent = "The hub no longer has this conversation; the next message begins another one.";
        }
        turn.append(showFailure(error, tool), end);
        replace(end, ref("traces", error.trace, "Trace"));
      }
    }
    watch.end();
    running = null;
    stop.hidden = true;
    submit.disabled = false;
    down();
    if (!ctx.signal.aborted) input.focus({ preventScroll: true });
  }

  queueMicrotask(() => talk.log.scrollTo(0, talk.log.scrollHeight));
  return h("section", { class: "chat", "aria-label": `Chat with ${name}` }, talk.log,
    h("form", { onsubmit: (event) => {
      event.preventDefault();
      send();
    } }, input, h("div", { class: "actions" }, submit, stop, fresh, note)));
}
