# SPDX-License-Identifier: Apache-2.0
"""From the order to start a command until it is executed in a complete sandbox, with every filter: the median, the share of each step,
beside bubblewrap and crun that make as much of a sandbox as they can (whole commands, since they do not say when they execute).

The root is this machine's own under an overlay. Commands are interleaved.
"""
import argparse
import contextlib
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import tempfile
import time

import launch
import lib

GOAL_MS = 6.0
RUN = lib.TOP / "build/bin/sandbox_run"
BWRAP = ["bwrap", "--unshare-all", "--share-net", "--ro-bind", "/", "/", "--dev", "/dev", "--tmpfs", "/run", "--tmpfs", "/tmp", "--cap-drop",
         "ALL", "--die-with-parent", "--", "/bin/true"]


def starts(count):
    """Milliseconds of each start, and for each step its milliseconds."""
    said = subprocess.run([os.environ.get("VRUN_SANDBOX_RUN", RUN), "--owner", "1", "--starts", str(count), "true"], capture_output=True,
                          text=True, check=True, env={**os.environ, "VRUN_LOG": "debug"})
    steps, before = {}, 0
    for name, micros in re.findall(r"sandbox_run: ([a-z ]+): (\d+) us", said.stderr):
        at = int(micros)
        steps.setdefault(name, []).append((at - before if at >= before else at) / 1000)
        before = at
    totals = [int(line) / 1000 for line in said.stdout.split()]
    last = [int(m) / 1000 for m in re.findall(r"sandbox_run: map users: (\d+) us", said.stderr)]
    steps["inside, until the exec"] = [t - b for t, b in zip(totals, last)]
    return totals, steps


def timed(argv):
    began = time.monotonic()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return (time.monotonic() - began) * 1000


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run sandbox", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args(arguments)
    report = lib.Report()
    totals, steps, others = [], {}, {}
    directory = pathlib.Path(tempfile.mkdtemp(prefix="vrun-bench-", dir="/var/tmp"))
    try:
        with contextlib.closing(launch.without_unified_cgroups()) as hybrid:
            crun = launch.crun(directory) if shutil.which("crun") else None
            for _ in range(options.rounds):
                some, parts = starts(5)
                totals += some[1:]
                for name, values in parts.items():
                    steps.setdefault(name, []).extend(values[1:])
                if shutil.which("bwrap"):
                    others.setdefault("bwrap", []).append(timed(BWRAP))
                if crun:
                    others.setdefault("crun", []).append(hybrid.timed(crun) * 1000)
    finally:
        shutil.rmtree(directory)
    median = statistics.median(totals)
    best = min(others, key=lambda name: statistics.median(others[name]), default=None)
    report.line("sandbox: start to exec", median, "ms", baseline=best, baseline_value=statistics.median(others[best]) if best else None,
                goal=f"<= {GOAL_MS} ms", met=median <= GOAL_MS, p95=round(sorted(totals)[int(len(totals) * 0.95)], 3), runs=len(totals))
    for name, values in steps.items():
        report.line(f"sandbox: {name}", statistics.median(values), "ms", share=round(statistics.median(values) / median, 3))
    for name, values in others.items():
        report.line(f"sandbox: {name}, a whole command", statistics.median(values), "ms")
    return report.exit_code()
