// Pins: what has changed since it was approved, side by side, and the decision about it.
import { h, replace, to } from "../dom.js";
import { badge, capitalize, empty, facts, heading, problem } from "../states.js";
import { json } from "../copy.js";
import { confirm, toast } from "../dialog.js";
import { table, loadWhole } from "../table.js";
import { throttle } from "../live.js";
import { when } from "../time.js";
import { diffTable, reveal } from "../diff.js";

export const title = "Pins";

export async function show(root, route, ctx) {
  if (!ctx.session.rights.includes("pins")) {
    root.append(heading("Pins", "What has changed since it was approved?"), empty("Only administrators review changed definitions: they may contain what you may not see.", "Sign in as the owner of the hub:", "dragoman console"));
    return;
  }
  if (route.query.get("name")) return showOne(root, route.query.get("name"), ctx);
  return showAll(root, route, ctx);
}

const STATES = [["held", "Quarantined"], ["new", "Added later"], ["minor", "Minor changes"], ["all", "All"]];

async function showAll(root, route, ctx) {
  const state = STATES.some(([name]) => name === route.query.get("state")) ? route.query.get("state") : "held";
  const list = table({
    label: "Definitions",
    search: "Search definitions",
    filters: [h("span", { class: "chips" }, STATES.map(([name, label]) => h("a", { class: "chip", href: name === "held" ? "/console/pins" : `/console/pins?state=${name}`, "aria-current": name === state ? "true" : null }, label)))],
    key: (row) => `${row.kind} ${row.name}`,
    link: (row) => `/console/pins?name=${encodeURIComponent(row.name)}`,
    columns: [
      { label: "Definition", key: "name", sort: true },
      { label: "State", key: "state", sort: true, render: (row) => badge(row.state) },
      { label: "Kind", key: "kind", sort: true },
      { label: "Server or agent", key: "target", sort: true, render: (row) => h("a", { href: `/console/servers/${encodeURIComponent(row.target)}` }, row.target) },
      { label: "Quarantined", key: "held_since", kind: "time", sort: true },
      { label: "Approved", key: "approved_at", sort: true, render: (row) => (row.approved_at ? [when(row.approved_at), h("span", { class: "soft" }, ` by ${row.approved_by}`)] : "") },
      { label: "Rejected", key: "rejected_at", render: (row) => (row.rejected_at ? [when(row.rejected_at), h("span", { class: "soft" }, ` by ${row.rejected_by}`)] : "") },
    ],
    load: loadWhole(async (signal) => (await ctx.api.get("/api/pins", { state }, signal)).pins, ["name", "target", "kind", "state"]),
    empty: () => (state === "held"
      ? h("div", { class: "empty" }, h("p", {}, "Nothing is quarantined: every definition is the one that was approved."), h("p", {}, "If a server changes a tool, the hub withholds it, and the change waits here for you."))
      : h("p", { class: "empty" }, "Nothing here.")),
  });
  const refresh = throttle(list.refresh);
  for (const name of ["pin-held", "pin-added", "server-changed", "gap"]) ctx.onLeave(ctx.live.on(name, refresh));
  root.append(heading("Pins", "What has changed since it was approved?"), list.element);
}

async function showOne(root, name, ctx) {
  const box = h("div", {});
  let shown = "";
  async function refresh() {
    try {
      const pin = await ctx.api.get("/api/pins/diff", { name }, ctx.signal);
      const shape = JSON.stringify(pin);
      if (shape === shown) return;
      shown = shape;
      replace(box, describe(pin, ctx, refresh));
      ctx.setTitle(`${name} · Pins`);
    } catch (error) {
      if (error.name === "AbortError") return;
      shown = "";
      replace(box, heading(name), error.status === 404 ? empty(capitalize(error.message), "See all definitions:", "dragoman pins list") : problem(error, refresh));
    }
  }
  await refresh();
  root.append(h("p", {}, h("a", { href: "/console/pins" }, "← All pins")), box);
  const again = throttle(refresh);
  for (const event of ["pin-held", "pin-added", "server-changed", "gap"]) ctx.onLeave(ctx.live.on(event, again));
}

function describe(pin, ctx, refresh) {
  const said = h("div", {});
  const act = async (button, path, body, done) => {
    button.disabled = true;
    try {
      await ctx.api.post(path, body);
      toast(done);
      document.dispatchEvent(new Event("decided"));
      await refresh();
    } catch (error) {
      replace(said, problem(error));
      if (error.status === 409) refresh();
    }
    button.disabled = false;
  };
  const approve = (event) => act(event.currentTarget, "/api/pins/approve", pin.digest ? { name: pin.name, digest: pin.digest } : { name: pin.name }, `${pin.name} is approved as it is now`);
  const reject = async (event) => {
    const button = event.currentTarget;
    if (await confirm(`Reject ${pin.name}?`, "It stays withheld from every client, and this definition is never offered again. The approved one works again if the server goes back to it.", "Reject", true)) {
      act(button, "/api/pins/reject", { name: pin.name }, `${pin.name} is rejected`);
    }
  };
  const isOpen = pin.state !== "approved";
  const canDecide = isOpen && pin.now && (pin.state !== "minor" || pin.offered);
  return [
    heading(pin.name, null,
      canDecide ? h("button", { type: "button", class: "main", onclick: approve }, "Approve this change") : null,
      canDecide && pin.state !== "rejected" ? h("button", { type: "button", class: "danger", onclick: reject }, "Reject") : null,
      isOpen ? null : h("a", { class: "button", href: to("tools", pin.name) }, "The tool")),
    said,
    facts([
      ["State", [badge(pin.state), isOpen ? h("span", { class: "soft" }, pin.state === "minor" ? " offered as approved until you decide" : pin.offered ? " withheld from every client until you decide" : " not offered now") : null]],
      ["Kind", pin.kind],
      ["Server or agent", h("a", { href: to("servers", pin.target) }, pin.target)],
      ["Approved", pin.approved_at ? [when(pin.approved_at), ` by ${pin.approved_by}`] : null],
      ["Quarantined", when(pin.held_since)],
      ["Rejected", pin.rejected_at ? [when(pin.rejected_at), ` by ${pin.rejected_by}`] : null],
    ]),
    pin.was && pin.now ? [h("h2", {}, "What changed"), diffTable(pin.was, pin.now)] : pin.now ? [h("h2", {}, "What is offered"), h("pre", { tabindex: "0", role: "region", "aria-label": "What is offered" }, reveal(JSON.stringify(pin.now, null, 2)))] : null,
    h("details", {}, h("summary", {}, "Whole definitions"), h("div", { class: "columns" },
      pin.was ? h("section", {}, h("h3", {}, "Approved"), json(pin.was, "Approved definition")) : null,
      pin.now ? h("section", {}, h("h3", {}, "Offered now"), json(pin.now, "Definition offered now")) : null)),
    pin.decisions?.length ? [h("h2", {}, "Who decided"), h("ul", { class: "plain" }, pin.decisions.map((one) =>
      h("li", {}, badge(one.action), ` by ${one.by} `, when(one.at))))] : null,
  ];
}
