// Puts texts of others into the page: as text nodes, never as markup. Nothing of a call is hidden from the
// person who decides on it.

// Controls, what is not assigned, private use, line and paragraph separators, all that Unicode calls
// ignorable (bidi controls, joiners, tags, fillers), odd blanks. LF and tab are seen as they are.
const ODD = /(?:(?![\n\t ])[\p{Cc}\p{Cf}\p{Cn}\p{Co}\p{Cs}\p{Zl}\p{Zp}\p{Zs}\p{Default_Ignorable_Code_Point}\u2800]){1,1000}/gu;
const STRING = /"[^"\\]*(?:\\.[^"\\]*)*"/g; // written so that a long one does not fill the stack
const LIMIT = 20_000; // characters of a text that nobody decides on
export const MAX_SHOWN = 500_000; // characters of a text that is read: a browser lays out no more at once

// Make an element; properties are set as such, and strings among the children become text nodes.
export function el(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// Return a fragment that shows a text, with odd characters by their number. Not as a list to be spread: a stack
// holds some 100,000 arguments, and then nobody would see the call that waits.
export function shown(text, limit = LIMIT) {
  const whole = typeof text === "string" ? text : JSON.stringify(text, null, 2) ?? "";
  const cut = whole.slice(0, limit);
  const made = new DocumentFragment();
  let from = 0;
  for (const {0: odd, index} of cut.matchAll(ODD)) {
    made.append(cut.slice(from, index), el("span", {className: "odd"}, Array.from(odd, (char) => `⟨U+${number(char)}⟩`).join("")));
    from = index + odd.length;
  }
  made.append(cut.slice(from));
  if (cut.length < whole.length) made.append(el("em", {}, ` … and ${whole.length - cut.length} characters more`));
  return made;
}

// Show a value as JSON. Each string stands in a `bdi`: its direction moves nothing beside it. The
// browser looks for it when all is there: with each node, from the start, it would take minutes.
export function shownJson(value, limit = LIMIT) {
  const text = JSON.stringify(value, null, 2) ?? "";
  const cut = text.slice(0, limit);
  const made = new DocumentFragment();
  let from = 0;
  for (const {0: string, index} of cut.matchAll(STRING)) {
    const isolated = el("bdi", {dir: "ltr"}, shown(string, Infinity));
    isolated.dir = "auto";
    made.append(shown(cut.slice(from, index), Infinity), isolated);
    from = index + string.length;
  }
  made.append(shown(text.slice(from), Math.max(0, limit - from)));
  return made;
}

// Write a value as JSON that can be edited: odd characters as escapes, which mean the same.
export const editableJson = (value) => JSON.stringify(value, null, 2).replace(ODD, (odd) => (
  Array.from({length: odd.length}, (_, at) => `\\u${hex(odd.charCodeAt(at))}`).join("")
));

// Parse JSON of which somebody decides: a number that JavaScript cannot hold stays as it is written.
export const exactJson = (text) => JSON.parse(text, (key, value, context) => (
  typeof value === "number" && Math.abs(value) > Number.MAX_SAFE_INTEGER && JSON.rawJSON
    ? JSON.rawJSON(context.source) : value
));

// Return a text on one short line, for summaries.
export function oneLine(text, limit = 100) {
  const whole = typeof text === "string" ? text : JSON.stringify(text) ?? "";
  const line = whole.slice(0, 4 * limit).replace(/\s+/g, " ").trim();
  return line.length > limit || whole.length > 4 * limit ? `${line.slice(0, limit)}…` : line;
}

const hex = (code) => code.toString(16).toUpperCase().padStart(4, "0");
const number = (char) => hex(char.codePointAt(0));
