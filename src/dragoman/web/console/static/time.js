// Times: relative, with the absolute one on hover, kept current by one timer. And amounts.
import { h } from "./dom.js";

const UNITS = [["year", 31536000], ["month", 2592000], ["day", 86400], ["hour", 3600], ["minute", 60]];
const format = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });

/** A Date of an ISO text, or of seconds since 1970; null if it is neither. */
export function parseTime(value) {
  if (value === null || value === undefined || value === "") return null;
  const date = typeof value === "number" ? new Date(value * 1000) : new Date(value);
  return Number.isNaN(date.getTime()) ? null : date;
}

export function relative(date, now = Date.now()) {
  const seconds = (date.getTime() - now) / 1000;
  for (const [unit, size] of UNITS) {
    if (Math.abs(seconds) >= size) return format.format(Math.trunc(seconds / size), unit);
  }
  return Math.abs(seconds) < 5 ? "now" : format.format(Math.trunc(seconds), "second");
}

/** <time>3 min. ago</time>; "" for no time. */
export function when(value) {
  const date = parseTime(value);
  if (!date) return "";
  return h("time", { datetime: date.toISOString(), title: absolute(date) }, relative(date));
}

export function absolute(date) {
  return date.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

/** 12 ms, 1.4 s, 3 min 5 s, 2 h 3 min, 5 days */
export function duration(ms) {
  if (ms === null || ms === undefined) return "";
  if (ms < 1000) return `${ms < 10 ? Math.round(ms * 10) / 10 : Math.round(ms)} ms`;
  if (ms < 60000) return `${Math.round(ms / 100) / 10} s`;
  const minutes = Math.floor(ms / 60000);
  if (minutes < 60) return `${minutes} min ${Math.floor((ms % 60000) / 1000)} s`;
  return minutes < 2880 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.floor(minutes / 1440)} days`;
}

/** $0.0042, $1.25 */
export function money(dollars) {
  if (!dollars) return "$0";
  return `$${dollars < 0.01 ? dollars.toFixed(4) : dollars.toFixed(2)}`;
}

setInterval(() => {
  if (document.hidden) return;
  for (const element of document.querySelectorAll("time[datetime]")) {
    const date = parseTime(element.dateTime);
    const text = date && element.title ? relative(date) : null;
    if (text && text !== element.textContent) element.textContent = text;
  }
}, 10000);
