// SPDX-License-Identifier: Apache-2.0
// Who used what, and what it cost. A controller without accounts answers 404: then nothing here is shown.
import { count, duration, few, now, percent, plain, time } from "../format";
import { useData } from "../live";
import { go, link, type Route } from "../route";
import { Card, JobLink, Meter, Stat, Table, Waiting, useTitle } from "../ui";

interface Row { team: string; user: string; project: string; pool: string; gpu_type: string; job: number; job_name: string; day: string; others: boolean;
  gpu_ms: number; metered_gpu_ms: number; used_gpu_ms: number; idle_gpu_ms: number; lost_gpu_ms: number; failed_gpu_ms: number; preempted_gpu_ms: number; node_lost_gpu_ms: number; not_started_gpu_ms: number;
  jobs: number; waited_us: number; wait_p50_us: number; wait_p95_us: number; cost_micros: number; lost_cost_micros: number; idle_cost_micros: number }
interface Budget { team: string; from_us: number; until_us: number; gpu_ms: number; money_micros: number; used_gpu_ms: number; used_money_micros: number; used_percent: number; state: string; exhausted_us: number; text: string }
interface Report { from_us: number; to_us: number; currency: string; rows: Row[]; total?: Row; budgets: Budget[] }

const GROUPS = ["team", "user", "project", "pool", "gpu-type", "job", "day"];
const PERIODS: Record<string, [string, () => [Date, Date | null]]> = {
  "": ["this month", () => [month(0), null]], last: ["last month", () => [month(-1), month(0)]],
  week: ["7 days", () => [new Date(hour() - 7 * 86400e3), null]], day: ["24 hours", () => [new Date(hour() - 86400e3), null]],
};
// The same address for a while, so that a page that is shown is not read anew all the time.
const hour = () => Math.floor(now() / 3600e6) * 3600e3;
function month(offset: number): Date {
  const today = new Date(now() / 1000);
  return new Date(Date.UTC(today.getUTCFullYear(), today.getUTCMonth() + offset, 1));
}
export const hours = (ms: number) => few(ms / 3600e3);
export const money = (micros: number, currency: string) =>
  `${(micros / 1e6).toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })} ${plain(currency)}`;

// null: not known yet; false: this controller has no accounts.
export function useUsage(): boolean | null {
  const data = useData<Report>("/usage?limit=1", 3600, () => false);
  return data.value ? true : data.problem ? data.problem.status !== 404 : null;
}

export function Usage({ query }: Route) {
  useTitle("Usage");
  const by = GROUPS.includes(query.get("by") ?? "") ? query.get("by")! : "team", period = PERIODS[query.get("period") ?? ""] ?? PERIODS[""]!;
  const [from, to] = period[1]();
  const parameters = new URLSearchParams({ by, limit: "500", from: String(from.getTime() * 1000) });
  if (to) parameters.set("to", String(to.getTime() * 1000));
  for (const name of ["team", "user"]) if (query.get(name)) parameters.set(name, query.get(name)!);
  const data = useData<Report>("/usage?" + parameters, 30, () => false);
  const change = (name: string, value: string) => go(link("usage", "", { ...Object.fromEntries(query), [name]: value }), true);
  return <>
    <h1>Usage</h1>
    <form class="filters" aria-label="Usage" onSubmit={(e) => e.preventDefault()}>
      <label>Time<select value={query.get("period") ?? ""} onChange={(e) => change("period", e.currentTarget.value)}>{Object.entries(PERIODS).map(([key, [name]]) => <option key={key} value={key}>{name}</option>)}</select></label>
      <label>By<select value={by} onChange={(e) => change("by", e.currentTarget.value)}>{GROUPS.map((g) => <option key={g} value={g}>{g.replace("-", " ")}</option>)}</select></label>
      <label>Team<input value={query.get("team") ?? ""} placeholder="any" onChange={(e) => change("team", e.currentTarget.value.trim())} /></label>
      <label>User<input value={query.get("user") ?? ""} placeholder="any" onChange={(e) => change("user", e.currentTarget.value.trim())} /></label>
    </form>
    <Waiting data={data}>{(r) => <>
      {r.total && <dl class="stats">
        <Stat label="GPU-hours allocated" value={hours(r.total.gpu_ms)} hint={`${count(r.total.jobs)} ${r.total.jobs === 1 ? "job" : "jobs"}`} />
        <Stat label="Busy" value={percent(r.total.used_gpu_ms, r.total.metered_gpu_ms)} hint="of the measured hours" />
        <Stat label="Idle GPU-hours" value={hours(r.total.idle_gpu_ms)} hint={r.currency ? money(r.total.idle_cost_micros, r.currency) : ""} tone={r.total.idle_gpu_ms > r.total.gpu_ms / 3 ? "warn" : ""} />
        <Stat label="Lost GPU-hours" value={hours(r.total.lost_gpu_ms)} hint={r.currency ? money(r.total.lost_cost_micros, r.currency) : "work that was not saved"} tone={r.total.lost_gpu_ms > r.total.gpu_ms / 10 ? "warn" : ""} />
        {r.currency && <Stat label="Cost" value={money(r.total.cost_micros, r.currency)} />}
        <Stat label="Median wait" value={duration(r.total.wait_p50_us)} hint={`19 of 20 within ${duration(r.total.wait_p95_us)}`} />
      </dl>}
      <Card title={`By ${by.replace("-", " ")}`} wide aside={`${time(r.from_us)} to ${time(r.to_us)}`}>
        <Table label="Usage" rows={r.rows} part={100} id={(row) => `${row.team} ${row.user} ${row.project} ${row.pool} ${row.gpu_type} ${row.job} ${row.day} ${row.others}`} empty="Nothing was used." columns={[
          { name: by[0]!.toUpperCase() + by.slice(1).replace("-", " "), cell: (row) => group(row, by) },
          { name: "GPU-hours", number: true, cell: (row) => <><Meter value={row.gpu_ms} of={Math.max(...r.rows.map((o) => o.gpu_ms))} label={`${hours(row.gpu_ms)} GPU-hours`} /> {hours(row.gpu_ms)}</> },
          { name: "Busy", number: true, cell: (row) => percent(row.used_gpu_ms, row.metered_gpu_ms) },
          { name: "Idle", number: true, minor: true, cell: (row) => hours(row.idle_gpu_ms) },
          { name: "Failed", number: true, minor: true, cell: (row) => hours(row.failed_gpu_ms) },
          { name: "Preempted", number: true, minor: true, cell: (row) => hours(row.preempted_gpu_ms) },
          { name: "Node lost", number: true, minor: true, cell: (row) => hours(row.node_lost_gpu_ms + row.not_started_gpu_ms) },
          { name: "Jobs", number: true, cell: (row) => count(row.jobs) },
          { name: "Median wait", number: true, minor: true, cell: (row) => duration(row.wait_p50_us) },
          ...(r.currency ? [{ name: "Cost", number: true, cell: (row: Row) => money(row.cost_micros, r.currency) }] : [])]} />
        <p class="soft">Hours of whole GPUs. Failed, preempted, node lost: work that was not saved.</p>
      </Card>
      {r.budgets.length > 0 && <Card title="Budgets of this month" wide><Budgets budgets={r.budgets} currency={r.currency} /></Card>}
    </>}</Waiting>
  </>;
}

function group(row: Row, by: string) {
  if (row.others) return <span class="soft">others</span>;
  if (by === "job") return <JobLink job={row.job} name={row.job_name} />;
  if (by === "team" && row.team) return <a href={link("teams", row.team)}>{plain(row.team)}</a>;
  return plain({ team: row.team, user: row.user, project: row.project, pool: row.pool, "gpu-type": row.gpu_type, day: row.day }[by] ?? "") || "–";
}

function Budgets({ budgets, currency }: { budgets: Budget[]; currency: string }) {
  return <Table label="Budgets" rows={budgets} id={(b) => b.team} empty="" columns={[
    { name: "Team", cell: (b) => <a href={link("teams", b.team)}>{plain(b.team)}</a> },
    { name: "Used", number: true, cell: (b) => <><Meter value={b.used_percent} of={100} label={`${b.used_percent} % used`} tone={b.state === "ok" ? "" : "over"} /> {b.used_percent} %</> },
    { name: "GPU-hours", number: true, cell: (b) => `${hours(b.used_gpu_ms)}${b.gpu_ms ? ` of ${hours(b.gpu_ms)}` : ""}` },
    ...(currency ? [{ name: "Money", number: true, cell: (b: Budget) => `${money(b.used_money_micros, currency)}${b.money_micros ? ` of ${money(b.money_micros, currency)}` : ""}` }] : []),
    { name: "Used up", cell: (b) => (b.exhausted_us ? time(b.exhausted_us) : "not this month") },
    { name: "State", grow: true, cell: (b) => plain(b.text) || b.state }]} />;
}

export function BudgetCard({ team }: { team: string }) {
  const data = useData<Report>(`/usage?by=user&limit=20&team=${encodeURIComponent(team)}`, 60, () => false);
  const r = data.value;
  if (!r?.total) return null;
  const budgets = r.budgets.filter((b) => b.team === team);
  return <Card title="This month" aside={<a href={link("usage", "", { team, by: "user" })}>all of it</a>}>
    {budgets.length > 0 && <Budgets budgets={budgets} currency={r.currency} />}
    <p>{hours(r.total.gpu_ms)} GPU-hours{r.currency ? `, ${money(r.total.cost_micros, r.currency)}` : ""}: {percent(r.total.used_gpu_ms, r.total.metered_gpu_ms)} busy, {hours(r.total.idle_gpu_ms)} idle,
      {" "}{hours(r.total.failed_gpu_ms)} lost in failed jobs, {hours(r.total.preempted_gpu_ms)} by preemptions, {hours(r.total.node_lost_gpu_ms)} with nodes.</p>
  </Card>;
}
