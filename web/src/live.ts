// SPDX-License-Identifier: Apache-2.0
// One stream of changes for all that is on the screen, and data that is read again when something has changed.
import { useEffect, useReducer, useRef, useState } from "preact/hooks";
import { Problem, events, get, session } from "./api";
import type { Job } from "./types";

export type LiveState = "live" | "connecting" | "waiting";
const GATHER_MS = 400;   // changes within this time are one

class Live {
  state: LiveState = "connecting";
  private readonly stateListeners = new Set<() => void>();
  private readonly changeListeners = new Set<(jobs: Map<number, Job> | null) => void>();
  private changed = new Map<number, Job>();
  private timer = 0;
  private stop: AbortController | null = null;

  start() {
    if (this.stop) return;
    this.stop = new AbortController();
    void this.run(this.stop.signal);
  }
  end() {
    this.stop?.abort();
    this.stop = null;
  }
  onState(tell: () => void) { this.stateListeners.add(tell); return () => { this.stateListeners.delete(tell); }; }
  // null: anything may have changed.
  onChange(tell: (jobs: Map<number, Job> | null) => void) { this.changeListeners.add(tell); return () => { this.changeListeners.delete(tell); }; }

  private set(state: LiveState) {
    if (this.state === state) return;
    this.state = state;
    this.stateListeners.forEach((tell) => tell());
  }
  private tell(jobs: Map<number, Job> | null) { this.changeListeners.forEach((tell) => tell(jobs)); }
  private async run(signal: AbortSignal) {
    for (let wait = 1000, first = true; !signal.aborted; ) {
      this.set("connecting");
      const began = Date.now();
      try {
        await events("/jobs/watch", signal, (event, data) => {
          if (event === "ready") {
            this.set("live");
            if (!first) this.tell(null);
            first = false;
          } else if (event === "job") {
            const job = JSON.parse(data) as Job;
            this.changed.set(job.job, job);
            this.timer ||= window.setTimeout(() => {
              const jobs = this.changed;
              this.changed = new Map();
              this.timer = 0;
              this.tell(jobs);
            }, GATHER_MS);
          }
        });
      } catch {
        if (signal.aborted || !session()) return;
      }
      if (signal.aborted) return;
      first = false;
      this.set("waiting");
      if (Date.now() - began > 30_000) wait = 1000;
      await new Promise((done) => setTimeout(done, wait * (0.75 + Math.random() / 2)));
      wait = Math.min(wait * 2, 30_000);
    }
  }
}
export const live = new Live();

export function useLiveState(): LiveState {
  const [, again] = useReducer((n: number) => n + 1, 0);
  useEffect(() => live.onState(() => again(0)), []);
  return live.state;
}
export function useChanges(tell: (jobs: Map<number, Job> | null) => void) {
  const last = useRef(tell);
  last.current = tell;
  useEffect(() => live.onChange((jobs) => last.current(jobs)), []);
}

export interface Data<T> { value: T | null; problem: Problem | null; again: () => void }

// Reads `path` ("": nothing), every `seconds`, and soon after a change for which `changes` is true. Hidden pages read nothing.
export function useData<T>(path: string, seconds: number, changes: (jobs: Map<number, Job> | null) => boolean = () => true): Data<T> {
  const [state, set] = useState<{ path: string; value: T | null; problem: Problem | null }>({ path, value: null, problem: null });
  const again = useRef<() => void>(() => undefined);
  useEffect(() => {
    if (!path) return;
    const stop = new AbortController();
    let timer = 0, busy = false, more = false, last = 0;
    const read = async () => {
      if (busy) { more = true; return; }
      busy = true;
      more = false;
      clearTimeout(timer);
      last = Date.now();
      try {
        const value = await get<T>(path, stop.signal);
        if (!stop.signal.aborted) set({ path, value, problem: null });
      } catch (e) {
        if (stop.signal.aborted) return;
        set((before) => ({ path, value: before.path === path ? before.value : null, problem: e instanceof Problem ? e : new Problem(0, String(e)) }));
      }
      busy = false;
      if (stop.signal.aborted) return;
      timer = window.setTimeout(() => document.hidden || read(), more ? Math.max(0, 1000 - (Date.now() - last)) : seconds * 1000);
    };
    again.current = () => void read();
    const shown = () => { if (!document.hidden) void read(); };
    document.addEventListener("visibilitychange", shown);
    // Not more than once in a second, however much happens.
    const leave = live.onChange((jobs) => {
      if (document.hidden || !changes(jobs)) return;
      if (busy) { more = true; return; }
      clearTimeout(timer);
      timer = window.setTimeout(() => void read(), Math.max(0, 1000 - (Date.now() - last)));
    });
    void read();
    return () => { stop.abort(); clearTimeout(timer); leave(); document.removeEventListener("visibilitychange", shown); };
  }, [path]);
  const fits = state.path === path;
  return { value: fits ? state.value : null, problem: fits ? state.problem : null, again: () => again.current() };
}

// The present time, for texts like "3 min ago".
export function useClock(seconds = 1): number {
  const [at, set] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => document.hidden || set(Date.now()), seconds * 1000);
    return () => clearInterval(timer);
  }, [seconds]);
  return at * 1000;
}
