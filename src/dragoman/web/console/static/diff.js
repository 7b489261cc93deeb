// Differences between two definitions: by member, then by word. Invisible characters are shown.
import { h } from "./dom.js";

const MAX_WORDS = 1500;
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\u{e0000}-\u{e0fff}]/gu;

/** Text with names for the characters that nobody would see. */
export function reveal(text) {
  const parts = [];
  let last = 0;
  for (const found of text.matchAll(HIDDEN)) {
    if (found.index > last) parts.push(text.slice(last, found.index));
    parts.push(h("mark", { class: "hidden-char", title: "an invisible character" }, `U+${found[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`));
    last = found.index + found[0].length;
  }
  parts.push(text.slice(last));
  return parts;
}

/** The members that differ: [{path, was, now}], with undefined for what is not there. */
export function changedMembers(was, now, path = "") {
  if (JSON.stringify(was) === JSON.stringify(now)) return [];
  const isObject = (one) => one !== null && typeof one === "object" && !Array.isArray(one);
  if (!isObject(was) || !isObject(now)) return [{ path, was, now }];
  return [...new Set([...Object.keys(was), ...Object.keys(now)])].flatMap((name) => changedMembers(was[name], now[name], path ? `${path}.${name}` : name));
}

/** Both texts as lists of nodes, with <del> and <ins> around the words that differ. */
export function diffWords(was, now) {
  const a = split(was);
  const b = split(now);
  if (a.length > MAX_WORDS || b.length > MAX_WORDS) return [[h("del", {}, reveal(was))], [h("ins", {}, reveal(now))]];
  const keep = longestCommon(a, b);
  return [mark(a, keep.a, "del"), mark(b, keep.b, "ins")];
}

function split(text) {
  return text.match(/\s+|[\p{L}\p{N}_]+|./gsu) ?? [];
}

function longestCommon(a, b) {
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const rows = a.length - start - end;
  const columns = b.length - start - end;
  const lengths = Array.from({ length: rows + 1 }, () => new Uint16Array(columns + 1));
  for (let i = rows - 1; i >= 0; i -= 1) {
    for (let j = columns - 1; j >= 0; j -= 1) {
      lengths[i][j] = a[start + i] === b[start + j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const kept = { a: new Set(), b: new Set() };
  for (let i = 0; i < start; i += 1) kept.a.add(i) && kept.b.add(i);
  for (let i = 1; i <= end; i += 1) kept.a.add(a.length - i) && kept.b.add(b.length - i);
  for (let i = 0, j = 0; i < rows && j < columns; ) {
    if (a[start + i] === b[start + j]) {
      kept.a.add(start + i);
      kept.b.add(start + j);
      i += 1;
      j += 1;
    } else if (lengths[i + 1][j] >= lengths[i][j + 1]) i += 1;
    else j += 1;
  }
  return kept;
}

function mark(words, kept, name) {
  const nodes = [];
  // A space between two changes belongs to them.
  const isKept = (i) => kept.has(i) && !(/^\s+$/.test(words[i]) && i > 0 && i < words.length - 1 && !kept.has(i - 1) && !kept.has(i + 1));
  for (let i = 0; i < words.length; ) {
    const same = isKept(i);
    let text = "";
    while (i < words.length && isKept(i) === same) {
      text += words[i];
      i += 1;
    }
    nodes.push(same ? h("span", {}, reveal(text)) : h(name, {}, reveal(text)));
  }
  return nodes;
}

/** A side-by-side table of two definitions. */
export function diffTable(was, now, labels = ["Approved", "Offered now"]) {
  const members = changedMembers(was ?? {}, now ?? {});
  const show = (value) => (value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value, null, 2));
  return h("div", { class: "diff", role: "table", "aria-label": "What changed" },
    h("div", { role: "row", class: "diff-row diff-head" }, ["Member", ...labels].map((label) => h("div", { role: "columnheader" }, label))),
    members.map(({ path, was: before, now: after }) => {
      const [left, right] = before === undefined || after === undefined
        ? [[h("del", {}, reveal(show(before)))], [h("ins", {}, reveal(show(after)))]]
        : diffWords(show(before), show(after));
      const cell = (nodes, value, label, absent) => h("div", { role: "cell", class: "diff-text", dataset: { label } }, value === undefined ? h("span", { class: "soft" }, absent) : nodes);
      return h("div", { role: "row", class: "diff-row" },
        h("div", { role: "rowheader", class: "diff-path" }, h("code", {}, path || "definition")),
        cell(left, before, labels[0], "not there before"), cell(right, after, labels[1], "removed"));
    }));
}
