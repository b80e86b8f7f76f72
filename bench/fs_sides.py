# SPDX-License-Identifier: Apache-2.0
"""The two sides of the file system benchmarks: a probe in a job, and the same probe in the same root natively."""
import argparse
import contextlib
import os
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
        vrun = Side(cluster.command("vrun", *lib.VIEW, "-D", "/root", "-q", "--", PROBE), env=cluster.environment, cwd="/")
        stack.callback(vrun.close)
        yield {"vrun": vrun, "native": native}


def options(name, text, arguments, **numbers):
    """The benchmark's options, all of them numbers with the given defaults."""
    parser = argparse.ArgumentParser(prog=f"bench/run {name}", description=text)
    for option, default in numbers.items():
        parser.add_argument(f"--{option}", type=int, default=default)
    return parser.parse_args(arguments)


def fill(top, files, per_directory, size=0):
    """So many files of so many random bytes."""
    for i in range(0, files, per_directory):
        directory = top / f"d{i // per_directory:03}"
        directory.mkdir(parents=True)
        for j in range(min(per_directory, files - i)):
            (directory / f"entry-{j:03}").write_bytes(os.urandom(size))


class Against(contextlib.ExitStack):
    """Compares the two sides, question by question, and reports. A value is `amount` a second, or in ms with unit "ms"."""

    def __init__(self, baseline, fill_root, ext4_mb, o):
        super().__init__()
        self.baseline, self.runs, self.numbers, self.report = baseline, o.runs, vars(o), lib.Report()
        self.both = self.enter_context(sides(fill_root, ext4_mb))

    def once(self, name, question, amount, unit):
        """Of our side alone: the first time."""
        self.report.line(name, self.value(self.both["vrun"].seconds(question), amount, unit), unit)

    def compare(self, name, question, amount, unit, at_least=None, at_most=None, **more):
        times = lib.interleaved({side: lambda s=s: s.seconds(question) for side, s in self.both.items()}, self.runs, 2)
        vrun, native = (self.value(lib.median(times[side]), amount, unit) for side in ("vrun", "native"))
        goal, met = None, None
        if at_least or at_most:
            goal = f">= {at_least} x" if at_least else f"<= {at_most} x"
            met = vrun >= at_least * native if at_least else vrun <= at_most * native
        self.report.line(name, vrun, unit, self.baseline, native, goal, met, **self.numbers, **more)

    @staticmethod
    def value(seconds, amount, unit):
        return seconds * amount if unit == "ms" else amount / seconds

    def exit_code(self):
        return self.report.exit_code()
