# SPDX-License-Identifier: Apache-2.0
"""A cached file of 1 GiB read in a job, in sequence and 4 KiB here and there, against the file system of the cache."""
import argparse
import os

import fs_sides
import lib

GOAL = 0.9   # of the file system's rate


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run read", description=__doc__)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--mb", type=int, default=1024)
    parser.add_argument("--reads", type=int, default=100000, help="of 4 KiB, in one run")
    o = parser.parse_args(arguments)

    def fill(root):
        with open(root / "root/big", "wb") as f:
            for _ in range(o.mb):
                f.write(os.urandom(1 << 20))

    report = lib.Report()
    with fs_sides.sides(fill) as both:
        first = both["vrun"].seconds("sequential /root/big")
        report.line("read first, from home", o.mb / first, "MiB/s")
        for what, question, amount, unit in (("sequential", "sequential /root/big", o.mb, "MiB/s"),
                                             ("random", f"random /root/big {o.reads}", o.reads, "reads/s")):
            seconds = fs_sides.compare(both, question, o.runs)
            rate = {name: amount / s for name, s in seconds.items()}
            report.line(f"read {what}", rate["vrun"], unit, "the cache's file system", rate["native"], f">= {GOAL} x",
                        rate["vrun"] >= GOAL * rate["native"], runs=o.runs, mb=o.mb, page_cache="warm on both sides")
    return report.exit_code()
