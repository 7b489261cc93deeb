// Shows what tools and agents return: text, JSON as a tree, images, sound, files and links to
// resources. Everything is shown as text or from data of a known type, never as markup.
import { h, replace } from "./dom.js";
import { copyButton } from "./copy.js";
import { problem } from "./states.js";
import { act, bold, code, num, p, soft } from "./parts.js";

const IMAGES = /^image\/(png|jpeg|gif|webp|avif|bmp)$/;
const SOUNDS = /^audio\/[a-z0-9.+-]{1,40}$/;
const BASE64 = /^[A-Za-z0-9+/=\s]*$/;
const MEMBERS = 100;
const LONG = 20000;

/** The blocks of a result. `api` reads the resources that it links to. */
export function showContent(blocks, api) {
  return h("div", { class: "content" }, (Array.isArray(blocks) ? blocks : []).map((one) => showBlock(one ?? {}, api)));
}

function showBlock(block, api) {
  if (block.type === "text") return showText(String(block.text ?? ""));
  if (block.type === "image" || block.type === "audio") return showMedia(block.data, block.mimeType ?? "", block.type);
  if (block.type === "resource") return showResource(block.resource ?? {});
  if (block.type === "resource_link") return showLink(block, api);
  return jsonTree(block);
}

/** Text as it is; text that is JSON as a tree. */
export function showText(text) {
  const trimmed = text.trim();
  if (/^[[{]/.test(trimmed) && trimmed.length < 2_000_000) {
    try {
      return jsonTree(JSON.parse(trimmed));
    } catch {
      // It only looks like JSON.
    }
  }
  const box = h("pre", { class: "said", tabindex: text.length > 2000 ? "0" : null, "aria-label": "Text" }, text.slice(0, LONG));
  const more = text.length > LONG ? act(`Show all ${num(text.length)} characters`, () => {
    box.textContent = text;
    more.remove();
  }, { class: "quiet" }) : null;
  return h("div", { class: "block" }, text ? copyButton(text) : null, box, more);
}

function showMedia(data, type, kind) {
  const text = String(data ?? "");
  const known = kind === "image" ? IMAGES : SOUNDS;
  if (!known.test(type) || !BASE64.test(text)) return showFile(text, type, kind);
  const element = h(kind === "image" ? "img" : "audio", { class: "media", alt: kind === "image" ? `Image (${type})` : null, controls: kind === "audio", "aria-label": kind === "audio" ? `Sound (${type})` : null });
  element.src = `data:${type};base64,${text}`;
  return h("figure", {}, element, h("figcaption", { class: "soft" }, `${type}, ${countBytes(text)} bytes `, saveButton(text, type, kind)));
}

function showResource(resource) {
  const where = soft(code(String(resource.uri ?? "")), resource.mimeType ? ` ${resource.mimeType}` : "");
  if (typeof resource.text === "string") return h("div", {}, where, showText(resource.text));
  const kind = String(resource.mimeType ?? "").split("/")[0];
  return h("div", {}, where, kind === "image" || kind === "audio" ? showMedia(resource.blob, resource.mimeType, kind) : showFile(String(resource.blob ?? ""), resource.mimeType ?? "", "file"));
}

function showLink(block, api) {
  const holder = h("div", {});
  const read = async () => {
    try {
      const found = await api.post("/api/resources/read", { uri: block.uri });
      replace(holder, found.contents.map(showResource));
    } catch (error) {
      replace(holder, problem(error, read));
    }
  };
  return h("div", { class: "note" }, p(bold(block.title ?? block.name ?? "Resource"), " ", code(String(block.uri ?? ""))),
    block.description ? p(block.description) : null, api ? act("Read it", read) : null, holder);
}

function showFile(data, type, name) {
  return h("p", { class: "row" }, `${type || "A file"}, ${countBytes(data)} bytes`, BASE64.test(data) ? saveButton(data, type, name) : null);
}

function countBytes(base64) {
  return Math.floor((base64.replace(/[\s=]/g, "").length * 3) / 4).toLocaleString("en");
}

function saveButton(base64, type, name) {
  return act("Save", () => {
    const bytes = Uint8Array.from(atob(base64.replace(/\s/g, "")), (one) => one.charCodeAt(0));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([bytes], { type: "application/octet-stream" }));
    link.download = `${name}.${(type.split("/")[1] ?? "bin").replace(/[^a-z0-9]/gi, "").slice(0, 10) || "bin"}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }, { class: "quiet" });
}

/** JSON as a tree that opens on demand, with a button that copies all of it. */
export function jsonTree(value) {
  return h("div", { class: "block tree" }, copyButton(() => JSON.stringify(value, null, 2)), branch("", value, 0));
}

function branch(name, value, depth) {
  const label = name === "" ? null : [h("span", { class: "key" }, name), ": "];
  if (value === null || typeof value !== "object") {
    return h("div", { class: "leaf" }, label, h("span", { class: `is-${value === null ? "null" : typeof value}` }, typeof value === "string" ? value : JSON.stringify(value)));
  }
  const entries = Object.entries(value);
  const isList = Array.isArray(value);
  const size = `${entries.length} ${isList ? (entries.length === 1 ? "item" : "items") : entries.length === 1 ? "member" : "members"}`;
  if (!entries.length) return h("div", { class: "leaf" }, label, isList ? "[]" : "{}");
  const inner = h("div", { class: "branch" });
  let shown = 0;
  const fill = () => {
    const next = entries.slice(shown, shown + MEMBERS);
    inner.append(...next.map(([key, one]) => branch(key, one, depth + 1)));
    shown += next.length;
    if (shown < entries.length) {
      const more = act(`${entries.length - shown} more`, () => {
        more.remove();
        fill();
      }, { class: "quiet" });
      inner.append(more);
    }
  };
  const open = depth < 2 && entries.length <= 40;
  if (open) fill();
  return h("details", { open, ontoggle: () => shown || fill() }, h("summary", {}, label, h("span", { class: "soft" }, size)), inner);
}
