// SPDX-License-Identifier: Apache-2.0
import { count, duration, gpus, now, person, plain, time } from "../format";
import { useData } from "../live";
import { link } from "../route";
import type { Team as TeamInfo, TeamUses } from "../types";
import { Card, Meter, Stat, Table, Waiting, useTitle } from "../ui";
import { BudgetCard } from "./usage";

// Of the quota for all types together, or else the sum of those of one type each.
export function quotaOf(t: TeamInfo) {
  const whole = t.quotas.find((q) => q.gpu_type === "");
  const parts = whole ? [whole] : t.quotas;
  const guarantee = parts.reduce((n, q) => n + q.guarantee_milli, 0);
  const limit = parts.length === 0 || parts.some((q) => q.limit_milli < 0) ? -1 : parts.reduce((n, q) => n + q.limit_milli, 0);
  return { guarantee, limit, borrowed: Math.max(0, t.used_milli - guarantee), lent: t.waiting_milli > 0 ? 0 : Math.max(0, guarantee - t.used_milli) };
}
const title = (name: string) => plain(name) || "no team";

export function Teams() {
  useTitle("Teams");
  const teams = useData<{ teams: TeamInfo[] }>("/quota", 5), uses = useData<TeamUses>("/teams/use", 5);
  return <>
    <h1>Teams</h1>
    <Waiting data={teams}>{({ teams: rows }) => {
      const waits = new Map(uses.value?.waits.map((w) => [w.team, w]));
      const most = Math.max(1, ...rows.map((t) => Math.max(t.used_milli, quotaOf(t).guarantee)));
      return <>
        <Table label="Teams" rows={rows} id={(t) => t.name} empty="No team is configured, and no job waits or runs." columns={[
          { name: "Team", cell: (t) => t.name ? <a data-row href={link("teams", t.name)}>{plain(t.name)}</a> : <span class="soft">no team</span> },
          { name: "GPUs used", number: true, cell: (t) => <><Meter value={t.used_milli} of={most} label={`${gpus(t.used_milli)} GPUs`} tone={quotaOf(t).guarantee && quotaOf(t).borrowed ? "over" : ""} /> {gpus(t.used_milli)}</> },
          { name: "Guarantee", number: true, cell: (t) => (t.configured ? gpus(quotaOf(t).guarantee) : "–") },
          { name: "Borrowed", number: true, cell: (t) => (t.configured ? gpus(quotaOf(t).borrowed) : "–") },
          { name: "Lent", number: true, cell: (t) => (t.configured ? gpus(quotaOf(t).lent) : "–") },
          { name: "Limit", number: true, minor: true, cell: (t) => (quotaOf(t).limit < 0 ? "none" : gpus(quotaOf(t).limit)) },
          { name: "Fair share", number: true, minor: true, cell: (t) => gpus(t.fair_milli) },
          { name: "GPUs waited for", number: true, cell: (t) => gpus(t.waiting_milli) },
          { name: "Median wait", number: true, cell: (t) => (waits.has(t.name) ? duration(waits.get(t.name)!.median_us) : "–") },
          { name: "9 of 10 within", number: true, minor: true, cell: (t) => (waits.has(t.name) ? duration(waits.get(t.name)!.p90_us) : "–") }]} />
        <p class="soft">Lent: guaranteed and not used, while nothing of the team waits. Waits: from submission to the first start{uses.value?.since_us ? `, since ${time(uses.value.since_us)}` : ""}.</p>
      </>;
    }}</Waiting>
    <Card title="Who uses what" wide><Who uses={uses} /></Card>
  </>;
}

function Who({ uses, team }: { uses: ReturnType<typeof useData<TeamUses>>; team?: string }) {
  return <Waiting data={uses}>{(all) => <Table label="Who uses what" id={(u) => `${u.team} ${u.user}`} part={100} empty="Nobody runs or waits for anything."
    rows={all.uses.filter((u) => team === undefined || u.team === team).sort((a, b) => b.gpu_milli - a.gpu_milli || b.waiting_milli - a.waiting_milli)} columns={[
      { name: "User", cell: (u) => u.user ? <a title={plain(u.user)} href={link("jobs", "", { user: u.user, team: u.team })}>{plain(person(u.user))}</a> : <span class="soft">others</span> },
      ...(team === undefined ? [{ name: "Team", cell: (u: TeamUses["uses"][0]) => title(u.team) }] : []),
      { name: "Jobs running", number: true, cell: (u) => count(u.running) },
      { name: "GPUs", number: true, cell: (u) => gpus(u.gpu_milli) },
      { name: "Jobs waiting", number: true, cell: (u) => count(u.waiting) },
      { name: "GPUs waited for", number: true, cell: (u) => gpus(u.waiting_milli) },
      { name: "Longest wait", number: true, minor: true, cell: (u) => (u.oldest_us ? duration(now() - u.oldest_us) : "–") }]} />}</Waiting>;
}

export function Team({ name }: { name: string }) {
  useTitle(name);
  const teams = useData<{ teams: TeamInfo[] }>("/quota", 5), uses = useData<TeamUses>("/teams/use", 5);
  return <>
    <p class="crumbs"><a href={link("teams")}>Teams</a></p>
    <h1>{plain(name)}</h1>
    <Waiting data={teams}>{({ teams: rows }) => {
      const t = rows.find((row) => row.name === name);
      if (!t) return <p class="empty">There is no team of this name that you see.</p>;
      const q = quotaOf(t), wait = uses.value?.waits.find((w) => w.team === name);
      const others = (uses.value?.waits ?? []).filter((w) => w.team !== name).map((w) => w.median_us).sort((a, b) => a - b);
      return <>
        <dl class="stats">
          <Stat label="GPUs used" value={gpus(t.used_milli)} of={t.configured ? gpus(q.guarantee) : undefined} hint={t.configured ? "of its guarantee" : "no quota"} />
          <Stat label="Borrowed" value={gpus(q.borrowed)} tone={q.borrowed ? "warn" : ""} />
          <Stat label="Lent" value={gpus(q.lent)} />
          <Stat label="GPUs waited for" value={gpus(t.waiting_milli)} />
          <Stat label="Median wait" value={wait ? duration(wait.median_us) : "–"} hint={others.length ? `other teams ${duration(others[Math.floor(others.length / 2)]!)}` : ""} />
        </dl>
        {t.quotas.length > 0 && <Card title="Quotas">
          <Table label="Quotas" rows={t.quotas} id={(row) => row.gpu_type} empty="" columns={[
            { name: "GPUs", cell: (row) => plain(row.gpu_type) || "all types" },
            { name: "Used", number: true, cell: (row) => gpus(row.used_milli) },
            { name: "Guarantee", number: true, cell: (row) => gpus(row.guarantee_milli) },
            { name: "Limit", number: true, cell: (row) => (row.limit_milli < 0 ? "none" : gpus(row.limit_milli)) }]} />
        </Card>}
        <BudgetCard team={name} />
        <Card title="Who uses what" wide={t.quotas.length === 0} aside={<a href={link("jobs", "", { team: name })}>its jobs</a>}><Who uses={uses} team={name} /></Card>
      </>;
    }}</Waiting>
  </>;
}
