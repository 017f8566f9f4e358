// Draws the calls of a run with what became of them, and below each delegation what happens there.

import {el, oneLine, shown, shownJson} from "./text.js";

const ASKED = new Set(["approval_requested", "input_requested"]);
const ANSWERED = new Set(["approval_decided", "input_received"]);
const MAX_LINES = 500; // drawn below one call of the run; an agent below may say far more
const READ_RESULT = "result__read"; // counts as no call of a tool
const SILENCE = 20; // seconds, after which it is said that nothing is heard from an agent below
const FIRST_DRAWN = 4; // before it come the question, what the model is offered, and its reply
const CALLS = new Set(["tool_call", "delegation_request"]);
const RESULTS = new Set(["tool_result", "delegation_response", "tool_error", "delegation_error"]);

export const isCall = (type) => CALLS.has(type);
export const isResult = (type) => RESULTS.has(type);

// Return as text what an agent below says; its JSON may have what JavaScript would call, as `toString`.
const oneText = (value) => (typeof value === "string" ? value : JSON.stringify(value) ?? "");

// Return a duration as people read it.
export function duration(ms) {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const seconds = ms / 1000;
  return seconds < 60 ? `${seconds.toFixed(1)} s` : `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

const usedBelow = ({model_calls: models = 0, tool_calls: tools = 0, tokens = 0}) => (
  `below: ${models} requests to models, ${tools} calls of tools, ${tokens} tokens`
);

const block = (label, content, className = "") => el("pre", {tabIndex: 0, role: "group", ariaLabel: label, className}, content);

class CallNode {
  #mark = el("span", {className: "mark"}, "running");
  #took = el("span", {className: "took"});
  #body;
  #given; // makes what shows the arguments; null once it is drawn
  #result = null; // likewise
  #isFilled = false;
  #said = null; // what the agent below says, as it comes
  #gap = null; // says that what happened below so far is not shown
  #began;
  #isAgent;
  #isSilent = false; // and that is said
  #heard = performance.now();
  isOver = false;
  lines = 0;
  toolCalls = 0; // that were told of, here and further down
  waiting = 0; // calls below that wait for a decision: somebody else is asked, and silence is no news

  constructor(content, began) {
    const {tool, agent, arguments: given, task} = content ?? {};
    const name = tool ?? agent ?? "?";
    this.#began = began;
    this.#isAgent = tool === undefined;
    this.#body = el("div", {className: "body"});
    this.#given = () => block("Arguments", tool === undefined ? shown(task) : shownJson(given));
    if (tool === undefined) this.#fill();
    this.node = el("li", {}, el("details", {open: tool === undefined, ontoggle: () => this.#fill()},
      el("summary", {}, this.#mark, tool === undefined ? "→ " : "", el("bdi", {className: "name"}, shown(oneLine(name, 200))), " ",
        el("bdi", {className: "brief"}, shown(oneLine(tool === undefined ? task : given))), this.#took),
      this.#body));
  }

  // Draw arguments and result: once somebody unfolds them, as there may be thousands of calls.
  #fill() {
    if (this.#given) this.#body.prepend(this.#given());
    if (this.#result) this.#body.append(this.#result());
    this.#given = this.#result = null;
    this.#isFilled = true;
  }

  // Say that what happened below is missing, or that it is not: it is told live only, and this page
  // may not have been there.
  setGap(isMissing) {
    if (!isMissing) {
      this.#gap?.remove();
      this.#gap = null;
    } else if (!this.#gap) {
      this.#gap = el("li", {className: "note"}, "What happened here earlier is not shown.");
      this.add(this.#gap);
    }
  }

  // Something was heard from there; or could not be, as this page had no connection itself.
  hear() {
    this.#heard = performance.now();
    if (this.#isSilent && !this.isOver) this.#took.textContent = "";
    this.#isSilent = false;
  }

  // Say for how long nothing was heard: whether the agent below thinks, hangs or is gone, its caller
  // does not know either, until it gives it up.
  tellSilence() {
    const silent = performance.now() - this.#heard;
    if (!this.#isAgent || this.isOver || this.waiting > 0 || silent < 1000 * SILENCE) return;
    this.#isSilent = true;
    this.#took.textContent = `nothing heard for ${duration(1000 * Math.floor(silent / 1000))}`;
  }

  finish(type, content, ended, used) {
    this.isOver = true;
    const failed = type.endsWith("error");
    const isMissing = this.#gap || used?.tool_calls > this.toolCalls; // also while no connection was there
    this.#said?.remove();
    this.setGap(false);
    const hasLines = this.#body.querySelector(":scope > ol > li");
    const lines = [hasLines && isMissing && "Not all of what happened here is shown.", (isMissing || !hasLines) && used && usedBelow(used)].filter(Boolean);
    if (lines.length) this.add(el("li", {className: "note"}, lines.join(" ")));
    this.#body.querySelectorAll(".mark:not(.done, .failed)").forEach((mark) => { mark.textContent = "no result told"; });
    this.#mark.textContent = failed ? "failed" : "done";
    this.#mark.classList.add(failed ? "failed" : "done");
    this.#took.textContent = duration(ended - this.#began);
    this.#result = () => block(failed ? "Error" : "Result", shown(content ?? ""), failed ? "failed" : "");
    if (this.#isFilled) this.#fill();
  }

  say(text) {
    if (!this.#said) this.#body.append(this.#said = el("p", {className: "said", dir: "auto"}));
    this.#said.append(text);
  }

  add(node) {
    let list = this.#body.querySelector(":scope > ol");
    if (!list) this.#body.append(list = el("ol", {className: "steps"}));
    list.append(node);
  }
}

export class Steps {
  #calls = new Map(); // by the path of call ids that leads there
  #told = new Map(); // by path, the newest seq: after a death below, events come again
  node = el("ol", {className: "steps"});

  // Take the record of a call or of its result; false if its call is not drawn here. `isOld` is a
  // record that was there before this page.
  take(type, content, about, time, isOld) {
    const isHere = this.#draw([about.call_id], type, content, time, (node) => this.node.append(node), about.child?.used);
    if (isOld && type === "delegation_request") this.#calls.get(about.call_id).setGap(true);
    return isHere;
  }

  // Say from which agents nothing was heard for long. Nothing is asked for it.
  tellSilence() {
    this.#roots().forEach((call) => call.tellSilence());
  }

  // Count silence from now on: this page itself was not connected.
  forgetSilence() {
    this.#roots().forEach((call) => call.hear());
  }

  #roots() {
    return [...this.#calls].filter(([path]) => !path.includes(" ")).map(([, call]) => call);
  }

  #draw(path, type, content, time, append, used) {
    const key = path.join(" ");
    if (isCall(type)) {
      const call = new CallNode(content, time);
      this.#calls.set(key, call);
      append(call.node);
      return true;
    }
    this.#calls.get(key)?.finish(type, content, time, used);
    return this.#calls.has(key);
  }

  // Take a notice `delegation_progress`: text of the agent below, or what happened in a run there.
  takeBelow({path, content, event}) {
    const root = this.#calls.get(path[0]);
    if (!root) return;
    root.hear();
    if (!event) {
      root.say(content);
      return;
    }
    const key = path.join(" ");
    const {type, seq = 0, metadata, timestamp} = event;
    const last = this.#told.get(key) ?? 0;
    if (seq && seq <= last) return;
    if (seq) this.#told.set(key, seq);
    const parent = this.#calls.get(key) ?? root;
    if (seq && !last) parent.setGap(seq > FIRST_DRAWN);
    if (ASKED.has(type)) root.waiting += 1;
    if (ANSWERED.has(type)) root.waiting = Math.max(0, root.waiting - 1);
    if (type === "tool_call" && event.content?.tool !== READ_RESULT) root.toolCalls += 1;
    const line = this.#lineOf(type, event);
    const inside = isCall(type) || isResult(type);
    if (type === "text") parent.say(oneText(event.content));
    if (!inside && !line) return;
    root.lines += 1;
    if (root.lines > MAX_LINES) {
      if (root.lines === MAX_LINES + 1) root.add(el("li", {}, "What else happens below is not drawn."));
      return;
    }
    if (line) parent.add(el("li", {className: "note"}, shown(line)));
    const below = [...path, oneText(metadata?.call_id)];
    if (inside) this.#draw(below, type, event.content, 1000 * timestamp, (node) => parent.add(node));
  }

  #lineOf(type, {content, metadata}) {
    const text = oneLine(content ?? "", 300);
    const lines = {
      approval_requested: `waits for a decision: ${text}`,
      approval_decided: `decided: ${text}`,
      input_requested: `a tool asks: ${text}`,
      input_received: `answered: ${text}`,
      action_error: `a reply could not be used (${oneText(metadata?.error_type)}): ${text}`,
      owner_changed: "another process has taken the run over",
      failed: `failed: ${text}`,
      aborted: `aborted: ${text}`,
      max_steps: "stopped at its limit of steps",
    };
    return lines[type];
  }
}
