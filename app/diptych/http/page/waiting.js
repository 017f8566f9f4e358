// Lists the calls that wait for a decision or an answer. The list stays true while it is unfolded, and a card that is
// there stays: somebody may be writing in it, or read what became of it.

import {ApprovalCard} from "./approval.js";
import {send} from "./api.js";
import {QuestionCard} from "./question.js";
import {el, exactJson} from "./text.js";

const WAITING_RUNS = 100; // whose calls are listed
const [list, hint] = document.getElementById("approvals").querySelectorAll("div, p");
const cards = new Map(); // that wait, by run and call

export function clearWaiting() {
  cards.clear();
  list.replaceChildren();
}

// Read what waits now; `hash` makes the address of a session.
export async function showWaiting(hash) {
  const found = async (what) => exactJson(await (await send(`v1/${what}?limit=${WAITING_RUNS}`)).text()).data;
  const data = (await Promise.all(["approvals", "inputs"].map(found))).flat();
  const calls = new Map(data.map((each) => [`${each.run_id} ${each.call_id}`, each]));
  cards.forEach((card, key) => {
    if (calls.has(key)) return;
    cards.delete(key);
    card.close("Somebody else answered, or the run has ended.");
  });
  calls.forEach((each, key) => {
    if (cards.has(key)) return;
    const link = el("a", {href: hash(each.session_id)}, "Open its session");
    const Card = each.object === "input" ? QuestionCard : ApprovalCard;
    const card = new Card({...each, runId: each.run_id, callId: each.call_id, expires: new Date(each.expires_at), link});
    cards.set(key, card);
    list.append(card.node);
  });
  const runs = new Set(data.map((each) => each.run_id)).size;
  hint.textContent = runs >= WAITING_RUNS ? `More calls may wait; these are of ${runs} runs.`
    : data.length ? "" : "No call that you may see waits for a decision or an answer.";
}
