# SPDX-License-Identifier: Apache-2.0
"""The wait of each class of sizes, ours against EASY backfill: bench/run size-classes DIRECTORY [--only NAME] [--shift N].

DIRECTORY holds itp2021/ and philly2017/, chronus/ too. An average over all jobs hides that large gangs starve: they are few.
EASY is told the exact durations and never preempts; ours is told nothing and pays 300 s a preemption. Average completion is
compared with ours without turns (turn_share = 0). The weights were chosen on the rows itp01 to itp05; the others were kept
aside. Rows whose trace is not there are left out (ITP 06 to 08 are in github.com/microsoft/elasticflow-traces).
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

import lib

# name: (trace, nodes, more words)
ROWS = {
    "itp01-64": ("itp2021/cluster01.csv", "8x8", []),
    "itp02-104": ("itp2021/cluster02.csv", "13x8", []),
    "itp03-192": ("itp2021/cluster03.csv", "24x8", []),
    "itp04-512": ("itp2021/cluster04.csv", "64x8", []),
    "itp04-640": ("itp2021/cluster04.csv", "80x8", []),
    "itp05-16": ("itp2021/cluster05.csv", "2x8", []),
    "itp06-112": ("itp2021/cluster06.csv", "14x8", []),
    "itp07-288": ("itp2021/cluster07.csv", "36x8", []),
    "itp08-80": ("itp2021/cluster08.csv", "10x8", []),
    "philly-512": ("philly2017/philly.csv", "64x8", ["--from", "2017-10-01", "--until", "2017-12-01"]),
    "chronus-952": ("chronus/trace_job_Philly_SLO.csv", "119x8", []),
}
MOST_OF_EASY = 2.0
MOST_OF_BEFORE = 1.2


def main(argv):
    parser = argparse.ArgumentParser(prog="bench/run size-classes")
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--only", choices=ROWS)
    parser.add_argument("--shift", type=int, default=1)
    args = parser.parse_args(argv)
    report = lib.Report()
    with tempfile.TemporaryDirectory() as directory:
        before = pathlib.Path(directory) / "before.weights"
        before.write_text("turn_share = 0\n")
        for name, (trace, nodes, more) in ROWS.items():
            if args.only not in (None, name) or not (args.directory / trace).exists():
                continue
            out = subprocess.run([lib.TOP / "build/bin/vctl", "sim", args.directory / trace, "--nodes", nodes, "--preempt-cost", "300",
                                  "--policy", f"vrun,easy,{before}", "--shift", str(args.shift), "-o", "json", *more],
                                 check=True, stdout=subprocess.PIPE)
            ours, easy, old = json.loads(out.stdout)["policies"]
            for mine, theirs, then in zip(ours["sizes"], easy["sizes"], old["sizes"]):
                wait, other = mine["wait_s"]["mean"], theirs["wait_s"]["mean"]
                report.line(f"{name} wait of {mine['gpus']} GPUs", wait, "s", "easy", other, f"<= {MOST_OF_EASY} x easy",
                            wait <= MOST_OF_EASY * other, jobs=mine["jobs"], without_turns=then["wait_s"]["mean"])
            report.line(f"{name} avg_completion_s", ours["avg_completion_s"], "s", "without turns", old["avg_completion_s"],
                        f"<= {MOST_OF_BEFORE} x without", ours["avg_completion_s"] <= MOST_OF_BEFORE * old["avg_completion_s"],
                        easy=easy["avg_completion_s"], preemptions=ours["preemptions"], lost_work_percent=ours["lost_work_percent"])
    return report.exit_code()
