// Copies text, and shows commands with a button that copies them.
import { h } from "./dom.js";

export async function copy(text, button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    done = false;
  }
  if (!button) return done;
  const before = button.textContent;
  button.textContent = done ? "Copied" : "Select and copy it";
  setTimeout(() => (button.textContent = before), 1500);
  return done;
}

export function copyButton(text, label = "Copy") {
  return h("button", { type: "button", class: "quiet copy", onclick: (event) => copy(typeof text === "function" ? text() : text, event.currentTarget) }, label);
}

/** A word of a command for a shell. A name that others chose may contain any character. */
export function quote(text) {
  return /^[A-Za-z0-9_][A-Za-z0-9_.,:@%+=/-]*$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** A command to copy: command("dragoman up"), command(`dragoman agents show ${quote(name)}`). */
export function command(text) {
  return h("span", { class: "command" }, h("code", {}, text), copyButton(text));
}

/** Text as it is, in a box that scrolls, with a button that copies it. */
export function codeBlock(text, label = "text") {
  return h("div", { class: "block" }, copyButton(text), h("pre", { tabindex: "0", role: "region", "aria-label": label }, text));
}

export function json(value, label = "JSON") {
  return codeBlock(JSON.stringify(value, null, 2) ?? "", label);
}
