// Draws what the agent is for before anything is asked: its models, tools and agents with their state,
// and questions to try.

import {read} from "./api.js";
import {el, oneLine, shown} from "./text.js";

const SHOWN = 50; // tools, or agents
const STATES = {model: "Model", server: "Tool server", tool: "Tools of", agent: "Agent"};

const state = (isGood, text) => el("span", {className: `mark ${isGood ? "done" : "failed"}`}, text);
const named = ({name, description}, ...mark) => el("li", {}, ...mark, el("bdi", {className: "name"}, shown(oneLine(name))), description ? el("bdi", {className: "brief"}, shown(` ${oneLine(description, 200)}`)) : "");

function section(title, entries, none) {
  const items = entries.slice(0, SHOWN);
  if (entries.length > SHOWN) items.push(el("li", {className: "hint"}, `and ${entries.length - SHOWN} more`));
  return [el("h2", {}, title), items.length ? el("ul", {}, ...items) : el("p", {className: "hint"}, none)];
}

// Return the description of the agent; `ask` sends a question that somebody chooses.
export async function about(ask, signal) {
  const {models, tools, agents, examples, unavailable} = await read("v1/agent", signal);
  const missing = (kind) => unavailable.filter((each) => each.kind === kind);
  const gap = ({kind, name, reason}) => el("li", {}, state(false, "unavailable"), `${STATES[kind]} `, el("bdi", {className: "name"}, shown(oneLine(name))), reason ? shown(`: ${reason}`) : "");
  const isAway = (name) => missing("model").some((each) => each.name === name);
  const model = (name) => el("li", {}, state(!isAway(name), isAway(name) ? "unavailable" : "ready"), el("bdi", {className: "name"}, shown(oneLine(name))));
  const reasons = missing("model").filter(({name, reason}) => reason || !models.includes(name)).map(gap);
  return [
    ...(examples.length ? [el("h2", {}, "Try"), el("div", {className: "buttons"}, ...examples.map((text) => (
      el("button", {type: "button", className: "quiet", dir: "auto", onclick: () => ask(text)}, text))))] : []),
    ...section("Model", [...models.map(model), ...reasons], "none"),
    ...section("Tools", [...[...missing("server"), ...missing("tool")].map(gap), ...tools.map((each) => named(each))], "It has none."),
    ...section("Agents that it may ask", [...missing("agent").map(gap), ...agents.map((each) => named(each, state(true, "ready")))], "There are none."),
  ];
}
