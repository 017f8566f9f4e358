// Draws one run as its events come: messages, steps, calls that wait, answers, and how it ended.

import {ApprovalCard} from "./approval.js";
import {Steps, duration, isCall, isResult} from "./steps.js";
import {el, shown} from "./text.js";

const CUT = {length: "the model's length limit", content_filter: "a content filter"};

export class RunView {
  #records = []; // what is on record, to draw it again where a store has lost the end
  #say;
  #foot; // one line: what the run does now, then how it ended
  #steps; // those that calls are drawn in now; null before the first, and after an answer
  #allSteps; // results and notices may be about earlier ones
  #answer;
  #thought;
  #cards; // calls that wait, by their ids
  #began;
  node = el("article", {className: "run", ariaLabel: "Run"});
  isAtEnd = false;

  // `say` tells a screen reader; `onResume` is called where somebody takes up a run that failed.
  // Events up to `knownSeq` were there before this page.
  constructor(runId, say, onResume, knownSeq = 0) {
    Object.assign(this, {runId, onResume, knownSeq});
    this.#say = say;
    this.#begin();
  }

  #begin() {
    this.node.replaceChildren(this.#foot = el("p", {className: "hint"}, "waits for its turn"));
    this.#steps = this.#answer = this.#thought = null;
    this.#allSteps = [];
    this.#cards = new Map();
    this.#began = 0;
    this.isAtEnd = false;
  }

  take({type, seq, data}) {
    if (!seq) {
      this.#takeNotice(type, data);
      return;
    }
    this.#records.push({type, seq, data});
    this.#takeRecord(type, data, seq <= this.knownSeq);
  }

  // Add what a run used and has left, as `GET /v1/runs/{id}` and its tree tell it.
  addUse(run, tree) {
    const tokens = ({prompt_tokens: sent, completion_tokens: got}) => `${sent} in, ${got} out`;
    const parts = run.usage ? [`tokens: ${tokens(run.usage)}`] : [];
    if (run.children_usage) parts.push(`below: ${tokens(run.children_usage)}`);
    if (Number(tree.cost) || Number(tree.children_cost)) parts.push(`cost: ${tree.cost}, below: ${tree.children_cost}`);
    for (const [scope, {used, limits, left}] of Object.entries(run.budget ?? {})) {
      const amounts = Object.keys(limits).map((name) => `${name.replaceAll("_", " ")} ${used[name]} of ${limits[name]}, ${left[name]} left`);
      parts.push(`budget of the ${scope}: ${amounts.join("; ")}`);
    }
    if (parts.length) this.node.append(el("p", {className: "hint use"}, shown(parts.join(" · "))));
  }

  // Say from which agents below nothing was heard for long.
  tellSilence() {
    this.#allSteps.forEach((steps) => steps.tellSilence());
  }

  #put(node) {
    this.#foot.before(node);
    return node;
  }

  #note(text, className = "note") {
    this.#put(el("p", {className}, shown(text)));
  }

  #stepsNow() {
    if (!this.#steps || this.#answer) {
      this.#steps = new Steps();
      this.#answer = null;
      this.#put(this.#steps.node);
    }
    return this.#steps;
  }

  #takeNotice(type, data) {
    const notes = {
      reconnecting: () => {
        this.#foot.textContent = `${data.message}; picking the run up again`;
        this.#allSteps.forEach((steps) => steps.forgetSilence());
      },
      progress: () => { this.#foot.replaceChildren(`step ${data.step} of ${data.max_steps}: `, shown(String(data.target))); },
      tool_progress: () => { this.#foot.replaceChildren(shown(`${data.target}: ${data.message}`)); },
      delegation_progress: () => this.#allSteps.forEach((steps) => steps.takeBelow(data)),
      model_wait: () => { this.#foot.replaceChildren(shown(data.message)); },
      reasoning: () => this.#think(data.content),
      format_warning: () => this.#note(data.message),
      budget_warning: () => this.#note(`${data.budget}: ${data.used} of ${data.limit} used`),
      handed_over: () => { this.#foot.textContent = "the agent's pod leaves, and hands the run over"; },
      error: () => { this.#foot.replaceChildren(shown(data.error?.message ?? "the record cannot be read now")); },
      reset: () => this.#goBack(data.last_seq),
    };
    notes[type]?.();
  }

  #goBack(lastSeq) {
    const kept = this.#records.filter(({seq}) => seq <= lastSeq);
    this.#records = [];
    this.#begin();
    kept.forEach((event) => this.take(event));
    this.#note(`the agent's store has lost the end of this run; it goes on from event ${lastSeq}`);
  }

  #think(text) {
    if (!this.#thought) {
      this.#thought = el("p", {className: "plain", dir: "auto"});
      this.#put(el("details", {className: "reasoning"}, el("summary", {}, "Reasoning"), this.#thought));
    }
    this.#thought.append(text);
  }

  #takeRecord(type, {content, metadata, timestamp}, isOld) {
    const time = Date.parse(timestamp);
    this.#began ||= time;
    if (isCall(type)) {
      const steps = this.#stepsNow();
      if (!this.#allSteps.includes(steps)) this.#allSteps.push(steps);
      steps.take(type, content, metadata, time, isOld);
    } else if (isResult(type)) {
      this.#cards.get(metadata.call_id)?.close();
      this.#allSteps.findLast((steps) => steps.take(type, content, metadata, time));
    }
    const lines = {
      user_message: () => this.#message(content, metadata),
      offered: () => { this.#foot.textContent = "asks the model"; },
      model_reply: () => { this.#thought = null; },
      action_error: () => this.#note(`a reply could not be used (${metadata.error_type}): ${content}`),
      approval_requested: () => this.#ask(content, metadata),
      approval_decided: () => this.#decided(content, metadata),
      text: () => this.#answerNow().append(content),
      answer_reset: () => this.#restart(),
      agent_response: () => this.#answered(content),
      compacted: () => this.#note("a summary stands for the earlier conversation now"),
      owner_changed: () => this.#note("another process has taken the run over"),
      queue_cleared: () => this.#note("messages that waited were dropped"),
      completed: () => this.#end("done", time, CUT[metadata.finish_reason] && `the answer is not whole: ${CUT[metadata.finish_reason]} cut it off`),
      max_steps: () => { this.#answered(content); this.#end("stopped at its limit of steps", time); },
      failed: () => this.#end(`failed (${metadata.code})`, time, content, true),
      aborted: () => this.#end("aborted", time, content, true),
    };
    lines[type]?.();
  }

  #message(text, metadata) {
    this.#steps = this.#answer = null;
    const by = metadata.resumes ? "Resumed" : metadata.follow_up ? "Your follow-up" : metadata.message_id ? "You, steering" : "You";
    this.#put(el("section", {className: "question"}, el("h2", {}, by), el("p", {className: "plain", dir: "auto"}, text ?? "")));
    this.#foot.textContent = "asks the model";
  }

  #answerNow() {
    if (!this.#answer) {
      this.#answer = el("p", {className: "plain", dir: "auto"});
      this.#put(el("section", {className: "answer"}, el("h2", {}, "Answer"), this.#answer));
      this.#foot.textContent = "answers";
      this.#thought = null;
    }
    return this.#answer;
  }

  #restart() {
    this.#answer?.parentNode.remove();
    this.#answer = null;
    this.#note("the answer starts over; what was said of it does not hold");
  }

  #answered(text) {
    const answer = this.#answerNow();
    if (answer.textContent !== text) answer.textContent = text;
    this.#answer = this.#steps = null;
    this.#say(`The answer: ${text}`);
  }

  #ask(call, about) {
    const card = new ApprovalCard({
      runId: this.runId, callId: about.call_id, call, reason: about.reason, agent: about.agent,
      expires: new Date(1000 * about.expires_at),
    });
    this.#cards.set(about.call_id, card);
    this.#put(card.node);
    this.#foot.textContent = "waits for a decision";
    this.#say("A call waits for a decision.");
  }

  #decided(decision, about) {
    const by = about.is_expired ? " by nobody, in time" : about.subject ? ` by ${about.subject}` : "";
    const text = `Decided: ${decision}${by}${about.reason ? `: ${about.reason}` : ""}`;
    this.#cards.get(about.call_id)?.close(text);
    this.#foot.textContent = "goes on";
  }

  #end(what, time, why, canResume = false) {
    this.isAtEnd = true;
    this.#records = []; // nothing is lost after an end
    this.#cards.forEach((card) => card.close());
    this.#foot.replaceChildren(shown(`${what} after ${duration(time - this.#began)}${why ? `: ${why}` : ""}`));
    this.#foot.classList.toggle("failed", canResume);
    if (!canResume) return;
    this.#say(`The run ${what}: ${why}`);
    if (this.node.nextElementSibling) return; // its session has gone on
    this.node.append(el("button", {type: "button", className: "quiet resume", onclick: () => this.onResume(this)}, "Resume this run"));
  }
}
