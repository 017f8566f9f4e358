// Draws a question of a tool: a form made of its schema, or a link to a page, and sends the answer.
//
// All of it is a stranger's text: it becomes text nodes and values, and a link must be a web address.

import {Card, button} from "./card.js";
import {el, shown} from "./text.js";

const ANSWERS = {accept: "Answered", decline: "Declined", cancel: "Cancelled", closed: "No longer waiting"};
const INPUTS = {email: "email", uri: "url", date: "date"};

// Return an answer in words; `by` is who gave it, if that is known.
export function answerText(action, {by = "", isExpired = false} = {}) {
  if (isExpired) return "Cancelled: nobody answered in time.";
  return `${ANSWERS[action] ?? action}${by && ` by ${by}`}.`;
}

// A card. `about` has runId, callId, kind, message, schema or url, expires (a Date), of a call below
// `agent`, and of one in a list `link`, an element that leads to its session.
export class QuestionCard extends Card {
  #about;
  #fields = [];

  constructor(about) {
    const {message, agent, link, expires} = about;
    const controls = el("form", {});
    super({
      title: "A tool asks you",
      overTitle: "A tool asked",
      parts: [
        ...(agent ? [el("p", {}, "Asked for below the agent ", el("bdi", {className: "name"}, shown(agent)))] : []),
        el("p", {className: "plain", dir: "auto"}, shown(message)),
      ],
      hint: [`Cancelled by itself at ${expires.toLocaleString()}.`],
      controls,
      link,
    });
    this.#about = about;
    this.#fill(controls);
  }

  #fill(form) {
    const {kind, url, schema} = this.#about;
    if (kind === "caller_tool") {
      form.append(el("p", {}, "The program that started the run answers it."));
      return;
    }
    if (kind === "url" || url) form.append(linkTo(url, kind === "sign_in"));
    try {
      if (kind === "form") this.#fields = fieldsOf(schema);
    } catch {
      this.problem.textContent = "Its form cannot be drawn here.";
    }
    const answer = (text, action) => button(text, {className: "quiet", onclick: () => this.#answer({action})});
    form.append(...this.#fields.map(({node}) => node), el("div", {className: "buttons"},
      ...(kind === "sign_in" ? [] : [button(kind === "form" ? "Send" : "I have opened it", {type: "submit"})]),
      answer("Decline", "decline"), answer("Not now", "cancel")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#answer({action: "accept", ...(kind === "form" && {content: this.#content()})});
    });
  }

  #content() {
    const found = this.#fields.map(({name, value}) => [name, value()]);
    return Object.fromEntries(found.filter(([, value]) => value !== undefined));
  }

  #answer(given) {
    return this.send(this.#about, "inputs", given, ({action = given.action, answered_by: by, status}) => (
      status === "closed" ? "The run ended before the answer." : answerText(action, {by})));
  }
}

// Return a link whose host is seen before it is followed, or why there is none.
function linkTo(address, isSignIn) {
  let url;
  try {
    url = new URL(address);
  } catch {}
  if (!url || !["http:", "https:"].includes(url.protocol)) return el("p", {className: "problem"}, "Its link is no web address, so it cannot be opened here.");
  const link = el("a", {href: url.href, target: "_blank", rel: "noopener noreferrer"}, isSignIn ? "Sign in at " : "Open ", el("bdi", {className: "name"}, url.host));
  return el("p", {}, link, el("span", {className: "hint"}, ` Do so only if you trust ${url.host}. `), el("span", {className: "address"}, shown(url.href)));
}

// Return the fields of a form as {name, node, value}: `value` reads one, undefined if it is left out.
function fieldsOf(schema) {
  const required = new Set(schema?.required ?? []);
  return Object.entries(schema?.properties ?? {}).map(([name, field]) => {
    const isNeeded = required.has(name);
    const label = el("span", {}, shown(field.title ?? name), isNeeded ? "" : " (optional)");
    const hint = field.description ? [el("span", {className: "hint"}, " ", shown(field.description))] : [];
    const choices = choicesOf(field.type === "array" ? field.items : field);
    const made = field.type === "array" ? checks(field, choices, label)
      : choices.length ? choice(field, choices, isNeeded)
      : field.type === "boolean" ? check(field)
      : typed(field, isNeeded);
    const node = made.group ?? el("label", {className: field.type === "boolean" ? "check" : ""}, label, ...hint, made.input);
    if (made.group) node.firstChild.append(...hint);
    return {name, node, value: made.value};
  });
}

function choicesOf(field) {
  const titled = field?.oneOf ?? field?.anyOf;
  if (titled) return titled.map((each) => [each.const, each.title ?? each.const]);
  return (field?.enum ?? []).map((value, at) => [value, field.enumNames?.[at] ?? value]);
}

function choice(field, choices, isNeeded) {
  const options = choices.map(([value, title], at) => el("option", {value: at, selected: value === field.default}, shown(String(title)).textContent));
  const input = el("select", {required: isNeeded}, ...(field.default === undefined ? [el("option", {value: ""}, "")] : []), ...options);
  return {input, value: () => (input.value === "" ? undefined : choices[Number(input.value)][0])};
}

function checks(field, choices, label) {
  const inputs = choices.map(([value]) => el("input", {type: "checkbox", checked: (field.default ?? []).includes(value)}));
  const lines = choices.map(([, title], at) => el("label", {className: "check"}, shown(String(title)), inputs[at]));
  const group = el("fieldset", {}, el("legend", {}, label), ...lines);
  return {group, value: () => choices.filter((_, at) => inputs[at].checked).map(([value]) => value)};
}

function check(field) {
  const input = el("input", {type: "checkbox", checked: field.default === true});
  return {input, value: () => input.checked};
}

function typed(field, isNeeded) {
  const isNumber = ["number", "integer"].includes(field.type);
  const input = el("input", {type: isNumber ? "number" : INPUTS[field.format] ?? "text", autocomplete: "off"});
  const limits = isNumber
    ? {min: field.minimum, max: field.maximum, step: field.type === "integer" ? 1 : "any"}
    : {minlength: field.minLength, maxlength: field.maxLength};
  Object.entries(limits).forEach(([name, value]) => { if (value !== undefined) input.setAttribute(name, value); });
  input.required = isNeeded;
  if (field.default !== undefined) input.value = field.default;
  return {input, value: () => {
    if (input.value === "") return undefined;
    return isNumber ? Number(input.value) : input.value;
  }};
}
