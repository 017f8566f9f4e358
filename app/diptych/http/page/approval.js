// Draws a call that waits for a decision, whole, and sends what somebody decides on it.

import {Card, button} from "./card.js";
import {editableJson, el, exactJson, shown, shownJson} from "./text.js";

const DECISIONS = {approve: "Approved", reject: "Rejected", edit: "Approved with other arguments", replace: "Replaced by another call"};

// Return a decision in words; `by` is who made it, if that is known.
export function decisionText(decision, {by = "", reason = "", isExpired = false} = {}) {
  if (isExpired) return "Rejected: nobody decided in time.";
  return `${DECISIONS[decision] ?? decision}${by && ` by ${by}`}${reason && `: ${reason}`}.`;
}

// A card. `about` has runId, callId, call, reason, expires (a Date), of a call below `agent`, and of one
// in a list `link`, an element that leads to its session.
export class ApprovalCard extends Card {
  #about;
  #whole; // what is decided on

  constructor(about) {
    const {call, agent, link} = about;
    const isTool = "tool" in call;
    const given = isTool ? call.arguments : {task: call.task};
    const whole = el("pre", {tabIndex: 0, role: "group", ariaLabel: isTool ? "Arguments" : "Task"}, isTool ? shownJson(given, Infinity) : shown(call.task, Infinity));
    const controls = el("div", {});
    super({
      title: "May this call be made?",
      overTitle: "This call needed a decision",
      parts: [
        el("p", {}, isTool ? "Tool " : "Delegation to the agent ", el("bdi", {className: "name"}, shown(call.tool ?? call.agent, Infinity)),
          ...(agent ? [", asked for below the agent ", el("bdi", {className: "name"}, shown(agent))] : [])),
        whole,
      ],
      hint: [about.reason ? shown(`${about.reason} `) : "", `Rejected by itself at ${about.expires.toLocaleString()}.`],
      controls,
      link,
    });
    [this.#about, this.#whole] = [about, whole];
    this.#fill(controls, given);
  }

  close(text) {
    if (!this.isOver) {
      const folded = el("details", {}, el("summary", {}, "What was asked"));
      this.#whole.replaceWith(folded);
      folded.append(this.#whole);
    }
    super.close(text);
  }

  #fill(controls, given) {
    const reason = el("input", {type: "text", maxLength: 4096});
    const edited = el("textarea", {rows: 6, spellcheck: false, value: editableJson(given)});
    controls.append(
      el("div", {className: "buttons"},
        button("Approve", {onclick: () => this.#decide({decision: "approve"})}),
        button("Reject", {className: "quiet", onclick: () => this.#decide({decision: "reject", reason: reason.value})})),
      el("label", {}, "Reason, if it is rejected (the model reads it)", reason),
      el("details", {}, el("summary", {}, "Change the arguments"),
        el("label", {}, "Arguments, as JSON", edited),
        button("Approve with these arguments", {className: "quiet", onclick: () => this.#edit(edited.value)})));
  }

  #edit(text) {
    try {
      this.#decide({decision: "edit", arguments: exactJson(text)});
    } catch (error) {
      this.problem.replaceChildren(shown(`That is no JSON: ${error.message}`));
    }
  }

  #decide(decision) {
    return this.send(this.#about, "approvals", decision, ({decision: made = "", decided_by: by, decision_reason: reason}) => (
      made ? decisionText(made, {by, reason}) : "The run ended before the decision."));
  }
}
