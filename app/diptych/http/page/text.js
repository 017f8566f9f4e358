// Puts texts of others into the page: as text nodes, never as markup, and so that nothing of a call
// is hidden from whoever decides on it.
//
// Not here: what is drawn of a run (run_view.js, steps.js, approval.js).

// Controls, what is not assigned, private use, line and paragraph separators, all that Unicode calls
// ignorable (bidi controls, joiners, tags, fillers), odd blanks. LF and tab are seen as they are.
const ODD = /[\p{Cc}\p{Cf}\p{Cn}\p{Co}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800]|(?! )\p{Zs}/gu;
const PLAIN = new Set(["\n", "\t"]);
const STRING = /"(?:[^"\\]|\\.)*"/g;
const LIMIT = 20_000; // characters of a text that nobody decides on

// Make an element; properties are set as such, and strings among the children become text nodes.
export function el(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// Give nodes that show a text with odd characters by their number.
export function shown(text, limit = LIMIT) {
  const whole = typeof text === "string" ? text : JSON.stringify(text, null, 2) ?? "";
  const cut = whole.slice(0, limit);
  const nodes = [];
  let from = 0;
  for (const {0: char, index} of cut.matchAll(ODD)) {
    if (PLAIN.has(char)) continue;
    nodes.push(cut.slice(from, index), el("span", {className: "odd"}, `⟨U+${number(char)}⟩`));
    from = index + char.length;
  }
  nodes.push(cut.slice(from));
  if (cut.length < whole.length) nodes.push(el("em", {}, ` … and ${whole.length - cut.length} characters more`));
  return nodes;
}

// Show a value as JSON. Each string stands in a `bdi`: its direction moves nothing beside it.
export function shownJson(value, limit = LIMIT) {
  const text = JSON.stringify(value, null, 2) ?? "";
  const cut = text.slice(0, limit);
  const nodes = [];
  let from = 0;
  for (const {0: string, index} of cut.matchAll(STRING)) {
    nodes.push(...shown(cut.slice(from, index), Infinity), el("bdi", {}, ...shown(string, Infinity)));
    from = index + string.length;
  }
  return [...nodes, ...shown(text.slice(from), Math.max(0, limit - from))];
}

// Write a value as JSON that can be edited: odd characters as escapes, which mean the same.
export const editableJson = (value) => JSON.stringify(value, null, 2).replace(ODD, (char) => (
  PLAIN.has(char) ? char : Array.from({length: char.length}, (_, at) => `\\u${hex(char.charCodeAt(at))}`).join("")
));

// Parse JSON of which somebody decides: a number that JavaScript cannot hold stays as it is written.
export const exactJson = (text) => JSON.parse(text, (key, value, context) => (
  typeof value === "number" && Math.abs(value) > Number.MAX_SAFE_INTEGER && JSON.rawJSON
    ? JSON.rawJSON(context.source) : value
));

// Give a text on one short line, for summaries.
export function oneLine(text, limit = 100) {
  const line = (typeof text === "string" ? text : JSON.stringify(text) ?? "").replace(/\s+/g, " ").trim();
  return line.length > limit ? `${line.slice(0, limit)}…` : line;
}

const hex = (code) => code.toString(16).toUpperCase().padStart(4, "0");
const number = (char) => hex(char.codePointAt(0));
