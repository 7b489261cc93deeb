// Small drawings: sparklines, bars, arrows.
import { s } from "./dom.js";

export function drawing(width, height, label, ...children) {
  return s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, children);
}

/** A line through the values; `label` says in words what it shows. */
export function sparkline(values, label, width = 160, height = 32) {
  const most = Math.max(...values, 1e-9);
  const step = values.length > 1 ? width / (values.length - 1) : width;
  const points = values.map((value, index) => `${(index * step).toFixed(1)},${(height - 2 - (value / most) * (height - 4)).toFixed(1)}`);
  return drawing(width, height, label, s("polyline", { points: points.join(" "), class: "line" }));
}

/** A horizontal bar from `start` to `end` of `all`, as for a waterfall. */
export function spanBar(start, end, all, tone, label, width = 320, height = 14) {
  const scale = width / Math.max(all, 1e-9);
  return drawing(width, height, label,
    s("rect", { x: 0, y: height / 2 - 0.5, width, height: 1, class: "rail" }),
    s("rect", { x: start * scale, y: 2, width: Math.max((end - start) * scale, 2), height: height - 4, rx: 2, class: `bar ${tone}` }));
}

/** A bar that shows how much of a limit is used. */
export function meter(used, limit, label, width = 160) {
  const share = limit > 0 ? Math.min(used / limit, 1) : 0;
  return spanBar(0, share, 1, share > 0.9 ? "bad" : share > 0.7 ? "warn" : "good", label, width, 10);
}
