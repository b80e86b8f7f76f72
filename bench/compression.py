# SPDX-License-Identifier: Apache-2.0
"""A file that no node has seen, read in a job over slow and fast links, against a plain TCP copy of it over the same link."""
import argparse
import os
import socket
import statistics
import subprocess
import tempfile
import threading
import time

import lib
import miniroot
from cluster import Cluster

PULL = """import socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
began = time.perf_counter()
while s.recv(1 << 20):
    pass
print(time.perf_counter() - began)
"""


def text(size):
    """Shrinks to about a third, as sources and tables do."""
    words = [os.urandom(4).hex().encode() for _ in range(4000)]
    out, seed = bytearray(), 1
    while len(out) < size:
        seed = (seed * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        out += words[(seed >> 33) % len(words)] + b" = " + str(seed >> 50).encode() + b"\n"
    return bytes(out[:size])


def tcp_copy(path, index):
    """Seconds for the bytes of `path` to the node's side of its link, over one connection."""
    with socket.socket() as server:
        server.bind((f"10.213.{index}.1", 0))
        server.listen(1)

        def send():
            connection, _ = server.accept()
            with connection, open(path, "rb") as f:
                connection.sendfile(f)
        thread = threading.Thread(target=send)
        thread.start()
        out = subprocess.run(["ip", "netns", "exec", f"vrun-n1-{index}", "/usr/bin/python3", "-c", PULL, f"10.213.{index}.1",
                              str(server.getsockname()[1])], check=True, capture_output=True, text=True).stdout
        thread.join()
    return float(out)


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run compression", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rates", default="100,1000,0", help="of the links, Mbit/s; 0: as fast as the machine is")
    o = parser.parse_args(arguments)
    report = lib.Report()
    for rate in [int(r) for r in o.rates.split(",")]:
        size = 24 << 20 if 0 < rate <= 200 else 96 << 20
        with tempfile.TemporaryDirectory(prefix="vrun-bench-", dir="/var/tmp") as directory:
            root = miniroot.make(os.path.join(directory, "root"))
            cluster = Cluster(root, link=["--rate-mbit", str(rate)] if rate else [])
            try:
                index = cluster.nodes["n1"]["index"]
                cluster.sh("true", check=True)
                for kind in ("text", "random"):
                    ours, plain, wire = [], [], []
                    for run in range(o.runs):
                        name = f"{kind}{run}"
                        file = cluster.root / "root" / name
                        file.write_bytes(text(size) if kind == "text" else os.urandom(size))
                        plain.append(tcp_copy(file, index))
                        before = cluster.json("cache", "stat")["nodes"][0]["fetched_bytes"]
                        began = time.perf_counter()
                        cluster.sh(f"cat {name} > /dev/null", check=True)
                        ours.append(time.perf_counter() - began)
                        wire.append(cluster.json("cache", "stat")["nodes"][0]["fetched_bytes"] - before)
                        file.unlink()
                    value, baseline = statistics.median(ours), statistics.median(plain)
                    goal = {("text", True): 0.7, ("random", True): 1.2}.get((kind, 0 < rate <= 200))
                    report.line(f"compression {kind}, {rate or 'unshaped'} Mbit/s", value, "s", "plain TCP copy", baseline,
                                f"<= {goal} x" if goal else None, value <= goal * baseline if goal else None,
                                bytes=size, wire_bytes=int(statistics.median(wire)), runs=o.runs)
            finally:
                cluster.close()
    return report.exit_code()
