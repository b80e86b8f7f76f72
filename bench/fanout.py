# SPDX-License-Identifier: Apache-2.0
"""Many nodes read the same tree at once, home's uplink shaped: what home sends, and the slowest node, against one alone.

Nodes are emulated hosts on a bridge; what this machine sends into the bridge (home's uplink, headers and all) is shaped by
tc tbf and counted. The files do not compress. "cold" is the first run ever (home has started anew and knows of no run), "traced"
has the trace of an earlier run. Every node is new to the tree each time, and has a content stream when the clock starts, as in a
pool that is in use. "strangers" is for information: cold, and no node has a stream or knows of another when the jobs start.
All nodes share this machine's cores: 16 of them, 200 MB and 200 Mbit/s take 46 to 93 core-seconds in what would be 8.5 s, and
on two cores measure these. With --mb 100 --uplink-mbit 50 two are enough, and the link decides.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time

import lib
import miniroot
from cluster import Bridge, Cluster, wait_until
from cold_import import first_run_ever, home_has_scanned

KINDS = ["cold", "traced", "strangers"]   # in this order: the trace is that of the cold runs
READ = ["sh", "-c", "find /root/data -type f -exec cat {} + > /dev/null"]


def fill(root, megabytes):
    """Half of the bytes in files of 4 MB, the rest in files of 20 to 800 kB."""
    size, left = 0, megabytes * 1_000_000
    for i in range(10 ** 6):
        if left <= 0:
            break
        n = min(left, 4_000_000 if size < megabytes * 500_000 else 20_000 + i * 7919 % 780_000)
        d = root / f"root/data/d{i % 20}"
        d.mkdir(parents=True, exist_ok=True)
        (d / f"f{i}").write_bytes(os.urandom(n))
        size, left = size + n, left - n
    return size


def stop_nodes(cluster):
    for name, node in cluster.nodes.items():
        cluster.stop_node(name)
        shutil.rmtree(node["directory"] / "state/node", ignore_errors=True)


def start_nodes(cluster, count):
    """So many new ones; their names."""
    names = [f"n{len(cluster.nodes) + i + 1}" for i in range(count)]
    for name in names:
        cluster.start_node(name)
    return names


def run(cluster, n, argv, patience):
    """Seconds from the common start to the end of each of n jobs, one a node."""
    command = cluster.command("vrun", "-q", "-c", "1", "-D", "/", "--", *argv)
    took = [None] * n

    def one(i):
        process = subprocess.run(command, env=cluster.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, timeout=patience)
        took[i] = time.perf_counter() - began
        if process.returncode != 0:
            raise RuntimeError(process.stderr.decode(errors="replace"))
    threads = [threading.Thread(target=one, args=(i,)) for i in range(n)]
    began = time.perf_counter()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if None in took:
        raise RuntimeError("fanout: a job failed")
    return took


def cache_stats(cluster, names):
    """Of nodes that are up; the command fails because others are not."""
    out = cluster.run("vctl", "cache", "stat", "-o", "json").stdout
    return [s for s in json.loads(out)["nodes"] if s["node"] in names and "error" not in s]


def introduce(cluster, names):
    """Every file system server runs and knows of the others."""
    jobs = [cluster.popen("vrun", "-q", "-c", "1", "-D", "/", "--", "cat", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) for _ in names]
    wait_until("all nodes know of each other",
               lambda: [s["peers"] for s in cache_stats(cluster, names)] == [len(names) - 1] * len(names), 180)
    for job in jobs:
        job.communicate()


def measure(cluster, count, kind, patience):
    stop_nodes(cluster)
    if kind != "traced":
        first_run_ever(cluster)
    names = start_nodes(cluster, count)
    if kind != "strangers":
        introduce(cluster, names)
    before = cluster.bridge.sent_bytes()
    took = run(cluster, len(names), READ, patience)
    sent = cluster.bridge.sent_bytes() - before
    told = cache_stats(cluster, names)
    lib.note(f"{len(names)} nodes, {kind}: {min(took):.2f} to {max(took):.2f} s, home sent {sent / 1e6:.1f} MB, "
             f"peers {sum(s['peer_fetched_bytes'] for s in told) / 1e6:.0f} MB, fallbacks {sum(s['peer_fallbacks'] for s in told)}, "
             f"lies {sum(s['peer_lies'] for s in told)}")
    return max(took), sent


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run fanout", description=__doc__)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--uplink-mbit", type=float, default=200)
    parser.add_argument("--only", choices=KINDS, help="only this; traced still needs the trace of a cold run")
    parser.add_argument("--rounds", type=int, default=1)
    o = parser.parse_args(arguments)
    report = lib.Report()
    results = {kind: {"one": [], "all": []} for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="vrun-bench-", dir="/var/tmp") as name:
        root = pathlib.Path(miniroot.make(pathlib.Path(name) / "root", with_python=False))
        size = fill(root, o.mb)
        cluster = Cluster(root, nodes=0, node_options=["--milli-cpus", "1000"], bridge=Bridge(o.uplink_mbit))
        patience = 120 + 8 * size * o.nodes / 1e6 / o.uplink_mbit
        try:
            home_has_scanned(cluster)
            for _ in range(o.rounds):
                for kind, of in results.items():
                    if o.only in (None, kind) or (kind, o.only) == ("cold", "traced"):
                        of["one"].append(measure(cluster, 1, kind, patience))
                    if o.only in (None, kind):
                        of["all"].append(measure(cluster, o.nodes, kind, patience))
        finally:
            cluster.close()
    more = {"nodes": o.nodes, "tree_mb": round(size / 1e6, 1), "uplink_mbit": o.uplink_mbit, "rounds": o.rounds}
    for kind, of in results.items():
        if not of["all"]:
            continue
        one, many = ([lib.median(column) for column in zip(*of[k])] for k in ("one", "all"))
        for what, value, unit, base, most in (("sent", many[1] / 1e6, "MB", one[1] / 1e6, 1.1), ("slowest", many[0], "s", one[0], 1.5)):
            judged = {} if kind == "strangers" else {"goal": f"ratio <= {most}", "met": value <= most * base}
            report.line(f"fanout.{kind}_{what}", value, unit, "one node", base, **judged, **more)
    return report.exit_code()
