// Forms from a JSON Schema: text, numbers, booleans, choices, variants (oneOf, anyOf), objects, maps,
// arrays, files; everything else is edited as JSON text. The hub validates what is sent.
import { h, newId, replace } from "./dom.js";

const MAX_DEPTH = 8;
/** Members of an object that are shown at once; of more, the optional ones are folded. */
const MANY = 12;
const MAX_FILE = 6 * 1024 * 1024;

/**
 * const form = schemaForm(schema, {a: 1});
 * form.element   the fields
 * form.read()    {value, problems: [{path, message}]}; marks invalid fields
 * form.set(v)    fills the fields
 */
export function schemaForm(schema, value) {
  const root = { type: schema?.oneOf || schema?.anyOf || schema?.$ref ? undefined : "object", ...schema };
  const element = h("div", { class: "fields" });
  let field = null;
  const set = (next) => {
    field = build({ given: root, root, value: next, path: "", required: true, depth: 0 });
    replace(element, field.element);
  };
  set(value);
  return { element, set, read() {
    const problems = [];
    return { value: field.read(problems), problems };
  } };
}

// --- schemas ---------------------------------------------------------------------------------------

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const isAbsent = (value) => value === undefined || value === null;
const isFile = (schema) => schema.contentEncoding === "base64" || ["byte", "binary", "base64"].includes(schema.format);

function resolve(given, root, seen = 0) {
  if (!isObject(given) || seen > 20) return {};
  if (typeof given.$ref === "string") {
    const { $ref, ...rest } = given;
    let found = /^#(\/|$)/.test($ref) ? root : {};
    for (const step of $ref.split("/").slice(1)) found = found?.[decodeURIComponent(step).replaceAll("~1", "/").replaceAll("~0", "~")];
    return resolve({ ...found, ...rest }, root, seen + 1);
  }
  if (!Array.isArray(given.allOf)) return given;
  const { allOf, ...rest } = given;
  return allOf.map((one) => resolve(one, root, seen + 1)).reduce(merge, rest);
}

function merge(base, more) {
  return { ...base, ...more, title: base.title ?? more.title, description: base.description ?? more.description, default: base.default ?? more.default,
    properties: base.properties || more.properties ? { ...base.properties, ...more.properties } : undefined,
    required: [...(base.required ?? []), ...(more.required ?? [])] };
}

function typeOf(schema) {
  return typeof schema.type === "string" ? schema.type : schema.properties || schema.additionalProperties ? "object" : schema.items ? "array" : "json";
}

/** Returns one schema, or {variants} if there is a choice of several. */
function simplify(given, root) {
  const schema = resolve(given, root);
  const { oneOf, anyOf, ...base } = schema;
  let choices = oneOf ?? anyOf;
  if (Array.isArray(schema.type)) {
    choices = schema.type.map((type) => ({ type, title: type }));
    delete base.type;
  }
  if (!Array.isArray(choices)) return schema;
  const some = choices.map((one) => resolve(one, root)).filter((one) => one.type !== "null" && one.const !== null);
  if (!some.length || (base.properties && some.every((one) => !one.properties))) return base; // they only say which members belong together
  if (some.length === 1) return simplify(merge(base, some[0]), root);
  if (some.every((one) => one.const !== undefined)) return { ...base, enum: some.map((one) => one.const), enumNames: some.map((one) => one.title) };
  if (some.every((one) => one.enum ?? one.const !== undefined)) return { ...base, enum: some.flatMap((one) => one.enum ?? [one.const]) };
  return { ...base, variants: some.map((one) => merge({ ...base, title: undefined, description: undefined, default: undefined }, one)) };
}

/** Whether a value can be of a schema: what is needed to choose among variants, no more. */
function fits(value, given, root) {
  const schema = simplify(given, root);
  if (schema.const !== undefined) return schema.const === value;
  if (schema.enum) return schema.enum.includes(value);
  if (schema.variants) return schema.variants.some((one) => fits(value, one, root));
  const type = typeOf(schema);
  if (type === "object") {
    return isObject(value) && (schema.required ?? []).every((name) => name in value)
      && Object.entries(schema.properties ?? {}).every(([name, one]) => !(name in value) || resolve(one, root).const === undefined || fits(value[name], one, root));
  }
  if (type === "array") return Array.isArray(value);
  return type === "json" || (type === "integer" ? Number.isInteger(value) : typeof value === type);
}

// --- fields: each is {element, read(problems)} -----------------------------------------------------

/** `at` has the schema as given, the root, the value, the path, whether it is required, the depth. */
function build(at) {
  const schema = simplify(at.given, at.root);
  const value = at.value === undefined ? schema.default : at.value;
  const f = { ...at, schema, value };
  if (at.depth >= MAX_DEPTH) return jsonField(f);
  if (schema.variants) return variantField(f);
  if (Array.isArray(schema.enum)) return choiceField(f, schema.enum);
  if (schema.const !== undefined) return at.required ? { element: h("span", { hidden: true }), read: () => schema.const } : choiceField(f, [schema.const]);
  const type = typeOf(schema);
  if (type === "object" && (isAbsent(value) || isObject(value))) {
    const isMap = isObject(schema.additionalProperties) && !schema.properties;
    if (!schema.properties && !isMap && at.depth > 0) return jsonField(f);
    if (!at.required && at.depth > 0 && !isObject(value)) return absentField(f);
    return isMap ? mapField(f) : objectField(f);
  }
  if (type === "array" && isObject(schema.items) && (isAbsent(value) || Array.isArray(value))) {
    const items = simplify(schema.items, at.root);
    return items.enum?.length <= 30 && schema.uniqueItems !== false ? severalField(f, items) : arrayField(f);
  }
  if (value !== null && typeof value === "object") return jsonField(f);
  if (type === "boolean") return !at.required && value === undefined ? choiceField(f, [true, false]) : booleanField(f);
  if (type === "number" || type === "integer") return numberField(f, type);
  if (type === "string") return isFile(schema) ? fileField(f) : textField(f);
  return jsonField(f);
}

const nameOf = ({ schema, path }) => schema.title || path.split(".").pop() || "Value";
const optional = ({ required }) => (required ? null : h("span", { class: "optional" }, " optional"));
const hint = ({ schema }) => (schema.description ? h("p", { class: "hint" }, schema.description) : null);
const button = (label, onclick, about) => h("button", { type: "button", class: "quiet", "aria-label": about, onclick }, label);

/** A control with its label. `check` returns [what is wrong, or "", the value]. */
function labelled(f, control, check, extra) {
  const [id, note] = [newId("field"), newId("note")];
  control.id = id;
  control.setAttribute("aria-describedby", note);
  const message = h("span", { class: "invalid", id: note });
  const mark = (text) => {
    message.textContent = text;
    control.setAttribute("aria-invalid", String(Boolean(text)));
  };
  return { mark, element: h("div", { class: "field" }, h("label", { for: id }, nameOf(f), optional(f)), hint(f), control, extra, message), read(problems) {
    const [why, value] = check();
    mark(why);
    if (why) problems.push({ path: f.path, message: why });
    return value;
  } };
}

const INPUTS = { uri: "url", url: "url", date: "date", email: "email", password: "password" };
const SAMPLES = { "date-time": "2026-01-31T12:00:00Z", time: "12:00:00Z", uuid: "00000000-0000-0000-0000-000000000000", duration: "PT1H" };

function textField(f) {
  const { schema, required } = f;
  const { minLength = 0, maxLength = Infinity } = schema;
  const more = { value: f.value ?? "", placeholder: SAMPLES[schema.format] ?? (typeof schema.examples?.[0] === "string" ? schema.examples[0].slice(0, 80) : null) };
  const control = !schema.format && maxLength > 200 ? h("textarea", { rows: "1", spellcheck: "false", ...more }) : h("input", { type: INPUTS[schema.format] ?? "text", ...more });
  return labelled(f, control, () => {
    const text = control.value;
    const size = [...text].length;
    let why = "";
    if (text === "") why = required && minLength > 0 ? "Enter a text." : "";
    else if (size < minLength) why = `At least ${minLength} characters.`;
    else if (size > maxLength) why = `At most ${maxLength} characters.`;
    else if (schema.pattern && !matches(schema.pattern, text)) why = `It must match ${schema.pattern}`;
    return [why, text === "" && !required ? undefined : text];
  });
}

function matches(pattern, text) {
  try {
    return new RegExp(pattern, "u").test(text);
  } catch {
    return true; // the hub decides: the dialects of patterns differ
  }
}

function numberField(f, type) {
  const { minimum, maximum, exclusiveMinimum, exclusiveMaximum } = f.schema;
  const control = h("input", { type: "text", inputmode: "decimal", value: f.value ?? "" });
  return labelled(f, control, () => {
    const text = control.value.trim();
    const number = Number(text);
    let why = "";
    if (text === "") why = f.required ? "Enter a number." : "";
    else if (Number.isNaN(number)) why = "Enter a number.";
    else if (type === "integer" && !Number.isInteger(number)) why = "Enter a whole number.";
    else if (number < minimum) why = `At least ${minimum}.`;
    else if (number > maximum) why = `At most ${maximum}.`;
    else if (number <= exclusiveMinimum) why = `More than ${exclusiveMinimum}.`;
    else if (number >= exclusiveMaximum) why = `Less than ${exclusiveMaximum}.`;
    return [why, text === "" ? undefined : number];
  });
}

function booleanField(f) {
  const control = h("input", { type: "checkbox", checked: Boolean(f.value) });
  const field = labelled({ ...f, required: true }, control, () => ["", control.checked]);
  field.element.classList.add("check");
  return field;
}

function choiceField(f, known) {
  const { required, value } = f;
  const control = h("select", {}, !required || value === undefined ? h("option", { value: "" }, required ? "Choose …" : "(none)") : null,
    known.map((one, index) => h("option", { value: String(index), selected: JSON.stringify(one) === JSON.stringify(value) }, f.schema.enumNames?.[index] || (typeof one === "string" ? one : JSON.stringify(one)))));
  return labelled(f, control, () => (control.value === "" ? [required ? "Choose one." : "", undefined] : ["", known[Number(control.value)]]));
}

function fileField(f) {
  let data = f.value ?? "";
  const note = h("span", { class: "hint" }, data ? "a value is set" : "");
  const control = h("input", { type: "file", onchange: () => {
    const file = control.files[0];
    if (!file) return;
    if (file.size > MAX_FILE) return void field.mark("The file is too large: at most 6 MB.");
    const reader = new FileReader();
    reader.onload = () => {
      data = String(reader.result).split(",")[1] ?? "";
      note.textContent = `${file.name}, ${file.size.toLocaleString("en")} bytes`;
      field.mark("");
    };
    reader.readAsDataURL(file);
  } });
  const field = labelled(f, control, () => [f.required && !data ? "Choose a file." : "", data || undefined], note);
  return field;
}

function jsonField(f) {
  const { description } = f.schema;
  const control = h("textarea", { rows: "4", class: "code", spellcheck: "false", value: f.value === undefined ? "" : JSON.stringify(f.value, null, 2) });
  return labelled({ ...f, schema: { ...f.schema, description: description ? `${description} (JSON)` : "JSON" } }, control, () => {
    if (control.value.trim() === "") return [f.required ? "Enter JSON." : "", undefined];
    try {
      return ["", JSON.parse(control.value)];
    } catch (error) {
      return [`Not valid JSON: ${error.message}`, undefined];
    }
  });
}

function group(f, depth, ...inner) {
  return depth === 0 ? h("div", { class: "fields" }, inner) : h("fieldset", {}, h("legend", {}, nameOf(f), optional(f)), hint(f), inner);
}

/** An object: what is needed first; of many optional members, those without a value wait in a
 * closed box, so that a schema with hundreds of them stays quick. */
function objectField(f) {
  const { schema, value, path, depth } = f;
  const { properties = {}, additionalProperties: open } = schema;
  const needed = new Set(schema.required ?? []);
  const fields = [];
  const make = ([name, given]) => {
    const field = build({ given, root: f.root, value: value?.[name], path: path ? `${path}.${name}` : name, required: needed.has(name), depth: depth + 1 });
    fields.push([name, field]);
    return field.element;
  };
  const members = Object.entries(properties);
  const isFirst = ([name]) => members.length <= MANY || needed.has(name) || value?.[name] !== undefined;
  const first = members.filter(isFirst).map(make);
  const rest = members.filter((one) => !isFirst(one));
  const box = rest.length ? h("details", { class: "more", ontoggle: () => box.children.length > 1 || box.append(h("div", { class: "fields" }, rest.map(make))) }, h("summary", {}, `${rest.length} optional fields`)) : null;
  const others = Object.fromEntries(Object.entries(value ?? {}).filter(([name]) => !Object.hasOwn(properties, name)));
  const more = { ...f, schema: { title: "Other members", additionalProperties: open }, value: others, path: `${path}.*`, required: false, depth: depth + 1 };
  const extra = isObject(open) ? mapField(more) : Object.keys(others).length ? jsonField(more) : null;
  return { element: group(f, depth, first, box, extra?.element), read(problems) {
    const found = {};
    for (const [name, field] of fields) {
      const one = field.read(problems);
      if (one !== undefined) found[name] = one;
    }
    return { ...found, ...extra?.read(problems) };
  } };
}

/** An optional object that is not there yet: a button adds it. Schemas that contain themselves end
 * here. */
function absentField(f) {
  let field = null;
  const element = h("div", { class: "absent" });
  const remove = () => {
    field = null;
    replace(element, h("span", { class: "row" }, h("strong", {}, nameOf(f)), optional(f), button("Add", add, `Add ${nameOf(f)}`)), hint(f));
  };
  const add = () => {
    field = build({ ...f, value: {}, required: true });
    replace(element, field.element, button("Remove", remove, `Remove ${nameOf(f)}`));
    element.querySelector("input, textarea, select")?.focus();
  };
  remove();
  return { element, read: (problems) => field?.read(problems) };
}

/** A choice among several forms: which one, and its fields. */
function variantField(f) {
  const { variants } = f.schema;
  const chosen = isAbsent(f.value) ? (f.required ? 0 : -1) : variants.findIndex((one) => fits(f.value, one, f.root));
  if (chosen < 0 && !isAbsent(f.value)) return jsonField(f);
  let inner = null;
  const holder = h("div", { class: "fields" });
  const choose = (index, value) => {
    const one = variants[index];
    const title = one?.title && typeOf(one) !== "object" ? nameOf(f) : one?.title ?? "Value";
    inner = one ? build({ ...f, given: { ...one, title }, value, required: true, depth: f.depth + 1 }) : null;
    replace(holder, inner?.element);
  };
  const control = h("select", { onchange: () => choose(Number(control.value), undefined) }, f.required ? null : h("option", { value: "-1", selected: chosen < 0 }, "(none)"),
    variants.map((one, index) => h("option", { value: String(index), selected: index === chosen }, describeVariant(one, f.root))));
  choose(chosen, f.value);
  const { element } = labelled(f, control, null, holder);
  element.classList.add("variant");
  return { element, read: (problems) => inner?.read(problems) };
}

function describeVariant(schema, root) {
  const named = schema.title ?? Object.values(schema.properties ?? {}).map((one) => resolve(one, root).const).find((one) => typeof one === "string");
  return named ?? (schema.items ? `list of ${describeVariant(resolve(schema.items, root), root)}` : schema.enum?.slice(0, 3).join(", ") ?? typeOf(schema));
}

/** A list with a check of its length. */
function listField(f, collect, ...inner) {
  const { minItems = 0, maxItems = Infinity } = f.schema;
  const message = h("span", { class: "invalid" });
  return { element: group(f, 1, inner, message), read(problems) {
    const found = collect(problems);
    const why = found.length < minItems && (f.required || found.length) ? `At least ${minItems}.` : found.length > maxItems ? `At most ${maxItems}.` : "";
    message.textContent = why;
    if (why) problems.push({ path: f.path, message: why });
    return found.length === 0 && !f.required ? undefined : found;
  } };
}

/** Several of a few choices: boxes to tick. */
function severalField(f, items) {
  const boxes = items.enum.map((one, index) => [one, h("input", { type: "checkbox", checked: Boolean(f.value?.includes(one)) }), items.enumNames?.[index] || String(one)]);
  return listField(f, () => boxes.filter(([, box]) => box.checked).map(([one]) => one), boxes.map(([, box, label]) => h("label", { class: "row" }, box, label)));
}

/** Rows that can be added and removed: `make(start)` returns {parts, …} of one. */
function rowsOf(starts, make, about) {
  const rows = [];
  const list = h("div", { class: "items" });
  const add = (start) => {
    const row = make(start, rows.length);
    const element = h("div", { class: row.key ? "item pair" : "item" }, row.key, row.field.element, button("Remove", () => {
      rows.splice(rows.indexOf(row), 1);
      element.remove();
    }));
    rows.push(row);
    list.append(element);
  };
  starts.forEach(add);
  return [rows, list, button("Add", () => add(undefined), about)];
}

/** An object whose members have names of the user's choice. */
function mapField(f) {
  const [rows, ...inner] = rowsOf(Object.entries(f.value ?? {}), (start) => ({
    key: h("input", { "aria-label": "Name", placeholder: "name", value: start?.[0] ?? "" }),
    field: build({ given: f.schema.additionalProperties, root: f.root, value: start?.[1], path: `${f.path}.value`, required: true, depth: f.depth + 1 }),
  }));
  return { element: group(f, 1, inner), read(problems) {
    const found = {};
    for (const { key, field } of rows) {
      const one = field.read(problems);
      if (key.value !== "" && one !== undefined) found[key.value] = one;
    }
    return Object.keys(found).length || f.required ? found : undefined;
  } };
}

function arrayField(f) {
  const given = f.schema.items;
  const [rows, ...inner] = rowsOf(f.value ?? [], (value, index) => ({
    field: build({ given: { ...given, title: resolve(given, f.root).title ?? `${index + 1}` }, root: f.root, value, path: `${f.path}[${index}]`, required: true, depth: f.depth + 1 }),
  }), `Add to ${nameOf(f)}`);
  return listField(f, (problems) => rows.map((one) => one.field.read(problems)), inner);
}
