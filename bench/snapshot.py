# SPDX-License-Identifier: Apache-2.0
"""A snapshot of a root of 300,000 files after one of them has changed.

`vctl snapshot create` as a whole, from the start of the command to its end, with home and the snapshot store on this
machine; what it made is durable then. Baseline: the usual incremental copy, `rsync -a --link-dest` of the same root onto
the copy before it, after the same kind of change (not synced). "first": the first snapshot of the root, against the first
copy. With --s3 the snapshots' home is an S3 store on this machine (that of the tests); "lost": the snapshot store is killed, its disk
emptied, and it is started again, until it lists them all; "page": then a job on a node reads 4 KiB in the middle of a file of --large-mb,
which is in the S3 store alone, against one that reads all of it.
"""
import argparse
import contextlib
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import time

import lib
import miniroot
import s3
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
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--large-mb", type=int, default=512)
    o = parser.parse_args(arguments)
    report = lib.Report()
    more = {"files": o.files, "directories": o.directories, "rounds": o.rounds}
    ours, theirs = [], []
    kind = "s3_" if o.s3 else ""
    with tempfile.TemporaryDirectory(prefix="vrun-bench-", dir="/var/tmp") as name, contextlib.ExitStack() as ends:
        root = pathlib.Path(miniroot.make(pathlib.Path(name) / "root", with_python=False))
        fill(root, o.files, o.directories)
        files = content(root)
        large = root / "root/large"
        if o.s3:
            large.write_bytes(os.urandom(o.large_mb << 20))
        directory = None
        if o.s3:
            server = s3.S3Server()
            ends.callback(server.close)
            directory = f"{name}/cluster"
            server.configure(directory, more='s3_snapshots = "on"\n')
        cluster = Cluster(root, nodes=0, directory=directory)
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
            if o.s3:
                os.kill(cluster.pid_of("snapshots"), signal.SIGKILL)
                for owners in pathlib.Path(directory).glob("home/**/snapshots/owners"):
                    shutil.rmtree(owners)
                began = time.perf_counter()
                cluster.vctl("up", "--no-node", "--root", str(root))
                wait_until("the store has its snapshots again", lambda: cluster.json("snapshot", "list")["snapshots"], 300)
                report.line("snapshot.s3_lost", time.perf_counter() - began, "s", **more)
                cluster.start_node("n1")
                server.route(cluster, "n1")
                job = ["--snapshot", f"s{o.rounds}", "--", "dd", "if=/root/large", "of=/dev/null", "status=none"]
                cluster.vrun(*job[:3], "true", check=True)
                page = seconds(lambda: cluster.vrun(*job, "bs=4k", f"skip={o.large_mb * 128}", "count=1", check=True))
                whole = seconds(lambda: cluster.vrun(*job, "bs=1M", check=True, timeout=300))
                report.line("snapshot.s3_page", page, "s", "all of the file", whole, large_mb=o.large_mb, **more)
            value = lib.median(ours) * 1000
            report.line(f"snapshot.{kind}incremental", value, "ms", "rsync --link-dest", lib.median(theirs) * 1000, f"<= {GOAL_MS} ms",
                        value <= GOAL_MS, **more)
            report.line(f"snapshot.{kind}first", first, "s", "rsync -a", copied, **more)
            report.line(f"snapshot.{kind}delete", deleted, "s", **more)
        finally:
            cluster.close()
    return report.exit_code()
