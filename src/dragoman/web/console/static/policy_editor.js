// Edits a policy file: checked while it is written, tested and replayed before it is saved.
import { h, newId, replace, to } from "./dom.js";
import { badge, empty, heading, problem } from "./states.js";
import { confirm, toast } from "./dialog.js";
import { when } from "./time.js";
import { policies as policyLinks } from "./records.js";

const TEMPLATE = `@id("choose-an-id")
@why("say it for people: explain shows it")
forbid (
  principal,
  action in Hub::Action::"any_call",
  resource
)
when { principal.kind == "key" && resource.destructive };
`;
const PERIODS = [["1", "the last day"], ["7", "the last 7 days"], ["30", "the last 30 days"]];

export async function editFile(root, route, ctx) {
  const name = route.name;
  let file = { name, text: TEMPLATE, enabled: true, policies: [], problem: "" };
  const { files } = await ctx.api.get("/api/policies", {}, ctx.signal);
  const isNew = !files.some((one) => one.name === name);
  if (!isNew) file = await ctx.api.get(`/api/policies/${encodeURIComponent(name)}`, {}, ctx.signal);
  else if (!route.query.get("new")) {
    root.append(heading(`${name}.cedar`), empty(`There is no policy file "${name}".`, "All files and policies:", "dragoman policy list"), h("p", {}, h("a", { href: "/console/policies" }, "All policies")));
    return;
  }
  const id = newId("text");
  const findings = h("div", { class: "findings", role: "status", "aria-label": "Findings" });
  const results = h("section", { "aria-live": "polite", "aria-label": "Results" });
  const area = h("textarea", { id, class: "code editor", spellcheck: "false", value: file.text, rows: "18", oninput: () => later(), onkeydown: indent });
  const save = h("button", { type: "button", class: "main", onclick: () => store(false) }, "Save");
  const period = h("select", { "aria-label": "Recorded calls of" }, PERIODS.map(([value, label]) => h("option", { value }, label)));
  const isDirty = () => area.value !== file.text || isNew;
  let timer = 0;
  function later() {
    clearTimeout(timer);
    save.disabled = true;
    timer = setTimeout(check, 350);
  }

  async function check() {
    const text = area.value;
    try {
      const found = await ctx.api.post("/api/policies/validate", { name, text }, ctx.signal);
      if (text !== area.value) return;
      showFindings(found);
      save.disabled = !found.ok || !isDirty();
    } catch (error) {
      if (error.name !== "AbortError") replace(findings, problem(error, check));
    }
  }

  function showFindings(found) {
    const tests = found.tests ? `, ${found.tests} golden ${found.tests === 1 ? "test passes" : "tests pass"}` : "";
    replace(findings,
      found.ok ? h("p", {}, badge("valid"), ` ${found.policies} policies in all files${tests}. ${isDirty() ? "Not saved yet." : "In force."}`) : h("p", {}, badge("invalid"), " The hub would not load this set."),
      found.findings.map((one) => h("button", { type: "button", class: `finding ${one.level}`, disabled: one.file !== `${name}.cedar` || !one.line, onclick: () => goTo(one.line) },
        h("span", { class: "where" }, one.line ? `${one.file}:${one.line}` : one.file), " ", one.message)));
  }

  function goTo(line) {
    const lines = area.value.split("\n");
    const start = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
    area.focus();
    area.setSelectionRange(start, start + (lines[line - 1]?.length ?? 0));
    area.scrollTop = (line - 5) * 18;
  }

  async function test() {
    await work(async () => {
      const found = await ctx.api.post("/api/policies/test", { name, text: area.value }, ctx.signal);
      const failed = found.tests.filter((one) => !one.passed);
      return found.tests.length
        ? [h("h2", {}, failed.length ? `${failed.length} of ${found.tests.length} golden tests fail` : `All ${found.tests.length} golden tests pass`),
          h("ul", { class: "plain" }, [...failed, ...found.tests.filter((one) => one.passed)].map((one) => h("li", {}, badge(one.passed ? "ok" : "failed"), ` ${one.name} `, h("span", { class: "soft" }, one.file), one.message ? h("div", {}, one.message) : null)))]
        : [h("h2", {}, "No golden tests"), h("p", { class: "soft" }, "A test states a decision that must not change, in any .toml file beside the policies. See: dragoman docs policies")];
    });
  }

  async function replay() {
    await work(async () => {
      const since = Date.now() / 1000 - Number(period.value) * 86400;
      const found = await ctx.api.post("/api/policies/replay", { name, text: area.value, since }, ctx.signal);
      return describeReplay(found);
    });
  }

  async function work(run) {
    replace(results, h("p", { class: "waiting" }, "Working …"));
    try {
      replace(results, await run());
    } catch (error) {
      if (error.name === "AbortError") return;
      replace(results, problem(error));
      if (error.details.findings) showFindings({ ok: false, findings: error.details.findings });
    }
  }

  async function store(force) {
    save.disabled = true;
    try {
      await ctx.api.post("/api/policies", { name, text: area.value, force });
      file.text = area.value;
      toast(`${name}.cedar is saved and in force`);
      replace(results);
      if (isNew) return ctx.navigate(to("policies", name));
      await check();
    } catch (error) {
      save.disabled = false;
      if (error.details?.findings) showFindings({ ok: false, findings: error.details.findings });
      else if (!force && error.message.includes('"force"')) {
        if (await confirm("Lock yourself out?", "No policy would permit you the action policies any more, and you could not undo the change here.", "Save it anyway", true)) await store(true);
      } else replace(results, problem(error));
    }
  }

  async function change(button, run, done) {
    button.disabled = true;
    try {
      await run();
      toast(done);
      ctx.navigate(done.includes("deleted") ? "/console/policies" : to("policies", name));
    } catch (error) {
      button.disabled = false;
      replace(results, problem(error));
    }
  }
  const path = `/api/policies/${encodeURIComponent(name)}`;
  const toggle = (event) => change(event.currentTarget, () => ctx.api.patch(path, { enabled: !file.enabled }), `${name}.cedar is ${file.enabled ? "disabled" : "enabled"}`);
  const remove = async (event) => {
    const button = event.currentTarget;
    if (await confirm(`Delete ${name}.cedar?`, "Its policies are no longer in force. The audit log keeps who deleted it.", "Delete", true)) change(button, () => ctx.api.delete(path), `${name}.cedar is deleted`);
  };
  root.append(
    h("p", {}, h("a", { href: "/console/policies" }, "← All policies")),
    heading(`${name}.cedar`, isNew ? "a new file" : file.enabled ? null : "disabled: not in force",
      save, isNew ? null : [h("button", { type: "button", onclick: toggle }, file.enabled ? "Disable" : "Enable"), h("button", { type: "button", class: "danger", onclick: remove }, "Delete")]),
    h("label", { for: id, class: "soft" }, "Policies in Cedar. Nothing is in force until it is saved."), area, findings,
    h("div", { class: "actions" },
      h("button", { type: "button", onclick: test }, "Run the golden tests"),
      h("span", { class: "row" }, h("button", { type: "button", onclick: replay }, "Replay recorded calls"), "of", period)),
    results);
  await check();
  if (route.query.get("line")) requestAnimationFrame(() => goTo(Number(route.query.get("line"))));
  const guard = (event) => isDirty() && area.value !== TEMPLATE && event.preventDefault();
  window.addEventListener("beforeunload", guard);
  return () => {
    clearTimeout(timer);
    window.removeEventListener("beforeunload", guard);
  };
}

/** Tab indents; Escape then Tab leaves the field, as the keyboard must. */
function indent(event) {
  const area = event.currentTarget;
  if (event.key === "Escape") area.dataset.leave = "1";
  else if (event.key === "Tab" && !event.shiftKey && !area.dataset.leave) {
    event.preventDefault();
    area.setRangeText("  ", area.selectionStart, area.selectionEnd, "end");
  } else if (event.key !== "Tab") delete area.dataset.leave;
}

function describeReplay(found) {
  const skipped = Object.entries(found.skipped ?? {});
  return [
    h("h2", {}, found.flipped ? `${found.flipped.toLocaleString("en")} of ${found.judged.toLocaleString("en")} recorded calls would be decided differently` : `Nothing would change: ${found.judged.toLocaleString("en")} recorded calls are decided as before`),
    skipped.length ? h("p", { class: "soft" }, "Not judged: ", skipped.map(([why, count]) => `${count} because ${why}`).join("; "), ".") : null,
    found.flips.length ? h("div", { class: "table" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Caller", "Tool", "Was", "Would be", "By", "Calls", "Last"].map((label) => h("th", { scope: "col", class: label === "Calls" ? "number" : null }, label)))),
      h("tbody", {}, found.flips.slice(0, 500).map((flip) => h("tr", {},
        h("td", {}, flip.caller), h("td", { dataset: { label: "Tool" } }, h("a", { href: to("tools", flip.verb) }, flip.verb)),
        h("td", { dataset: { label: "Was" } }, badge(flip.was)),
        h("td", { dataset: { label: "Would be" } }, badge(flip.now), flip.unsure ? h("span", { class: "soft" }, " unsure") : null),
        h("td", { dataset: { label: "By" } }, flip.policies.length ? policyLinks(flip.policies) : "no policy permits it"),
        h("td", { class: "number", dataset: { label: "Calls" } }, flip.count.toLocaleString("en")),
        h("td", { dataset: { label: "Last" } }, h("a", { href: to("traces", flip.trace) }, when(flip.last_at)))))))) : null,
    found.more ? h("p", { class: "soft" }, "There are more recorded calls; these are the newest.") : null,
  ];
}
