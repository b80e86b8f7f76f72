# SPDX-License-Identifier: Apache-2.0
"""Deadlines met, ours against MLFQ, EDF, FIFO, LAS and greedy: bench/run deadline DIRECTORY.

DIRECTORY holds itp2021/cluster04_deadlines.csv and chronus/trace_job_Philly_SLO.csv. Every job has a deadline there, so
nothing is said about work without. Nobody is told durations; 300 s a preemption.
"""
import argparse
import json
import pathlib
import subprocess

import lib

ROWS = {
    "itp04-512": ("itp2021/cluster04_deadlines.csv", "64x8"),
    "chronus-slo-1024": ("chronus/trace_job_Philly_SLO.csv", "128x8"),
    # Overload: an order that knows nothing of deadlines must not meet more of them.
    "chronus-slo-load-1.0": ("chronus/trace_job_Philly_SLO.csv", "137x8"),
    "chronus-slo-load-1.3": ("chronus/trace_job_Philly_SLO.csv", "105x8"),
    "chronus-slo-load-2.0": ("chronus/trace_job_Philly_SLO.csv", "68x8"),
}
BASELINES = ("edf", "fifo", "las", "greedy")


def main(argv):
    parser = argparse.ArgumentParser(prog="bench/run deadline")
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--only", choices=ROWS)
    args = parser.parse_args(argv)
    report = lib.Report()
    for name in [args.only] if args.only else ROWS:
        trace, nodes = ROWS[name]
        baselines = ("mlfq",) if "load" in name else BASELINES
        out = subprocess.run([lib.TOP / "build/bin/vctl", "sim", args.directory / trace, "--nodes", nodes, "--preempt-cost",
                              "300", "--policy", ",".join(("vrun", *baselines)), "-o", "json"],
                             check=True, stdout=subprocess.PIPE)
        ours, *others = json.loads(out.stdout)["policies"]
        for other in others:
            report.line(f"deadline {name} met", ours["deadlines_met_percent"], "%", other["policy"],
                        other["deadlines_met_percent"], "more than the baseline",
                        ours["deadlines_met_percent"] > other["deadlines_met_percent"],
                        value_percent=ours["deadline_value_percent"], baseline_value_percent=other["deadline_value_percent"],
                        missed_ratio=round((100 - other["deadlines_met_percent"]) /
                                           max(100 - ours["deadlines_met_percent"], 0.01), 2))
    return report.exit_code()
