// Counts beside entries of the navigation: what waits for a decision.
import { h } from "./dom.js";
import { throttle } from "./live.js";

export function installBadges(api, live, session) {
  const show = (screen, count, words) => {
    const link = document.querySelector(`#nav a[data-screen="${screen}"]`);
    const old = link?.querySelector(".tally");
    if (!link || (old ? old.textContent : "0") === String(count)) return;
    old?.remove();
    if (count) link.append(h("span", { class: "tally", title: words }, String(count)));
  };
  const count = async (screen, words, read) => {
    try {
      show(screen, await read(), words);
    } catch {
      show(screen, 0, words); // not on this hub, or not for this principal
    }
  };
  const readPins = throttle(() => count("pins", "quarantined", async () => (await api.get("/api/pins", { state: "held" })).pins.filter((one) => one.state === "held").length), 1000);
  const readApprovals = throttle(() => count("approvals", "waiting for you", async () => (await api.get("/api/approvals", { state: "pending", limit: 100 })).approvals.filter((one) => one.canDecide).length), 1000);
  if (session.rights.includes("pins")) {
    for (const name of ["pin-held", "pin-added", "server-changed", "agent-changed", "gap"]) live.on(name, readPins);
    readPins();
  }
  for (const name of ["approval-requested", "approval-decided", "gap"]) live.on(name, readApprovals);
  readApprovals();
  // Decisions of this page are seen at once.
  document.addEventListener("decided", () => {
    if (session.rights.includes("pins")) readPins();
    readApprovals();
  });
}
