// Joins the page: the agent and whether it is ready, tokens, the session, and the form that asks.
//
// Agent and session stand in the address (#agent=…&session=…): they stay over reloads, and each tab has
// its own.

import {about} from "./about.js";
import {act, pause, read, readPatiently, requireToken, send, useAgent, usePage} from "./api.js";
import {follow} from "./events.js";
import {RunView} from "./run_view.js";
import {showSessions} from "./sessions.js";
import {el, oneLine, shown} from "./text.js";
import {clearWaiting, showWaiting} from "./waiting.js";

const LOOK_SECONDS = 10; // between two looks for whether it is ready, and which calls wait
const SILENCE_LOOK_SECONDS = 5; // between two looks for agents below from which nothing is heard
const SHOWN_RUNS = 20; // of a session
const DRAWING = 12; // ms, after which the browser gets to answer to who uses the page
const $ = (id) => document.getElementById(id);
const [conversation, form, message] = [$("conversation"), $("ask"), $("message")];
const {ask, steer, later, cancel, keep} = form.elements;

let reading = new AbortController(); // of the session that is shown
let lastRun = Promise.resolve(); // runs of a session go one after another, and are read so
let active = null; // the view of the run that works
let edited = null; // the view whose question is changed
let agents = []; // names of those that answer here, if there are several
const views = new Map(); // of the runs that are shown, by id

const say = (text) => { $("said").textContent = oneLine(text, 1000); };
const inAddress = (name) => new URLSearchParams(location.hash.slice(1)).get(name) ?? "";
const sessionId = () => inAddress("session");
const agentName = () => (agents.includes(inAddress("agent")) ? inAddress("agent") : agents[0]);

// Return the address of a session of the agent that is chosen, or of a new one.
function address(session, owner) {
  const parts = {...(agents.length && {agent: agentName()}), ...(session && {session}), ...(owner && {owner})};
  return `#${new URLSearchParams(parts)}`;
}

function tell(error) {
  if (error?.name !== "AbortError") $("problem").replaceChildren(shown(error?.message ?? ""));
}

// Do what a person asked for; what goes wrong is said beside the form.
const attempt = (work) => async (...given) => {
  $("problem").replaceChildren();
  try {
    await work(...given);
  } catch (error) {
    tell(error);
  }
};

// ---- The agent

usePage((why) => new Promise((give) => {
  $("why").replaceChildren(shown(why));
  const isTyping = document.activeElement === message && message.value && !ask.disabled;
  $("token").hidden = false;
  if (isTyping) $("token").scrollIntoView(); // what follows is no token
  else $("secret").focus();
  $("token").onsubmit = (event) => {
    event.preventDefault();
    $("token").hidden = true;
    give($("secret").value.trim());
    $("secret").value = "";
    message.focus();
  };
}), (why) => $("problem").replaceChildren(shown(why)));

let nextLook = 0;
async function showReadiness() {
  clearTimeout(nextLook);
  try {
    const {status, reason, missing = [], notes = []} = await (await send("ready", {accepts: 503})).json();
    $("state").replaceChildren(shown(reason ? `${status}: ${reason}` : status));
    $("state").className = status === "ready" ? "good" : "bad";
    const lines = [...missing.map((each) => `unavailable: ${each.kind} ${each.name}: ${each.reason}`), ...notes];
    const key = lines.join("\n");
    if ($("notes").dataset.key === key) return;
    $("notes").dataset.key = key;
    $("notes").hidden = !lines.length;
    const [summary, list] = $("notes").children;
    summary.textContent = missing.length ? `${missing.length} unavailable` : "Notes";
    list.replaceChildren(...lines.map((line) => el("li", {}, shown(line))));
  } catch {
    $("state").textContent = "cannot be reached";
    $("state").className = "bad";
  } finally {
    nextLook = setTimeout(showReadiness, 1000 * LOOK_SECONDS);
    if (!$("about").hidden) showAbout().catch(() => {}); // the state above says so
  }
}

let drawnAbout = "";
async function showAbout() {
  const {signal} = reading;
  const parts = await about(attempt(begin), signal);
  const text = parts.map(({textContent}) => textContent).join("\n");
  if (signal.aborted || text === drawnAbout) return; // a button that is there keeps the focus
  drawnAbout = text;
  $("about").replaceChildren(...parts);
}

async function start() {
  $("state").textContent = "";
  const agent = await readPatiently("page/agent.json");
  if (agent.asks_for_token) {
    showAgent(agent);
    await showReadiness(); // everybody is told that much
    await requireToken("This agent asks who you are.");
  }
  const {data} = await readPatiently("v1/models");
  if (data.length > 1) {
    agents = data.map(({id}) => id);
    $("agent").replaceChildren(...agents.map((name) => el("option", {value: name}, name)));
    $("choice").hidden = false;
  }
  addEventListener("hashchange", attempt(goTo));
  await goTo();
}

function showAgent({name, description}) {
  document.title = name;
  $("name").replaceChildren(shown(name));
  $("description").replaceChildren(shown(description));
}

let chosen = null;
async function goTo() {
  if (chosen !== (agentName() ?? "")) {
    chosen = agentName() ?? "";
    if (chosen) useAgent(chosen);
    $("agent").value = chosen;
    $("sessions").open = $("approvals").open = false;
    clearWaiting();
    drawnAbout = "";
    $("about").replaceChildren();
    showAgent(await readPatiently("page/agent.json"));
    await showReadiness();
  }
  await open();
}

$("agent").addEventListener("change", () => {
  location.hash = new URLSearchParams({agent: $("agent").value});
});

// ---- The session

async function open() {
  reading.abort();
  reading = new AbortController();
  const {signal} = reading;
  const id = sessionId();
  lastRun = Promise.resolve();
  conversation.replaceChildren();
  views.clear();
  setActive(null);
  edit(null);
  form.hidden = false;
  $("about").hidden = Boolean(id);
  if (!id) {
    await showAbout();
    return;
  }
  const own = await runsOf(id, signal);
  const owned = inAddress("owner") ? await runsOf(`${inAddress("owner")}/${id}`, signal) : own; // for who may read all
  const found = owned.data.length ? owned : own;
  form.hidden = found.data[0]?.id !== own.data[0]?.id; // it is somebody else's, perhaps of the same id
  if (found.has_more) conversation.append(el("p", {className: "note"}, "Earlier runs of this session are not shown."));
  found.data.forEach((run) => add(run.id, run.last_seq));
}

const runsOf = (id, signal) => readPatiently(`v1/runs?${new URLSearchParams({session_id: id, limit: SHOWN_RUNS})}`, signal);

// Add a run to the conversation, and read it once those before it have ended. Its events up to
// `knownSeq` are older than the page.
function add(runId, knownSeq) {
  if (views.has(runId)) return; // a run that is resumed twice is one run
  const {signal} = reading;
  const view = new RunView(runId, {say, resume: attempt(resume), again: attempt(askAgain), edit}, knownSeq);
  views.set(runId, view);
  conversation.querySelectorAll(".actions").forEach((each) => each.remove());
  conversation.append(view.node);
  lastRun = lastRun.then(() => watch(view, signal)).catch(tell);
  keepAtBottom(true);
}

async function watch(view, signal) {
  if (signal.aborted) return;
  setActive(view);
  let began = performance.now();
  try {
    for await (const event of follow(view.runId, signal)) {
      keepAtBottom();
      view.take(event);
      if (performance.now() - began < DRAWING) continue;
      await pause(0, signal);
      began = performance.now();
    }
  } finally {
    if (!signal.aborted) setActive(null);
  }
  if (!view.isAtEnd || signal.aborted) return;
  if (!view.node.nextElementSibling && !form.hidden) view.offerActions(); // else its session has gone on
  await showUse(view, signal);
  keepAtBottom();
}

async function showUse(view, signal) {
  const path = `v1/runs/${encodeURIComponent(view.runId)}`;
  view.addUse(await read(path, signal), await read(`${path}/tree?depth=0`, signal));
}

// Stay at the bottom until somebody scrolls up. Once a frame: to ask how high the page is makes the
// browser lay out all of it.
let [isDown, isFrameAsked, lastY] = [true, false, 0];
addEventListener("scroll", () => {
  const isThere = innerHeight + scrollY > document.documentElement.scrollHeight - 80;
  if (isThere || scrollY < lastY) isDown = isThere; // else the page has grown
  lastY = scrollY;
});
new ResizeObserver(() => { if (active) keepAtBottom(); }).observe(conversation); // answers are drawn later than they come
function keepAtBottom(isWanted = false) {
  isDown ||= isWanted;
  if (isFrameAsked || !views.size) return;
  isFrameAsked = true;
  requestAnimationFrame(() => {
    isFrameAsked = false;
    if (isDown) scrollTo(0, document.documentElement.scrollHeight);
  });
}

function setActive(view) {
  active = view;
  conversation.setAttribute("aria-busy", String(Boolean(view)));
  ask.hidden = Boolean(view);
  steer.hidden = later.hidden = cancel.hidden = !view;
}

// ---- What a person asks for

async function sendMessage(how) {
  const text = message.value;
  if (!text.trim() || ask.disabled) return; // Enter may be held down
  const buttons = [ask, steer, later];
  buttons.forEach((each) => { each.disabled = true; });
  try {
    await (active ? sendTo(active.runId, how, text) : edited ? fork(edited, text) : begin(text));
    if (message.value === text) message.value = "";
  } finally {
    buttons.forEach((each) => { each.disabled = false; });
  }
}

async function sendTo(runId, how, text) {
  try {
    await act(`v1/runs/${encodeURIComponent(runId)}/${how}`, {message: text});
  } catch (error) {
    if (error.code !== "run_over") throw error;
    await begin(text);
  }
}

async function begin(text) {
  const id = sessionId();
  const run = await act("v1/runs", {input: text, ...(id && {session_id: id})});
  if (sessionId() !== id) return; // another session is shown by now
  if (!id) history.pushState(null, "", address(run.session_id));
  if (!$("about").hidden) message.focus(); // it has the button that asked
  $("about").hidden = true;
  add(run.id);
}

// Ask a text in place of a run's question. The session stays as it is, with all that was done in it; a new
// one begins with what was said before that question.
async function fork(view, text) {
  const before = sessionId();
  const {earlier, follows} = view.question;
  const ids = [...views.keys()];
  const previous = ids[ids.indexOf(view.runId) - 1] ?? follows;
  const messages = [...earlier.map(({role, content}) => ({role, content})), {role: "user", content: text}];
  const session = previous
    ? (await act("v1/responses", {input: text, previous_response_id: previous, background: true})).conversation.id
    : (await act("v1/runs", {messages: messages})).session_id;
  if (sessionId() !== before) return;
  history.pushState(null, "", address(session));
  await open();
  message.focus(); // the button is gone
}

const askAgain = (view) => fork(view, view.question.text);

// Let somebody change the question of a run, or nobody any more.
function edit(view) {
  if (edited) message.value = "";
  edited = view;
  keep.hidden = !view;
  ask.textContent = view ? "Ask this instead" : "Ask";
  if (!view) return;
  message.value = view.question.text;
  message.focus();
}

async function resume(view) {
  const run = await act(`v1/runs/${encodeURIComponent(view.runId)}/resume`);
  add(run.id);
}

form.addEventListener("submit", attempt(async (event) => {
  event.preventDefault();
  await sendMessage(event.submitter === later ? "follow-up" : "steer");
}));
message.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && edited) edit(null);
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  attempt(sendMessage)("steer");
});
keep.addEventListener("click", () => { edit(null); message.focus(); });
cancel.addEventListener("click", attempt(async () => {
  await act(`v1/runs/${encodeURIComponent(active.runId)}/cancel`);
}));
$("new").addEventListener("click", attempt(async () => {
  history.pushState(null, "", agents.length ? address() : location.pathname + location.search);
  await open();
  message.focus();
}));

// ---- Lists, read when they are unfolded

const onToggle = (details, show, hide) => details.addEventListener("toggle", attempt(async () => {
  if (details.open) await show();
  else hide?.();
}));

onToggle($("sessions"), () => showSessions(address));
onToggle($("approvals"), () => showWaiting(address), clearWaiting);
setInterval(() => { if ($("approvals").open && !document.hidden) showWaiting(address).catch(tell); }, 1000 * LOOK_SECONDS);

setInterval(() => active?.tellSilence(), 1000 * SILENCE_LOOK_SECONDS);

start().catch(tell);
