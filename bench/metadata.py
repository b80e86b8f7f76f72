# SPDX-License-Identifier: Apache-2.0
"""find / -xdev over 50,000 entries in a job, warm, against the same root on ext4."""
import argparse

import fs_sides
import lib

GOAL = 1.2   # times ext4


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run metadata", description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--entries", type=int, default=50000)
    o = parser.parse_args(arguments)

    def fill(root):
        for i in range(0, o.entries, 100):
            directory = root / f"usr/share/tree/{i // 5000:02}/{i // 100 % 50:02}"
            directory.mkdir(parents=True)
            for j in range(min(99, o.entries - i)):
                (directory / f"entry-{j:02}").touch()

    report = lib.Report()
    with fs_sides.sides(fill, ext4_mb=1024) as both:
        first = both["vrun"].seconds("run find / -xdev")
        report.line("metadata first", first * 1000, "ms")
        for what, command in (("metadata", "find / -xdev"), ("metadata with attributes", "find / -xdev -newer /bin/sh")):
            seconds = fs_sides.compare(both, f"run {command}", o.runs)
            goal = what == "metadata"
            report.line(what, seconds["vrun"] * 1000, "ms", "ext4", seconds["native"] * 1000,
                        f"<= {GOAL} x ext4" if goal else None, seconds["vrun"] <= GOAL * seconds["native"] if goal else None,
                        command=command, runs=o.runs, entries=o.entries)
    return report.exit_code()
