# SPDX-License-Identifier: Apache-2.0
"""From an edit at home to the job that reads the file, in a live view on another host, over a link of 1 ms.

An edit is what editors do: a new file renamed over the old one, in a directory of 2,000. The job opens and reads it every 0.2 ms and
says when it had which version first. An edit that a later one overtook is visible with that. Both clocks are one: home and node are on this machine, in two network namespaces.
"""
import argparse
import os
import pathlib
import subprocess
import tempfile
import time

import lib
import miniroot
from cluster import Cluster, wait_until

P50_MS, P99_MS = 5, 50
READER = """
import sys, time
path, last = sys.argv[1], b""
while last != b"end":
    with open(path, "rb") as f: now = f.read()
    if now != last: print(now.decode(), time.time(), flush=True)
    last = now
    time.sleep(0.0002)
"""


def edit(path, text):
    new = path.with_name(".edit~")
    new.write_text(text)
    os.rename(new, path)
    return time.time()


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run edit-visible", description=__doc__)
    parser.add_argument("--edits", type=int, default=300)
    parser.add_argument("--gap-ms", type=float, default=30)
    parser.add_argument("--rate-mbit", type=float, default=500)
    parser.add_argument("--rtt-ms", type=float, default=1)
    o = parser.parse_args(arguments)
    link = ["--rate-mbit", str(o.rate_mbit), "--rtt-ms", str(o.rtt_ms), "--tunlink", str(lib.build_tunlink())]
    with tempfile.TemporaryDirectory(prefix="vrun-bench-", dir="/var/tmp") as name:
        root = miniroot.make(pathlib.Path(name) / "root")
        project = root / "root/project"
        project.mkdir()
        for i in range(2000):
            (project / f"file{i}.py").write_text(f"# {i}\n")
        path = project / "main.py"
        edit(path, "begin")
        (root / "root/reader.py").write_text(READER)
        cluster = Cluster(root, link=link)
        try:
            wait_until("home has scanned the root", lambda: cluster.json("status")["scanned"], 120)
            job = subprocess.Popen(cluster.command("vrun", "--view=live", "-q", "-D", "/root", "--", "python3", "/root/reader.py",
                                    "/root/project/main.py"), env=cluster.environment, stdout=subprocess.PIPE, text=True)
            try:
                assert job.stdout.readline().startswith("begin")
                edited = {}
                for k in range(o.edits):
                    time.sleep(o.gap_ms / 1000)
                    edited[str(k)] = edit(path, str(k))
                time.sleep(0.3)
                edit(path, "end")
                seen = dict(line.split() for line in job.communicate(timeout=60)[0].splitlines())
            finally:
                job.kill()
        finally:
            cluster.close()
    waits, first = [], float(seen["end"])
    for k, at in reversed(edited.items()):
        first = float(seen.get(k, first))
        waits.append((first - at) * 1000)
    report = lib.Report()
    more = {"edits": o.edits, "overtaken": sum(k not in seen for k in edited), "rtt_ms": o.rtt_ms}
    for name, ms, goal in (("p50", lib.median(waits), P50_MS), ("p99", lib.percentile(waits, 0.99), P99_MS)):
        report.line(f"edit-visible {name}", ms, "ms", goal=f"<= {goal} ms", met=ms <= goal, **more)
    return report.exit_code()
