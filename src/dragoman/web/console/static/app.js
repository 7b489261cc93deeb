/**
 * The console: finds the screen of the path, loads its module, and keeps the header.
 *
 * How to write a screen: add `screens/NAME.js` with
 *
 *   export const title = "Servers";
 *   export async function show(root, route, ctx) {
 *     root.append(heading("Servers", "What is connected?"), …);
 *     return () => { … };                       // optional: called when the screen is left
 *   }
 *
 * `root` is an empty element. It replaces the table that the server has rendered in <main>, once
 * `show` has returned and its tables have their first rows: await other data in `show`, and put
 * nothing big in place later, so that the page does not jump. What `show` throws is shown as an error
 * with what to do.
 *
 * `route` is {screen, name, query, path}: for /console/tools/x?q=y the name is "x" (decoded, "" for
 * the list) and the query a URLSearchParams. `ctx` has
 *   api        get, post, patch, delete, call (see api.js); rejects with ApiError
 *   live       on(event, f), watch(f) (see live.js); pass what they return to ctx.onLeave
 *   session    {principal, admin, rights (of admin), scopes, kind, roles, version, expires_at}
 *   navigate   navigate("/console/tools") without reloading; plain links do that by themselves
 *   onLeave    onLeave(f) calls f when the screen is left; timers and subscriptions end there
 *   signal     an AbortSignal for requests that end with the screen
 *   setTitle   setTitle("x · Tools") for the tab
 *
 * Modules: dom (h, s, to), states (heading, facts, badge, problem, empty, waiting), table (table,
 * loadWhole), form (schemaForm), dialog (showDialog, confirm, toast), copy (command, json,
 * codeBlock), time (when, duration), svg, live (throttle). Text of servers and agents goes into
 * children of h(), never into markup. No inline styles: the CSP forbids them; use classes of
 * style.css, and attributes in SVG. `screens/servers.js` and `screens/tools.js` are the models.
 * A screen that changes something calls the API, then shows a toast and reads its data again; ask
 * with confirm() before what cannot be undone. Hide or disable what `ctx.session.rights` does not
 * have, and say why. Paths and the tables without JavaScript are in ../screens.py.
 */
import { api, onSignedOut } from "./api.js";
import { h, replace } from "./dom.js";
import { Live } from "./live.js";
import { installKeys } from "./keys.js";
import { installBadges } from "./badges.js";
import { badge, problem, waiting } from "./states.js";

const base = document.querySelector('meta[name="base"]').content;
const main = document.getElementById("main");
const live = new Live(() => api.get("/api/session"));
let session = null;
let leave = () => {};
let shown = 0;
const ROWS_MS = 3000; // then a screen is shown without the rows of its tables

function parseRoute(url) {
  const steps = url.pathname.replace(/^\/console\/?/, "").split("/").filter(Boolean);
  return { screen: steps[0] ?? "home", name: decodeURIComponent(steps[1] ?? ""), query: url.searchParams, path: url.pathname };
}

async function open(isFirst) {
  const number = (shown += 1);
  const route = parseRoute(new URL(location.href));
  leave();
  const ends = [];
  const control = new AbortController();
  leave = () => {
    control.abort();
    for (const end of ends.splice(0)) end();
  };
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.screen === route.screen) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const root = h("div", { class: `screen ${route.screen}` });
  const timer = isFirst ? 0 : setTimeout(() => number === shown && replace(main, waiting()), 200);
  try {
    if (!session) {
      session = await api.get("/api/session");
      installBadges(api, live, session);
    }
    const module = await load(route.screen);
    if (number !== shown) return;
    if (!module) {
      if (isFirst) document.documentElement.dataset.ready = route.path;
      else location.reload(); // the server renders what has no module
      return;
    }
    document.title = `${route.name ? `${route.name} · ` : ""}${module.title} · Dragoman`;
    const ctx = {
      api, live, session, navigate, signal: control.signal, onLeave: (end) => ends.push(end),
      setTitle: (text) => (document.title = `${text} · Dragoman`),
    };
    const cleanup = await module.show(root, route, ctx);
    if (cleanup) ends.push(cleanup);
    const tables = [...root.querySelectorAll(".table")].map((one) => one.ready);
    await Promise.race([Promise.all(tables), new Promise((resolve) => setTimeout(resolve, ROWS_MS))]);
  } catch (error) {
    if (error.name === "AbortError" || number !== shown) return;
    replace(root, problem(error, () => (error.reload ? location.reload() : open(false))));
  } finally {
    clearTimeout(timer);
  }
  if (number !== shown) return;
  replace(main, root);
  if (!isFirst) {
    main.focus({ preventScroll: true });
    window.scrollTo(0, history.state?.scroll ?? 0);
  }
  document.documentElement.dataset.ready = route.path;
}

const loaded = new Map();
async function load(name) {
  if (!/^[a-z]+$/.test(name)) return null;
  if (!loaded.has(name)) {
    if (!SCREENS.has(name)) return null;
    try {
      loaded.set(name, await import(`${base}/screens/${name}.js`));
    } catch (error) {
      // A failed import is remembered: only a new page can try again.
      if (error instanceof SyntaxError) throw error;
      throw Object.assign(new Error("this part of the console could not be loaded"), { next: "The hub was updated, or cannot be reached. Reload the page.", reload: true });
    }
  }
  return loaded.get(name);
}
const SCREENS = new Set((document.querySelector('meta[name="screens"]')?.content ?? "").split(" "));

export function navigate(path) {
  const url = new URL(path, location.href);
  if (url.origin !== location.origin || !url.pathname.startsWith("/console/")) {
    location.assign(url);
    return;
  }
  history.replaceState({ scroll: window.scrollY }, "");
  history.pushState({}, "", url);
  delete document.documentElement.dataset.ready;
  open(false);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  const url = new URL(link.href, location.href);
  if (link.target || link.hasAttribute("download") || url.origin !== location.origin || !url.pathname.startsWith("/console/")) return;
  if (url.pathname === location.pathname && url.hash) return;
  event.preventDefault();
  document.getElementById("nav").classList.remove("open");
  navigate(url);
});
window.addEventListener("popstate", () => open(false));

function installHeader() {
  const state = document.getElementById("live");
  live.watch((now) => replace(state, badge(now, STATES[now])));
  onSignedOut(() => live.stop("signed out"));
  live.watch((now) => {
    if (now === "signed out" && !document.getElementById("signed-out")) {
      main.before(h("p", { class: "problem", id: "signed-out", role: "alert" }, "Your session has ended. Open the console again with: ",
        h("code", {}, "dragoman console"), " or ", h("a", { href: "/console/login", onclick: (event) => { event.preventDefault(); location.assign("/console/login"); } }, "sign in"), "."));
    }
  });
  const nav = document.getElementById("nav");
  const menu = h("button", { type: "button", class: "quiet menu", "aria-controls": "nav", "aria-expanded": "false", onclick: () => {
    menu.setAttribute("aria-expanded", String(nav.classList.toggle("open")));
  } }, "Menu");
  const theme = h("button", { type: "button", class: "quiet", title: "Light or dark", onclick: () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try {
      localStorage.setItem("theme", root.dataset.theme);
    } catch {
      // The theme lasts for this page only.
    }
  } }, "Theme");
  document.getElementById("tools-of-page").append(theme, menu);
}

const STATES = {
  connecting: "connecting to the hub's events",
  live: "what you see is current",
  reconnecting: "the connection was lost; trying again",
  offline: "the hub does not answer; is it running?",
  paused: "paused while this tab is hidden",
  "signed out": "the session has ended",
};

installHeader();
installKeys(navigate);
live.start();
open(true);
