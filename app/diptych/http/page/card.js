// A card about a call that waits for a person: it shows the question, sends the answer and shows the outcome.

import {act} from "./api.js";
import {el, shown} from "./text.js";

const CALM = 700; // ms for which no card takes a click: one may have come up below the pointer
const CLOSED = new Set([403, 404, 409, 410]); // it is answered, or not by this caller
let cards = 0;
let calm = 0;

// Disable the buttons for a moment, as cards have come or gone and others moved. A focused one stays enabled,
// for the keyboard.
function stir() {
  const disable = (isOff) => document.querySelectorAll(".approval button").forEach((each) => {
    each.disabled = isOff && each !== document.activeElement;
  });
  disable(true);
  clearTimeout(calm);
  calm = setTimeout(() => disable(false), CALM);
}

// Make a button of a card. It is disabled until `stir` says otherwise.
export const button = (text, properties) => el("button", {type: "button", disabled: true, ...properties}, text);

export class Card {
  title;
  problem = el("p", {className: "problem", role: "alert"});
  #became = el("p", {className: "became", role: "status", tabIndex: -1});
  #overTitle;
  #hint;
  #controls;
  isOver = false;

  // `parts` stand above the `hint` and the `controls`, which are removed at the end; `link`, of a card in a
  // list, leads to the session.
  constructor({title, overTitle, parts, hint, controls, link}) {
    Object.assign(this, {title: el("h3", {id: `card-${cards += 1}`}, title)});
    [this.#overTitle, this.#hint, this.#controls] = [overTitle, el("p", {className: "hint"}, ...hint), controls];
    this.node = el("section", {className: "approval"},
      this.title, ...parts, this.#hint, controls, this.problem, this.#became, link ?? "");
    this.node.setAttribute("role", "group");
    this.node.setAttribute("aria-labelledby", this.title.id);
    stir();
  }

  // Show what was answered, or why nobody can answer any more. The first text stays.
  close(text = "") {
    if (this.isOver) return;
    this.isOver = true;
    const hadFocus = this.#controls.contains(document.activeElement);
    this.#hint.remove();
    this.title.textContent = this.#overTitle;
    this.#controls.remove();
    this.problem.replaceChildren();
    this.node.classList.add("over");
    this.#became.replaceChildren(shown(text));
    if (hadFocus) this.#became.focus(); // a keyboard goes on from here
    stir();
  }

  // Show the call's result afterwards.
  settle(text) {
    this.close();
    this.#became.append(" ", shown(text));
  }

  // Send an answer; `words` puts the reply into words.
  async send({runId, callId}, what, body, words) {
    this.problem.replaceChildren("Sent …");
    try {
      this.close(words(await act(`v1/runs/${encodeURIComponent(runId)}/${what}/${encodeURIComponent(callId)}`, body)));
    } catch (error) {
      if (CLOSED.has(error.status)) this.close(error.message);
      else this.problem.replaceChildren(shown(error.message));
    }
  }
}
