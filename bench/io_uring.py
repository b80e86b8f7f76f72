# SPDX-License-Identifier: Apache-2.0
"""FUSE over io_uring against /dev/fuse: small files and an import that the node's store has and its kernel does not.

Two clusters, one of each kind, in turn. Before each round the node's server ends and starts again, so that views are new and
every name and every page is asked for; the store is full, so nothing is asked of home. Counted are seconds of the reader and
CPU seconds of the server. `push=off` shows the transport alone: each file costs a LOOKUP and a READ.
"""
import argparse
import os
import pathlib
import tempfile

import fs_sides
import lib
import miniroot
from cluster import Cluster, wait_until
from cold_import import ENV, make_root

ENABLE = pathlib.Path("/sys/module/fuse/parameters/enable_uring")
KINDS = {"io_uring": "io_uring=on", "/dev/fuse": "io_uring=off"}


def server(cluster):
    found = [pid for pid in cluster.node_pids("n1", "vrund")
             if pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1] == b"fs"]
    return found[0] if found else None


def cpu(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fresh(cluster):
    """New views: the node ends, and its server with it."""
    cluster.stop_node("n1")
    wait_until("the server is gone", lambda: server(cluster) is None)
    cluster.start_node("n1")
    cluster.vrun("--", "/bin/true", check=True)   # the server is up, its views are mounted


class Measured:
    def __init__(self):
        self.seconds = {kind: [] for kind in KINDS}
        self.cpu = {kind: [] for kind in KINDS}

    def add(self, kind, cluster, run):
        pid = server(cluster)
        before = cpu(pid)
        self.seconds[kind].append(run())
        self.cpu[kind].append(cpu(pid) - before)

    def report(self, report, name, **more):
        for what, values in (("", self.seconds), (", CPU of the server", self.cpu)):
            median = {kind: lib.median(v) for kind, v in values.items()}
            report.line(f"io-uring {name}{what}", median["io_uring"], "s", "/dev/fuse", median["/dev/fuse"], **more)


def small(report, root, runs, files, push):
    clusters = {kind: Cluster(root, view="frozen", node_options=["--fuse", setting, "--fuse", f"push={push}"]) for kind, setting in KINDS.items()}
    try:
        def probe(cluster, where="/root/small"):
            out = cluster.vrun("--", fs_sides.PROBE, input=f"small {where}\n", check=True).stdout
            return float(out)
        for cluster in clusters.values():
            probe(cluster)
        reads, listing = Measured(), Measured()
        for _ in range(runs):
            for kind, cluster in clusters.items():
                fresh(cluster)
                reads.add(kind, cluster, lambda: probe(cluster))
                fresh(cluster)
                listing.add(kind, cluster, lambda: lib.timed(cluster.command("vrun", "-D", "/", "-q", "--", "/usr/bin/find", "/root/small", "-size", "+1"),
                                                             cluster.environment))
        reads.report(report, f"{files} small files, push {push}", runs=runs)
        listing.report(report, f"find over {files} names, push {push}", runs=runs)
    finally:
        for cluster in clusters.values():
            cluster.close()


def imports(report, root, runs):
    clusters = {kind: Cluster(root, view="frozen", node_options=["--fuse", setting]) for kind, setting in KINDS.items()}
    try:
        cold, warm = Measured(), Measured()

        def run(cluster):
            return lib.timed(cluster.command("vrun", "-D", "/", "-q", "--", "/usr/bin/python3", "-c", "import torch"),
                             dict(cluster.environment, **ENV))
        for cluster in clusters.values():
            wait_until("home has scanned the root", lambda: cluster.json("status")["scanned"], 120)
            run(cluster)
            run(cluster)
        for _ in range(runs):
            for kind, cluster in clusters.items():
                fresh(cluster)
                cold.add(kind, cluster, lambda: run(cluster))
                run(cluster)
                warm.add(kind, cluster, lambda: run(cluster))
        cold.report(report, "import torch, in the store and not in the kernel", runs=runs)
        warm.report(report, "import torch, warm", runs=runs)
    finally:
        for cluster in clusters.values():
            cluster.close()


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run io-uring", description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--files", type=int, default=10000)
    parser.add_argument("--root", default="/var/tmp/vrun-bench-root", help="of cold-import")
    parser.add_argument("--no-import", action="store_true")
    o = parser.parse_args(arguments)
    if not ENABLE.exists() or not ENABLE.read_text().startswith("Y"):
        lib.note(f"SKIP: needs Linux 6.14 and `echo Y > {ENABLE}`")
        return 0
    report = lib.Report()
    with tempfile.TemporaryDirectory(prefix="vrun-bench-", dir="/var/tmp") as directory:
        root = pathlib.Path(miniroot.make(pathlib.Path(directory) / "root", with_python=False))
        fs_sides.shutil.copy(fs_sides.build_probe(), str(root) + fs_sides.PROBE)
        for i in range(0, o.files, 500):
            here = root / f"root/small/d{i // 500:03}"
            here.mkdir(parents=True)
            for j in range(min(500, o.files - i)):
                (here / f"f{j:03}").write_bytes(os.urandom(4096))
        for push in ("off", "on"):
            small(report, root, o.runs, o.files, push)
    if not o.no_import:
        root = pathlib.Path(f"{o.root}-torch")
        make_root(root, "torch")
        imports(report, root, o.runs)
    return report.exit_code()
