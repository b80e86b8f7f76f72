# SPDX-License-Identifier: Apache-2.0
"""Time from the start of home to the end of `vrun true` on a node that is warm, by the size of the root: with the root's names in the
kernel's caches, and with the caches dropped before, as after a boot. The baseline is the same in a frozen view, which is of one
moment of the whole root: it waits for the scan. Then the memory of a home that knows the whole root."""
import argparse
import os
import pathlib
import signal
import tempfile

import lib
import miniroot
from cluster import Cluster, wait_until

GOAL_S = 1.0
COLD_GOAL_S = 2.0
MEMORY_GOAL = 89e6 / 727_000   # bytes an entry: what home had before a run stopped waiting for the scan
FILES = 100   # in each directory


def fill(directory, entries):
    """So many names below `directory`: directories of directories of 100 files."""
    for d in range(entries // (FILES + 1)):
        here = f"{directory}/{d // 1000}/{d % 1000}"
        os.makedirs(here)
        for f in range(FILES):
            os.close(os.open(f"{here}/file{f}", os.O_WRONLY | os.O_CREAT, 0o644))


def end_home(cluster):
    pid = cluster.pid_of("home")
    if pid is None:
        return
    os.kill(pid, signal.SIGTERM)
    wait_until("home has ended", lambda: cluster.pid_of("home") is None)


def anonymous_memory(pid):
    """Bytes."""
    line = next(l for l in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if l.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def measure(cluster, view, cold=False):
    end_home(cluster)
    if cold:
        lib.drop_caches()
    return lib.timed(cluster.command("vrun", f"--view={view}", "-D", "/root", "-q", "--", "true"), cluster.environment)


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run first-run", description=__doc__)
    parser.add_argument("--entries", type=int, nargs="+", default=[100_000, 3_000_000])
    parser.add_argument("--runs", type=int, default=5)
    o = parser.parse_args(arguments)
    report = lib.Report()
    for entries in o.entries:
        with tempfile.TemporaryDirectory(prefix="vrun-bench-", dir="/var/tmp") as directory:
            root = miniroot.make(pathlib.Path(directory) / "root", with_python=False)
            fill(root / "home/somebody/data", entries)
            cluster = Cluster(root)
            try:
                for view in ("live", "frozen"):   # the node is warm, and so are the names
                    cluster.run("vrun", f"--view={view}", "-D", "/root", "-q", "--", "true", check=True, timeout=600)
                times = lib.interleaved({view: lambda view=view: measure(cluster, view) for view in ("live", "frozen")}, o.runs, warmup=1)
                memory = anonymous_memory(cluster.pid_of("home"))   # the last run was of a frozen view: it knows all
                cold = lib.median([measure(cluster, "live", cold=True) for _ in range(o.runs)])
            finally:
                cluster.close()
        live, frozen = (lib.median(times[view]) for view in ("live", "frozen"))
        report.line("first-run", live, "s", "frozen view, which waits for the scan", frozen, f"<= {GOAL_S:g} s", live <= GOAL_S,
                    entries=entries, worst_s=round(max(times["live"]), 3), runs=o.runs)
        report.line("first-run, cold caches", cold, "s", goal=f"<= {COLD_GOAL_S:g} s", met=cold <= COLD_GOAL_S, entries=entries, runs=o.runs)
        report.line("first-run, memory of home an entry", memory / entries, "bytes", goal=f"<= {MEMORY_GOAL:.0f} bytes",
                    met=memory <= MEMORY_GOAL * entries, entries=entries, home_mb=round(memory / 1e6, 1))
    return report.exit_code()
