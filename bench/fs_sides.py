# SPDX-License-Identifier: Apache-2.0
"""The two sides of the file system benchmarks: a probe in a job, and the same probe in the same root natively."""
import contextlib
import pathlib
import shutil
import subprocess
import tempfile

import lib
import miniroot
from cluster import Cluster

PROBE = "/usr/bin/fs-probe"


def build_probe():
    binary = lib.TOP / "build/bench/fs_probe"
    source = lib.TOP / "bench/fs_probe.cc"
    if not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime:
        binary.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["g++", "-O2", "-std=c++20", "-static", "-o", binary, source], check=True)
    return binary


class Side:
    def __init__(self, argv, **kw):
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **kw)

    def seconds(self, question):
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the probe ended at: {question}")
        return float(answer)

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def sides(fill, ext4_mb=None):
    """{"vrun": Side, "native": Side} of a root that `fill(root)` has added to. Native: chroot into a copy of the root on an
    ext4 of its own with `ext4_mb` MB (through a loop device), or on the file system that the node's cache lies on."""
    with tempfile.TemporaryDirectory(prefix="vrun-bench-", dir="/var/tmp") as name, contextlib.ExitStack() as stack:
        d = pathlib.Path(name)
        root = pathlib.Path(miniroot.make(d / "root", with_python=False))
        shutil.copy(build_probe(), str(root) + PROBE)
        fill(root)
        copy = d / "native"
        copy.mkdir()
        if ext4_mb is not None:
            with open(d / "image", "wb") as image:
                image.truncate(ext4_mb << 20)
            subprocess.run(["mkfs.ext4", "-q", "-F", "-N", "200000", "-m", "0", d / "image"], check=True)
            subprocess.run(["mount", "-o", "loop,noatime", d / "image", copy], check=True)
            stack.callback(subprocess.run, ["umount", "-l", copy])
        subprocess.run(["cp", "-a", f"{root}/.", copy], check=True)
        cluster = Cluster(root)
        stack.callback(cluster.close)
        native = Side(["chroot", str(copy), PROBE], cwd="/")
        stack.callback(native.close)
        vrun = Side(cluster.command("vrun", "-D", "/root", "-q", "--", PROBE), env=cluster.environment, cwd="/")
        stack.callback(vrun.close)
        yield {"vrun": vrun, "native": native}


def compare(both, question, runs, warmup=2):
    """Median seconds of each side, one of each in turn."""
    times = lib.interleaved({name: lambda side=side: side.seconds(question) for name, side in both.items()}, runs, warmup)
    return {name: lib.median(t) for name, t in times.items()}
