# SPDX-License-Identifier: Apache-2.0
"""What home has to send for the second node that runs the same, with and without an S3 store in the pool."""
import argparse
import os
import tempfile
import time

import lib
import miniroot
import s3
from cluster import Cluster, wait_until

GOAL = 0.1   # of the bytes


def second_node(o, server):
    """(bytes from home, seconds) of the run on n2, after the same run on n1."""
    with tempfile.TemporaryDirectory(prefix="vrun-bench-", dir="/var/tmp") as directory:
        root = miniroot.make(os.path.join(directory, "root"))
        state = os.path.join(directory, "cluster")
        os.mkdir(state)
        if server:
            server.configure(state)
        cluster = Cluster(root, nodes=0, directory=state)
        try:
            data = cluster.root / "root/data"
            data.mkdir()
            for i in range(4):
                (data / f"large{i}").write_bytes(os.urandom(o.mb * 262144))
            for i in range(300):
                (data / f"small{i}").write_bytes(os.urandom(6000))

            def run(node):
                cluster.start_node(node)
                if server:
                    server.route(cluster, node)
                began = time.perf_counter()
                cluster.sh("cat data/* > /dev/null", check=True)
                return time.perf_counter() - began

            def stat(node):
                return cluster.json("cache", "stat", "--node", node)["nodes"][0]
            run("n1")
            if server:
                wait_until("the store has it", lambda: stat("n1")["s3"]["written_objects"] > 300
                           and stat("n1")["s3"]["waiting_objects"] == 0, 120)
            cluster.stop_node("n1")
            seconds = run("n2")
            return stat("n2")["fetched_bytes"], seconds
        finally:
            cluster.close()


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run s3", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--mb", type=int, default=32)
    o = parser.parse_args(arguments)
    report = lib.Report()
    if s3.MISSING:
        lib.note(s3.MISSING)
        return 2
    with_s3, without = [], []
    for _ in range(o.runs):
        server = s3.S3Server()
        try:
            with_s3.append(second_node(o, server))
        finally:
            server.close()
        without.append(second_node(o, None))
    sent, before = (lib.median([r[0] for r in side]) for side in (with_s3, without))
    report.line("s3 second node, bytes from home", sent, "B", "without S3", before, f"<= {GOAL} x", sent <= GOAL * before,
                runs=o.runs, mb=o.mb)
    report.line("s3 second node, wall time", lib.median([r[1] for r in with_s3]), "s", "without S3",
                lib.median([r[1] for r in without]), note="home, store and nodes share this machine")
    return report.exit_code()
