# SPDX-License-Identifier: Apache-2.0
"""How soon another controller is there when the active one ends (SIGKILL) or is silent (SIGSTOP): bench/run failover.

Two controllers share a PostgreSQL on this machine. Each round ends the active one, in turn the one and the other way. `answers`: until
`vctl jobs` is answered by the other one. `starts`: until a new job has run to its end on the node, which has found it too. The job that runs meanwhile
must not notice.
"""
import argparse
import pathlib
import signal
import tempfile
import time

import lib
import miniroot
from cluster import wait_until
from postgres import Postgres, SharedCluster, programs

GOAL_S = 5.0


def a_round(c, how):
    before = c.active()
    wait_until("the other one stands by", lambda: all(p.poll() is None for p in c.daemons.values()))
    time.sleep(1.5)   # it has asked for the database since its start
    began = time.monotonic()
    c.daemons[before].send_signal(how)
    wait_until("somebody answers", lambda: c.run("vctl", "jobs", timeout=60).returncode == 0, 60)
    answers = time.monotonic() - began
    wait_until("a job runs", lambda: c.run("vrun", "-q", "-D", "/root", "--", "true", timeout=60).returncode == 0, 60)
    starts = time.monotonic() - began
    c.daemons[before].send_signal(signal.SIGCONT)
    c.daemons[before].wait(30)
    c.start_controller(before)
    return answers, starts


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run failover")
    parser.add_argument("--rounds", type=int, default=5)
    o = parser.parse_args(arguments)
    if programs() is None:
        raise SystemExit("bench/run failover: PostgreSQL is not installed: tools/install-deps --test")
    report = lib.Report()
    postgres = Postgres()
    with tempfile.TemporaryDirectory(prefix="vrun-bench-", dir="/var/tmp") as directory:
        c = None
        try:
            c = SharedCluster(miniroot.make(pathlib.Path(directory) / "root"), postgres, nodes=1)
            witness = c.popen("vrun", "-D", "/root", "--", "sh", "-c", "while [ ! -e /root/enough ]; do sleep 0.1; done")
            wait_until("it runs", lambda: [j["state"] for j in c.json("jobs")["jobs"]] == ["RUNNING"])
            rounds = {signal.SIGKILL: [], signal.SIGSTOP: []}
            for _ in range(o.rounds):
                for how, times in rounds.items():
                    times.append(a_round(c, how))
            (c.root / "root/enough").touch()
            if witness.wait(60) != 0:
                raise RuntimeError(f"the job that ran meanwhile exited {witness.returncode}")
        finally:
            if c:
                c.close()
            postgres.close()
    for how, times in rounds.items():
        name = "killed" if how == signal.SIGKILL else "stopped"
        for what, i in (("answers", 0), ("starts", 1)):
            values = [t[i] for t in times]
            goal = f"<= {GOAL_S:g} s" if what == "answers" else None
            report.line(f"failover.{name}_{what}", lib.median(values), "s", None, None, goal, lib.median(values) <= GOAL_S if goal else None,
                        most=round(max(values), 3), rounds=o.rounds)
    return report.exit_code()
