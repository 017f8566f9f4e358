// Draws what a run does between a question and its answer: calls, reasoning and notes, folded when it
// is over.

import {Steps, duration} from "./steps.js";
import {MAX_SHOWN, el, shown} from "./text.js";

const counted = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

export class Work {
  #summary = el("summary", {}, "Working");
  #body = el("div", {className: "body"});
  #began;
  #calls = 0;
  #tokens = 0;
  #thought = null;
  steps = new Steps();
  node = el("details", {className: "work", open: true}, this.#summary, this.#body);

  // `began` is the time of the question.
  constructor(began) {
    this.#began = began;
    this.#body.append(this.steps.node);
  }

  countCall() {
    this.#calls += 1;
    this.#summary.textContent = `Working: ${counted(this.#calls, "call")}`;
  }

  // Count the tokens of a reply of the model; what it thinks from now on is another thought.
  countReply({prompt_tokens: sent = 0, completion_tokens: got = 0} = {}) {
    this.#tokens += sent + got;
    this.#thought = null;
  }

  note(text) {
    this.#body.append(el("p", {className: "note"}, shown(text)));
  }

  think(text) {
    if (!this.#thought) {
      this.#thought = document.createTextNode("");
      this.#body.append(el("details", {className: "reasoning"}, el("summary", {}, "Reasoning"), el("p", {className: "plain", dir: "auto"}, this.#thought)));
    }
    if (this.#thought.length < MAX_SHOWN) this.#thought.appendData(text);
  }

  // Say what it came to. It is folded, unless it failed, or somebody reads it by keyboard.
  finish(time, hasFailed) {
    const parts = [this.#calls && counted(this.#calls, "call"), duration(time - this.#began), this.#tokens && counted(this.#tokens, "token")];
    this.#summary.textContent = `Worked: ${parts.filter(Boolean).join(" · ")}`;
    if (!hasFailed && !this.#body.contains(document.activeElement)) this.node.open = false;
  }
}
