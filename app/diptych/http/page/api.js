// Requests to the agent that is chosen: the one from which this page came, or one beside it.
//
// The token is a variable of this module and nothing else. Not in a storage: that outlives the page,
// is written to disk, and belongs to `localhost:8000`, where another program may listen tomorrow.

const door = new URL("..", import.meta.url); // relative, so that it works below a gateway's prefix
let base = door; // of the agent's API
const TRIES = 6;
let token = "";
let askForToken = null; // shows why, and gives a promise of the token
let sayWhy = null; // shows why something takes so long
let asking = null;

// Ask the agent of this name from now on, of several that answer at this address.
export const useAgent = (name) => { base = new URL(`agents/${encodeURIComponent(name)}/`, door); };

export const usePage = (ask, say) => { [askForToken, sayWhy] = [ask, say]; };

class ApiError extends Error {
  constructor(status, code, message, retryAfter = 0) {
    super(message);
    Object.assign(this, {status, code, retryAfter});
  }
}

// Ask for a token; whoever else needs one meanwhile waits for the same.
export async function requireToken(why) {
  asking ??= askForToken(why).then((given) => { token = given; asking = null; });
  await asking;
}

// Send a request, and give the response once it is a good one. A 401 asks for a token first.
export async function send(path, {method = "GET", body, headers = {}, signal, accepts} = {}) {
  for (;;) {
    const used = token;
    const response = await fetch(new URL(path, base), {
      method,
      signal,
      body: body && JSON.stringify(body),
      headers: {
        ...headers,
        ...(body && {"Content-Type": "application/json"}),
        ...(used && {Authorization: `Bearer ${used}`}),
      },
      redirect: "error", // it would take the token elsewhere
      cache: "no-store",
    });
    if (response.ok || response.status === accepts) return response;
    const error = await errorOf(response);
    if (error.status !== 401) throw error;
    if (token === used) await requireToken(used ? error.message : "This agent asks who you are.");
  }
}

export const read = async (path, signal) => (await send(path, {signal})).json();

// Read what the page cannot do without, again and again if need be.
export const readPatiently = (path, signal) => patiently(() => read(path, signal), signal);

// Send what changes something, again and again if need be: under one key it counts once.
export function act(path, body) {
  const headers = {"Idempotency-Key": randomKey()};
  return patiently(async () => (await send(path, {method: "POST", body, headers})).json());
}

async function patiently(work, signal) {
  for (let tries = 1; ; tries += 1) {
    try {
      const done = await work();
      if (tries > 1) sayWhy("");
      return done;
    } catch (error) {
      const isPassing = error instanceof TypeError || error.status === 503;
      if (!isPassing || tries === TRIES || signal?.aborted) throw error;
      sayWhy(`${error.message}; trying again`);
      await pause(error.retryAfter || backoff(tries), signal);
    }
  }
}

export const backoff = (tries) => Math.min(8, 0.25 * 2 ** tries) * (0.75 + Math.random() / 2);

// Wait so many seconds, or until there is no use in it any more.
export const pause = (seconds, signal) => new Promise((done) => {
  const timer = setTimeout(done, 1000 * seconds);
  signal?.addEventListener("abort", () => { clearTimeout(timer); done(); }, {once: true});
});

async function errorOf(response) {
  const told = await response.json().catch(() => ({}));
  const about = told.error ?? {message: told.detail, code: told.code};
  const message = about.message ?? `The agent answered with ${response.status}.`;
  const retryAfter = Math.min(10, Number(response.headers.get("Retry-After")) || 0);
  return new ApiError(response.status, about.code ?? "", message, retryAfter);
}

// `randomUUID` is only there over HTTPS and on localhost.
function randomKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
