# SPDX-License-Identifier: Apache-2.0
"""No-op jobs a second from end to end on one node, full sandboxes, against an array of Slurm's, which has none: bench/run jobs.

From the first submission until none is left. Ours are an array too; with --single they are submitted one by one, by 32 clients.
"""
import argparse
import time

import jobs_lib
import lib

GOAL = 160   # a second
CLIENTS = 32


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run jobs")
    parser.add_argument("--count", type=int, default=500, help="jobs a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--single", action="store_true", help="ours are jobs of their own")
    o = parser.parse_args(arguments)
    report = lib.Report()
    with jobs_lib.both() as (c, s):
        array = not o.single
        lib.timed(c.command("vbatch", "-D", "/root", "--", "true"), c.environment)
        jobs_lib.ours_are_over(c)

        def ours():
            began = time.perf_counter()
            if array:
                lib.timed(c.command("vbatch", "-D", "/root", "-o", "/dev/null", "-a", f"0-{o.count - 1}", "--", "true"), c.environment)
            else:
                jobs_lib.rate(c.command("vbatch", "-D", "/root", "-o", "/dev/null", "--", "true"), c.environment, o.count, CLIENTS)
            jobs_lib.ours_are_over(c)
            return o.count / (time.perf_counter() - began)

        def slurms():
            began = time.perf_counter()
            lib.timed(s.batch("-o", "/dev/null", "-a", f"0-{o.count - 1}", "--wrap", "true"), s.env)
            jobs_lib.slurms_are_over(s)
            return o.count / (time.perf_counter() - began)
        rates = lib.interleaved({"ours": ours, "slurm": slurms}, o.rounds, warmup=0)
    mine = lib.median(rates["ours"])
    report.line("jobs.no_op", mine, "1/s", "an array of Slurm 22.05, without sandboxes", lib.median(rates["slurm"]), f">= {GOAL}/s", mine >= GOAL,
                count=o.count, rounds=o.rounds, array=array)
    return report.exit_code()
