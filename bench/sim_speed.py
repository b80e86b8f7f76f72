# SPDX-License-Identifier: Apache-2.0
"""Time of one replay of a trace by `vctl sim`, per policy: bench/run sim-speed ITP/cluster04.csv (15,802 jobs).

The whole command is timed: reading, replay, report. Medians of --runs, interleaved.
"""
import argparse
import functools

import lib

GOAL_SECONDS = 2.0
POLICIES = ("vrun", "fifo", "easy", "greedy", "las", "mlfq", "srsf")


def main(argv):
    parser = argparse.ArgumentParser(prog="bench/run sim-speed")
    parser.add_argument("trace", help="a CSV of jobs; the goal is for ITP's cluster04")
    parser.add_argument("--nodes", default="64x8")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args(argv)
    vctl = str(lib.TOP / "build/bin/vctl")
    commands = {p: functools.partial(lib.timed, [vctl, "sim", args.trace, "--nodes", args.nodes, "--preempt-cost", "300",
                                                 "--policy", p]) for p in POLICIES}
    report = lib.Report()
    times = lib.interleaved(commands, args.runs, warmup=1)
    fifo = lib.median(times["fifo"])
    for policy, seconds in times.items():
        value = lib.median(seconds)
        report.line(f"sim-speed {policy}", value, "s", "fifo", fifo, f"<= {GOAL_SECONDS} s", value <= GOAL_SECONDS)
    return report.exit_code()
