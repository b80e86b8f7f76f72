// SPDX-License-Identifier: Apache-2.0
import { session } from "../api";
import { ago, bytes, count, person, plain, time } from "../format";
import { useClock, useData } from "../live";
import { go, link, type Route } from "../route";
import type { ClusterNow, GpuUser, JobPage, Me, Node as NodeInfo } from "../types";
import { Action, Card, JobLink, Meter, Stat, State, Table, Waiting, useTitle } from "../ui";

export function Nodes({ query }: Route) {
  useTitle("Nodes");
  const data = useData<ClusterNow>("/cluster", 5);
  const state = query.get("state") ?? "", text = (query.get("text") ?? "").toLowerCase(), pool = query.get("pool") ?? "";
  const change = (name: string, value: string) => go(link("nodes", "", { ...Object.fromEntries(query), [name]: value }), true);
  return <>
    <h1>Nodes</h1>
    <Waiting data={data}>{(c) => {
      const pools = [...new Set(c.nodes.map((n) => n.pool))].sort(), states = [...new Set(c.nodes.map((n) => n.state))].sort();
      const rows = c.nodes.filter((n) => (!state || n.state === state) && (!pool || n.pool === pool) && n.name.toLowerCase().includes(text));
      return <>
        <form class="filters" role="search" aria-label="Nodes" onSubmit={(e) => e.preventDefault()}>
          <label>Name<input data-search="" value={query.get("text") ?? ""} placeholder="part of it" onInput={(e) => change("text", e.currentTarget.value)} /></label>
          <label>State<select value={state} onChange={(e) => change("state", e.currentTarget.value)}><option value="">all</option>{states.map((s) => <option key={s}>{s}</option>)}</select></label>
          {pools.length > 1 && <label>Pool<select value={pool} onChange={(e) => change("pool", e.currentTarget.value)}><option value="">all</option>{pools.map((s) => <option key={s}>{s}</option>)}</select></label>}
        </form>
        <Table label="Nodes" rows={rows} id={(n) => n.name} part={100} empty="No node fits." columns={[
          { name: "Node", cell: (n) => <a data-row href={link("nodes", n.name)}>{plain(n.name)}</a> },
          { name: "State", cell: (n) => <State of={n.state} /> },
          { name: "GPUs", cell: (n) => <Mini cells={n.cells} /> },
          { name: "Type", cell: (n) => plain(n.gpu_type) || "–" },
          { name: "Busy", number: true, cell: (n) => busy(n.utilization_percent) },
          { name: "Jobs", number: true, cell: (n) => count(n.jobs) },
          { name: "Pool", minor: true, cell: (n) => plain(n.pool) },
          { name: "Why", grow: true, minor: true, cell: (n) => plain(n.reason) }]} />
      </>;
    }}</Waiting>
  </>;
}

const NAMES: Record<string, string> = { f: "free", u: "used", s: "shared", m: "slices", h: "starting", b: "bad", d: "draining", l: "lost" };
function Mini({ cells }: { cells: string }) {
  if (!cells) return <>–</>;
  const counts = new Map<string, number>();
  for (const letter of cells) counts.set(letter, (counts.get(letter) ?? 0) + 1);
  return <span class="mini" role="img" aria-label={[...counts].map(([letter, n]) => `${n} ${NAMES[letter]}`).join(", ")}>{[...cells].map((letter, i) => <i key={i} class={`swatch ${letter}`} />)}</span>;
}
function busy(percents: number[]): string {
  const known = percents.filter((p) => p <= 100);
  return known.length ? `${Math.round(known.reduce((a, b) => a + b, 0) / known.length)} %` : "–";
}

export function Node({ name, me }: { name: string; me: Me | null }) {
  useTitle(name);
  useClock(1);
  const data = useData<NodeInfo>(`/nodes/${encodeURIComponent(name)}`, 5);
  const jobs = useData<JobPage>(`/jobs?limit=200&node=${encodeURIComponent(name)}`, 15);
  const may = session()?.write && (me?.role === "operator" || me?.role === "admin");
  return <>
    <p class="crumbs"><a href={link("nodes")}>Nodes</a></p>
    <Waiting data={data}>{(n) => {
      const drains = n.state === "draining" || n.state === "drained";
      const both = () => { data.again(); jobs.again(); };
      return <>
        <header class="title">
          <h1>{plain(n.name)} <State of={n.state} /></h1>
          {may && <div class="actions">{drains
            ? <Action label="Resume" path={`/nodes/${n.name}/resume`} question={`Let jobs start on ${n.name} again?`} done={both} />
            : <Action label="Drain" path={`/nodes/${n.name}/drain`} question={`Let no more jobs start on ${n.name}?`} reason="Why, for others" done={both} />}</div>}
        </header>
        {n.reason && <p class="note">{plain(n.reason)}</p>}
        <dl class="stats">
          <Stat label="GPUs in use" value={count(used(n))} of={count(n.total.gpus)} />
          <Stat label="Cores in use" value={count(n.used.milli_cpus / 1000)} of={count(n.total.milli_cpus / 1000)} />
          <Stat label="Memory in use" value={n.used.memory_bytes ? bytes(n.used.memory_bytes) : "0"} of={bytes(n.total.memory_bytes)} />
          <Stat label="Jobs" value={count(n.jobs)} />
          <Stat label="Last seen" value={ago(n.last_seen_us)} />
        </dl>
        {n.total.gpus > 0 && <Card title="GPUs" wide>
          <Table label="GPUs" rows={gpusOf(n)} id={(g) => g.index} empty="" columns={[
            { name: "GPU", number: true, cell: (g) => g.index },
            { name: "Type", cell: (g) => plain(g.type) || "–" },
            { name: "State", cell: (g) => g.bad ? <span class="state bad">bad</span> : <span class={`state ${g.users.length ? "run" : "off"}`}>{g.users.length ? "used" : "free"}</span> },
            { name: "Used by", cell: (g) => (g.users.length ? g.users.map((u, i) => <span key={i} class="user"><JobLink job={u.job} name={u.name} /> {u.user && <span class="soft">{plain(person(u.user))}</span>} {part(u)}</span>) : "–") },
            { name: "Busy", number: true, cell: (g) => (g.busy === null ? "–" : <><Meter value={g.busy} of={100} label={`${g.busy} % busy`} /> {g.busy} %</>) },
            { name: "Memory in use", number: true, minor: true, cell: (g) => (g.busy === null ? "–" : bytes(g.memory)) },
            { name: "Memory", number: true, minor: true, cell: (g) => bytes(g.size) },
            { name: "Health", grow: true, minor: true, cell: (g) => plain(g.problem) || (g.bad ? "no job gets it" : "good") }]} />
        </Card>}
        <Card title="Jobs here" wide aside={<a href={link("jobs", "", { node: n.name, state: "all" })}>ended ones too</a>}>
          <Waiting data={jobs}>{(page) => <Table label="Jobs here" rows={page.jobs} id={(j) => j.job} empty="None that you see." columns={[
            { name: "Job", cell: (j) => <JobLink job={j.job} name={j.name} /> },
            { name: "State", cell: (j) => <State of={j.state} /> },
            { name: "User", cell: (j) => plain(person(j.user)) },
            { name: "Team", minor: true, cell: (j) => plain(j.scheduling.team) || "–" },
            { name: "Since", number: true, cell: (j) => ago(j.started_us || j.submitted_us) }]} />}</Waiting>
        </Card>
        <Card title="The machine" wide>
          <dl class="facts">
            {([["Pool", n.pool], ["Address", n.addresses.join(", ")], ["Version", n.version], ["Driver", n.facts.gpu_driver], ["Island", n.facts.island], ["Rack", n.facts.rack], ["Zone", n.facts.zone],
              ["Labels", n.facts.labels.join(", ")], ["Taints", n.facts.taints.join(", ")], ["Last message", time(n.last_seen_us)]] as const)
              .filter(([, value]) => value).map(([key, value]) => <div key={key}><dt>{key}</dt><dd>{plain(value)}</dd></div>)}
          </dl>
        </Card>
      </>;
    }}</Waiting>
  </>;
}

const used = (n: NodeInfo) => new Set(n.gpu_users.map((u) => u.gpu)).size;
const part = (u: GpuUser) => (u.mig_profile ? u.mig_profile : u.milli < 1000 ? `${u.milli / 10} %` : "");
function gpusOf(n: NodeInfo) {
  return Array.from({ length: n.total.gpus }, (_, index) => {
    const users = n.gpu_users.filter((u) => u.gpu === index), facts = n.facts.gpus[index], measured = users.filter((u) => u.usage);
    return { index, users, type: facts?.type || n.total.gpu_type, size: facts?.memory_bytes ?? 0, problem: facts?.problem ?? "",
      bad: !!((n.facts.bad_gpus >>> index) & 1) || !!facts?.problem,
      busy: measured.length ? Math.min(100, measured.reduce((sum, u) => sum + u.usage!.utilization_percent, 0)) : null,
      // A pod's memory is that of all its GPUs.
      memory: measured.reduce((sum, u) => sum + u.usage!.memory_bytes / Math.max(1, n.gpu_users.filter((o) => o.job === u.job && o.pod === u.pod).length), 0) };
  });
}
