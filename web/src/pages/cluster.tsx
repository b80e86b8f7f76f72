// SPDX-License-Identifier: Apache-2.0
import { Cells, kinds } from "../cells";
import { Chart } from "../chart";
import { ago, count, duration, gpus, now, percent, person, plain, time, words } from "../format";
import { useData } from "../live";
import { link } from "../route";
import type { CellNode, ClusterNow } from "../types";
import { money } from "./usage";
import { Card, JobLink, Stat, State, Table, Waiting, useTitle } from "../ui";

// How many jobs of so many whole GPUs on one node would find room now.
function fits(nodes: CellNode[], size: number): number {
  return nodes.reduce((n, node) => n + Math.floor([...node.cells].filter((letter) => letter === "f").length / size), 0);
}

export function Cluster({ theme }: { theme: string }) {
  useTitle("Cluster");
  const data = useData<ClusterNow>("/cluster", 5);
  return <>
    <h1>Cluster</h1>
    <Waiting data={data}>{(c) => <Content c={c} theme={theme} />}</Waiting>
  </>;
}

function Content({ c, theme }: { c: ClusterNow; theme: string }) {
  const counts = kinds(c.nodes);
  const total = Object.values(counts).reduce((a, b) => a + b, 0);
  const last = c.history[c.history.length - 1];
  const out = (counts.b ?? 0) + (counts.l ?? 0) + (counts.d ?? 0);
  const used = (counts.u ?? 0) + (counts.s ?? 0) + (counts.m ?? 0) + (counts.h ?? 0);
  const measured = last && last.allocated_milli > 0 ? last.busy_milli > 0 : false;
  const away = c.nodes.filter((n) => n.state !== "ready");
  const sizes = [1, 2, 4, 8, 16].filter((n) => c.nodes.some((node) => node.cells.length >= n));
  return <>
    <dl class="stats">
      <Stat label="GPUs in use" value={count(used)} of={count(total)} hint={total ? percent(used, total) : "no node has GPUs"} />
      <Stat label="Measured busy" value={measured ? percent(last!.busy_milli, last!.allocated_milli) : "–"} hint={measured ? "of what is allocated" : "nothing measured"}
        tone={measured && last!.busy_milli < last!.allocated_milli / 3 ? "warn" : ""} />
      <Stat label="Jobs running" value={count(c.running)} />
      <Stat label="Jobs waiting" value={count(c.waiting)} hint={c.queue.length ? `longest ${duration(now() - Math.min(...c.queue.map((q) => q.oldest_us)))}` : ""} />
      <Stat label="Nodes" value={count(c.nodes.length - away.length)} of={count(c.nodes.length)} hint="ready" tone={away.length ? "warn" : ""} />
      <Stat label="GPUs out of service" value={count(out)} hint={out ? [counts.b && `${counts.b} bad`, counts.d && `${counts.d} draining`, counts.l && `${counts.l} lost`].filter(Boolean).join(", ") : ""} tone={counts.b || counts.l ? "bad" : ""} />
      {c.money && <Stat label="Cost in an hour" value={money(c.money.allocated_hour_micros, c.money.currency)} hint="of what jobs have now" />}
      {c.money && <Stat label="Wasted" value={c.money.measured ? `${money(c.money.idle_hour_micros, c.money.currency)} / h` : "–"} tone={c.money.measured && c.money.idle_hour_micros > c.money.allocated_hour_micros / 2 ? "warn" : ""}
        hint={`${c.money.measured ? "given to jobs and idle" : "nothing measured"}; ${money(c.money.lost_day_micros, c.money.currency)} of lost work in 24 h`} />}
      {total > 0 && <Stat label="Fragmentation" value={c.free_gpus ? percent(c.scattered_gpus, c.free_gpus) : "–"}
        hint={c.free_gpus ? `${count(c.scattered_gpus)} of ${count(c.free_gpus)} free GPUs are on nodes in part used` : "no GPU is free"} tone={c.free_gpus > 0 && c.scattered_gpus * 2 > c.free_gpus ? "warn" : ""} />}
    </dl>
    {total > 0 && <Card title="GPUs" wide aside={<a href={link("nodes")}>as a table</a>}><Cells nodes={c.nodes} theme={theme} /></Card>}
    {total > 0 && <Card title="Allocated against measured">
      <Chart label="GPUs over time" most={total} format={(v) => gpus(v * 1000)} curves={[
        { name: "allocated", tone: "one", points: c.history.map((s) => [s.at_us, s.allocated_milli / 1000]) },
        { name: "measured busy", tone: "two", points: c.history.map((s) => [s.at_us, s.busy_milli / 1000]) }]} />
    </Card>}
    <Card title="Queue by class">
      <Table label="Queue by class" rows={c.queue} id={(q) => `${q.pool} ${q.class}`} empty="Nothing waits." columns={[
        { name: "Class", cell: (q) => words(q.class) },
        { name: "Pool", cell: (q) => <a href={link("jobs", "", { state: "PENDING", pool: q.pool })}>{plain(q.pool)}</a> },
        { name: "Jobs", number: true, cell: (q) => count(q.jobs) },
        { name: "GPUs", number: true, cell: (q) => gpus(q.gpu_milli) },
        { name: "Longest wait", number: true, cell: (q) => duration(now() - q.oldest_us) }]} />
      {total > 0 && <p class="fits">Room now for whole-GPU jobs on one node: {sizes.map((n) => <span key={n} class={fits(c.nodes, n) ? "" : "none"}><b>{count(fits(c.nodes, n))}</b> of {n}</span>)}</p>}
    </Card>
    {away.length > 0 && <Card title="Nodes that are not ready">
      <Table label="Nodes that are not ready" rows={away} part={20} id={(n) => n.name} empty="" columns={[
        { name: "Node", cell: (n) => <a href={link("nodes", n.name)}>{plain(n.name)}</a> },
        { name: "State", cell: (n) => <State of={n.state} /> },
        { name: "Why", grow: true, cell: (n) => plain(n.reason) || "–" }]} />
    </Card>}
    <Card title="Preemptions" last wide={away.length === 0} aside={c.since_us ? `since ${time(c.since_us)}` : ""}>
      <Table label="Preemptions" rows={c.preemptions} part={12} id={(p) => `${p.job} ${p.attempt} ${p.at_us}`} empty="No job had to make room." columns={[
        { name: "When", cell: (p) => <span title={time(p.at_us)}>{ago(p.at_us)}</span> },
        { name: "Job", cell: (p) => <JobLink job={p.job} name={p.name} /> },
        { name: "User", minor: true, cell: (p) => <span title={plain(p.user)}>{plain(person(p.user))}</span> },
        { name: "Why", grow: true, cell: (p) => plain(p.reason) || "–" }]} />
    </Card>
  </>;
}
