# SPDX-License-Identifier: Apache-2.0
"""From an edit at home to a reader on a node, over a link of 1 ms: watcher, tree, content stream and a mounted live view."""
import os
import re
import subprocess

import lib

EDITS = 300
P50_MS, P99_MS = 5, 50


def main(arguments):
    if arguments:
        raise SystemExit("edit-visible takes no arguments")
    test = lib.TOP / "build/bin/live_follow_test"
    done = subprocess.run([test, "--gtest_filter=*EditsAreVisibleSoon"], env=os.environ | {"VRUN_EDITS": str(EDITS)},
                          capture_output=True, text=True, timeout=300)
    found = re.search(r"p50 (\d+) us, p99 (\d+) us", done.stdout)
    if done.returncode != 0 or not found:
        raise RuntimeError(done.stdout + done.stderr)
    report = lib.Report()
    for name, micros, goal in (("p50", found[1], P50_MS), ("p99", found[2], P99_MS)):
        ms = int(micros) / 1000
        report.line(f"edit-visible {name}", ms, "ms", goal=f"<= {goal} ms", met=ms <= goal, edits=EDITS)
    return report.exit_code()
