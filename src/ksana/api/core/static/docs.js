"use strict";
// Renders /openapi.json. Everything goes in as text nodes; nothing is fetched from elsewhere.

const make = (tag, attributes, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
};

const limits = (schema) => {
  const told = [];
  const names = { minimum: "≥", maximum: "≤", minLength: "length ≥", maxLength: "length ≤", pattern: "matches", maxItems: "items ≤" };
  for (const [name, words] of Object.entries(names)) if (name in schema) told.push(`${words} ${schema[name]}`);
  if ("default" in schema && schema.default !== null) told.push(`default ${JSON.stringify(schema.default)}`);
  return told.length ? ` (${told.join(", ")})` : "";
};

const typeName = (schema) => {
  if (!schema) return "any";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if ("const" in schema) return JSON.stringify(schema.const);
  const parts = schema.anyOf || schema.oneOf;
  if (parts) return parts.map(typeName).join(" | ");
  if (schema.type === "array") return `list of ${typeName(schema.items)}`;
  if (schema.type === "object" && schema.additionalProperties) return `map of ${typeName(schema.additionalProperties)}`;
  return (schema.type || "any") + (schema.format ? ` ${schema.format}` : "") + limits(schema);
};

const refs = (schema, found = []) => {
  if (!schema || typeof schema !== "object") return found;
  if (schema.$ref) found.push(schema.$ref.split("/").pop());
  for (const part of [...(schema.anyOf || []), ...(schema.oneOf || [])]) refs(part, found);
  refs(schema.items, found);
  refs(schema.additionalProperties, found);
  return found;
};

const rows = (items) => {
  const body = make("tbody");
  for (const [name, schema, needed, note] of items) {
    body.append(make("tr", {},
      make("td", {}, make("code", {}, name), needed ? make("span", { class: "needed", title: "needed" }, " *") : null),
      make("td", {}, typeName(schema)),
      make("td", {}, note || schema.description || "")));
  }
  return make("table", {}, make("thead", {}, make("tr", {},
    make("th", {}, "name"), make("th", {}, "type"), make("th", {}, "")))
  , body);
};

// A schema as tables: its own members, then those of every type it mentions, each once.
const shape = (api, schema, seen = new Set()) => {
  const parts = [];
  for (const name of refs(schema)) {
    if (seen.has(name)) continue;
    seen.add(name);
    const target = api.components.schemas[name] || {};
    const members = Object.entries(target.properties || {});
    parts.push(make("h3", {}, name));
    if (target.description) parts.push(make("p", {}, target.description));
    if (members.length) {
      const needed = new Set(target.required || []);
      parts.push(rows(members.map(([member, inner]) => [member, inner, needed.has(member)])));
    } else parts.push(make("p", {}, typeName(target)));
    for (const [, inner] of members) parts.push(...shape(api, inner, seen));
    parts.push(...shape(api, { anyOf: target.anyOf }, seen));
  }
  return parts;
};

const operation = (api, path, method, call) => {
  const inside = make("div");
  const fill = () => {
    if (inside.childNodes.length) return;
    if (call.parameters) {
      inside.append(make("h3", {}, "Parameters"),
        rows(call.parameters.map((one) => [one.name, one.schema, one.required, one.in])));
    }
    const body = call.requestBody && call.requestBody.content["application/json"].schema;
    if (body) {
      inside.append(make("h3", {}, "Body" + (call.requestBody.required ? "" : " (may be empty)")), make("p", {}, typeName(body)));
      inside.append(...shape(api, body));
    }
    inside.append(make("h3", {}, "Answers"));
    const seen = new Set(["Error"]);
    const refused = [];
    for (const [status, answer] of Object.entries(call.responses)) {
      const content = answer.content || {};
      const schema = content["application/json"] && content["application/json"].schema;
      if (schema && schema.$ref && schema.$ref.endsWith("/Error")) { refused.push(status); continue; }
      inside.append(make("p", {}, make("code", {}, status), ` ${answer.description} ${Object.keys(content).filter((kind) => kind !== "application/json").join(", ")}`, schema ? `: ${typeName(schema)}` : ""));
      if (schema) inside.append(...shape(api, schema, seen));
    }
    if (refused.length) inside.append(make("p", {}, make("code", {}, refused.join(" ")), ": Error"));
  };
  const node = make("details", { "data-text": `${method} ${path} ${call.summary || ""} ${(call.tags || []).join(" ")}`.toLowerCase() },
    make("summary", {},
      make("span", { class: `method ${method}` }, method.toUpperCase()),
      make("code", {}, path),
      make("span", { class: "text" }, call.summary || ""),
      call["x-scope"] ? make("span", { class: "scope", title: "scope that a key needs" }, call["x-scope"]) : null),
    inside);
  node.addEventListener("toggle", () => node.open && fill());
  return node;
};

const show = (api) => {
  document.getElementById("version").textContent = api.info.version;
  const content = document.getElementById("content");
  content.textContent = "";
  const sections = new Map();
  for (const [path, calls] of Object.entries(api.paths)) {
    for (const [method, call] of Object.entries(calls)) {
      const tag = (call.tags && call.tags[0]) || "other";
      if (!sections.has(tag)) sections.set(tag, make("section", {}, make("h2", {}, tag)));
      sections.get(tag).append(operation(api, path, method, call));
    }
  }
  sections.set("Error", make("section", {}, make("h2", {}, "errors"), ...shape(api, { $ref: "#/components/schemas/Error" })));
  content.append(...sections.values());
  document.getElementById("find").addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const node of content.querySelectorAll("details")) {
      node.hidden = !words.every((word) => node.dataset.text.includes(word));
    }
  });
};

fetch("/openapi.json").then((answer) => {
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  return answer.json();
}).then(show).catch((error) => {
  document.getElementById("content").textContent = `The description could not be loaded: ${error}`;
});
