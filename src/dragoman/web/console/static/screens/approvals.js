// Approvals: what waits for a decision, who asks and why, and how long it waits. Made for a phone too.
import { h, newId, replace, to } from "../dom.js";
import { badge, capitalize, empty, facts, heading, problem } from "../states.js";
import { json } from "../copy.js";
import { confirm, toast } from "../dialog.js";
import { table } from "../table.js";
import { throttle } from "../live.js";
import { absolute, parseTime, when } from "../time.js";
import { reveal } from "../diff.js";

export const title = "Approvals";
const MISSING = ["This hub has no approvals.", "A policy can ask for one before a call is made:", "dragoman docs policies"];

export async function show(root, route, ctx) {
  return route.name ? showOne(root, route.name, ctx) : showAll(root, ctx);
}

async function showAll(root, ctx) {
  const waiting = h("div", { class: "inbox" });
  const cards = new Map();
  const none = h("div", {}, empty("Nothing waits for a decision.", "Calls that a policy permits only with an approval wait here. See:", "dragoman docs approvals"));
  const count = h("span", { class: "count" });
  async function refresh() {
    const found = await ctx.api.get("/api/approvals", { state: "pending", limit: 200 }, ctx.signal);
    const ids = new Set(found.approvals.map((one) => one.id));
    for (const [id, card] of cards) {
      if (ids.has(id)) continue;
      card.remove();
      cards.delete(id);
    }
    // Cards stay where they are, so that nothing moves under a finger: the newest come last.
    for (const one of [...found.approvals].reverse()) {
      if (cards.has(one.id)) continue;
      const card = drawCard(one, ctx, () => refresh().then(list.refresh));
      cards.set(one.id, card);
      waiting.append(card);
    }
    none.hidden = cards.size > 0;
    count.textContent = cards.size ? `${cards.size}${found.nextCursor ? " or more" : ""} waiting` : "";
  }
  try {
    await refresh();
  } catch (error) {
    if (error.status !== 404) throw error;
    root.append(heading("Approvals", "What waits for me?"), empty(...MISSING));
    return;
  }
  const list = table({
    label: "Decided",
    key: (row) => row.id,
    link: (row) => to("approvals", row.id),
    columns: [
      { label: "What", key: "title" },
      { label: "State", render: (row) => badge(row.state) },
      { label: "Asked by", key: "requester", render: (row) => who(row) },
      { label: "Asked", key: "requestedAt", kind: "time" },
      { label: "Decided by", render: (row) => (row.decidedBy ? [row.decidedBy, " ", when(row.decidedAt)] : "") },
      { label: "Comment", key: "comment" },
      { label: "Then", render: (row) => (row.outcome ? badge(row.outcome, row.problem) : "") },
    ],
    load: async ({ cursor, limit, signal }) => {
      const found = await ctx.api.get("/api/approvals", { cursor, limit }, signal);
      return { rows: found.approvals.filter((one) => one.state !== "pending"), nextCursor: found.nextCursor };
    },
    limit: 50,
    empty: () => h("p", { class: "empty" }, "No decisions yet."),
  });
  root.append(heading("Approvals", "What waits for me?", count), waiting, none, h("h2", {}, "Decided"), list.element);
  const again = throttle(() => refresh().then(list.refresh).catch(() => {}), 300);
  for (const name of ["approval-requested", "approval-decided", "gap"]) ctx.onLeave(ctx.live.on(name, again));
  // An approved call that runs has ended when the hub reports calls.
  ctx.onLeave(ctx.live.on("activity", throttle(() => list.state.rows.some((row) => row.outcome === "running") && list.refresh(), 1000)));
  return countDown(root, again);
}

/** Keeps the times left current, once a second, without moving anything. */
function countDown(root, expired) {
  const tick = () => {
    for (const element of root.querySelectorAll("[data-until]")) {
      const text = timeLeft(element.dataset.until);
      if (text === element.textContent) continue;
      element.textContent = text;
      element.classList.toggle("soon", parseTime(element.dataset.until) - Date.now() < 60000);
      if (text === "expired") expired();
    }
  };
  tick();
  const timer = setInterval(tick, 1000);
  return () => clearInterval(timer);
}

function timeLeft(until) {
  const seconds = Math.floor((parseTime(until) - Date.now()) / 1000);
  if (seconds < 0) return "expired";
  const pad = (number) => String(number).padStart(2, "0");
  if (seconds >= 86400) return `${Math.floor(seconds / 86400)} d ${pad(Math.floor((seconds % 86400) / 3600))} h left`;
  if (seconds >= 3600) return `${Math.floor(seconds / 3600)} h ${pad(Math.floor((seconds % 3600) / 60))} min left`;
  return `${Math.floor(seconds / 60)}:${pad(seconds % 60)} left`;
}

function who(one) {
  return [one.requester, one.behalf && one.behalf !== one.requester ? h("span", { class: "soft" }, ` for ${one.behalf}`) : null];
}

/** Arguments as a person reads them: members one by one, long or nested ones as they are. */
function describeArguments(given) {
  const members = Object.entries(given ?? {});
  if (!members.length) return h("p", { class: "soft" }, "No arguments.");
  return h("dl", { class: "facts args" }, members.map(([name, value]) => {
    const short = typeof value === "string" ? value : JSON.stringify(value);
    const text = typeof value === "string" || short.length <= 80 ? short : JSON.stringify(value, null, 2);
    const isLong = text.length > 80 || text.includes("\n");
    return [h("dt", {}, h("code", {}, name)), h("dd", {}, isLong ? h("pre", { tabindex: "0", role: "region", "aria-label": `Argument ${name}` }, reveal(text)) : h("code", {}, reveal(text)))];
  }));
}

function drawCard(one, ctx, decided) {
  const id = newId("approval");
  const said = h("div", {});
  const comment = h("input", { type: "text", maxlength: "1000", "aria-label": `Comment on ${one.title}`, placeholder: "Comment, if you like" });
  const buttons = [
    h("button", { type: "button", class: "main", disabled: !one.canDecide, onclick: () => decide("approve") }, one.kind === "call" ? "Approve once" : "Approve"),
    h("button", { type: "button", class: "danger", disabled: !one.canDecide, onclick: () => decide("deny") }, "Deny"),
  ];
  async function decide(verb) {
    if (verb === "deny" && !comment.value.trim() && !(await confirm(`Deny ${one.title}?`, `${one.requester} is told so. A comment would say why.`, "Deny", true))) return;
    for (const button of buttons) button.disabled = true;
    try {
      await ctx.api.post(`/api/approvals/${encodeURIComponent(one.id)}/${verb}`, comment.value.trim() ? { comment: comment.value.trim() } : {});
      toast(verb === "approve" ? `${one.title} is approved${one.kind === "call" ? ", once" : ""}` : `${one.title} is denied`);
      document.dispatchEvent(new Event("decided"));
      await decided();
    } catch (error) {
      replace(said, problem(error));
      for (const button of buttons) button.disabled = false;
      if (error.status === 409 || error.status === 404) decided();
    }
  }
  return h("article", { class: "card approval", "aria-labelledby": id },
    h("header", {}, h("h2", { id }, h("a", { href: to("approvals", one.id) }, one.title)),
      h("span", { class: "left number", dataset: { until: one.expiresAt }, title: `until ${absolute(parseTime(one.expiresAt))}` }, timeLeft(one.expiresAt))),
    h("p", {}, h("b", {}, who(one)), " asks ", when(one.requestedAt), one.reason ? [": ", reveal(one.reason)] : "."),
    describeArguments(one.arguments),
    links(one),
    one.canDecide ? null : h("p", { class: "soft" }, one.approvers?.length ? `You may not decide this: ${one.approvers.join(" or ")} may.` : "You may not decide this."),
    said,
    h("div", { class: "decide" }, one.canDecide ? comment : null, buttons));
}

function links(one) {
  const found = [
    one.kind === "call" ? h("a", { href: to("tools", one.title) }, "The tool") : null,
    one.trace ? h("a", { href: to("traces", one.trace) }, "The trace") : null,
    one.run ? h("a", { href: to("runs", one.run) }, "The run") : null,
  ].filter(Boolean);
  return found.length ? h("p", { class: "row" }, found) : null;
}

async function showOne(root, id, ctx) {
  const box = h("div", {});
  let shown = "";
  async function refresh() {
    const one = await ctx.api.get(`/api/approvals/${encodeURIComponent(id)}`, {}, ctx.signal);
    const shape = JSON.stringify([one.state, one.outcome, one.canDecide, one.result]);
    if (shape === shown) return;
    shown = shape;
    ctx.setTitle(`${one.title} · Approvals`);
    replace(box, one.state === "pending" ? drawCard(one, ctx, refresh) : describeDecided(one));
  }
  try {
    await refresh();
  } catch (error) {
    if (error.status !== 404) throw error;
    root.append(heading("Approval"), empty(capitalize(error.message), "All of them:", "dragoman approvals"));
    return;
  }
  root.append(h("p", {}, h("a", { href: "/console/approvals" }, "← All approvals")), box);
  const again = throttle(() => refresh().catch(() => {}), 300);
  for (const name of ["approval-decided", "activity", "gap"]) ctx.onLeave(ctx.live.on(name, again));
  return countDown(root, again);
}

function describeDecided(one) {
  return [
    heading(one.title, null),
    facts([
      ["State", badge(one.state)],
      ["Asked by", who(one)], ["Asked", when(one.requestedAt)], ["Why", one.reason],
      ["Decided", one.decidedBy ? [`by ${one.decidedBy} `, when(one.decidedAt)] : null], ["Comment", one.comment],
      ["Then", one.outcome ? [badge(one.outcome), one.problem ? ` ${one.problem}` : null] : null],
      ["Arguments", describeArguments(one.arguments)],
    ]),
    links(one),
    one.result ? [h("h2", {}, "Result"), json(one.result, "Result")] : null,
  ];
}
