// SPDX-License-Identifier: Apache-2.0
// The cluster's own last weeks under other teams, sizes or schedulers: replayed by the simulator on the controller's machine.
import { useEffect, useState } from "preact/hooks";
import { Problem, drop, post } from "../api";
import { count, duration, few, nothing, person, plain, time } from "../format";
import { useData } from "../live";
import { go, link } from "../route";
import type { CellNode, ClusterNow, Me, Outcome, Team, WhatIf, WhatIfList } from "../types";
import { Card, Meter, State, Stat, Table, Waiting, useTitle } from "../ui";

export const sees = (me: Me | null) => me !== null && me.role !== "user";
const POLICIES = [["", "vrun (the present one)"], ["easy", "EASY backfill"], ["fifo", "first come, first served"], ["greedy", "whatever fits"], ["slurm", "Slurm"], ["las", "least attained service"], ["mlfq", "multilevel feedback queue"],
  ["sjf", "shortest first (knows durations)"]] as const;
const seconds = (s: number) => duration(s * 1e6);
const amount = (n: number, what: string) => `${count(n)} ${what}${n === 1 ? "" : "s"}`;
const share = (part: number) => `${(100 * part).toFixed(1)} %`;
const name = (o: Outcome) => (o.name === "measured" ? "Happened" : o.name === "present" ? "As it is" : "What if");

function changes(w: WhatIf): string {
  const r = w.request;
  if (!r) return nothing;
  return [r.teams && `teams ${plain(r.teams)}`, r.nodes && `nodes ${plain(r.nodes)}`, r.policy && `policy ${r.policy}`].filter(Boolean).join("; ") || "nothing: how faithful a replay is";
}
const running = (w: WhatIf) => w.state === "collecting" || w.state === "running";

export function WhatIfs({ me }: { me: Me | null }) {
  useTitle("What if");
  const data = useData<WhatIfList>("/what-if", 3, () => false);
  return <>
    <h1>What if</h1>
    <p class="soft">The jobs of the last weeks, replayed with other guarantees, nodes or another scheduler. Nothing of the cluster changes.</p>
    {me && !sees(me) ? <p class="empty">Replays are for leads of teams, operators and admins.</p> : <Waiting data={data}>{(list) => <>
      {list.problem && <p class="note" role="status">{plain(list.problem)}: install it there, and start the controller again.</p>}
      {list.may_start && !list.problem && <Start busy={list.runs.find(running)} started={data.again} />}
      <Card title="Last replays" wide>
        <Table label="Last replays" rows={list.runs} id={(w) => w.id} empty="Nobody has asked yet." columns={[
          { name: "Replay", cell: (w) => <a data-row href={link("what-if", w.id)}>{w.id}</a> },
          { name: "Started", minor: true, cell: (w) => time(w.at_us) },
          { name: "By", minor: true, cell: (w) => plain(person(w.by)) },
          { name: "Days", number: true, minor: true, cell: (w) => count(w.request?.days ?? 0) },
          { name: "What is changed", grow: true, cell: (w) => changes(w) },
          { name: "State", cell: (w) => <StateOf w={w} /> },
          { name: "Median wait", number: true, minor: true, cell: (w) => { const o = w.outcomes[w.outcomes.length - 1]; return o ? seconds(o.p50_wait_s) : nothing; } }]} />
      </Card>
    </>}</Waiting>}
  </>;
}

function StateOf({ w }: { w: WhatIf }) {
  if (running(w)) return <><State of="STARTING" /> <Meter value={w.done_permille} of={1000} label={`${Math.round(w.done_permille / 10)} % done`} /></>;
  return <State of={w.state === "done" ? "COMPLETED" : "FAILED"} />;
}

// One kind of nodes in one pool.
function partsOf(nodes: CellNode[]) {
  const parts = new Map<string, { pool: string; type: string; nodes: number; gpus: number }>();
  for (const n of nodes) {
    if (!n.cells || n.state === "lost") continue;
    const key = `${n.pool}/${n.gpu_type}`, part = parts.get(key) ?? { pool: n.pool, type: n.gpu_type, nodes: 0, gpus: 0 };
    part.nodes++;
    part.gpus += n.cells.length;
    parts.set(key, part);
  }
  return [...parts.entries()];
}

function Start({ busy, started }: { busy: WhatIf | undefined; started: () => void }) {
  const cluster = useData<ClusterNow>("/cluster", 3600, () => false), teams = useData<{ teams: Team[] }>("/quota", 3600, () => false);
  const [days, setDays] = useState("14"), [policy, setPolicy] = useState(""), [sending, send] = useState(false), [problem, setProblem] = useState("");
  const [delta, setDelta] = useState<Record<string, string>>({}), [terms, setTerms] = useState<Record<string, { gpus?: string; weight?: string }>>({});
  const parts = partsOf(cluster.value?.nodes ?? []), quotas = (teams.value?.teams ?? []).filter((t) => t.configured);
  const all = (t: Team) => t.quotas.find((q) => q.gpu_type === "")?.guarantee_milli ?? 0;
  const start = async (e: Event) => {
    e.preventDefault();
    send(true);
    setProblem("");
    const nodes = parts.flatMap(([key, part]) => {
      const n = Number(delta[key] ?? 0);
      return n ? [`${part.pool}${part.type ? "/" + part.type : ""}=${n > 0 ? "+" : ""}${n}`] : [];
    }).join(",");
    const changed = quotas.flatMap((t) => {
      const { gpus, weight } = terms[t.name] ?? {};
      if (!gpus && !weight) return [];
      return [`${t.name}=${gpus || all(t) / 1000}${weight ? ":" + weight : ""}`];
    }).join(",");
    try {
      const run = await post<WhatIf>("/what-if", { days: Number(days), teams: changed, nodes, policy });
      started();
      go(link("what-if", run.id));
    } catch (failed) {
      setProblem(failed instanceof Problem ? failed.message : String(failed));
    }
    send(false);
  };
  return <Card title="Ask" wide>
    <form class="ask" onSubmit={start} aria-label="Ask">
      <div class="filters">
        <label>History<select value={days} onChange={(e) => setDays(e.currentTarget.value)}>{["1", "3", "7", "14", "28", "90"].map((d) => <option key={d} value={d}>last {d} {d === "1" ? "day" : "days"}</option>)}</select></label>
        <label class="long">Scheduler<select value={policy} onChange={(e) => setPolicy(e.currentTarget.value)}>{POLICIES.map(([key, text]) => <option key={key} value={key}>{text}</option>)}</select></label>
        {parts.map(([key, part]) => <label key={key}>Nodes more in {plain(part.pool)}{part.type && ` (${plain(part.type)})`}, now {part.nodes}
          <input type="number" min={-part.nodes} max="10000" step="1" value={delta[key] ?? "0"} onInput={(e) => setDelta({ ...delta, [key]: e.currentTarget.value })} /></label>)}
      </div>
      {quotas.length > 0 && <div class="filters">{quotas.flatMap((t) => [
        <label key={t.name}>Guarantee of {plain(t.name)}, GPUs<input type="number" min="0" step="0.5" placeholder={count(all(t) / 1000)} value={terms[t.name]?.gpus ?? ""} onInput={(e) => setTerms({ ...terms, [t.name]: { ...terms[t.name], gpus: e.currentTarget.value } })} /></label>,
        <label key={t.name + " weight"}>Weight of {plain(t.name)}<input type="number" min="0.001" step="any" placeholder={count(t.weight_milli / 1000)} value={terms[t.name]?.weight ?? ""} onInput={(e) => setTerms({ ...terms, [t.name]: { ...terms[t.name], weight: e.currentTarget.value } })} /></label>])}</div>}
      {problem && <p class="problem" role="alert">{plain(problem)}</p>}
      <p class="buttons">{busy && <span class="soft"><a href={link("what-if", busy.id)}>Replay {busy.id}</a> runs: one at a time.</span>}<button class="primary" disabled={sending || !!busy}>Replay</button></p>
    </form>
  </Card>;
}

export function WhatIfPage({ id }: { id: string }) {
  useTitle(`What if ${id}`);
  const [over, setOver] = useState(false), [problem, setProblem] = useState("");
  const data = useData<WhatIf>(`/what-if/${encodeURIComponent(id)}`, over ? 3600 : 1, () => false), list = useData<WhatIfList>("/what-if", 3600, () => false);
  const w = data.value;
  useEffect(() => { if (w && !running(w)) setOver(true); }, [w]);
  const remove = async () => {
    try {
      await drop(`/what-if/${encodeURIComponent(id)}`);
      go(link("what-if"));
    } catch (failed) {
      setProblem(failed instanceof Problem ? failed.message : String(failed));
    }
  };
  return <>
    <p class="crumbs"><a href={link("what-if")}>What if</a></p>
    <div class="title"><h1>Replay {plain(id)} {w && <State of={running(w) ? "RUNNING" : w.state === "done" ? "COMPLETED" : "FAILED"} />}</h1>
      {list.value?.may_start && w && <div class="actions"><button class="danger" onClick={remove}>{running(w) ? "End it" : "Forget it"}</button></div>}</div>
    {problem && <p class="problem" role="alert">{plain(problem)}</p>}
    <Waiting data={data}>{(run) => <>
      <Card title="The question" wide>
        <dl class="facts">
          <div><dt>What is changed</dt><dd>{changes(run)}</dd></div>
          <div><dt>History</dt><dd>{amount(run.request?.days ?? 0, "day")} up to {time(run.at_us)}{run.jobs ? `, ${amount(run.jobs, "job")}` : ""}</dd></div>
          <div><dt>GPUs</dt><dd>{count(run.gpus)}{run.changed_gpus !== run.gpus ? ` → ${count(run.changed_gpus)}` : ""}</dd></div>
          <div><dt>Asked by</dt><dd>{plain(run.by)}</dd></div>
        </dl>
        {run.note && <p class="soft">{plain(run.note[0]!.toUpperCase() + run.note.slice(1))}.</p>}
        {run.problem && <p class="problem" role="alert">{plain(run.problem)}</p>}
        {running(run) && <p role="status"><progress max="1000" value={run.done_permille} aria-label="Progress" /> {run.state === "collecting" ? "reading the history" : `${Math.round(run.done_permille / 10)} % of the replays`}</p>}
      </Card>
      {run.outcomes.length > 0 && <Answer run={run} />}
    </>}</Waiting>
  </>;
}

function Answer({ run }: { run: WhatIf }) {
  const last = run.outcomes[run.outcomes.length - 1]!, present = run.outcomes.find((o) => o.name === "present"), measured = run.outcomes.find((o) => o.name === "measured");
  const teams = [...new Set(run.outcomes.flatMap((o) => o.teams.map((t) => t.team)))];
  const of = (o: Outcome, team: string) => o.teams.find((t) => t.team === team);
  const slower = present && present.p90_wait_s > 0 ? (last.p90_wait_s - present.p90_wait_s) / present.p90_wait_s : 0;
  const rows: [string, (o: Outcome) => string][] = [["Median wait", (o) => seconds(o.p50_wait_s)], ["9 of 10 wait less than", (o) => seconds(o.p90_wait_s)], ["Average wait", (o) => seconds(o.avg_wait_s)], ["Utilization", (o) => share(o.utilization)],
    ["GPU-hours held", (o) => few(o.gpu_hours)], ["All done after", (o) => seconds(o.makespan_s)], ["Preemptions", (o) => count(o.preemptions)], ["Work lost", (o) => `${o.lost_work_percent.toFixed(2)} %`], ["Jobs", (o) => count(o.jobs)],
    ["Left out", (o) => count(o.left_out)]];
  return <>
    <dl class="stats">
      <Stat label="Median wait" value={seconds(last.p50_wait_s)} hint={present ? `${seconds(present.p50_wait_s)} as it is` : ""} />
      <Stat label="9 of 10 wait less than" value={seconds(last.p90_wait_s)} hint={present ? `${seconds(present.p90_wait_s)} as it is` : ""} tone={slower > 0.1 ? "warn" : ""} />
      <Stat label="Utilization" value={share(last.utilization)} hint={present ? `${share(present.utilization)} as it is` : ""} />
      {measured && present && <Stat label="How faithful" value={seconds(present.p90_wait_s)} hint={`9 of 10 in a replay as it is; ${seconds(measured.p90_wait_s)} happened`} />}
    </dl>
    <Card title="Side by side" wide>
      <Table label="Side by side" rows={rows} id={([label]) => label} empty="" columns={[{ name: "Figure", cell: ([label]) => label }, ...run.outcomes.map((o) => ({ name: name(o), number: true, cell: ([, value]: (typeof rows)[0]) => value(o) }))]} />
      <p class="soft">Waits: from the submission to the end, without the useful run time. Happened: what was measured, of jobs that are over. As it is: a replay of the present cluster and teams. A replay begins with an empty cluster and knows no holds, dependencies and nodes that were away.</p>
    </Card>
    {teams.length > 0 && <Card title="Waits by team" wide>
      <Table label="Waits by team" rows={teams} id={(t) => t} empty="" columns={[
        { name: "Team", cell: (t) => (t ? <a href={link("teams", t)}>{plain(t)}</a> : <span class="soft">no team</span>) },
        { name: "Jobs", number: true, cell: (t) => count(of(last, t)?.jobs ?? 0) },
        { name: "GPU-hours", number: true, minor: true, cell: (t) => few(of(last, t)?.gpu_hours ?? 0) },
        ...run.outcomes.map((o) => ({ name: `${name(o)}: median, 9 of 10`, number: true, minor: o !== last, cell: (t: string) => { const x = of(o, t); return x ? `${seconds(x.p50_wait_s)}, ${seconds(x.p90_wait_s)}` : nothing; } }))]} />
    </Card>}
  </>;
}
