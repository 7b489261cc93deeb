// Draws the steps of a workflow as layers from top to bottom: a step is below all on which it depends.
import { h, s } from "./dom.js";
import { duration } from "./time.js";

const WIDTH = 154;
const HEIGHT = 42;
const INNER = 19;
const GAP_X = 14;
const GAP_Y = 34;
const BEND = 10;
const SIGNS = { completed: "✓", failed: "✕", running: "▸", waiting: "…", needs_decision: "?", skipped: "–", cancelled: "■", pending: "" };

/**
 * drawGraph(nodes, {states, chosen, choose}): `nodes` as the API gives them, `states` maps the id of
 * a step to {state, ms, count}; `choose(id)` is called when one is opened. Arrow keys move between
 * steps. Steps inside of a loop or group are lines of its box.
 */
export function drawGraph(nodes, { states = new Map(), chosen = "", choose = () => {} } = {}) {
  const boxes = buildBoxes(nodes);
  const layers = order(assignLayers(boxes));
  const size = place(layers);
  const real = layers.map((layer) => layer.filter((box) => box.step));
  const svg = s("svg", { class: "graph", viewBox: `0 0 ${size.width} ${size.height}`, width: size.width, height: size.height, role: "group", "aria-label": `Graph of ${boxes.size} steps` });
  for (const layer of layers) for (const box of layer) for (const child of box.next) svg.append(drawEdge(box, child, states));
  for (const layer of real) for (const box of layer) svg.append(drawBox(box, states, chosen, choose, (key) => move(real, box, key)?.focus()));
  return svg;
}

/** A frame that scrolls; of a graph that is wider than it, the middle is shown first. */
export function frame(picture) {
  const box = h("div", { class: "scroll picture", tabindex: "0", role: "region", "aria-label": "Graph" }, picture);
  requestAnimationFrame(() => (box.scrollLeft = (box.scrollWidth - box.clientWidth) / 2));
  return box;
}

function buildBoxes(nodes) {
  const known = new Map(nodes.map((one) => [one.id, one]));
  const outer = (id) => {
    let one = known.get(id);
    let depth = 0;
    while (one?.within && known.has(one.within) && depth < 50) {
      one = known.get(one.within);
      depth += 1;
    }
    return [one?.id, depth];
  };
  const boxes = new Map();
  for (const one of nodes) if (outer(one.id)[1] === 0) boxes.set(one.id, { step: one, inner: [], before: [], next: [], layer: 0, width: WIDTH });
  for (const one of nodes) {
    const [id, depth] = outer(one.id);
    if (depth) boxes.get(id)?.inner.push({ ...one, depth });
    for (const before of one.dependsOn ?? []) {
      const [from] = outer(before);
      if (from !== id && boxes.has(from) && boxes.has(id) && !boxes.get(id).before.includes(boxes.get(from))) boxes.get(id).before.push(boxes.get(from));
    }
  }
  for (const box of boxes.values()) box.height = HEIGHT + box.inner.length * INNER;
  return boxes;
}

/** Gives each box its layer, and puts bends where an edge passes a layer. */
function assignLayers(boxes) {
  const seen = new Map();
  const find = (box, trail) => {
    if (seen.has(box)) return seen.get(box);
    if (trail.has(box)) return 0;
    trail.add(box);
    const layer = box.before.reduce((most, one) => Math.max(most, find(one, trail) + 1), 0);
    seen.set(box, layer);
    return layer;
  };
  for (const box of boxes.values()) box.layer = find(box, new Set());
  const layers = [];
  for (const box of boxes.values()) (layers[box.layer] ??= []).push(box);
  for (const box of boxes.values()) {
    for (const from of box.before) {
      let last = from;
      for (let layer = from.layer + 1; layer < box.layer; layer += 1) {
        const bend = { step: null, from, next: [], before: [last], layer, width: BEND, height: 0 };
        layers[layer].push(bend);
        last.next.push(bend);
        last = bend;
      }
      last.next.push(box);
      if (last !== from) box.before[box.before.indexOf(from)] = last;
    }
  }
  return layers.map((one) => one ?? []);
}

/** Orders each layer by the middle of its neighbours, so that few edges cross. */
function order(layers) {
  for (let round = 0; round < 6; round += 1) {
    const down = round % 2 === 0;
    for (const layer of down ? layers : [...layers].reverse()) {
      const middle = new Map(layer.map((box, index) => {
        const near = down ? box.before : box.next;
        return [box, near.length ? near.reduce((sum, one) => sum + one.at, 0) / near.length : box.at ?? index];
      }));
      layer.sort((a, b) => middle.get(a) - middle.get(b));
      layer.forEach((box, index) => (box.at = index - (layer.length - 1) / 2));
    }
  }
  return layers;
}

function place(layers) {
  const widths = layers.map((layer) => layer.reduce((sum, box) => sum + box.width + GAP_X, -GAP_X));
  const width = Math.max(...widths, WIDTH) + 8;
  let y = 4;
  layers.forEach((layer, index) => {
    let x = (width - widths[index]) / 2;
    const height = Math.max(...layer.map((box) => box.height), HEIGHT);
    for (const box of layer) {
      Object.assign(box, { x, y, bottom: box.step ? y + box.height : y + height });
      x += box.width + GAP_X;
    }
    y += height + GAP_Y;
  });
  return { width, height: y - GAP_Y + 4 };
}

function drawEdge(from, to, states) {
  const [x1, y1, x2, y2] = [from.x + from.width / 2, from.bottom, to.x + to.width / 2, to.y];
  const start = from.step ?? from.from.step;
  const done = states.get(start.id)?.state === "completed";
  const bend = from.step ? "" : `M${x1},${from.y} L${x1},${y1} `;
  return s("path", { class: done ? "edge done" : "edge", d: `${bend}M${x1},${y1} C${x1},${y1 + GAP_Y / 2} ${x2},${y2 - GAP_Y / 2} ${x2},${y2}` });
}

function drawBox(box, states, chosen, choose, go) {
  const { step } = box;
  const now = states.get(step.id);
  const state = now?.state ?? "";
  const words = [step.id, step.node, state.replaceAll("_", " "), now?.ms ? duration(now.ms) : "", now?.count ? `${now.count} times` : ""].filter(Boolean);
  const open = (event) => {
    event.preventDefault();
    choose(step.id);
  };
  const group = s("g", { class: `node is-${state || "plain"}${step.id === chosen ? " chosen" : ""}`, tabindex: "0", role: "button", "aria-label": words.join(", "), "aria-pressed": String(step.id === chosen), transform: `translate(${box.x} ${box.y})`, onclick: open, onkeydown: (event) => {
    if (event.key === "Enter" || event.key === " ") open(event);
    else if (event.key.startsWith("Arrow")) {
      event.preventDefault();
      event.stopPropagation();
      go(event.key);
    }
  } },
  s("title", {}, words.join(", ")),
  s("rect", { width: box.width, height: box.height, rx: 6 }),
  s("rect", { class: "side", width: 4, height: box.height - 8, x: 4, y: 4, rx: 2 }),
  s("text", { x: 15, y: 18, class: "name" }, cut(step.id, 18)),
  s("text", { x: 15, y: 34, class: "kind" }, cut([step.node, now?.ms ? duration(now.ms) : "", now?.count ? `× ${now.count}` : ""].filter(Boolean).join(" · "), 21)),
  s("text", { x: box.width - 18, y: 18, class: "sign" }, SIGNS[state] ?? ""),
  box.inner.map((one, index) => s("text", { x: 15 + one.depth * 8, y: HEIGHT + 8 + index * INNER, class: "inner" }, `${SIGNS[states.get(one.id)?.state] ?? "·"} ${cut(`${one.id} ${one.node}`, 20)}`)));
  box.focus = () => group.focus();
  return group;
}

function cut(text, size) {
  return text.length > size ? `${text.slice(0, size - 1)}…` : text;
}

/** The box that an arrow key leads to. */
function move(layers, box, key) {
  const index = layers.findIndex((layer) => layer.includes(box));
  const side = layers[index].indexOf(box);
  if (key === "ArrowLeft" || key === "ArrowRight") return layers[index][side + (key === "ArrowLeft" ? -1 : 1)];
  let other = index + (key === "ArrowUp" ? -1 : 1);
  while (layers[other] && !layers[other].length) other += key === "ArrowUp" ? -1 : 1;
  return layers[other]?.reduce((best, one) => (Math.abs(one.x - box.x) < Math.abs(best.x - box.x) ? one : best));
}
