# SPDX-License-Identifier: Apache-2.0
"""Time to submit an array of 10,000 elements, durably, against sbatch: bench/run array."""
import argparse

import jobs_lib
import lib

GOAL_MS = 100


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run array")
    parser.add_argument("--count", type=int, default=10_000, help="elements")
    parser.add_argument("--runs", type=int, default=20)
    o = parser.parse_args(arguments)
    report = lib.Report()
    with jobs_lib.both() as (c, s):
        ours = c.command("vbatch", "-D", "/root", "--hold", "-a", f"0-{o.count - 1}", "--", "true")
        slurms = s.batch("--hold", "-a", f"0-{o.count - 1}", "--wrap", "true")
        times = lib.interleaved({"ours": lambda: lib.timed(ours, c.environment), "slurm": lambda: lib.timed(slurms, s.env)}, o.runs)
        rows = len(c.json("jobs")["jobs"])
        ids = [str(j["job"]) for j in c.json("jobs")["jobs"]]
        c.vctl("cancel", *ids)
        s.run("/usr/bin/scancel", "-u", "root")
    ms = {name: [t * 1000 for t in of] for name, of in times.items()}
    report.line("array.submit", lib.median(ms["ours"]), "ms", "sbatch of Slurm 22.05", lib.median(ms["slurm"]), f"<= {GOAL_MS} ms",
                lib.median(ms["ours"]) <= GOAL_MS, p99=round(lib.percentile(ms["ours"], 0.99), 1), elements=o.count, runs=o.runs,
                rows_an_array=round(rows / (o.runs + 3), 2))
    return report.exit_code()
