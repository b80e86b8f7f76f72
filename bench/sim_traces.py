# SPDX-License-Identifier: Apache-2.0
"""The scheduler on traces of gangs, against baselines: bench/run sim-traces DIRECTORY [--only NAME].

DIRECTORY holds itp2021/ and philly2017/. 300 s a preemption, no knowledge of durations. Preemptive baselines move running
jobs for nothing, which flatters them; --exact forbids it. One set of weights for all rows.
"""
import argparse
import json
import pathlib
import subprocess

import lib

# name: (trace, nodes, more words, goals of the scheduler)
ROWS = {
    "itp04-512": ("itp2021/cluster04.csv", "64x8", [],
                  {"avg_completion_s": 26000, "wait_large_gangs_s": 70000, "p99_wait_s": 80000}),
    "itp04-640": ("itp2021/cluster04.csv", "80x8", [], {"avg_wait_s": 650}),
    "itp03-192": ("itp2021/cluster03.csv", "24x8", [], {"avg_completion_s": 45000}),
    "philly-512": ("philly2017/philly.csv", "64x8", ["--from", "2017-10-01", "--until", "2017-12-01"],
                   {"avg_completion_s": 13300, "wait_large_gangs_s": 50000}),
}
BASELINES = "fifo,easy,greedy,las,mlfq,srsf"


def main(argv):
    parser = argparse.ArgumentParser(prog="bench/run sim-traces")
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--only", choices=ROWS)
    parser.add_argument("--exact", action="store_true")
    args = parser.parse_args(argv)
    report = lib.Report()
    for name in [args.only] if args.only else ROWS:
        trace, nodes, more, goals = ROWS[name]
        out = subprocess.run([lib.TOP / "build/bin/vctl", "sim", args.directory / trace, "--nodes", nodes, "--preempt-cost",
                              "300", "--policy", "vrun," + BASELINES, "-o", "json", *more,
                              *(["--exact"] if args.exact else [])], check=True, stdout=subprocess.PIPE)
        ours, *others = json.loads(out.stdout)["policies"]
        for metric, goal in goals.items():
            # Against the best of those that know no durations either.
            best = min((p for p in others if p["policy"] not in ("easy", "srsf")), key=lambda p: p[metric])
            report.line(f"{name} {metric}", ours[metric], "s", best["policy"], best[metric], f"<= {goal}", ours[metric] <= goal,
                        preemptions=ours["preemptions"], lost_work_percent=ours["lost_work_percent"],
                        others={p["policy"]: p[metric] for p in others})
    return report.exit_code()
