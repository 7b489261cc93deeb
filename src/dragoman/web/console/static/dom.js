// Builds elements. Text is only ever set as text: nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";

/**
 * h("a", {href: "/console/tools", class: "button", onclick: f}, "Tools", child, [more])
 * Attributes: `on…` adds a listener, `dataset` an object, a boolean sets or omits the attribute,
 * null and undefined are omitted; `value`, `checked`, `disabled`, `selected` and `indeterminate` are
 * set as properties. Children: nodes, strings, numbers, arrays; null and false are skipped.
 */
export function h(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same for SVG: s("rect", {x: 0, y: 0, width: 10, height: 10, class: "bar"}). */
export function s(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "indeterminate"]);
const LINKS = new Set(["href", "src", "action", "formaction"]);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (PROPERTIES.has(name)) element[name] = value;
    else if (LINKS.has(name)) element.setAttribute(name, safeLink(String(value)));
    else if (typeof value === "boolean") element.toggleAttribute(name, value);
    else element.setAttribute(name, String(value));
  }
  append(element, children);
  return element;
}

/** Links lead to the hub, the web or this page; `javascript:` and others lead nowhere. */
export function safeLink(url) {
  return /^(https?:\/\/|[/#?.])/i.test(url) && !/[\u0000-\u001f]/.test(url) ? url : "#";
}

export function append(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** Replaces what is in an element. */
export function replace(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

/** The path of a screen: to("tools", "a/b") is "/console/tools/a%2Fb". */
export function to(screen, ...names) {
  return ["/console", screen, ...names.map(encodeURIComponent)].join("/");
}

let last = 0;
/** An id that no other element has, for labels and descriptions. */
export function newId(prefix = "id") {
  last += 1;
  return `${prefix}-${last}`;
}
