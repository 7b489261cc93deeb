// The call map: clients, agents and servers as nodes, calls between them as edges. Updates in place:
// a change of numbers changes widths and colours, never positions.
import { h, replace, s, to } from "./dom.js";
import { duration, relative, parseTime } from "./time.js";

const KINDS = [["client", "Clients"], ["agent", "Agents"], ["server", "Servers"]];
const SHOWN = 12;
const ROW = 44;
const BOX = 28;
const TOP = 30;
const TRANSPORT = { client: (node) => `/console/audit?caller=${encodeURIComponent(node.id)}`, agent: (node) => to("agents", node.id), server: (node) => to("servers", node.id) };

export function describeEdge(edge) {
  const parts = [`${edge.calls.toLocaleString("en")} ${edge.calls === 1 ? "call" : "calls"}`];
  if (edge.failed) parts.push(`${edge.failed.toLocaleString("en")} failed`);
  if (edge.refused) parts.push(`${edge.refused.toLocaleString("en")} refused`);
  const times = edge.p50_ms === null || edge.p50_ms === undefined ? "" : `; median ${duration(edge.p50_ms)}${edge.p95_ms ? `, 95 % within ${duration(edge.p95_ms)}` : ""}`;
  return `${edge.from} → ${edge.to}: ${parts.join(", ")}${times}`;
}

export class CallMap {
  #nodes = new Map();
  #edges = new Map();
  #order = { client: [], agent: [], server: [] };
  #open = new Set();
  #drawn = new Map();
  #width = 0;
  #shape = "";

  constructor(navigate) {
    this.navigate = navigate;
    this.svg = s("svg", { role: "group", "aria-label": "Call map. Arrow keys move between nodes and edges, Enter opens." });
    this.caption = h("p", { class: "map-caption soft", "aria-live": "off" });
    this.element = h("div", { class: "map" }, h("div", { class: "map-scroll" }, this.svg), this.caption);
    this.svg.addEventListener("keydown", (event) => this.#move(event));
    this.svg.addEventListener("focusin", (event) => this.#say(event.target));
    this.svg.addEventListener("mouseover", (event) => this.#say(event.target.closest("[data-say]")));
    this.svg.addEventListener("mouseleave", () => this.#say(document.activeElement?.closest?.(".map [data-say]")));
    this.svg.addEventListener("click", (event) => this.#click(event));
    new ResizeObserver(() => this.#resize()).observe(this.svg.parentElement);
    this.#say(null);
  }

  /** Draws the data of /api/map. Nodes that are known keep their place. */
  update(data) {
    for (const node of data.nodes) {
      const kind = this.#order[node.kind] ? node.kind : "server";
      const shown = node.id === "nowhere" ? { ...node, label: "not found", kind } : { ...node, kind };
      const known = this.#nodes.get(node.id);
      if (known && known.kind !== kind) this.#order[known.kind].splice(this.#order[known.kind].indexOf(node.id), 1);
      if (!known || known.kind !== kind) this.#order[kind].push(node.id);
      this.#nodes.set(node.id, shown);
    }
    const ids = new Set(data.nodes.map((node) => node.id));
    for (const id of [...this.#nodes.keys()]) {
      if (ids.has(id)) continue;
      const { kind } = this.#nodes.get(id);
      this.#order[kind].splice(this.#order[kind].indexOf(id), 1);
      this.#nodes.delete(id);
    }
    this.#edges = new Map(data.edges.map((edge) => [`${edge.from}\n${edge.to}`, { ...edge }]));
    if (!this.#shape) this.#sort();
    this.#draw();
  }

  get edges() {
    return [...this.#edges.values()].sort((a, b) => b.calls - a.calls);
  }

  /** At first, those with most calls come first. */
  #sort() {
    const calls = new Map();
    for (const edge of this.#edges.values()) for (const id of [edge.from, edge.to]) calls.set(id, (calls.get(id) ?? 0) + edge.calls);
    for (const list of Object.values(this.#order)) list.sort((a, b) => (calls.get(b) ?? 0) - (calls.get(a) ?? 0) || a.localeCompare(b));
  }

  #resize() {
    const width = Math.floor(this.svg.parentElement.clientWidth) - 26;
    if (width > 0 && Math.abs(width - this.#width) > 1) {
      this.#width = width;
      this.#shape = "";
      this.#draw();
    }
  }

  /** Where each node is: those that are not shown are in the group of their kind. */
  #place() {
    const width = this.#width || 800;
    const box = width > 560 ? Math.min(190, Math.floor(width * 0.24)) : Math.floor((width - 64) / 3);
    const places = new Map();
    const shown = [];
    let bottom = 0;
    KINDS.forEach(([kind], column) => {
      const ids = this.#order[kind];
      const isWhole = ids.length <= SHOWN || this.#open.has(kind);
      const visible = isWhole ? ids : ids.slice(0, SHOWN - 1);
      const x = Math.round((column * (width - box)) / 2);
      const start = TOP + (column === 1 ? ROW / 2 : 0); // a line past an agent runs between two of them
      visible.forEach((id, row) => {
        const place = { key: id, x, y: start + row * ROW, kind, node: this.#nodes.get(id) };
        places.set(id, place);
        shown.push(place);
      });
      if (ids.length > SHOWN) {
        const place = { key: `group:${kind}`, x, y: start + visible.length * ROW, kind, group: ids.length - visible.length };
        if (!isWhole) for (const id of ids.slice(visible.length)) places.set(id, place);
        shown.push(place);
      }
      bottom = Math.max(bottom, start + (visible.length + (ids.length > SHOWN ? 1 : 0)) * ROW);
    });
    return { width, box, places, shown, height: Math.max(bottom, TOP + 3 * ROW) };
  }

  #draw() {
    const layout = this.#place();
    const wires = new Map();
    for (const edge of this.#edges.values()) {
      const from = layout.places.get(edge.from);
      const target = layout.places.get(edge.to);
      if (!from || !target) continue;
      const key = `${from.key}\n${target.key}`;
      const wire = wires.get(key);
      if (wire) mergeEdge(wire.edge, edge);
      else wires.set(key, { from, target, edge: { ...edge, from: nameOf(from), to: nameOf(target) } });
    }
    const shape = JSON.stringify([layout.width, layout.shown.map((one) => [one.key, one.group, one.x, one.y]), [...wires.keys()]]);
    if (shape !== this.#shape) this.#build(layout, wires, shape);
    for (const [key, wire] of wires) this.#paint(this.#drawn.get(key), wire.edge);
    const sums = new Map();
    for (const { from, target, edge } of wires.values()) {
      for (const place of from.kind === "client" ? [from, target] : [target]) {
        const sum = sums.get(place.key) ?? { calls: 0, failed: 0, refused: 0 };
        for (const name of Object.keys(sum)) sum[name] += edge[name];
        sums.set(place.key, sum);
      }
    }
    for (const place of layout.shown) if (place.node) this.#paintNode(this.#drawn.get(place.key), place.node, sums.get(place.key), layout);
  }

  #build(layout, wires, shape) {
    const focused = this.svg.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    this.#shape = shape;
    this.#drawn.clear();
    for (const [name, value] of Object.entries({ viewBox: `-1 0 ${layout.width + 2} ${layout.height}`, width: layout.width + 2, height: layout.height })) this.svg.setAttribute(name, value);
    const heads = KINDS.map(([kind, label], column) => s("text", { class: "map-head", x: Math.round((column * (layout.width - layout.box)) / 2), y: 14 },
      this.#order[kind].length ? `${label} ${this.#order[kind].length}` : label));
    const edges = [...wires].map(([key, wire]) => this.#buildEdge(key, wire, layout));
    const nodes = layout.shown.map((place) => this.#buildNode(place, layout));
    replace(this.svg, heads, edges, nodes);
    const first = focused ? [...this.svg.querySelectorAll("[data-say]")].find((one) => one.dataset.key === focused) : null;
    (first ?? this.svg.querySelector("[data-say]"))?.setAttribute("tabindex", "0");
    first?.focus({ preventScroll: true });
  }

  #buildEdge(key, { from, target, edge }, { box, width }) {
    const y1 = from.y + BOX / 2;
    const y2 = target.y + BOX / 2;
    const isBack = target.x <= from.x;
    const x1 = from.x + box;
    const x2 = isBack ? target.x + box : target.x;
    const gap = (width - box * 3) / 2;
    const bend = isBack ? Math.min(46, gap * 0.8) : gap / 2;
    const loop = from.key === target.key ? 16 : 0;
    // From a client to a server, a line runs between two agents, in the row of the server.
    const end = isBack ? x2 : x1 + gap;
    const rest = end < x2 ? ` L${x2},${y2}` : "";
    const path = `M${x1},${y1 - loop / 2} C${x1 + bend},${y1 - loop} ${isBack ? x2 + bend : end - bend},${y2 + loop} ${end},${y2 + loop / 2}${rest}`;
    const wire = s("path", { d: path, class: "wire" });
    const hover = s("title", {});
    const link = s("a", { class: "edge", tabindex: "-1", dataset: { key, from: from.key, to: target.key, say: "" } }, s("path", { d: path, class: "hit" }), wire, hover);
    this.#drawn.set(key, { link, wire, hover });
    return link;
  }

  #paint(drawn, edge) {
    const said = describeEdge(edge);
    drawn.wire.setAttribute("stroke-width", Math.min(1.2 + Math.log2(1 + edge.calls) * 0.9, 9).toFixed(1));
    drawn.link.setAttribute("class", `edge ${edge.failed ? "bad" : edge.refused ? "warn" : "good"}`);
    drawn.link.setAttribute("href", edge.trace ? to("traces", edge.trace) : "/console/traces");
    drawn.link.setAttribute("aria-label", `${said}. Opens the newest trace.`);
    const last = parseTime(edge.last);
    drawn.link.dataset.say = `${said}${last ? `; last ${relative(last)}` : ""}. Enter or click opens the newest trace.`;
    drawn.hover.textContent = said;
  }

  #buildNode(place, { box }) {
    if (!place.node) {
      const isOpen = place.group === 0;
      const label = isOpen ? "Show fewer" : `and ${place.group.toLocaleString("en")} more`;
      return s("g", { class: "node group", role: "button", tabindex: "-1", "aria-label": isOpen ? `Show fewer ${place.kind}s` : `Show ${place.group} more ${place.kind}s`, dataset: { key: place.key, group: place.kind, say: `${label}: Enter or click` } },
        s("rect", { x: place.x, y: place.y, width: box, height: BOX, rx: 6 }), s("text", { x: place.x + 10, y: place.y + 18 }, label));
    }
    const { node } = place;
    const dot = s("circle", { cx: place.x + 11, cy: place.y + BOX / 2, r: 4 });
    const text = s("text", { x: place.x + 21, y: place.y + 18 });
    const count = s("text", { x: place.x + box - 8, y: place.y + 18, class: "map-count", "text-anchor": "end" });
    const link = s("a", { class: "node", tabindex: "-1", href: node.id === "nowhere" ? "/console/audit?outcome=not_found" : TRANSPORT[node.kind](node), dataset: { key: place.key, say: "" } },
      s("rect", { x: place.x, y: place.y, width: box, height: BOX, rx: 6 }), dot, text, count);
    this.#drawn.set(place.key, { link, text, count });
    return link;
  }

  #paintNode(drawn, node, sum, { box }) {
    const trouble = !sum || node.kind === "client" ? "" : sum.failed ? ` · ${sum.failed.toLocaleString("en")} failed` : sum.refused ? ` · ${sum.refused.toLocaleString("en")} refused` : "";
    const calls = sum ? sum.calls.toLocaleString("en") : "";
    const room = Math.floor((box - 34) / 6.6);
    const count = node.label.length + calls.length + trouble.length <= room ? calls + trouble : calls;
    const most = Math.max(5, room - count.length);
    const name = node.label.length > most ? `${node.label.slice(0, most - 1)}…` : node.label;
    if (drawn.count.textContent !== count) drawn.count.textContent = count;
    if (drawn.text.textContent !== name) drawn.text.textContent = name;
    const state = node.state ? `, ${String(node.state).replaceAll("_", " ")}` : "";
    const said = `${node.kind} ${node.label}${state}${node.tools ? `, ${node.tools} ${node.tools === 1 ? "tool" : "tools"}` : ""}`;
    const bad = ["failed", "unreachable"].includes(node.state);
    const warn = ["needs_login", "degraded", "starting", "unknown"].includes(node.state);
    drawn.link.setAttribute("class", `node ${bad ? "bad" : warn ? "warn" : node.state ? "good" : ""}`);
    drawn.link.setAttribute("aria-label", said);
    drawn.link.dataset.say = said;
  }

  #say(target) {
    const said = target?.dataset?.say;
    if (target && said === undefined) return;
    const key = target?.classList.contains("node") ? target.dataset.key : null;
    this.svg.classList.toggle("picking", Boolean(key));
    for (const edge of this.svg.querySelectorAll(".edge")) edge.toggleAttribute("data-lit", edge.dataset.from === key || edge.dataset.to === key);
    this.caption.textContent = said ?? "Wider: more calls. Amber: some refused. Red: some failed. Point at an edge for its latency; it opens the newest trace.";
  }

  #click(event) {
    const target = event.target.closest("[data-key]");
    if (!target) return;
    if (target.dataset.group) this.#toggle(target.dataset.group);
    else if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    else this.navigate(target.getAttribute("href"));
    event.preventDefault();
  }

  #toggle(kind) {
    if (this.#open.has(kind)) this.#open.delete(kind);
    else this.#open.add(kind);
    this.#draw();
  }

  #move(event) {
    const all = [...this.svg.querySelectorAll("[data-say]")];
    const at = all.indexOf(event.target);
    const next = { ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if ((event.key === "Enter" || event.key === " ") && event.target.dataset.group) {
      event.preventDefault();
      this.#toggle(event.target.dataset.group);
    }
    if (next === undefined || !all[next]) return;
    event.preventDefault();
    event.target.setAttribute("tabindex", "-1");
    all[next].setAttribute("tabindex", "0");
    all[next].focus();
  }
}

function nameOf(place) {
  return place.node ? place.node.label : `${place.group} more ${place.kind}s`;
}

function mergeEdge(sum, edge) {
  sum.calls += edge.calls;
  sum.failed += edge.failed;
  sum.refused += edge.refused;
  sum.p50_ms = null; // medians do not add up
  sum.p95_ms = Math.max(sum.p95_ms ?? 0, edge.p95_ms ?? 0);
  if (!sum.last || edge.last > sum.last) Object.assign(sum, { last: edge.last, trace: edge.trace });
}
