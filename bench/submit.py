# SPDX-License-Identifier: Apache-2.0
"""Jobs submitted a second, durably: `vbatch true` of one client and of 32, against sbatch: bench/run submit.

Both run what they are given meanwhile, on one node and the same machine. Slurm says that it has a job before that is on the disk; ours
is there when vbatch returns. With --hold nothing starts.
"""
import argparse

import jobs_lib
import lib

GOALS = {1: 250, 32: 2000}   # a second


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run submit")
    parser.add_argument("--count", type=int, default=200, help="jobs a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hold", action="store_true", help="none is started")
    o = parser.parse_args(arguments)
    report = lib.Report()
    held = ["--hold"] if o.hold else []
    with jobs_lib.both() as (c, s):
        ours = c.command("vbatch", "-D", "/root", *held, "--", "true")
        slurms = s.batch(*held, "--wrap", "true")
        lib.timed(ours, c.environment)
        for clients, goal in GOALS.items():
            rates = {"ours": [], "slurm": []}
            for _ in range(o.rounds):
                rates["ours"].append(jobs_lib.rate(ours, c.environment, o.count, clients))
                end_all(c, s, o.hold)
                rates["slurm"].append(jobs_lib.rate(slurms, s.env, o.count, clients))
                end_all(c, s, o.hold)
            mine = lib.median(rates["ours"])
            report.line(f"submit.{clients}_clients", mine, "1/s", "sbatch of Slurm 22.05", lib.median(rates["slurm"]), f">= {goal}/s", mine >= goal,
                        count=o.count, rounds=o.rounds, held=o.hold)
    return report.exit_code()


def end_all(c, s, held):
    if held:
        left = [str(j["job"]) for j in c.json("jobs")["jobs"]]
        if left:
            c.vctl("cancel", *left)
        s.run("/usr/bin/scancel", "-u", "root")
    jobs_lib.ours_are_over(c)
    jobs_lib.slurms_are_over(s)
