# SPDX-License-Identifier: Apache-2.0
"""The REST API of a large cluster: requests a second and p99 of list, job, why, and events of the watch: bench/run api.

The cluster is that of bench/run dashboard: 10,000 GPUs, 100,000 jobs of which 2,000 wait. Clients keep their connections, as programs do. Of
each request one client's times are measured, then how many a second several clients get; each has tokens enough that the limit of
one token (100 a second) is not what is measured. Baseline: the same question by `vctl`, which asks through home by gRPC, and of a job
and a list also the row as sqlite3 reads it.
"""
import argparse
import http.client
import json
import pathlib
import sqlite3
import tempfile
import threading
import time

import dashboard
import lib
import miniroot
from cluster import Cluster, discard

GOALS_MS = {"list": 100, "job": 50, "why": 50}
EVENT_GOAL_MS = 1000


class Client:
    """One connection, and tokens in turn."""
    def __init__(self, c, tokens):
        self.connection = http.client.HTTPConnection("127.0.0.1", c.http_port, timeout=60)
        self.tokens, self.sent = tokens, 0

    def ask(self, method, path, body=None):
        token = self.tokens[self.sent % len(self.tokens)]
        self.sent += 1
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self.connection.request(method, f"/api/v1{path}", body, headers)
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:200]}")
        return content

    def timed(self, path):
        began = time.perf_counter()
        self.ask("GET", path)
        return (time.perf_counter() - began) * 1000


def rate(clients, path, seconds):
    """Requests a second that they get together."""
    done = [0] * len(clients)
    end = time.monotonic() + seconds

    def work(i):
        while time.monotonic() < end:
            clients[i].ask("GET", path)
            done[i] += 1
    began = time.monotonic()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.monotonic() - began)


def by_sqlite(c, sql, runs):
    """Milliseconds of the plain read, beside the controller."""
    database = sqlite3.connect(f"file:{c.directory / 'home/state/controller/vrun.db'}?mode=ro", uri=True)
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        database.execute(sql).fetchall()
        times.append((time.perf_counter() - began) * 1000)
    database.close()
    return times


def watch(c, report, client, token, jobs):
    """Waiting jobs are cancelled, and a client that watches is told of each."""
    connection = http.client.HTTPConnection("127.0.0.1", c.http_port, timeout=60)
    connection.request("GET", "/api/v1/jobs/watch", headers={"Authorization": f"Bearer {token}"})
    events = connection.getresponse()
    asked, told, ready = {}, {}, threading.Event()

    def listen():
        name = None
        while len(told) < len(jobs) and (line := events.readline()):
            if line.startswith(b"event:"):
                name = line.split(b":", 1)[1].strip()
                if name == b"ready":
                    ready.set()
            elif line.startswith(b"data:") and name == b"job":
                number = int(json.loads(line[5:])["job"])
                if number in asked:
                    told.setdefault(number, time.monotonic())
    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    ready.wait(30)
    began = time.monotonic()
    for number in jobs:
        asked[number] = time.monotonic()
        client.ask("POST", f"/jobs/{number}/cancel", "{}")
    listener.join(60)
    if len(told) < len(jobs):
        raise RuntimeError(f"the watch told of {len(told)} of {len(jobs)} jobs")
    connection.sock and connection.sock.close()
    delays = [(told[number] - asked[number]) * 1000 for number in jobs]
    p99 = lib.percentile(delays, 0.99)
    report.line("api.watch_p99", p99, "ms", goal=f"<= {EVENT_GOAL_MS} ms", met=p99 <= EVENT_GOAL_MS, p50=round(lib.median(delays), 2))
    report.line("api.watch_events", len(jobs) / (max(told.values()) - began), "events/s", events=len(jobs))


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run api")
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--waiting", type=int, default=2_000)
    parser.add_argument("--runs", type=int, default=500, help="requests of one client")
    parser.add_argument("--clients", type=int, default=4, help="that ask at once")
    parser.add_argument("--seconds", type=float, default=3, help="how long they ask")
    parser.add_argument("--events", type=int, default=300)
    o = parser.parse_args(arguments)
    report = lib.Report()
    directory = pathlib.Path(tempfile.mkdtemp(prefix="vrun-api-", dir="/var/tmp"))
    c = None
    try:
        c = Cluster(miniroot.make(str(directory / "root")), http=True, node_options=["--gpus", "8", "--gpu-type", "h100"])
        done = dashboard.seed(c, o.gpus, o.jobs, o.waiting)
        tokens = [json.loads(c.vctl("token", "create", f"bench{i}", "--scope", "write", "-o", "json").stdout)["token"]
                  for i in range(20 * o.clients)]
        clients = [Client(c, tokens[i::o.clients]) for i in range(o.clients)]
        waiting = done + o.jobs
        paths = {"list": "/jobs?limit=100&all=true", "job": f"/jobs/{done}", "why": f"/jobs/{waiting}/why"}
        commands = {"list": ["jobs", "--all"], "job": ["job", str(done)], "why": ["why", str(waiting)]}
        reads = {"list": "SELECT * FROM jobs ORDER BY id DESC LIMIT 100", "job": f"SELECT * FROM jobs WHERE id={done}"}
        for name, path in paths.items():
            argv = [str(word) for word in c.command("vctl", *commands[name], "-o", "json")]
            one = {"api": lambda p=path: clients[0].timed(p), "vctl": lambda a=argv: lib.timed(a, c.environment) * 1000}
            # One of `vctl` for ten of ours: it takes longer, and its median is what counts.
            times = {"api": [], "vctl": []}
            for i in range(o.runs):
                times["api"].append(one["api"]())
                if i % 10 == 0:
                    times["vctl"].append(one["vctl"]())
            p99, goal = lib.percentile(times["api"], 0.99), GOALS_MS[name]
            more = {"sqlite_ms": round(lib.median(by_sqlite(c, reads[name], 50)), 3)} if name in reads else {}
            report.line(f"api.{name}_p50", lib.median(times["api"]), "ms", "vctl, through home", lib.median(times["vctl"]), **more)
            report.line(f"api.{name}_p99", p99, "ms", goal=f"<= {goal} ms", met=p99 <= goal)
            report.line(f"api.{name}_rate", rate(clients, path, o.seconds), "requests/s", clients=o.clients)
        seen, before = 0, 0
        began = time.monotonic()
        while True:   # all jobs, page by page
            page = json.loads(clients[0].ask("GET", f"/jobs?limit=1000&all=true&fields=job{f'&before={before}' if before else ''}"))
            seen += len(page["jobs"])
            before = int(page.get("next", 0))
            if not before:
                break
        report.line("api.all_pages", time.monotonic() - began, "s", goal=f">= {o.jobs} jobs", met=seen >= o.jobs, jobs=seen)
        watch(c, report, clients[0], tokens[0], range(waiting, waiting - o.events, -1))
    finally:
        if c is not None:
            c.close()
        discard(directory)
    return report.exit_code()
