# SPDX-License-Identifier: Apache-2.0
"""Open, read and close 20,000 cached small files in a job, against the same files on ext4."""
import argparse
import os

import fs_sides
import lib

GOAL = 0.5   # of ext4's rate


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run small-files", description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--files", type=int, default=20000)
    parser.add_argument("--bytes", type=int, default=4096)
    o = parser.parse_args(arguments)

    def fill(root):
        for i in range(0, o.files, 500):
            directory = root / f"root/small/d{i // 500:03}"
            directory.mkdir(parents=True)
            for j in range(min(500, o.files - i)):
                (directory / f"f{j:03}").write_bytes(os.urandom(o.bytes))

    report = lib.Report()
    with fs_sides.sides(fill, ext4_mb=1024 + o.files * (o.bytes + 4096) // 500_000) as both:
        first = both["vrun"].seconds("small /root/small")
        report.line("small-files first, from home", o.files / first, "files/s")
        seconds = fs_sides.compare(both, "small /root/small", o.runs)
        rate = {name: o.files / s for name, s in seconds.items()}
        report.line("small-files", rate["vrun"], "files/s", "ext4", rate["native"], f">= {GOAL} x ext4",
                    rate["vrun"] >= GOAL * rate["native"], runs=o.runs, files=o.files, bytes=o.bytes)
    return report.exit_code()
