# SPDX-License-Identifier: Apache-2.0
"""Throughput of `vrun cat` of 1 GiB, stdin to stdout, against a local pipe through cat."""
import subprocess
import sys
import tempfile
import time

import lib
import miniroot
from cluster import Cluster

SIZE = 1 << 30


def through(argv, env=None):
    """Seconds for SIZE bytes from a producer through argv into a consumer that counts them."""
    began = time.perf_counter()
    producer = subprocess.Popen(["head", "-c", str(SIZE), "/dev/zero"], stdout=subprocess.PIPE)
    middle = subprocess.Popen(argv, stdin=producer.stdout, stdout=subprocess.PIPE, env=env, cwd="/")
    producer.stdout.close()
    counter = subprocess.Popen(["wc", "-c"], stdin=middle.stdout, stdout=subprocess.PIPE)
    middle.stdout.close()
    total = int(counter.communicate()[0])
    elapsed = time.perf_counter() - began
    if middle.wait() != 0 or producer.wait() != 0 or total != SIZE:
        raise RuntimeError(f"{argv[0]}: exit {middle.returncode}, {total} of {SIZE} bytes")
    return elapsed


def main(_arguments):
    report = lib.Report()
    with tempfile.TemporaryDirectory(prefix="vrun-bench-", dir="/var/tmp") as directory:
        cluster = Cluster(miniroot.make(directory + "/root", with_python=False))
        try:
            vrun = cluster.command("vrun", "-D", "/root", "-q", "--", "cat")
            times = lib.interleaved({"vrun": lambda: through(vrun, cluster.environment),
                                     "pipe": lambda: through(["cat"])}, runs=3, warmup=1)
        finally:
            cluster.close()
    rate = {name: SIZE / 1e6 / lib.median(t) for name, t in times.items()}
    report.line("stdio.cat_1GiB", rate["vrun"], "MB/s", "local pipe through cat", rate["pipe"],
                note="both directions cross an mTLS link; all ends share this machine's cores")
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
