# SPDX-License-Identifier: Apache-2.0
"""Teams that share a cluster, against a part of it for each and against KAI-like reclaim: bench/run fair philly2017/philly.csv.

Philly's virtual clusters, October and November 2017, on 512 GPUs. What is each one's own is its size in the real cluster
(HeliosArtifact, philly_vc.csv) scaled to 64 nodes, and at least as large as its largest gang; the nodes that this adds
are added to the cluster. 300 s a preemption, no knowledge of durations.
Judged: the average wait of every team against its wait on nodes of its own (the same scheduler there), and of the GPU time
that a team asked for and that was its own, what it did not get in its worst week.
"""
import argparse
import collections
import csv
import json
import pathlib
import subprocess
import tempfile

import lib

# Nodes of 8 GPUs in the real cluster.
NODES = {"6214e9": 64, "7f04ca": 32, "11cb48": 16, "b436b2": 64, "ee9e8c": 64, "e13805": 16, "6c71a0": 32, "2869ce": 16, "ed69ec": 8,
         "103959": 8, "0e4a51": 32}
SCALED_TO = 64
SHARE_ERROR_PERCENT = 5.0
FROM, UNTIL = "2017-10-01", "2017-12-01"


def prepare(trace, directory):
    """The window's jobs of those teams as a trace, and what is each team's own; returns paths and the nodes in all."""
    with open(trace, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["cluster"] in NODES and FROM <= row["timestamp"] < UNTIL]
    largest = collections.Counter()
    for row in rows:
        largest[row["cluster"]] = max(largest[row["cluster"]], int(row["num_gpus"]))
    own = {team: max(round(nodes * SCALED_TO / sum(NODES.values())), -(-largest[team] // 8), 1) for team, nodes in NODES.items()
           if largest[team] > 0}
    jobs, teams = directory / "jobs.csv", directory / "teams.csv"
    with open(jobs, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    teams.write_text("team,gpus\n" + "".join(f"{team},{8 * nodes}\n" for team, nodes in own.items()))
    return jobs, teams, sum(own.values())


def main(argv):
    parser = argparse.ArgumentParser(prog="bench/run fair")
    parser.add_argument("trace", type=pathlib.Path)
    args = parser.parse_args(argv)
    report = lib.Report()
    with tempfile.TemporaryDirectory() as directory:
        jobs, teams, nodes = prepare(args.trace, pathlib.Path(directory))
        out = subprocess.run([lib.TOP / "build/bin/vctl", "sim", jobs, "--nodes", f"{nodes}x8", "--teams", teams, "--preempt-cost",
                              "300", "--policy", "vrun,static,kai,greedy", "-o", "json"], check=True, stdout=subprocess.PIPE)
    ours, static, kai, greedy = json.loads(out.stdout)["policies"]
    for mine, own, theirs in zip(ours["teams"], static["teams"], kai["teams"]):
        report.line(f"fair wait of {mine['team']}", mine["avg_wait_s"], "s", "static", own["avg_wait_s"], "<= static",
                    mine["avg_wait_s"] <= own["avg_wait_s"], gpus=mine["gpus"], jobs=mine["jobs"], kai=theirs["avg_wait_s"],
                    share_error_percent=mine["worst_week_error_percent"])
    for name in ("worst_week_error_percent", "error_percent"):
        worst, worst_kai = (max(team[name] for team in policy["teams"]) for policy in (ours, kai))
        report.line(f"fair share, {name.replace('_', ' ')}, worst team", worst, "%", "kai", worst_kai, f"<= {SHARE_ERROR_PERCENT}",
                    worst <= SHARE_ERROR_PERCENT, static=max(team[name] for team in static["teams"]),
                    greedy=max(team[name] for team in greedy["teams"]))
    for metric in ("avg_completion_s", "avg_wait_s", "utilization", "preemptions", "lost_work_percent"):
        report.line(f"fair {metric}", ours[metric], "", "kai", kai[metric], static=static[metric], greedy=greedy[metric])
    return report.exit_code()
