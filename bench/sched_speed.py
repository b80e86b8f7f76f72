# SPDX-License-Identifier: Apache-2.0
"""How long the scheduler core thinks: bench/run sched-pass | sched-fast | sched-scale.

10,000 nodes, 80,000 GPUs, 100,000 jobs waiting, 50 teams with quotas, 1,000 events a second (build/bin/sched_bench).
Wall time is judged; CPU time stands beside it, since a shared machine interrupts: it is what a core of one's own needs.
"""
import argparse
import json
import subprocess
import sys

import lib

PASS_MS, FAST_MS, MEMORY_MB, EXPONENT = 10.0, 1.0, 500.0, 1.1


def measure(*words):
    out = subprocess.run([lib.TOP / "build/bin/sched_bench", *words], check=True, stdout=subprocess.PIPE)
    return json.loads(out.stdout)


def main(argv):
    name = sys.argv[1]
    parser = argparse.ArgumentParser(prog=f"bench/run {name}")
    parser.add_argument("--steps", default="1000", help="passes measured; at most 500 of each size with sched-scale")
    args = parser.parse_args(argv)
    report = lib.Report()
    if name == "sched-scale":
        result = measure("--scale", "--steps", args.steps)
        report.line("sched-scale exponent of CPU time", result["exponent"], "", goal=f"<= {EXPONENT}",
                    met=result["exponent"] <= EXPONENT,
                    p50_ms={k: v["pass_cpu_p50_ms"] for k, v in result.items() if isinstance(v, dict)})
        return report.exit_code()
    result = measure("--steps", args.steps)
    times = result["pass"]
    if name == "sched-fast":
        report.line("sched-fast p99", times["fast_p99_ms"], "ms", goal=f"<= {FAST_MS} ms", met=times["fast_p99_ms"] <= FAST_MS,
                    p50=times["fast_p50_ms"], max=times["fast_max_ms"], cpu_p50=times["fast_cpu_p50_ms"],
                    cpu_p99=times["fast_cpu_p99_ms"])
    else:
        report.line("sched-pass p99", times["pass_p99_ms"], "ms", goal=f"<= {PASS_MS} ms", met=times["pass_p99_ms"] <= PASS_MS,
                    p50=times["pass_p50_ms"], cpu_p50=times["pass_cpu_p50_ms"], cpu_p99=times["pass_cpu_p99_ms"])
        report.line("sched-pass memory", result["max_rss_mb"], "MB", goal=f"<= {MEMORY_MB} MB",
                    met=result["max_rss_mb"] <= MEMORY_MB)
    return report.exit_code()
