// Joins the page: the agent and whether it is ready, tokens, the session, and the form that asks.
//
// The session stands in the address (#session=…): it stays over reloads, and each tab has its own.

import {ApprovalCard, stir} from "./approval.js";
import {act, read, readPatiently, requireToken, send, usePage} from "./api.js";
import {follow} from "./events.js";
import {RunView} from "./run_view.js";
import {el, exactJson, oneLine, shown} from "./text.js";

const LOOK_SECONDS = 10; // between two looks for whether it is ready, and which calls wait
const SILENCE_LOOK_SECONDS = 5; // between two looks for agents below from which nothing is heard
const WAITING_RUNS = 100; // whose calls are listed
const SHOWN_RUNS = 20; // of a session, and sessions in the list
const $ = (id) => document.getElementById(id);
const [conversation, form, message] = [$("conversation"), $("ask"), $("message")];
const {ask, steer, later, cancel} = form.elements;

let reading = new AbortController(); // of the session that is shown
let lastRun = Promise.resolve(); // runs of a session go one after another, and are read so
let active = null; // the view of the run that works
const drawn = new Set(); // ids of the runs that are shown

const say = (text) => { $("said").textContent = oneLine(text, 1000); };
const inAddress = (name) => new URLSearchParams(location.hash.slice(1)).get(name) ?? "";
const sessionId = () => inAddress("session");
const sessionHash = (session, owner) => `#${new URLSearchParams({session, ...(owner && {owner})})}`;

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
    if ($("missing").dataset.key === key) return;
    $("missing").dataset.key = key;
    $("missing").replaceChildren(...lines.map((line) => el("li", {}, shown(line))));
  } catch {
    $("state").textContent = "cannot be reached";
    $("state").className = "bad";
  } finally {
    nextLook = setTimeout(showReadiness, 1000 * LOOK_SECONDS);
  }
}

async function start() {
  $("state").textContent = "";
  const agent = await readPatiently("page/agent.json");
  document.title = agent.name;
  $("name").replaceChildren(shown(agent.name));
  $("description").replaceChildren(shown(agent.description));
  await showReadiness();
  if (agent.asks_for_token) {
    await requireToken("This agent asks who you are.");
    showReadiness(); // who may read all is told more
  }
  addEventListener("hashchange", attempt(open));
  await open();
}

// ---- The session

async function open() {
  reading.abort();
  reading = new AbortController();
  const {signal} = reading;
  const id = sessionId();
  lastRun = Promise.resolve();
  conversation.replaceChildren();
  drawn.clear();
  setActive(null);
  form.hidden = false;
  if (!id) return;
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
  if (drawn.has(runId)) return; // a run that is resumed twice is one run
  drawn.add(runId);
  const {signal} = reading;
  const view = new RunView(runId, say, attempt(resume), knownSeq);
  conversation.querySelectorAll(".resume").forEach((each) => each.remove());
  conversation.append(view.node);
  lastRun = lastRun.then(() => watch(view, signal)).catch(tell);
  keepAtBottom(true);
}

async function watch(view, signal) {
  if (signal.aborted) return;
  setActive(view);
  try {
    for await (const event of follow(view.runId, signal)) {
      keepAtBottom();
      view.take(event);
    }
  } finally {
    if (!signal.aborted) setActive(null);
  }
  if (view.isAtEnd) await showUse(view, signal);
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
function keepAtBottom(isWanted = false) {
  isDown ||= isWanted;
  if (isFrameAsked) return;
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
    await (active ? sendTo(active.runId, how, text) : begin(text));
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
  if (!id) history.pushState(null, "", sessionHash(run.session_id));
  add(run.id);
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
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  attempt(sendMessage)("steer");
});
cancel.addEventListener("click", attempt(async () => {
  await act(`v1/runs/${encodeURIComponent(active.runId)}/cancel`);
}));
$("new").addEventListener("click", attempt(async () => {
  history.pushState(null, "", location.pathname + location.search);
  await open();
  message.focus();
}));

// ---- Lists, read when they are unfolded

const onUnfold = (details, show) => details.addEventListener("toggle", attempt(async () => {
  if (details.open) await show();
}));

onUnfold($("sessions"), async () => {
  const {sessions} = await read(`memory/sessions?limit=${SHOWN_RUNS}`);
  const {events} = await read("memory/events?limit=500");
  const questions = new Map(events.filter((each) => each.event_type === "user_message")
    .reverse().map((each) => [each.session_id, each.content]));
  const isShared = (id) => sessions.filter((each) => each.session_id === id).length > 1; // by several owners
  const item = ({session_id: id, updated_at: at, owner}) => el("li", {}, el("a", {href: sessionHash(id, owner)},
    shown(oneLine((!isShared(id) && questions.get(id)) || id, 80))), ` ${new Date(at).toLocaleString()}`, owner ? shown(`, ${owner}`) : "");
  $("sessions").lastElementChild.replaceChildren(...(sessions.length ? sessions.reverse().map(item) : ["There is none yet."]));
});

// Show which calls wait. It stays true while it is unfolded, and a card that is there stays: somebody
// may be writing in it.
const waiting = new Map(); // cards, by run and call
async function showWaiting() {
  const {data} = exactJson(await (await send(`v1/approvals?limit=${WAITING_RUNS}`)).text());
  const [list, hint] = [...$("approvals").children].slice(1);
  const calls = new Map(data.map((each) => [`${each.run_id} ${each.call_id}`, each]));
  waiting.forEach((card, key) => {
    if (calls.has(key)) return;
    waiting.delete(key);
    card.remove();
    stir();
  });
  calls.forEach((each, key) => {
    if (waiting.has(key)) return;
    waiting.set(key, new ApprovalCard({...each, runId: each.run_id, callId: each.call_id, expires: new Date(each.expires_at)}).node);
    list.append(waiting.get(key));
  });
  const runs = new Set(data.map((each) => each.run_id)).size;
  hint.textContent = runs === WAITING_RUNS ? `More calls may wait; these are of ${runs} runs.`
    : data.length ? "" : "No call waits for a decision that you may see.";
}

onUnfold($("approvals"), showWaiting);
setInterval(() => { if ($("approvals").open && !document.hidden) showWaiting().catch(tell); }, 1000 * LOOK_SECONDS);

setInterval(() => active?.tellSilence(), 1000 * SILENCE_LOOK_SECONDS);

start().catch(tell);
