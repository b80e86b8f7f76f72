// SPDX-License-Identifier: Apache-2.0
import { useId, useState } from "preact/hooks";
import { Problem, post, session, signOut } from "../api";
import { count, gpus, plain, time } from "../format";
import { useData } from "../live";
import { link } from "../route";
import type { Me, Team, Token } from "../types";
import { Action, Card, Table, Waiting, useTitle } from "../ui";
import { quotaOf } from "./teams";

export function Account() {
  useTitle("My account");
  const me = useData<Me>("/me", 30), tokens = useData<{ tokens: Token[] }>("/me/tokens", 60, () => false), teams = useData<{ teams: Team[] }>("/quota", 10);
  const mine = session();
  return <>
    <header class="title"><h1>My account</h1><div class="actions"><button onClick={() => void signOut()}>Sign out</button></div></header>
    <Card title="Who I am">
      <Waiting data={me}>{(m) => <dl class="facts">
        <div><dt>Name</dt><dd>{plain(m.name)}</dd></div>
        <div><dt>Role</dt><dd>{m.role}</dd></div>
        <div><dt>Teams</dt><dd>{m.teams.length ? m.teams.map((t, i) => <span key={t}>{i ? ", " : ""}<a href={link("teams", t)}>{plain(t)}</a>{m.leads.includes(t) ? " (lead)" : ""}</span>) : "none"}</dd></div>
        <div><dt>Unfinished jobs</dt><dd><a href={link("jobs", "", { user: m.name })}>{count(m.jobs)}</a>{m.most_jobs ? ` of at most ${count(m.most_jobs)}` : ""}</dd></div>
        <div><dt>Highest class without a team</dt><dd>{m.max_class}</dd></div>
        <div><dt>I see jobs of</dt><dd>{m.visibility}, commands of {m.commands}</dd></div>
        <div><dt>This browser</dt><dd>{mine?.write ? "may read and change" : "may only read"}, until {time(mine?.expires_us ?? 0)}</dd></div>
      </dl>}</Waiting>
    </Card>
    <Card title="Quota of my teams">
      <Waiting data={teams}>{({ teams: all }) => <Table label="Quota of my teams" rows={all.filter((t) => me.value?.teams.includes(t.name))} id={(t) => t.name} empty="I am in no team." columns={[
        { name: "Team", cell: (t) => <a href={link("teams", t.name)}>{plain(t.name)}</a> },
        { name: "GPUs used", number: true, cell: (t) => gpus(t.used_milli) },
        { name: "Guarantee", number: true, cell: (t) => gpus(quotaOf(t).guarantee) },
        { name: "Limit", number: true, cell: (t) => (quotaOf(t).limit < 0 ? "none" : gpus(quotaOf(t).limit)) }]} />}</Waiting>
    </Card>
    <Card title="Tokens" wide>
      <Waiting data={tokens}>{({ tokens: all }) => <Table label="Tokens" rows={all} id={(t) => t.name} empty="I have none." columns={[
        { name: "Name", cell: (t) => <>{plain(t.name)}{t.name === mine?.token && <span class="soft"> this browser</span>}</> },
        { name: "May", cell: (t) => (t.write ? "read and change" : "read") },
        { name: "Made", minor: true, cell: (t) => time(t.created_us) },
        { name: "Ends", cell: (t) => time(t.expires_us) },
        { name: "Actions", grow: true, cell: (t) => mine?.write && <Action label="Revoke" confirm="Revoke it" danger path={`/me/tokens/${encodeURIComponent(t.name)}/revoke`} question={`Revoke token ${plain(t.name)}? What uses it is refused at once.`} done={tokens.again} /> }]} />}</Waiting>
      {mine?.write && <NewToken done={tokens.again} />}
    </Card>
  </>;
}

function NewToken({ done }: { done: () => void }) {
  const [name, setName] = useState(""), [write, setWrite] = useState(false), [days, setDays] = useState("30");
  const [text, setText] = useState(""), [problem, setProblem] = useState("");
  const field = useId();
  const make = async (e: Event) => {
    e.preventDefault();
    setProblem("");
    try {
      setText((await post<{ token: string }>("/me/tokens", { name, write, seconds: Number(days) * 86400 })).token);
      setName("");
      done();
    } catch (failed) {
      setText("");
      setProblem(failed instanceof Problem ? failed.message : String(failed));
    }
  };
  return <form class="filters" onSubmit={make} aria-label="Make a token">
    <label>New token<input required maxLength={64} pattern="[A-Za-z0-9._\-]+" placeholder="its name" value={name} onInput={(e) => setName(e.currentTarget.value)} /></label>
    <label>For<select value={days} onChange={(e) => setDays(e.currentTarget.value)}><option value="1">a day</option><option value="30">30 days</option><option value="365">a year</option></select></label>
    <label>May<select value={write ? "w" : "r"} onChange={(e) => setWrite(e.currentTarget.value === "w")}><option value="r">read</option><option value="w">read and change</option></select></label>
    <button class="primary">Make</button>
    {text && <p class="note wide" role="status"><label for={field}>Shown only now: </label><input id={field} class="token" readOnly value={text} onFocus={(e) => e.currentTarget.select()} /></p>}
    {problem && <p class="problem wide" role="alert">{plain(problem)}</p>}
  </form>;
}
