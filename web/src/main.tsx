// SPDX-License-Identifier: Apache-2.0
import { render } from "preact";
import { useEffect, useReducer, useRef, useState } from "preact/hooks";
import { Problem, onSession, session, signIn } from "./api";
import { live, useData, useLiveState } from "./live";
import { go, link, useRoute } from "./route";
import type { Me } from "./types";
import { person, plain } from "./format";
import { Cluster } from "./pages/cluster";
import { Job } from "./pages/job";
import { Jobs } from "./pages/jobs";
import { Account } from "./pages/me";
import { Node, Nodes } from "./pages/nodes";
import { SignIn } from "./pages/signin";
import { Team, Teams } from "./pages/teams";
import { Usage, useUsage } from "./pages/usage";
import { WhatIfPage, WhatIfs, sees } from "./pages/whatif";

const PAGES = [["cluster", "Cluster"], ["teams", "Teams"], ["jobs", "Jobs"], ["nodes", "Nodes"], ["usage", "Usage"], ["what-if", "What if"], ["me", "My account"]] as const;

function useTheme(): [string, () => void] {
  const [theme, set] = useState(localStorage.getItem("vrun.theme") ?? "");
  useEffect(() => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  }, [theme]);
  const dark = theme === "dark" || (!theme && matchMedia("(prefers-color-scheme: dark)").matches);
  return [theme, () => {
    const next = dark ? "light" : "dark";
    localStorage.setItem("vrun.theme", next);
    document.documentElement.dataset.theme = next;
    set(next);
  }];
}

// g and a letter, /, j and k, ?: as in other pages of this kind.
function useKeys(help: () => void, usage: boolean | null, whatIf: boolean) {
  const usageKey = useRef(usage), whatIfKey = useRef(whatIf);
  usageKey.current = usage;
  whatIfKey.current = whatIf;
  const before = useRef("");
  useEffect(() => {
    const pressed = (e: KeyboardEvent) => {
      const target = e.target as HTMLElement;
      if (e.ctrlKey || e.metaKey || e.altKey || target.closest("input, select, textarea, dialog")) return;
      const last = before.current;
      before.current = e.key;
      const page = { c: "cluster", t: "teams", j: "jobs", n: "nodes", u: usageKey.current ? "usage" : undefined, w: whatIfKey.current ? "what-if" : undefined, m: "me" }[e.key];
      if (last === "g" && page) { before.current = ""; go(link(page)); return; }
      if (e.key === "/") {
        e.preventDefault();
        document.querySelector<HTMLElement>("[data-search]")?.focus();
      } else if (e.key === "?") help();
      else if (e.key === "j" || e.key === "k") {
        const rows = [...document.querySelectorAll<HTMLElement>("main [data-row]")];
        const at = rows.indexOf(document.activeElement as HTMLElement);
        rows[at < 0 ? 0 : Math.max(0, Math.min(rows.length - 1, at + (e.key === "j" ? 1 : -1)))]?.focus();
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

const LIVE = { live: "live", connecting: "connecting", waiting: "no connection" };

function Shell() {
  const route = useRoute(), state = useLiveState();
  const [theme, turn] = useTheme();
  const me = useData<Me>("/me", 60, (jobs) => !jobs);
  const usage = useUsage();
  const help = useRef<HTMLDialogElement>(null), main = useRef<HTMLElement>(null);
  const replays = sees(me.value);
  useKeys(() => help.current?.showModal(), usage, replays);
  useEffect(() => {
    live.start();
    return () => live.end();
  }, []);
  const place = `${route.page}/${route.rest}`, first = useRef(true);
  useEffect(() => {
    if (!first.current) { main.current?.focus({ preventScroll: true }); scrollTo(0, 0); }
    first.current = false;
  }, [place]);
  const here = route.page || "cluster";
  return <>
    <a class="skip" href="#main" onClick={(e) => { e.preventDefault(); main.current?.focus(); }}>To the content</a>
    <header class="bar">
      <a class="brand" href={link("cluster")}><img src="icon.svg" alt="" width="22" height="22" />vrun</a>
      <nav aria-label="Pages">{PAGES.filter(([page]) => (page !== "usage" || usage) && (page !== "what-if" || replays)).map(([page, name]) => <a key={page} href={link(page)} aria-current={here === page ? "page" : undefined}>{name}</a>)}</nav>
      <div class="tools">
        <span class={`live ${state}`} role="status"><i />{LIVE[state]}</span>
        <span class="who" title={plain(session()?.user ?? "")}>{plain(person(session()?.user ?? ""))}{session()?.write ? "" : ", reading"}</span>
        <button class="quiet" aria-label="Light or dark" title="Light or dark" onClick={turn}>◐</button>
        <button class="quiet" aria-label="Keys" title="Keys" onClick={() => help.current?.showModal()}>?</button>
      </div>
    </header>
    <main id="main" tabIndex={-1} ref={main} class={`page-${here}`}>
      {here === "cluster" ? <Cluster theme={theme} />
        : here === "teams" ? (route.rest ? <Team name={route.rest} key={route.rest} /> : <Teams />)
        : here === "jobs" ? (route.rest ? <Job id={route.rest} me={me.value} key={route.rest} /> : <Jobs {...route} />)
        : here === "nodes" ? (route.rest ? <Node name={route.rest} me={me.value} key={route.rest} /> : <Nodes {...route} />)
        : here === "usage" && usage !== false ? <Usage {...route} />
        : here === "what-if" ? (route.rest ? <WhatIfPage id={route.rest} key={route.rest} /> : <WhatIfs me={me.value} />)
        : here === "me" ? <Account />
        : <><h1>Nothing here</h1><p><a href={link("cluster")}>To the cluster</a></p></>}
    </main>
    <dialog ref={help} aria-labelledby="keys">
      <h2 id="keys">Keys</h2>
      <dl class="keys">{[["g c", "Cluster"], ["g t", "Teams"], ["g j", "Jobs"], ["g n", "Nodes"], ...(usage ? [["g u", "Usage"]] : []), ...(replays ? [["g w", "What if"]] : []), ["g m", "My account"], ["/", "filter"], ["j k", "next and previous row"], ["Enter", "open the row"], ["Esc", "close"]]
        .map(([key, what]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{what}</dd></div>)}</dl>
      <p class="buttons"><button class="primary" onClick={() => help.current?.close()}>Close</button></p>
    </dialog>
  </>;
}

function App({ problem }: { problem: string }) {
  const [, again] = useReducer((n: number) => n + 1, 0);
  useEffect(() => onSession(() => again(0)), []);
  const mine = session();
  return mine ? <Shell key={mine.proof} /> : <SignIn problem={problem} />;
}

// The link of `vctl dashboard`. Its code works once, and does not stay in the address or the history.
async function begin() {
  const theme = localStorage.getItem("vrun.theme");
  if (theme) document.documentElement.dataset.theme = theme;
  let problem = "";
  const code = location.hash.startsWith("#code=") ? location.hash.slice(6) : "";
  if (code) {
    history.replaceState(null, "", link("cluster"));
    try {
      await signIn({ code });
    } catch (e) {
      if (!session()) problem = e instanceof Problem ? e.message : String(e);
    }
  }
  render(<App problem={problem} />, document.getElementById("app")!);
}
void begin();
// The link pasted into a tab that is open already only changes what follows the #.
addEventListener("hashchange", () => { if (location.hash.startsWith("#code=")) location.reload(); });
