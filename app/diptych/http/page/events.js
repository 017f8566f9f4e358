// Follows a run: reads its server-sent events, and goes on where a broken connection stopped.
//
// A record has a seq as its id, and comes once. What has no id is only live: notices, `reset`, and
// `handed_over` and `error`, after which one asks again (docs/http.md, "Streams").

import {backoff, pause, send} from "./api.js";
import {exactJson} from "./text.js";

const TERMINAL = new Set(["completed", "failed", "aborted", "max_steps"]);
const LAST_FRAMES = new Set(["handed_over", "error"]);
const EXACT = new Set(["approval_requested", "input_requested", "tool_call"]); // their numbers are shown as written
const FINAL_STATUS = new Set([400, 403, 404, 410]);
const SILENCE = 40; // seconds; the agent sends a comment each 15 s

// Give the events of a run up to its end, as {type, seq, data}; seq is 0 of what is only live. Between
// two connections there is a `reconnecting` of our own.
export async function* follow(runId, signal) {
  let last = 0;
  for (let tries = 1; !signal.aborted; tries += 1) {
    let message = "the connection ended";
    try {
      for await (const event of connection(runId, last, signal)) {
        if (event.seq && event.seq <= last) continue;
        tries = 0;
        if (event.seq) last = event.seq;
        else if (event.type === "reset") last = event.data.last_seq;
        yield event;
        if (event.seq && TERMINAL.has(event.type)) return;
        if (!event.seq && LAST_FRAMES.has(event.type)) break;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (FINAL_STATUS.has(error.status)) throw error;
      ({message} = error);
    }
    yield {type: "reconnecting", seq: 0, data: {message}};
    await pause(backoff(tries), signal);
  }
}

async function* connection(runId, last, signal) {
  const ending = new AbortController();
  const end = () => ending.abort(new Error("the agent says nothing"));
  signal.addEventListener("abort", end);
  let timer = setTimeout(end, 1000 * SILENCE);
  try {
    const headers = last ? {"Last-Event-ID": String(last)} : {};
    const path = `v1/runs/${encodeURIComponent(runId)}/events`;
    const reader = (await send(path, {headers, signal: ending.signal})).body.getReader();
    const decoder = new TextDecoder(); // a chunk may end inside a character
    const parser = new SseParser();
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return; // an event that has not ended was cut, and does not count
      clearTimeout(timer);
      timer = setTimeout(end, 1000 * SILENCE);
      yield* parser.feed(decoder.decode(value, {stream: true}));
    }
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", end);
    ending.abort();
  }
}

// Parses pieces of text into events (WHATWG HTML, section 9.2.6); a piece may end anywhere.
class SseParser {
  #rest = "";
  #fields = {data: []};

  feed(piece) {
    const found = [];
    const mayEnd = /[\r\n]/.test(piece) || this.#rest.endsWith("\r");
    this.#rest += piece;
    if (!mayEnd) return found; // an event of megabytes comes in many pieces
    let from = 0;
    for (const {0: end, index} of this.#rest.matchAll(/\r\n|\n|\r/g)) {
      if (end === "\r" && index + 1 === this.#rest.length) break; // LF may follow
      this.#take(this.#rest.slice(from, index), found);
      from = index + end.length;
    }
    this.#rest = this.#rest.slice(from);
    return found;
  }

  #take(line, found) {
    if (line === "") {
      const {event, id, data} = this.#fields;
      const parse = EXACT.has(event) ? exactJson : JSON.parse;
      if (data.length) found.push({type: event, seq: Number(id) || 0, data: parse(data.join("\n"))});
      this.#fields = {data: []};
      return;
    }
    const [, name, value] = /^([^:]*)(?:: ?(.*))?$/s.exec(line);
    if (name === "data") this.#fields.data.push(value ?? "");
    else if (name) this.#fields[name] = value;
  }
}
