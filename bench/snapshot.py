# SPDX-License-Identifier: Apache-2.0
"""A snapshot of a root of 300,000 files after one of them has changed.

`vctl snapshot create` as a whole, from the start of the command to its end, with home and the snapshot store on this
machine; what it made is durable then. Baseline: the usual incremental copy, `rsync -a --link-dest` of the same root onto
the copy before it, after the same kind of change (not synced). "first": the first snapshot of the root, against the first
copy.
"""
import argparse
import pathlib
import random
import subprocess
import tempfile
import time

import lib
import miniroot
from cluster import Cluster, wait_until
from index import fill

GOAL_MS = 100


def content(root, seed=1):
    """Every file gets bytes that are its own: sizes as they are up to 32 kB, so that it fits on any disk."""
    chance = random.Random(seed)
    files = [p for p in (root / "usr/share/tree").rglob("*") if p.is_file()]
    for p in files:
        p.write_bytes(chance.randbytes(min(p.stat().st_size, 32768)))
    return files


def seconds(run):
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run snapshot", description=__doc__)
    parser.add_argument("--files", type=int, default=300_000)
    parser.add_argument("--directories", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=15)
    o = parser.parse_args(arguments)
    report = lib.Report()
    more = {"files": o.files, "directories": o.directories, "rounds": o.rounds}
    ours, theirs = [], []
    with tempfile.TemporaryDirectory(prefix="vrun-bench-", dir="/var/tmp") as name:
        root = pathlib.Path(miniroot.make(pathlib.Path(name) / "root", with_python=False))
        fill(root, o.files, o.directories)
        files = content(root)
        cluster = Cluster(root, nodes=0)
        try:
            wait_until("home has scanned the root", lambda: cluster.json("status")["scanned"], 300)
            first = seconds(lambda: cluster.vctl("snapshot", "create", "s0", timeout=1800))

            def rsync(k):
                link = ["--link-dest", f"{name}/copy{k - 1}"] if k else []
                subprocess.run(["rsync", "-a", *link, f"{root}/", f"{name}/copy{k}"], check=True)
            copied = seconds(lambda: rsync(0))
            chance = random.Random(2)
            for k in range(1, o.rounds + 1):
                chance.choice(files).write_bytes(chance.randbytes(8000))
                ours.append(seconds(lambda: cluster.vctl("snapshot", "create", f"s{k}")))
                if k <= 2:   # each takes as long as the other, and its copies are long in going
                    theirs.append(seconds(lambda: rsync(k)))
                lib.note(f"round {k}: {ours[-1] * 1000:.0f} ms, rsync {theirs[-1]:.1f} s")
            deleted = seconds(lambda: cluster.vctl("snapshot", "delete", *[f"s{k}" for k in range(o.rounds)], timeout=300))
            value = lib.median(ours) * 1000
            report.line("snapshot.incremental", value, "ms", "rsync --link-dest", lib.median(theirs) * 1000, f"<= {GOAL_MS} ms",
                        value <= GOAL_MS, **more)
            report.line("snapshot.first", first, "s", "rsync -a", copied, **more)
            report.line("snapshot.delete", deleted, "s", **more)
        finally:
            cluster.close()
    return report.exit_code()
