// Draws one run as its events come: messages, work, calls that wait, answers, and how it ended.

import {ApprovalCard, decisionText} from "./approval.js";
import {Prose, copyButton} from "./markdown.js";
import {duration, isCall, isResult} from "./steps.js";
import {QuestionCard, answerText} from "./question.js";
import {MAX_SHOWN, el, oneLine, shown} from "./text.js";
import {Work} from "./work.js";

const CUT = {length: "the model's length limit", content_filter: "a content filter"};
const MAX_EARLIER = 40; // messages, of those that a run was sent along with its own
const NOT_REPEATED = ["parts", "system", "parameters", "output_schema", "resumes"]; // of a question

// Return a message that was said, and never as more text than a browser can lay out.
const said = (text) => el("p", {className: "plain", dir: "auto"}, text.slice(0, MAX_SHOWN), text.length > MAX_SHOWN ? " … (shortened)" : "");

export class RunView {
  #records = []; // what is on record, to draw it again where a store has lost the end
  #on;
  #foot; // one line: what the run does now, then how it ended
  #work; // since the last question; null before its first step
  #works; // results and notices may be about earlier ones
  #prose; // the answer that is written; null before it begins
  #cards; // calls that wait, by their ids
  #decisions;
  #asked; // when the last question was
  #began;
  question = null; // the first message as {text, earlier, follows}, if it can be asked again
  node = el("article", {className: "run", ariaLabel: "Run"});
  isAtEnd = false;

  // `on` has what the view calls: `say` tells a screen reader; `resume` takes up a run that failed,
  // `again` asks its question again, `edit` lets somebody change it. Events up to `knownSeq` were
  // there before this page.
  constructor(runId, on, knownSeq = 0) {
    Object.assign(this, {runId, knownSeq});
    this.#on = on;
    this.#begin();
  }

  #begin() {
    this.node.replaceChildren(this.#foot = el("p", {className: "hint foot"}, "waits for its turn"));
    this.#work = this.#prose = null;
    this.#works = [];
    this.#cards = new Map();
    this.#decisions = new Map();
    this.#asked = this.#began = 0;
    this.question = null;
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
    if (parts.length) this.#foot.append(shown(` · ${parts.join(" · ")}`));
  }

  // Offer what can be done with the last run of a session once it has ended.
  offerActions() {
    const button = (text, call) => el("button", {type: "button", className: "quiet", onclick: () => call(this)}, text);
    const actions = this.question ? [button("Ask again", this.#on.again), button("Edit the question", this.#on.edit)] : [];
    if (this.canResume) actions.unshift(button("Resume this run", this.#on.resume));
    if (actions.length) this.node.append(el("div", {className: "buttons actions"}, ...actions));
  }

  // Say from which agents below nothing was heard for long.
  tellSilence() {
    this.#works.forEach(({steps}) => steps.tellSilence());
  }

  #put(node) {
    this.#foot.before(node);
    return node;
  }

  #note(text) {
    this.#put(el("p", {className: "note"}, shown(text)));
  }

  #workNow() {
    if (!this.#work) {
      this.#work = new Work(this.#asked);
      this.#works.push(this.#work);
      this.#put(this.#work.node);
    }
    return this.#work;
  }

  #takeNotice(type, data) {
    const notes = {
      reconnecting: () => {
        this.#foot.textContent = `${data.message}; picking the run up again`;
        this.#works.forEach(({steps}) => steps.forgetSilence());
      },
      progress: () => { this.#foot.replaceChildren(`step ${data.step} of ${data.max_steps}: `, shown(String(data.target))); },
      tool_progress: () => { this.#foot.replaceChildren(shown(`${data.target}: ${data.message}`)); },
      delegation_progress: () => this.#works.forEach(({steps}) => steps.takeBelow(data)),
      model_wait: () => { this.#foot.replaceChildren(shown(data.message)); },
      reasoning: () => this.#workNow().think(data.content),
      format_warning: () => this.#workNow().note(data.message),
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

  #takeRecord(type, {content, metadata, timestamp}, isOld) {
    const time = Date.parse(timestamp);
    this.#began ||= time;
    const lines = {
      user_message: () => this.#message(content, metadata, time),
      offered: () => { this.#foot.textContent = "asks the model"; },
      model_reply: () => this.#work?.countReply(metadata.usage),
      action_error: () => this.#workNow().note(`a reply could not be used (${metadata.error_type}): ${content}`),
      approval_requested: () => this.#ask(content, metadata),
      approval_decided: () => this.#decided(content, metadata),
      input_requested: () => this.#askInput(content, metadata),
      input_received: () => this.#received(content, metadata),
      text: () => this.#proseNow().append(content),
      answer_reset: () => this.#restart(),
      agent_response: () => this.#answered(content, metadata, time),
      compacted: () => this.#note("a summary stands for the earlier conversation now"),
      owner_changed: () => this.#note("another process has taken the run over"),
      queue_cleared: () => this.#note("messages that waited were dropped"),
      completed: () => this.#end("done", time, CUT[metadata.finish_reason] && `the answer is not whole: ${CUT[metadata.finish_reason]} cut it off`),
      max_steps: () => { this.#answered(content, metadata, time); this.#end("stopped at its limit of steps", time); },
      failed: () => this.#end(`failed (${metadata.code})`, time, content, true),
      aborted: () => this.#end("aborted", time, content, true),
    };
    if (isCall(type)) this.#call(type, content, metadata, time, isOld);
    else if (isResult(type)) this.#result(type, content, metadata, time);
    else lines[type]?.();
  }

  #call(type, content, metadata, time, isOld) {
    this.#workNow().steps.take(type, content, metadata, time, isOld);
    this.#work.countCall();
  }

  #result(type, content, metadata, time) {
    this.#works.findLast(({steps}) => steps.take(type, content, metadata, time));
    const card = this.#cards.get(metadata.call_id);
    if (!card) return;
    const hasFailed = type.endsWith("error");
    if (this.#decisions.get(metadata.call_id) === "reject") card.settle("The call was not made.");
    else card.settle(`${hasFailed ? "The call failed" : "The call was made"}: ${oneLine(content ?? "", 300)}`);
    this.#cards.delete(metadata.call_id);
  }

  #message(text, metadata, time) {
    this.#endWork(time);
    this.#asked = time;
    const earlier = (metadata.earlier ?? []).filter(({role, content}) => ["user", "assistant"].includes(role) && typeof content === "string" && content);
    if (!this.question && !metadata.message_id && text && !NOT_REPEATED.some((name) => metadata[name])) {
      this.question = {text, earlier, follows: metadata.notes?.previous_response_id};
    }
    earlier.slice(-MAX_EARLIER).forEach(({role, content}) => {
      if (role === "user") this.#question("You", content);
      else this.#answer(content);
    });
    const by = metadata.resumes ? "Resumed" : metadata.follow_up ? "Your follow-up" : metadata.message_id ? "You, steering" : "You";
    this.#question(by, text ?? "");
    this.#foot.textContent = "asks the model";
  }

  #question(by, text) {
    this.#put(el("section", {className: "question"}, el("h2", {}, by), said(text)));
  }

  #proseNow() {
    if (!this.#prose) {
      this.#prose = new Prose();
      this.#put(el("section", {className: "answer"}, el("h2", {}, "Answer"), this.#prose.node));
      this.#foot.textContent = "answers";
    }
    return this.#prose;
  }

  // Draw a whole answer. One that is JSON is shown as code.
  #answer(text, isJson = false) {
    const prose = this.#proseNow();
    prose.finish(isJson ? `~~~~~~json\n${text}\n~~~~~~` : text);
    prose.node.after(el("div", {className: "buttons"}, copyButton("Copy the answer", () => text)));
    this.#prose = null;
  }

  #restart() {
    this.#prose?.node.parentNode.remove();
    this.#prose = null;
    this.#note("the answer starts over; what was said of it does not hold");
  }

  #answered(text, metadata, time) {
    this.#answer(text, metadata.is_json);
    this.#endWork(time);
    this.#on.say(`The answer: ${text}`);
  }

  #endWork(time, hasFailed = false) {
    this.#work?.finish(time, hasFailed);
    this.#work = this.#prose = null;
  }

  #ask(call, about) {
    const card = new ApprovalCard({
      runId: this.runId, callId: about.call_id, call, reason: about.reason, agent: about.agent,
      expires: new Date(1000 * about.expires_at),
    });
    this.#cards.set(about.call_id, card);
    this.#put(card.node);
    this.#foot.textContent = "waits for a decision";
    this.#on.say("A call waits for a decision.");
  }

  #askInput(message, about) {
    const card = new QuestionCard({...about, message, runId: this.runId, callId: about.call_id, expires: new Date(1000 * about.expires_at)});
    this.#cards.set(about.call_id, card);
    this.#put(card.node);
    this.#foot.textContent = "waits for an answer";
    this.#on.say(`A tool asks: ${message}`);
  }

  #received(action, about) {
    this.#cards.get(about.call_id)?.close(answerText(action, {by: about.subject, isExpired: about.is_expired}));
    this.#foot.textContent = "goes on";
  }

  #decided(decision, about) {
    this.#decisions.set(about.call_id, decision);
    this.#cards.get(about.call_id)?.close(decisionText(decision, {by: about.subject, reason: about.reason, isExpired: about.is_expired}));
    this.#foot.textContent = "goes on";
  }

  #end(what, time, why, hasFailed = false) {
    this.isAtEnd = true;
    this.canResume = hasFailed;
    this.#records = []; // nothing is lost after an end
    this.#cards.forEach((card) => card.close("The run ended first."));
    this.#endWork(time, hasFailed);
    this.#foot.replaceChildren(shown(`${what} after ${duration(time - this.#began)}${why ? `: ${why}` : ""}`));
    this.#foot.classList.toggle("failed", hasFailed);
    if (hasFailed) this.#on.say(`The run ${what}: ${why}`);
  }
}
