// SPDX-License-Identifier: Apache-2.0
import { useEffect, useState } from "preact/hooks";
import { ago, asked, duration, now, person, plain, time } from "../format";
import { useChanges, useClock, useData } from "../live";
import { go, link, type Route } from "../route";
import type { Job, JobPage } from "../types";
import { JobLink, State, Table, Waiting, useTitle } from "../ui";

const STATES = ["PENDING", "STARTING", "RUNNING", "COMPLETING", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "LOST"];
const FILTERS = ["user", "team", "pool", "name", "node"] as const;
const PAGE = 50;

export function Jobs({ query }: Route) {
  useTitle("Jobs");
  useClock(5);
  const show = query.get("state") ?? "";
  const parameters = new URLSearchParams({ limit: String(PAGE) });
  if (show === "all") parameters.set("all", "true");
  else if (show) parameters.set("state", show);
  for (const name of [...FILTERS, "before"]) if (query.get(name)) parameters.set(name, query.get(name)!);
  const path = "/jobs?" + parameters;
  // A new job may belong on the first page; on others only the jobs that are there change.
  const [ids, setIds] = useState(new Set<number>());
  const first = !query.get("before");
  const data = useData<JobPage>(path, 30, (jobs) => !jobs || first || [...jobs.keys()].some((id) => ids.has(id)));
  const [fresh, setFresh] = useState(new Map<number, Job>());
  useEffect(() => { setIds(new Set(data.value?.jobs.map((j) => j.job))); setFresh(new Map()); }, [data.value]);
  useChanges((jobs) => {
    if (!jobs) return;
    const known = [...jobs].filter(([id]) => ids.has(id));
    if (known.length) setFresh((before) => new Map([...before, ...known]));
  });
  const change = (name: string, value: string) => {
    const next = Object.fromEntries(query);
    delete next.before;
    next[name] = value;
    go(link("jobs", "", next), true);
  };
  const filtered = FILTERS.some((name) => query.get(name));
  return <>
    <h1>Jobs</h1>
    <form class="filters" role="search" aria-label="Jobs" onSubmit={(e) => e.preventDefault()}>
      <label>State
        <select value={show} onChange={(e) => change("state", e.currentTarget.value)}>
          <option value="">not ended</option>
          <option value="all">all</option>
          {STATES.map((s) => <option key={s} value={s}>{s.toLowerCase().replace(/_/g, " ")}</option>)}
        </select>
      </label>
      {FILTERS.map((name) => <label key={name}>{name[0]!.toUpperCase() + name.slice(1)}
        <input value={query.get(name) ?? ""} data-search={name === "name" ? "" : undefined} placeholder={name === "user" ? "user@host" : "any"}
          autocomplete="off" spellcheck={false} onChange={(e) => change(name, e.currentTarget.value.trim())} /></label>)}
      {(filtered || show) && <a class="button" href={link("jobs")}>Clear</a>}
    </form>
    <Waiting data={data}>{(page) => <>
      <Table label="Jobs" part={PAGE} rows={page.jobs.map((j) => fresh.get(j.job) ?? j)} id={(j) => j.job}
        empty={page.next ? "None of the jobs that were looked at fits; there are older ones." : filtered || show ? "No job fits." : "No job waits or runs."} columns={columns} />
      <nav class="pages" aria-label="Pages of jobs">
        {!first && <a class="button" href={link("jobs", "", { ...Object.fromEntries(query), before: "" })}>Newest</a>}
        {!first && <button onClick={() => history.back()}>Back</button>}
        {page.next && <a class="button" rel="next" href={link("jobs", "", { ...Object.fromEntries(query), before: String(page.next) })}>Older</a>}
      </nav>
    </>}</Waiting>
  </>;
}

const columns = [
  { name: "Job", cell: (j: Job) => <JobLink job={j.job} /> },
  { name: "Name", cell: (j: Job) => <span class="clip">{plain(j.name) || "–"}{j.array_info ? <span class="soft"> array</span> : j.array ? <span class="soft"> {j.array}[{j.array_index}]</span> : null}</span> },
  { name: "State", cell: (j: Job) => <State of={j.state} held={j.state === "PENDING" && j.scheduling.hold} /> },
  { name: "User", cell: (j: Job) => <a title={plain(j.user)} href={link("jobs", "", { user: j.user })}>{plain(person(j.user))}</a> },
  { name: "Team", minor: true, cell: (j: Job) => plain(j.scheduling.team) || "–" },
  { name: "GPUs", cell: (j: Job) => <span class="tight">{asked(j.resources, j.gang?.pods ?? 1)}</span> },
  { name: "Busy", number: true, minor: true, cell: (j: Job) => (j.gpu_usage && j.state === "RUNNING" ? `${j.gpu_usage.utilization_percent} %` : "–") },
  { name: "Node", cell: (j: Job) => (j.node ? <><a href={link("nodes", j.node)}>{plain(j.node)}</a>{j.pods.length > 1 ? ` +${j.pods.length - 1}` : ""}</> : "–") },
  { name: "Time", number: true, cell: (j: Job) => <span title={`submitted ${time(j.submitted_us)}`}>{j.started_us ? duration((j.ended_us || now()) - j.started_us) : ago(j.submitted_us)}</span> },
  { name: "Why", grow: true, minor: true, cell: (j: Job) => <span class="clip" title={plain(j.reason)}>{plain(j.reason)}</span> },
];
