// Tables: sorted, filtered and paged by the server, or here for short lists. Arrow keys move between
// rows, Enter opens one.
import { h, replace } from "./dom.js";
import { problem } from "./states.js";
import { when, duration } from "./time.js";

/**
 * table({
 *   label: "Tools",
 *   columns: [{label: "Tool", key: "name", sort: true, kind: "text|number|time|ms|code", render: (row) => node}],
 *   load: async ({q, sort, descending, cursor, limit, signal}) => ({rows, total, nextCursor}),
 *   link: (row) => "/console/tools/x",      // the first column leads there
 *   key: (row) => "id",                      // keeps the focused row when the list is read again
 *   empty: () => node,                       // shown when there are no rows at all
 *   search: "Search tools",                  // omit for no search field
 *   filters: [node],                         // more controls beside it; call reload() on change
 *   limit: 100,
 * })
 * returns {element, ready, reload(), refresh()}. `ready` resolves when the first rows, or why there are
 * none, are in the element, which has it too: app.js shows a screen when its tables are ready. `reload`
 * begins anew; `refresh`, for events, reads the shown pages again and keeps the place, after a reading
 * that is under way, so that events do not delay the rows.
 */
export function table(options) {
  const { columns, limit = 100 } = options;
  const here = new URL(location.href);
  const state = { q: options.search ? here.searchParams.get("q") ?? "" : "", sort: "", descending: false, rows: [], next: null, total: null, loaded: false };
  let running = null; // the AbortController of the reading that is under way
  let ended = null; // resolves when it has ended
  let next = null; // the refresh after it
  let setReady;

  const input = options.search && h("input", {
    type: "search", "aria-label": options.search, placeholder: `${options.search} ( / )`, value: state.q,
    dataset: { search: "" }, oninput: () => later(),
  });
  const status = h("span", { class: "count", role: "status" });
  const body = h("tbody", {});
  const heads = columns.map((column) => head(column));
  const grid = h("table", {}, h("thead", {}, h("tr", {}, heads)), body);
  const region = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": options.label }, grid);
  const more = h("button", { type: "button", hidden: true, onclick: () => load(true) }, "More");
  const notice = h("div", {});
  const element = h("div", { class: "table" },
    h("div", { class: "search", role: "search" }, input, options.filters, status),
    region, notice, h("p", { class: "pager" }, more));
  body.addEventListener("keydown", moveFocus);

  function head(column) {
    const cell = h("th", { scope: "col", class: kindClass(column) });
    if (!column.sort) {
      cell.append(column.label);
      return cell;
    }
    const button = h("button", { type: "button", class: "sort", onclick: () => {
      state.descending = state.sort === column.key ? !state.descending : false;
      state.sort = column.key;
      for (const one of heads) one.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", state.descending ? "descending" : "ascending");
      load(false);
    } }, column.label);
    cell.append(button);
    return cell;
  }

  let timer = 0;
  function later() {
    clearTimeout(timer);
    timer = setTimeout(() => {
      state.q = input.value.trim();
      const url = new URL(location.href);
      if (state.q) url.searchParams.set("q", state.q);
      else url.searchParams.delete("q");
      history.replaceState(history.state, "", url);
      load(false);
    }, 150);
  }

  function load(isMore, wanted = limit) {
    ended = read(isMore, wanted);
    return ended;
  }

  async function read(isMore, wanted) {
    running?.abort();
    const control = new AbortController();
    running = control;
    element.setAttribute("aria-busy", "true");
    try {
      const asked = { q: state.q, sort: state.sort, descending: state.descending, limit: wanted, signal: control.signal };
      let found = await options.load({ ...asked, cursor: isMore ? state.next : null });
      // A search of a long log reads a part of it at a time, and may find nothing there.
      for (let tries = 0; !found.rows.length && found.nextCursor && tries < 20; tries += 1) {
        found = await options.load({ ...asked, cursor: found.nextCursor });
      }
      if (control.signal.aborted) return;
      state.rows = isMore ? [...state.rows, ...found.rows] : found.rows;
      state.next = found.nextCursor ?? null;
      state.total = found.total ?? null;
      state.loaded = true;
      draw(isMore ? found.rows : null);
      setReady();
    } catch (error) {
      if (error.name === "AbortError") return;
      replace(notice, problem(error, () => load(isMore)));
      setReady();
    } finally {
      if (running === control) {
        running = null;
        element.removeAttribute("aria-busy");
      }
    }
  }

  function refresh() {
    if (!running) return load(false, Math.max(limit, Math.min(state.rows.length, 1000)));
    next ??= ended.then(() => {
      next = null;
      return refresh();
    });
    return next;
  }

  function draw(added) {
    const focused = body.querySelector("tr:focus-within")?.dataset.key;
    if (added) body.append(...added.map(drawRow));
    else body.replaceChildren(...state.rows.map(drawRow));
    if (focused && !added) {
      const row = [...body.rows].find((one) => one.dataset.key === focused);
      row?.querySelector("a, button")?.focus({ preventScroll: true });
    }
    more.hidden = state.next === null;
    region.hidden = state.rows.length === 0;
    const shown = state.rows.length;
    const total = state.total ?? shown;
    status.textContent = total > shown ? `${shown.toLocaleString("en")} of ${total.toLocaleString("en")}` : `${shown.toLocaleString("en")}`;
    if (shown) replace(notice);
    else replace(notice, state.q ? h("p", { class: "empty" }, "Nothing matches the search.") : options.empty?.() ?? h("p", { class: "empty" }, "Nothing here."));
  }

  function drawRow(row) {
    const cells = columns.map((column, index) => {
      const content = column.render ? column.render(row) : plain(column, row[column.key]);
      const link = index === 0 && options.link?.(row);
      return h("td", { class: kindClass(column), dataset: { label: column.label } }, link ? h("a", { href: link }, content) : content);
    });
    return h("tr", { dataset: { key: options.key?.(row) ?? "" } }, cells);
  }

  function moveFocus(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || event.target.matches("input, select, textarea")) return;
    const row = event.target.closest("tr");
    const other = step > 0 ? row?.nextElementSibling : row?.previousElementSibling;
    const target = other?.querySelector("a, button");
    if (target) {
      event.preventDefault();
      target.focus();
    }
  }

  element.ready = new Promise((resolve) => (setReady = resolve));
  load(false);
  return { element, ready: element.ready, reload: () => load(false), refresh, state };
}

function kindClass(column) {
  return column.kind && column.kind !== "text" ? (column.kind === "ms" ? "number" : column.kind) : null;
}

function plain(column, value) {
  if (value === null || value === undefined || value === "") return "";
  if (column.kind === "time") return when(value);
  if (column.kind === "ms") return duration(value);
  if (column.kind === "number") return Number(value).toLocaleString("en");
  if (column.kind === "code") return h("code", {}, String(value));
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** A `load` for a list that the API gives as a whole: filters, sorts and pages it here. */
export function loadWhole(fetchRows, members) {
  return async ({ q, sort, descending, cursor, limit, signal }) => {
    let rows = await fetchRows(signal);
    if (q) {
      const wanted = q.toLowerCase();
      rows = rows.filter((row) => members.some((name) => String(row[name] ?? "").toLowerCase().includes(wanted)));
    }
    if (sort) {
      const order = new Intl.Collator("en", { numeric: true }).compare;
      const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : order(String(a ?? ""), String(b ?? "")));
      rows = [...rows].sort((a, b) => compare(a[sort], b[sort]) * (descending ? -1 : 1));
    }
    const start = Number(cursor ?? 0);
    const end = start + limit;
    return { rows: rows.slice(start, end), total: rows.length, nextCursor: end < rows.length ? end : null };
  };
}
