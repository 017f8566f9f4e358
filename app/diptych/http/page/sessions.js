// Lists sessions by their first words, to be searched.

import {read} from "./api.js";
import {el, oneLine, shown} from "./text.js";

const LISTED = 200; // sessions whose first words the agent returns
const search = document.getElementById("search");
const list = document.querySelector("#sessions ul");
let found = [];

// Read the list; `hash` makes the address of a session.
export async function showSessions(hash) {
  const {sessions} = await read(`memory/sessions?limit=${LISTED}&first_words=true`);
  found = sessions.reverse().map(({session_id: id, first_words: words, updated_at: at, owner}) => ({
    text: `${words} ${id} ${owner ?? ""}`.toLowerCase(),
    node: el("li", {}, el("a", {href: hash(id, owner), dir: "auto"}, shown(oneLine(words || id, 80))), ` ${new Date(at).toLocaleString()}`, owner ? shown(`, ${owner}`) : ""),
  }));
  filter();
}

function filter() {
  const words = search.value.toLowerCase().split(/\s+/);
  const fitting = found.filter(({text}) => words.every((word) => text.includes(word)));
  list.replaceChildren(...fitting.map(({node}) => node));
  if (!fitting.length) list.append(el("li", {}, found.length ? "No session has these words." : "There is none yet."));
}

search.addEventListener("input", filter);
