// SPDX-License-Identifier: Apache-2.0
// Parts that pages share.
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { Problem, post } from "./api";
import { count, plain, words } from "./format";
import type { Data } from "./live";
import { link } from "./route";

const TONES: Record<string, string> = {
  RUNNING: "run", STARTING: "start", COMPLETING: "run", PENDING: "wait", COMPLETED: "good", FAILED: "bad", TIMEOUT: "bad", OUT_OF_MEMORY: "bad",
  LOST: "bad", CANCELLED: "off", PREEMPTED: "wait", ready: "good", draining: "wait", drained: "off", lost: "bad", away: "bad",
};
export function State({ of, held = false }: { of: string; held?: boolean }) {
  return <span class={`state ${held ? "off" : TONES[of] ?? "off"}`}>{held ? "held" : words(of)}</span>;
}

export function Card({ title, aside, children, wide = false, last = false }: { title: string; aside?: ComponentChildren; children: ComponentChildren; wide?: boolean; last?: boolean }) {
  const id = useId();
  return <section class={`card${wide ? " wide" : ""}${last ? " last" : ""}`} aria-labelledby={id}>
    <header><h2 id={id}>{title}</h2>{aside && <div class="aside">{aside}</div>}</header>
    {children}
  </section>;
}

export function Stat({ label, value, of, hint, tone = "" }: { label: string; value: string; of?: string; hint?: ComponentChildren; tone?: string }) {
  return <div class={`stat ${tone}`}>
    <dt>{label}</dt>
    <dd><b>{value}</b>{of && <span> / {of}</span>}{hint && <small>{hint}</small>}</dd>
  </div>;
}

export interface Column<T> { name: string; cell: (row: T) => ComponentChildren; number?: boolean; grow?: boolean; minor?: boolean }
// `minor` columns go where there is little room. Long lists are shown in parts.
export function Table<T>({ label, columns, rows, id, empty, part = 200 }: {
  label: string; columns: Column<T>[]; rows: T[]; id: (row: T) => string | number; empty: ComponentChildren; part?: number }) {
  const [shown, show] = useState(part);
  if (rows.length === 0) return <p class="empty">{empty}</p>;
  const kind = (c: Column<T>) => [c.number && "number", c.grow && "grow", c.minor && "minor"].filter(Boolean).join(" ");
  return <>
    <div class="scroll" tabIndex={0} role="group" aria-label={label}>
      <table>
        <caption class="hidden">{label}</caption>
        <thead><tr>{columns.map((c) => <th scope="col" class={kind(c)} key={c.name}>{c.name}</th>)}</tr></thead>
        <tbody>{rows.slice(0, shown).map((row) => <tr key={id(row)}>{columns.map((c) => <td class={kind(c)} key={c.name}>{c.cell(row)}</td>)}</tr>)}</tbody>
      </table>
    </div>
    {rows.length > shown && <p class="more"><button onClick={() => show(shown + part)}>Show {Math.min(part, rows.length - shown)} more of {count(rows.length - shown)}</button></p>}
  </>;
}

export function JobLink({ job, name }: { job: number; name?: string }) {
  return <a href={link("jobs", job)} data-row>{job}{name ? <span class="soft"> {plain(name)}</span> : null}</a>;
}

// A measure against a whole, in words too.
export function Meter({ value, of, label, tone = "" }: { value: number; of: number; label: string; tone?: string }) {
  const part = of > 0 ? Math.min(100, Math.max(0, (100 * value) / of)) : 0;
  return <span class={`meter ${tone}`} role="img" aria-label={label} title={label}><i style={{ width: `${part}%` }} /></span>;
}

export function Waiting<T>({ data, children }: { data: Data<T>; children: (value: T) => ComponentChildren }) {
  return <>
    {data.problem && <p class="problem" role="alert">{data.value ? "Not up to date: " : ""}{plain(data.problem.message)}</p>}
    {data.value ? children(data.value) : !data.problem && <p class="empty" aria-busy="true">Loading…</p>}
  </>;
}

// Asks before it does something, and shows why it could not be done.
export function Action({ label, path, question, confirm = label, danger = false, reason, done }: {
  label: string; path: string; question: string; confirm?: string; danger?: boolean; reason?: string; done?: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const [text, setText] = useState("");
  const title = useId(), field = useId();
  const act = async (e: Event) => {
    e.preventDefault();
    setBusy(true);
    setProblem("");
    try {
      await post(path, reason ? { reason: text } : {});
      dialog.current?.close();
      done?.();
    } catch (failed) {
      setProblem(failed instanceof Problem ? failed.message : String(failed));
    }
    setBusy(false);
  };
  return <>
    <button class={danger ? "danger" : ""} onClick={() => { setProblem(""); dialog.current?.showModal(); }}>{label}</button>
    <dialog ref={dialog} aria-labelledby={title}>
      <form onSubmit={act}>
        <h2 id={title}>{question}</h2>
        {reason && <p><label for={field}>{reason}</label><input id={field} value={text} maxLength={200} required onInput={(e) => setText(e.currentTarget.value)} /></p>}
        {problem && <p class="problem" role="alert">{plain(problem)}</p>}
        <p class="buttons">
          <button type="button" onClick={() => dialog.current?.close()}>Back</button>
          <button class={danger ? "danger primary" : "primary"} disabled={busy}>{confirm}</button>
        </p>
      </form>
    </dialog>
  </>;
}

export function useTitle(title: string) {
  useEffect(() => { document.title = title ? `${title} · vrun` : "vrun"; }, [title]);
}
