# SPDX-License-Identifier: Apache-2.0
"""Our baselines for gangs beside the figures that came with the traces: bench/run calibration DIRECTORY.

DIRECTORY holds itp2021/cluster04.csv and philly2017/philly.csv; the figures are those of their README, from another simulator. 512
GPUs. (bench/run openb does the same for pods, against what was published.) Where a policy leaves nothing open, the figures have to
agree: preemptive policies on counts alone. Where it does not say which of several equal nodes is taken, or draws random numbers,
they are shown; docs/simulator.md says why they differ.
"""
import argparse
import json
import pathlib
import subprocess

import lib

WITHIN = 0.005    # of what has to agree
PREEMPTED = 300   # seconds, of those that end with -300
PHILLY = ["--from", "2017-10-01", "--until", "2017-12-01"]
# policy: average completion and average wait of gangs above 8 GPUs, seconds
FIGURES = {
    "itp04": ("itp2021/cluster04.csv", [], {
        "fifo": (174479, 140058), "easy": (116482, 107433), "easy-padded": (83477, 116580), "greedy": (62133, 139544),
        "sjf": (31268, 61067), "ssf": (28300, 81869), "las": (62934, 101557), "las-300": (77265, 132598), "mlfq": (25832, 165761),
        "mlfq-300": (27154, 199561), "srtf": (23730, 30507), "srsf": (22439, 61455), "srsf-300": (22672, 67928)}),
    "philly": ("philly2017/philly.csv", PHILLY, {
        "fifo": (306440, 419217), "easy": (41339, 213962), "greedy": (29908, 769883), "sjf": (17883, 50050), "ssf": (16468, 96195),
        "las": (23298, 91978), "mlfq": (13326, 83475), "mlfq-300": (13692, 91886), "srtf": (13108, 22134), "srsf": (12372, 39131)}),
}
AGREE = ("las", "mlfq", "srtf", "srsf")


def simulate(trace, words, policies, cost):
    out = subprocess.run([lib.TOP / "build/bin/vctl", "sim", trace, "--nodes", "64x8", "--preempt-cost", str(cost), "--policy",
                          ",".join(policies), "-o", "json", *words], check=True, stdout=subprocess.PIPE)
    return {p["policy"]: p for p in json.loads(out.stdout)["policies"]}


def main(argv):
    parser = argparse.ArgumentParser(prog="bench/run calibration")
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--only", choices=FIGURES)
    args = parser.parse_args(argv)
    report = lib.Report()
    for name in [args.only] if args.only else FIGURES:
        path, words, figures = FIGURES[name]
        for cost in (0, PREEMPTED):
            suffix = f"-{cost}" if cost else ""
            policies = [p.removesuffix(suffix) for p in figures if p.endswith(f"-{PREEMPTED}") == bool(cost)]
            for policy, ours in simulate(args.directory / path, words, policies, cost).items():
                must = policy in AGREE
                for metric, theirs in zip(("avg_completion_s", "wait_large_gangs_s"), figures[policy + suffix]):
                    report.line(f"calibration {name} {policy}{suffix} {metric}", ours[metric], "s", "README", theirs,
                                f"within {WITHIN:.1%}" if must else None,
                                abs(ours[metric] / theirs - 1) <= WITHIN if must else None)
    return report.exit_code()
