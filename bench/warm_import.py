# SPDX-License-Identifier: Apache-2.0
"""`import torch` on a warm node, against the same root on ext4; and what the node still asks home for.

The root is that of cold-import. Both sides run the import once before, then in turn; neither crosses a slow link, since
nothing should have to cross any. The requests for directories that home gets during all warm runs are counted.
"""
import argparse
import pathlib
import subprocess

import lib
from cluster import Cluster, wait_until
from cold_import import ENV, PACKAGES, chrooted, make_root

GOAL = 1.05   # times native


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run warm-import", description=__doc__)
    parser.add_argument("--package", choices=PACKAGES, default="torch")
    parser.add_argument("--root", default="/var/tmp/vrun-bench-root")
    parser.add_argument("--runs", type=int, default=15)
    o = parser.parse_args(arguments)
    root = pathlib.Path(f"{o.root}-{o.package}")
    make_root(root, o.package)
    statement = f"import {o.package}"
    file_system = subprocess.run(["findmnt", "-n", "-o", "FSTYPE", "--target", root], check=True, capture_output=True,
                                 text=True).stdout.strip()
    report = lib.Report()
    cluster = Cluster(root)
    try:
        wait_until("home has scanned the root", lambda: cluster.json("status")["scanned"], 120)
        vrun = cluster.command("vrun", *lib.VIEW, "-D", "/", "-q", "--", "/usr/bin/python3", "-c", statement)
        nothing = cluster.command("vrun", *lib.VIEW, "-D", "/", "-q", "--", "/usr/bin/true")
        env = dict(cluster.environment, **ENV)
        first = lib.timed(vrun, env)
        # Large files that came during a run are passed through from the next one on.
        lib.timed(vrun, env)
        before = cluster.json("status")
        times = lib.interleaved({"vrun": lambda: lib.timed(vrun, env),
                                 "native": lambda: lib.timed(chrooted(root, statement)),
                                 "launch": lambda: lib.timed(nothing, env)}, o.runs, warmup=1)
        after = cluster.json("status")
    finally:
        cluster.close()
    m = {name: lib.median(t) for name, t in times.items()}
    asked = int(after["metadata_requests"]) - int(before["metadata_requests"])
    more = {"package": o.package, "runs": o.runs}
    report.line("warm-import", m["vrun"], "s", f"native, {file_system}", m["native"], f"ratio <= {GOAL}",
                m["vrun"] <= GOAL * m["native"], launch_s=round(m["launch"], 4), **more)
    report.line("warm-import without the launch", m["vrun"] - m["launch"], "s", f"native, {file_system}", m["native"], **more)
    report.line("warm-import metadata requests to home", asked, "requests", goal="0", met=asked == 0, **more)
    report.line("warm-import bytes from home a run",
                (int(after["served_bytes"]) - int(before["served_bytes"])) / (2 * (o.runs + 1)), "bytes", **more)
    report.line("warm-import first", first, "s", **more)
    return report.exit_code()
