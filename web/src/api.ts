// SPDX-License-Identifier: Apache-2.0
// Requests to the controller. Half of the session is in a cookie that this code cannot read, the other half is kept here and sent with
// each request: neither alone is worth anything (docs/decisions/0053-dashboard.md).
import { clockAhead, clockSaid } from "./format";

// `expires_us` is on this machine's clock.
export interface Session { proof: string; user: string; token: string; write: boolean; expires_us: number }

const KEY = "vrun.session";
const listeners = new Set<() => void>();
let why = "";   // we are signed out, for people

export function session(): Session | null {
  try {
    const kept = JSON.parse(localStorage.getItem(KEY) ?? "null") as Session | null;
    return kept && kept.expires_us > Date.now() * 1000 ? kept : null;
  } catch {
    return null;
  }
}
export const whySignedOut = () => why;
export function onSession(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
function keep(next: Session | null, reason = "") {
  why = reason;
  if (next) localStorage.setItem(KEY, JSON.stringify(next));
  else localStorage.removeItem(KEY);
  listeners.forEach((tell) => tell());
}
addEventListener("storage", (e) => e.key === KEY && listeners.forEach((tell) => tell()));   // another tab

export class Problem extends Error {
  constructor(readonly status: number, detail: string) { super(detail); }
}

async function problemOf(answer: Response): Promise<Problem> {
  const body = await answer.json().catch(() => ({})) as { detail?: string };
  return new Problem(answer.status, body.detail ?? `the controller answered ${answer.status}`);
}

async function ask(path: string, init: RequestInit = {}): Promise<Response> {
  const mine = session();
  let answer: Response;
  try {
    answer = await fetch(path, { ...init, credentials: "same-origin", redirect: "error",
      headers: { ...(mine ? { "X-Vrun-Session": mine.proof } : {}), ...(init.body ? { "Content-Type": "application/json" } : {}) } });
  } catch (e) {
    if (init.signal?.aborted) throw e;
    throw new Problem(0, "the controller does not answer");
  }
  clockSaid(answer.headers.get("Date"));
  if (answer.ok) return answer;
  const problem = await problemOf(answer);
  if (answer.status === 401 && mine && session()?.proof === mine.proof) keep(null, "You were signed out: " + problem.message);
  throw problem;
}

export const get = async <T>(path: string, signal?: AbortSignal): Promise<T> => (await ask("api/v1" + path, { signal })).json() as Promise<T>;
export const post = async <T>(path: string, body: object = {}): Promise<T> =>
  (await ask("api/v1" + path, { method: "POST", body: JSON.stringify(body) })).json() as Promise<T>;

export const drop = async (path: string): Promise<void> => { await ask("api/v1" + path, { method: "DELETE" }); };

export async function signIn(what: { code: string } | { token: string }): Promise<void> {
  const made = await (await ask("session", { method: "POST", body: JSON.stringify(what) })).json() as Session;
  keep({ ...made, expires_us: made.expires_us + clockAhead() });
}
export async function signOut(): Promise<void> {
  await ask("session/end", { method: "POST" }).catch(() => undefined);
  keep(null, "You have signed out.");
}

// Server-sent events over fetch, because EventSource cannot send our half of the session. Returns when the stream ends.
export async function events(path: string, signal: AbortSignal, tell: (event: string, data: string) => void): Promise<void> {
  const answer = await ask("api/v1" + path, { signal });
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      let event = "", data = "";
      for (const line of text.slice(0, end).split("\n")) {
        if (line.startsWith("event: ")) event = line.slice(7);
        else if (line.startsWith("data: ")) data = line.slice(6);
      }
      if (event) tell(event, data);
    }
  }
}
