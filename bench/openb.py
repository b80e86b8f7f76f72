# SPDX-License-Identifier: Apache-2.0
"""GPU allocation of openb at 130 % load, our baselines against the published figures: bench/run openb DIRECTORY.

DIRECTORY holds openb_pod_list_*.csv, openb_node_list_gpu_node.csv and published_results/ (Alibaba's cluster-trace-gpu-v2023
and the artifact of FGD, ATC 2023). Means of ten random orders on both sides; the orders themselves differ.
"""
import argparse
import collections
import csv
import json
import pathlib
import subprocess

import lib

PUBLISHED = {"random": "01-Random", "dotprod": "02-DotProd", "gpuclustering": "03-GpuClustering",
             "gpupacking": "04-GpuPacking", "bestfit": "05-BestFit", "fgd": "06-FGD"}
GOAL_POINTS = 0.2      # FGD, so that a comparison with it is honest


def published(path, column):
    runs = collections.defaultdict(list)
    with open(path, newline="") as f:
        for row in csv.DictReader(f):
            runs[row["workload"], row["sc_policy"]].append(float(row[column]))
    return {key: sum(values) / len(values) for key, values in runs.items()}


def main(argv):
    parser = argparse.ArgumentParser(prog="bench/run openb")
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--shift", default="10")
    args = parser.parse_args(argv)
    allocation = published(args.directory / "published_results/analysis_allo_discrete.csv", "130")
    fragments = published(args.directory / "published_results/analysis_frag_discrete.csv", "130")
    report = lib.Report()
    for pods in sorted(args.directory.glob("openb_pod_list_*.csv")):
        out = subprocess.run([lib.TOP / "build/bin/vctl", "sim", pods, "--nodes-file",
                              args.directory / "openb_node_list_gpu_node.csv", "--fill", "1.3", "--shift", args.shift,
                              "--policy", ",".join([*PUBLISHED, "spread"]), "-o", "json"],
                             check=True, stdout=subprocess.PIPE)
        for p in json.loads(out.stdout)["policies"]:
            key = (pods.stem, PUBLISHED.get(p["policy"]))
            theirs = allocation.get(key)
            value = p["allocation_percent"]
            is_goal = p["policy"] == "fgd" and theirs is not None
            report.line(f"openb {pods.stem.removeprefix('openb_pod_list_')} {p['policy']}", value, "%",
                        "published" if theirs else None, theirs, f"within {GOAL_POINTS} points" if is_goal else None,
                        abs(value - theirs) <= GOAL_POINTS if is_goal else None,
                        fragmentation_percent=p["fragmentation_percent"],
                        published_fragmentation_percent=round(fragments[key], 2) if key in fragments else None)
    return report.exit_code()
