// The keyboard: `/` goes to the search field, `?` shows the keys, `g` and a letter open a screen.
import { h } from "./dom.js";
import { showDialog } from "./dialog.js";

export const PLACES = {
  h: ["Home", "/console/"], s: ["Servers", "/console/servers"], a: ["Agents", "/console/agents"],
  t: ["Tools", "/console/tools"], p: ["Playground", "/console/playground"], o: ["Policies", "/console/policies"],
  c: ["Access", "/console/access"], i: ["Pins", "/console/pins"], v: ["Approvals", "/console/approvals"],
  r: ["Runs", "/console/runs"], w: ["Workflows", "/console/workflows"], x: ["Traces", "/console/traces"],
  u: ["Audit", "/console/audit"], e: ["Views", "/console/views"], l: ["Limits", "/console/limits"],
  d: ["Health", "/console/health"],
};

export function listKeys() {
  const rows = [["/", "search on this screen"], ["↑ ↓", "move between the rows of a table"], ["Enter", "open"], ["?", "show these keys"],
    ...Object.entries(PLACES).map(([key, [name]]) => [`g ${key}`, name])];
  return h("dl", { class: "facts keys" }, rows.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)]));
}

export function installKeys(navigate) {
  let waits = 0;
  let open = false;
  document.addEventListener("keydown", async (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, [contenteditable], dialog")) return;
    if (Date.now() < waits && PLACES[event.key]) {
      waits = 0;
      event.preventDefault();
      navigate(PLACES[event.key][1]);
    } else if (event.key === "g") {
      waits = Date.now() + 1500;
    } else if (event.key === "/") {
      const field = document.querySelector("#main [data-search], #main input[type=search]");
      if (field) {
        event.preventDefault();
        field.focus();
        field.select();
      }
    } else if (event.key === "ArrowDown" && [document.body, document.getElementById("main")].includes(event.target)) {
      const first = document.querySelector("#main tbody a, #main tbody button");
      if (first) {
        event.preventDefault();
        first.focus();
      }
    } else if (event.key === "?" && !open) {
      open = true;
      await showDialog("Keys", (close) => [listKeys(), h("div", { class: "actions" }, h("button", { type: "button", autofocus: true, onclick: () => close() }, "Close"))]);
      open = false;
    }
  });
}
