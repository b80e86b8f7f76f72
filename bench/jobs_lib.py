# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks of jobs share: a cluster and Slurm beside it, commands of many clients."""
import concurrent.futures
import contextlib
import tempfile
import time

import lib
import miniroot
from cluster import Cluster, wait_until
from launch import daemons
from slurm_local import Slurm

LONG = 600   # seconds: nothing here takes longer


@contextlib.contextmanager
def both(cluster=None, slurm=None):
    """(our cluster, Slurm), each made with these options."""
    with tempfile.TemporaryDirectory(prefix="vrun-bench-", dir="/var/tmp") as name, daemons() as start:
        d = lib.Directory(name)
        slurms = d.make(d.path / "slurm")
        c = Cluster(miniroot.make(d.make(d.path / "root"), with_python=False), directory=d.make(d.path / "ours"), **(cluster or {}))
        try:
            yield c, Slurm(start, slurms, **(slurm or {}))
        finally:
            c.close()


def rate(argv, env, count, clients=1):
    """Commands a second, of so many clients: each runs the next one when its last one has ended."""
    with concurrent.futures.ThreadPoolExecutor(clients) as threads:
        began = time.perf_counter()
        list(threads.map(lambda _: lib.timed(argv, env), range(count)))
        return count / (time.perf_counter() - began)


def ours_are_over(c):
    wait_until("our jobs are over", lambda: not c.json("jobs")["jobs"], LONG)


def slurms_are_over(s):
    wait_until("Slurm's jobs are over", s.empty, LONG)
