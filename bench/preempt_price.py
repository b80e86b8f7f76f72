# SPDX-License-Identifier: Apache-2.0
"""What pricing preemptions is worth: ours against MLFQ that preempts blindly: bench/run preempt-price ITP/cluster04.csv.

The same trace with 30, 120, 300 and 900 s lost by each preemption. Both keep running jobs where they are (--exact): an
eviction counts as one on both sides, and ours counts moves as well. No knowledge of durations.
"""
import argparse
import json
import subprocess

import lib

COSTS = (30, 120, 300, 900)
MOST_PREEMPTIONS = 0.5     # of MLFQ's
MOST_COMPLETION = 1.02     # times MLFQ's
MOST_LOST_PERCENT = 2.0    # of the GPU time used


def main(argv):
    parser = argparse.ArgumentParser(prog="bench/run preempt-price")
    parser.add_argument("trace", help="a CSV of jobs; the goals are for ITP's cluster04")
    parser.add_argument("--nodes", default="64x8")
    args = parser.parse_args(argv)
    report = lib.Report()
    for cost in COSTS:
        out = subprocess.run([lib.TOP / "build/bin/vctl", "sim", args.trace, "--nodes", args.nodes, "--preempt-cost", str(cost),
                              "--policy", "vrun,mlfq", "--exact", "-o", "json"], check=True, stdout=subprocess.PIPE)
        ours, mlfq = json.loads(out.stdout)["policies"]
        for metric, unit, goal, met in (
                ("preemptions", "", f"<= {MOST_PREEMPTIONS} x mlfq",
                 ours["preemptions"] <= MOST_PREEMPTIONS * mlfq["preemptions"]),
                ("avg_completion_s", "s", f"<= {MOST_COMPLETION} x mlfq",
                 ours["avg_completion_s"] <= MOST_COMPLETION * mlfq["avg_completion_s"]),
                ("lost_work_percent", "%", f"<= {MOST_LOST_PERCENT}", ours["lost_work_percent"] <= MOST_LOST_PERCENT)):
            report.line(f"preempt-price {cost} s {metric}", ours[metric], unit, "mlfq", mlfq[metric], goal, met)
    return report.exit_code()
