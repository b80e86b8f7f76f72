// SPDX-License-Identifier: Apache-2.0
import { Chart } from "../chart";
import { asked, bytes, count, duration, finished, now, person, plain, time, words } from "../format";
import { useClock, useData, type Data } from "../live";
import { Log } from "../log";
import { link } from "../route";
import type { Attempt, Job as JobInfo, Me, Why } from "../types";
import { session } from "../api";
import { hours, money } from "./usage";
import { Action, Card, JobLink, State, Table, Waiting, useTitle } from "../ui";

export function Job({ id, me }: { id: string; me: Me | null }) {
  useTitle(`Job ${id}`);
  useClock(1);
  const job = Number(id);
  const mine = (jobs: Map<number, JobInfo> | null) => !jobs || jobs.has(job);
  const valid = Number.isSafeInteger(job) && job > 0;
  const data = useData<JobInfo>(valid ? `/jobs/${job}` : "", 15, mine);
  if (!valid) return <><h1>Jobs</h1><p class="problem" role="alert">{plain(id)} is not the id of a job.</p></>;
  return <>
    <p class="crumbs"><a href={link("jobs")}>Jobs</a></p>
    <Waiting data={data}>{(j) => <Content j={j} data={data} me={me} />}</Waiting>
  </>;
}

function Content({ j, data, me }: { j: JobInfo; data: Data<JobInfo>; me: Me | null }) {
  const over = finished(j.state), pending = j.state === "PENDING";
  const why = useData<Why>(over ? "" : `/jobs/${j.job}/why`, 5, (jobs) => !jobs || pending || jobs.has(j.job));
  const own = me?.name === j.user;
  const told = !over && !!why.value && (pending || why.value.decisions.some((d) => d.kind !== "started"));
  // As the controller's table of calls says (src/control/access).
  const lead = own || (me?.leads.includes(j.scheduling.team) ?? false), write = !!session()?.write && !!me && !over;
  const mayChange = write && (lead || me.role === "operator" || me.role === "admin"), mayCancel = write && (lead || me.role === "admin");
  const action = { done: data.again };
  const gangPods = j.gang?.pods ?? 1;
  return <>
    <header class="title">
      <h1><span class="soft">{j.job}</span> {plain(j.name)} <State of={j.state} held={pending && j.scheduling.hold} /></h1>
      {mayChange && <div class="actions">
        {pending && !j.scheduling.hold && <Action label="Hold" path={`/jobs/${j.job}/hold`} question={`Keep job ${j.job} from starting?`} {...action} />}
        {pending && j.scheduling.hold && <Action label="Release" path={`/jobs/${j.job}/release`} question={`Let job ${j.job} start?`} {...action} />}
        {!pending && <Action label="Requeue" path={`/jobs/${j.job}/requeue`} question={`Stop job ${j.job} and let it wait again?`} {...action} />}
        {mayCancel && <Action label="Cancel" confirm="Cancel the job" danger path={`/jobs/${j.job}/cancel`} question={`Cancel job ${j.job}${own ? "" : ` of ${plain(j.user)}`}?`} {...action} />}
      </div>}
    </header>
    {j.reason && !(pending && why.value) && <p class={over && j.state !== "COMPLETED" ? "problem" : "note"}>{plain(j.reason)}</p>}
    <Card title="What it is" wide>
      <dl class="facts">
        <Fact name="User"><a title={plain(j.user)} href={link("jobs", "", { user: j.user })}>{plain(person(j.user))}</a></Fact>
        <Fact name="Team">{j.scheduling.team ? <a href={link("teams", j.scheduling.team)}>{plain(j.scheduling.team)}</a> : "–"}</Fact>
        <Fact name="Class">{j.scheduling.class === "JOB_CLASS_UNSPECIFIED" ? "training" : words(j.scheduling.class)}</Fact>
        <Fact name="Pool">{plain(j.pool)}</Fact>
        <Fact name="GPUs">{asked(j.resources, gangPods)}</Fact>
        <Fact name="CPU and memory">{j.resources.milli_cpus === 1000 ? "1 core" : `${count(j.resources.milli_cpus / 1000)} cores`}{j.resources.memory_bytes ? `, ${bytes(j.resources.memory_bytes)}` : ""}</Fact>
        {j.node && <Fact name="Node"><a href={link("nodes", j.node)}>{plain(j.node)}</a>{j.pods.length > 1 ? ` and ${j.pods.length - 1} more` : ""}</Fact>}
        <Fact name="Submitted">{time(j.submitted_us)}</Fact>
        {j.started_us > 0 && <Fact name="Waited">{duration(j.started_us - j.submitted_us)}</Fact>}
        {j.started_us > 0 && <Fact name={over ? "Ran" : "Runs for"}>{duration((j.ended_us || now()) - j.started_us)}{j.scheduling.limit_s ? ` of ${duration(j.scheduling.limit_s * 1e6)}` : ""}</Fact>}
        {j.exit && <Fact name="Exit">{j.exit.kind === "EXITED" ? `status ${j.exit.exit_code}` : words(j.exit.kind)}{j.exit.signal ? `, signal ${j.exit.signal}` : ""}</Fact>}
        {j.exit && j.exit.peak_memory_bytes > 0 && <Fact name="Peak memory">{bytes(j.exit.peak_memory_bytes)}</Fact>}
        {j.lost_us > 0 && <Fact name="Run time lost">{duration(j.lost_us)}</Fact>}
        {j.saved_us > 0 && <Fact name="Saved its state">{time(j.saved_us)}</Fact>}
        {j.gpu_usage && j.gpu_usage.metered_us > 0 && <Fact name="GPUs busy, all attempts">{Math.round((100 * j.gpu_usage.busy_us) / j.gpu_usage.metered_us / Math.max(1, j.resources.gpus))} %</Fact>}
        {j.gpu_usage && j.gpu_usage.memory_peak_bytes > 0 && <Fact name="Peak GPU memory">{bytes(j.gpu_usage.memory_peak_bytes)}</Fact>}
        {j.cost && <Fact name="Cost, all attempts">{hours(j.cost.gpu_ms)} GPU-hours{j.cost.currency ? `, ${money(j.cost.cost_micros, j.cost.currency)}` : ""}</Fact>}
        {j.cost && j.cost.lost_gpu_ms > 0 && <Fact name="Of this lost">{hours(j.cost.lost_gpu_ms)} GPU-hours{j.cost.currency ? `, ${money(j.cost.lost_cost_micros, j.cost.currency)}` : ""}</Fact>}
        {j.array > 0 && <Fact name="Element"><JobLink job={j.array} /> [{j.array_index}]</Fact>}
        {j.array_info && <Fact name="Elements">{j.array_info.waiting} wait, {j.array_info.running} run, {j.array_info.completed} completed, {j.array_info.failed} failed</Fact>}
      </dl>
      {j.argv.length > 0 && <p class="command"><span class="soft">{plain(j.directory)} $</span> <code>{plain(j.argv.join(" "))}</code></p>}
    </Card>
    {told && <WhyCard why={why.value!} pending={pending} />}
    <Card title="Timeline" wide={!told}><Timeline j={j} /></Card>
    {j.pods.length > 1 && <Card title={`Pods: ${j.pods.length}`} wide>
      <Table label="Pods" rows={j.pods} part={64} id={(p) => p.pod} empty="" columns={[
        { name: "Pod", number: true, cell: (p) => p.pod },
        { name: "State", cell: (p) => <State of={p.state} /> },
        { name: "Node", cell: (p) => <a href={link("nodes", p.node)}>{plain(p.node)}</a> },
        { name: "GPUs", cell: (p) => masked(p.gpu_mask) },
        { name: "Busy", number: true, cell: (p) => (p.gpu_usage ? `${p.gpu_usage.utilization_percent} %` : "–") },
        { name: "GPU memory", number: true, minor: true, cell: (p) => bytes(p.gpu_usage?.memory_bytes ?? 0) },
        { name: "End", grow: true, minor: true, cell: (p) => (p.exit ? plain(p.exit.reason) || words(p.exit.kind) : "") }]} />
    </Card>}
    {j.gpu_usage && <UsageCard job={j.job} over={over} />}
    {own && !j.array_info && j.attempt > 0 && <Log job={j.job} key={j.job} />}
  </>;
}

function Fact({ name, children }: { name: string; children: preact.ComponentChildren }) {
  return <div><dt>{name}</dt><dd>{children}</dd></div>;
}

const masked = (mask: number) => Array.from({ length: 32 }, (_, i) => i).filter((i) => (mask >>> i) & 1).join(", ") || "–";

function WhyCard({ why, pending }: { why: Why; pending: boolean }) {
  return <Card title={pending ? "Why it waits" : "What was decided"} aside={pending && why.queue_position ? `${why.queue_position} of ${why.queue_length} in its queue` : ""}>
    {pending && !why.blockers.some((b) => b.text === why.summary) && <p>{plain(why.summary)}</p>}
    {why.blockers.length > 0 && <ul class="list">{why.blockers.map((b, i) => <li key={i}>{plain(b.text)}{b.other_job > 0 && <> <JobLink job={b.other_job} /></>}</li>)}</ul>}
    {why.starts_now.length > 0 && <><h3>It would start now</h3><ul class="list">{why.starts_now.map((s) => <li key={s}>{plain(s)}</li>)}</ul></>}
    {pending && why.expected_us > 0 && <p>Expected start: <b>{time(why.expected_us)}</b>{why.confidence_percent ? `, ${why.confidence_percent} % likely by then` : ""}
      {why.expected_why && <span class="soft"> {plain(why.expected_why)}.</span>}{why.late_us > why.expected_us && <span class="soft"> At the latest, most likely: {time(why.late_us)}</span>}</p>}
    {why.decisions.length > 0 && <ul class="list soft">{why.decisions.slice(-6).map((d, i) => <li key={i}>{time(d.at_us)} {words(d.kind)}{d.other_job > 0 && <>, for <JobLink job={d.other_job} /></>}</li>)}</ul>}
  </Card>;
}

interface Span { from: number; to: number; tone: string; text: string }
function spansOf(j: JobInfo): Span[] {
  const end = j.ended_us || now(), spans: Span[] = [];
  let at = j.submitted_us;
  for (const a of j.attempts) {
    if (a.placed_us > at) spans.push({ from: at, to: a.placed_us, tone: "wait", text: "waited" });
    const to = a.ended_us || end;
    spans.push({ from: a.placed_us, to, tone: tone(a), text: `attempt ${a.attempt} on ${plain(a.node)}` });
    at = to;
  }
  if (j.attempts.length === 0 && j.started_us > 0) {
    spans.push({ from: at, to: j.started_us, tone: "wait", text: "waited" }, { from: j.started_us, to: end, tone: "run", text: "ran" });
    at = end;
  }
  if (at < end && (j.attempts.length === 0 || !finished(j.state))) spans.push({ from: at, to: end, tone: "wait", text: "waits" });
  return spans;
}
function tone(a: Attempt): string {
  if (a.state === "COMPLETED") return "good";
  if (["FAILED", "TIMEOUT", "OUT_OF_MEMORY", "LOST"].includes(a.state)) return "bad";
  if (a.state === "PREEMPTED") return "away";
  return a.state === "CANCELLED" ? "off" : "run";
}

function Timeline({ j }: { j: JobInfo }) {
  const spans = spansOf(j), from = j.submitted_us, to = Math.max(j.ended_us || now(), from + 1);
  return <>
    <div class="timeline" role="img" aria-label={spans.map((s) => `${s.text} ${duration(s.to - s.from)}`).join(", ")}>
      {spans.map((s, i) => <i key={i} class={s.tone} title={`${s.text}, ${duration(s.to - s.from)}`} style={{ left: `${(100 * (s.from - from)) / (to - from)}%`, width: `${Math.max(0.3, (100 * (s.to - s.from)) / (to - from))}%` }} />)}
    </div>
    <p class="ends"><span>{time(from)}</span><span>{j.ended_us ? time(j.ended_us) : "now"}</span></p>
    <Table label="Attempts" rows={j.attempts} part={30} id={(a) => a.attempt} empty="It was not placed yet." columns={[
      { name: "Attempt", number: true, cell: (a) => a.attempt },
      { name: "State", cell: (a) => <State of={a.ended_us || a.attempt !== j.attempt ? a.state : j.state} /> },
      { name: "Node", cell: (a) => (a.node ? <a href={link("nodes", a.node)}>{plain(a.node)}</a> : "–") },
      { name: "Placed", cell: (a) => time(a.placed_us) },
      { name: "For", number: true, cell: (a) => duration((a.ended_us || j.ended_us || now()) - a.placed_us) },
      { name: "Why it ended", grow: true, minor: true, cell: (a) => plain(a.reason) || "–" }]} />
  </>;
}

function UsageCard({ job, over }: { job: number; over: boolean }) {
  const data = useData<{ samples: { at_us: number; utilization_percent: number; memory_bytes: number }[] }>(`/jobs/${job}/usage`, over ? 3600 : 5, () => false);
  const samples = data.value?.samples ?? [];
  const most = Math.max(2 ** 30, ...samples.map((s) => s.memory_bytes));
  return <Card title="GPUs over time" wide>
    <div class="pair">
      <Chart label="GPU utilization" most={100} format={(v) => `${Math.round(v)} %`} curves={[{ name: "utilization", tone: "two", points: samples.map((s) => [s.at_us, s.utilization_percent]) }]} />
      <Chart label="GPU memory" most={most / 2 ** 30} format={(v) => `${v >= 10 ? Math.round(v) : Math.round(v * 10) / 10} GiB`} curves={[{ name: "memory", tone: "three", points: samples.map((s) => [s.at_us, s.memory_bytes / 2 ** 30]) }]} />
    </div>
  </Card>;
}
