// Dialogs: questions before something irreversible, and forms.
import { h, newId } from "./dom.js";

/** Shows a dialog; `build(close)` returns its content. Resolves with what `close` was given. */
export function showDialog(title, build) {
  return new Promise((resolve) => {
    const id = newId("dialog");
    const box = h("dialog", { "aria-labelledby": id });
    const close = (value) => {
      box.close();
      box.remove();
      resolve(value);
    };
    box.addEventListener("cancel", (event) => {
      event.preventDefault();
      close(undefined);
    });
    box.append(h("h2", { id }, title), h("div", {}, build(close)));
    document.body.append(box);
    box.showModal();
  });
}

/** Asks whether to go on: await confirm("Restart hello?", "Running calls fail.", "Restart"). */
export async function confirm(title, text, label = "OK", danger = false) {
  const answer = await showDialog(title, (close) => [
    h("p", {}, text),
    h("div", { class: "actions" },
      h("button", { type: "button", onclick: () => close(false) }, "Cancel"),
      h("button", { type: "button", class: danger ? "danger" : "main", autofocus: true, onclick: () => close(true) }, label)),
  ]);
  return answer === true;
}

/** A short message at the bottom of the page, which a screen reader reads. */
export function toast(text, kind = "") {
  let box = document.getElementById("toasts");
  if (!box) {
    box = h("div", { id: "toasts", role: "status", "aria-live": "polite" });
    document.body.append(box);
  }
  const one = h("div", { class: `toast ${kind}` }, text);
  box.append(one);
  setTimeout(() => one.remove(), kind === "error" ? 10000 : 4000);
}
