// Draws a call that waits for a decision, whole, sends what somebody decides on it, and says what
// became of it.

import {act} from "./api.js";
import {editableJson, el, exactJson, shown, shownJson} from "./text.js";

const CALM = 700; // ms for which no card takes a click: one may have come up below the pointer
const CLOSED = new Set([403, 404, 409, 410]); // it is decided, or not by this caller
const DECISIONS = {approve: "Approved", reject: "Rejected", edit: "Approved with other arguments", replace: "Replaced by another call"};
let cards = 0;
let calm = 0;

// Say that cards have come or gone, and others moved. A button that has the focus is who presses it.
export function stir() {
  const disable = (isOff) => document.querySelectorAll(".approval button").forEach((each) => {
    each.disabled = isOff && each !== document.activeElement;
  });
  disable(true);
  clearTimeout(calm);
  calm = setTimeout(() => disable(false), CALM);
}

// Return a decision in words; `by` is who made it, if that is known.
export function decisionText(decision, {by = "", reason = "", isExpired = false} = {}) {
  if (isExpired) return "Rejected: nobody decided in time.";
  return `${DECISIONS[decision] ?? decision}${by && ` by ${by}`}${reason && `: ${reason}`}.`;
}

// A card. `about` has runId, callId, call, reason, expires (a Date), of a call below `agent`, and of one
// in a list `link`, an element that leads to its session.
export class ApprovalCard {
  #about;
  #title = el("h3", {}, "May this call be made?");
  #problem = el("p", {className: "problem", role: "alert"});
  #became = el("p", {className: "became", role: "status", tabIndex: -1});
  #reason = el("input", {type: "text", maxLength: 4096});
  #arguments = el("textarea", {rows: 6, spellcheck: false});
  #whole; // what is decided on
  #hint;
  #controls;
  #isOver = false;

  constructor(about) {
    this.#about = about;
    const {call, agent, link} = about;
    const isTool = "tool" in call;
    this.#title.id = `approval-${cards += 1}`;
    const given = isTool ? call.arguments : {task: call.task};
    this.#arguments.value = editableJson(given);
    this.#controls = this.#makeControls();
    this.#whole = el("pre", {tabIndex: 0, role: "group", ariaLabel: isTool ? "Arguments" : "Task"}, isTool ? shownJson(given, Infinity) : shown(call.task, Infinity));
    this.#hint = el("p", {className: "hint"}, about.reason ? shown(`${about.reason} `) : "", `Rejected by itself at ${about.expires.toLocaleString()}.`);
    this.node = el("section", {className: "approval"},
      this.#title,
      el("p", {}, isTool ? "Tool " : "Delegation to the agent ", el("bdi", {className: "name"}, shown(call.tool ?? call.agent, Infinity)),
        ...(agent ? [", asked for below the agent ", el("bdi", {className: "name"}, shown(agent))] : [])),
      this.#whole, this.#hint, this.#controls, this.#problem, this.#became, link ?? "");
    this.node.setAttribute("role", "group");
    this.node.setAttribute("aria-labelledby", this.#title.id);
    stir();
  }

  // Say what was decided, or why nobody can decide any more. What is said first stays.
  close(text = "") {
    if (this.#isOver) return;
    this.#isOver = true;
    const folded = el("details", {}, el("summary", {}, "What was asked"));
    this.#whole.replaceWith(folded);
    folded.append(this.#whole);
    const hadFocus = this.#controls.contains(document.activeElement);
    this.#hint.remove();
    this.#title.textContent = "This call needed a decision";
    this.#controls.remove();
    this.#problem.replaceChildren();
    this.node.classList.add("over");
    this.#became.replaceChildren(shown(text));
    if (hadFocus) this.#became.focus(); // a keyboard goes on from here
    stir();
  }

  // Say what came of the call after the decision.
  settle(text) {
    this.close();
    this.#became.append(" ", shown(text));
  }

  #makeControls() {
    const button = (text, decide, className = "") => el("button", {type: "button", className, disabled: true, onclick: decide}, text);
    const buttons = [
      button("Approve", () => this.#decide({decision: "approve"})),
      button("Reject", () => this.#decide({decision: "reject", reason: this.#reason.value}), "quiet"),
      button("Approve with these arguments", () => this.#edit(), "quiet"),
    ];
    return el("div", {},
      el("div", {className: "buttons"}, buttons[0], buttons[1]),
      el("label", {}, "Reason, if it is rejected (the model reads it)", this.#reason),
      el("details", {}, el("summary", {}, "Change the arguments"),
        el("label", {}, "Arguments, as JSON", this.#arguments), buttons[2]));
  }

  #edit() {
    try {
      this.#decide({decision: "edit", arguments: exactJson(this.#arguments.value)});
    } catch (error) {
      this.#problem.replaceChildren(shown(`That is no JSON: ${error.message}`));
    }
  }

  async #decide(decision) {
    const {runId, callId} = this.#about;
    this.#problem.replaceChildren("Sent …");
    try {
      const {decision: made = "", decided_by: by, decision_reason: reason} = await act(`v1/runs/${encodeURIComponent(runId)}/approvals/${encodeURIComponent(callId)}`, decision);
      this.close(made ? decisionText(made, {by, reason}) : "The run ended before the decision.");
    } catch (error) {
      if (CLOSED.has(error.status)) this.close(error.message);
      else this.#problem.replaceChildren(shown(error.message));
    }
  }
}
