// Draws markdown that a model wrote. marked splits it into tokens; elements are made of these here, so
// that nothing is ever parsed as HTML: markup in a text is text, and a page needs no sanitizer.

import {Marked} from "./vendor/marked.js";
import {MAX_SHOWN, el, oneLine, shown} from "./text.js";

const MAX_MARKDOWN = 64_000; // characters; some texts take marked quadratic time
const MAX_DEPTH = 24; // of quotes and lists in each other
const REST = 5; // times as long as it took to draw, a text that grows is not drawn again
const SAFE = new Set(["http:", "https:", "mailto:"]);
const DEFINITION = /^ {0,3}\[[^\]\n]+\]:/m; // of a link, which may stand above it
const ENTITIES = {amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0"};
const ENTITY = /&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-z]{2,4}));/g;
const parser = new Marked({gfm: true});

const decoded = (text) => text.replace(ENTITY, (whole, decimal, hex, name) => {
  if (name) return ENTITIES[name] ?? whole;
  const code = decimal ? Number(decimal) : parseInt(hex, 16);
  return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : whole;
});

// Return the address of a link, or null if it is not followed: scripts, data, hidden hosts.
function safeUrl(href) {
  try {
    const url = new URL(href);
    return SAFE.has(url.protocol) && !url.username && !url.password ? url : null;
  } catch {
    return null; // also a relative one: it would lead to the agent
  }
}

export function copyButton(label, text) {
  const button = el("button", {type: "button", className: "quiet copy", ariaLabel: label}, "Copy");
  button.onclick = async () => {
    button.textContent = await copied(text(), button) ? "Copied" : "Selected: copy it by key";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  };
  return button;
}

async function copied(text, button) {
  try {
    await navigator.clipboard.writeText(text); // is there over HTTPS and on localhost
    return true;
  } catch {
    getSelection().selectAllChildren(button.closest(".code, .answer"));
    return false;
  }
}

function inline(tokens, depth) {
  return (tokens ?? []).map((token) => inlineNode(token, depth + 1));
}

function inlineNode(token, depth) {
  if (depth > MAX_DEPTH) return token.raw;
  const nodes = {
    text: () => (token.tokens ? el("span", {}, ...inline(token.tokens, depth)) : decoded(token.text)),
    escape: () => token.text,
    strong: () => el("strong", {}, ...inline(token.tokens, depth)),
    em: () => el("em", {}, ...inline(token.tokens, depth)),
    del: () => el("del", {}, ...inline(token.tokens, depth)),
    codespan: () => el("code", {}, token.text),
    br: () => el("br"),
    checkbox: () => (token.checked ? "☑ " : "☐ "),
    link: () => link(token, inline(token.tokens, depth)),
    image: () => link(token, [`Image: ${decoded(token.text) || "no text"}`]),
  };
  return nodes[token.type]?.() ?? token.raw;
}

function link(token, children) {
  const url = safeUrl(decoded(token.href));
  if (!url) return token.raw;
  const anchor = el("a", {href: url.href, target: "_blank", rel: "noopener noreferrer"}, ...children);
  if ([url.href, token.href].includes(anchor.textContent)) return anchor;
  return el("span", {}, anchor, el("bdi", {className: "address"}, " (", shown(oneLine(url.href, 100)), ")"));
}

// Return the elements of blocks. `outline` has the level of the last heading: none is left out, as
// screen readers go by them.
function blocks(tokens, outline, depth = 0) {
  return tokens.flatMap((token) => blockNode(token, outline, depth + 1) ?? []);
}

function blockNode(token, outline, depth) {
  const dir = "auto";
  if (depth > MAX_DEPTH) return el("p", {dir}, token.raw);
  const nodes = {
    space: () => null,
    def: () => null,
    hr: () => el("hr"),
    heading: () => {
      outline.level = Math.min(6, 2 + token.depth, outline.level + 1);
      return el(`h${outline.level}`, {dir}, ...inline(token.tokens, depth));
    },
    paragraph: () => el("p", {dir}, ...inline(token.tokens, depth)),
    text: () => el("p", {dir}, ...(token.tokens ? inline(token.tokens, depth) : [decoded(token.text)])),
    code: () => code(token),
    blockquote: () => el("blockquote", {}, ...blocks(token.tokens, outline, depth)),
    list: () => list(token, outline, depth),
    table: () => table(token, depth),
  };
  return nodes[token.type] ? nodes[token.type]() : el("p", {dir}, token.raw.trimEnd());
}

function code({text, lang}) {
  const pre = el("pre", {tabIndex: 0, role: "group", ariaLabel: lang ? `Code, ${oneLine(lang, 30)}` : "Code"}, el("code", {dir: "ltr"}, text));
  const head = el("div", {className: "head"}, el("span", {className: "hint"}, oneLine(lang ?? "", 30)), copyButton("Copy the code", () => text));
  return el("div", {className: "code"}, head, pre);
}

function list(token, outline, depth) {
  const made = el(token.ordered ? "ol" : "ul", {dir: "auto"}, ...token.items.map((item) => el("li", {}, ...item.tokens.flatMap((inner) => (
    !token.loose && (inner.type === "text" || inner.type === "paragraph") ? inline(inner.tokens, depth)
      : inner.type === "checkbox" ? [inlineNode(inner, depth)] : blockNode(inner, outline, depth + 1) ?? [])))));
  if (token.ordered && Number.isSafeInteger(token.start) && token.start !== 1) made.start = token.start;
  return made;
}

function table({header, rows}, depth) {
  const cell = (tag) => ({tokens, align}) => el(tag, {dir: "auto", ...(align && {className: align})}, ...inline(tokens, depth));
  const row = (tag, cells) => el("tr", {}, ...cells.map(cell(tag)));
  return el("div", {className: "scroll", tabIndex: 0, role: "group", ariaLabel: "Table"}, el("table", {},
    el("thead", {}, row("th", header)), el("tbody", {}, ...rows.map((cells) => row("td", cells)))));
}

// A text that may still grow. While it does, blocks that have ended are drawn once, and the last one
// at most once a frame.
export class Prose {
  #text = "";
  #drawn = 0; // characters of blocks that have ended
  #outline = {level: 2};
  #tail = []; // nodes of the last block
  #plain = null; // the text node of a text that is not drawn as markdown
  #isScheduled = false;
  #took = 0;
  node = el("div", {className: "prose"});

  get text() {
    return this.#text;
  }

  append(piece) {
    this.#text += piece;
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    setTimeout(() => requestAnimationFrame(() => {
      if (this.#isScheduled) this.#draw();
    }), REST * this.#took);
  }

  // Draw the whole text at once; nothing is added any more.
  finish(text) {
    if (text !== this.#text || DEFINITION.test(text)) this.#restart();
    this.#text = text;
    this.#draw();
  }

  #restart() {
    this.node.replaceChildren();
    [this.#drawn, this.#outline, this.#tail, this.#plain] = [0, {level: 2}, [], null];
  }

  #draw() {
    this.#isScheduled = false;
    const began = performance.now();
    if (this.#plain || this.#text.length > MAX_MARKDOWN) this.#drawPlain();
    else {
      try {
        this.#drawMarkdown();
      } catch { // nested deeper than marked's stack
        this.#drawPlain();
      }
    }
    this.#took = performance.now() - began;
  }

  #drawMarkdown() {
    const tokens = parser.lexer(this.#text.slice(this.#drawn));
    const last = tokens.findLastIndex(({type}) => type !== "space");
    this.#tail.forEach((node) => node.remove());
    let end = 0; // of the blocks that no text to come can change
    while (end < last && this.#text.startsWith(tokens[end].raw, this.#drawn)) {
      this.#drawn += tokens[end].raw.length;
      end += 1;
    }
    this.node.append(...blocks(tokens.slice(0, end), this.#outline));
    this.#tail = blocks(tokens.slice(end), {...this.#outline});
    this.node.append(...this.#tail);
  }

  #drawPlain() {
    if (!this.#plain) {
      this.#restart();
      this.#plain = document.createTextNode("");
      this.node.append(el("p", {className: "plain", dir: "auto"}, this.#plain));
    }
    const cut = this.#text.slice(0, MAX_SHOWN);
    if (cut.length > this.#plain.length) this.#plain.appendData(cut.slice(this.#plain.length));
    const more = this.#text.length - cut.length;
    if (more && !this.#tail.length) this.node.append(...this.#tail = [el("p", {className: "hint"})]);
    if (more) this.#tail[0].textContent = `${more} characters more are not drawn; Copy has all of them.`;
  }
}
