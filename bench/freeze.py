# SPDX-License-Identifier: Apache-2.0
"""What it adds to a submission that the root of 300,000 files stays as it was for the job.

Two homes on one root, warm; one freezes the root for each job, the other (VRUN_FREEZE=0) does not. Their `vbatch` are timed in
turn, to the id on the screen; the jobs wait, since there is no node, so that each of them keeps its tree and its claim to
all files. In between a file is written to, so that no two trees are the same. Beside it what the background does: all files
held, and how long a program waits that opens one of them to write.
"""
import argparse
import os
import pathlib
import re
import shutil
import tempfile
import time

import index
import lib
import miniroot
from cluster import Cluster, wait_until

ADDED_MS = 20


def frozen(cluster):
    """(files, left out) of every root that home has frozen."""
    text = next((cluster.directory / "home").rglob("home.log")).read_text()
    return [(int(files), int(left)) for files, left in re.findall(r"frozen root: (\d+) files, (\d+) left out", text)]


def status(pid, name):
    return int(re.search(rf"^{name}:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M)[1])


def waits(directory, size, runs):
    """Milliseconds that open() for writing takes, of files of that size."""
    times = []
    for i in range(runs):
        began = time.perf_counter()
        with open(directory / f"{size}.{i}", "r+b"):
            times.append((time.perf_counter() - began) * 1000)
    return times


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run freeze")
    parser.add_argument("--files", type=int, default=300_000)
    parser.add_argument("--runs", type=int, default=25)
    options = parser.parse_args(arguments)
    report = lib.Report()
    directory = pathlib.Path(tempfile.mkdtemp(prefix="vrun-freeze-", dir="/var/tmp"))
    clusters = {}
    try:
        root = pathlib.Path(miniroot.make(directory / "root"))
        lib.note(f"{options.files} files")
        index.fill(root, options.files, options.files // 10)
        project = root / "root/project"
        project.mkdir()
        sizes = {4096: "4 KiB", 1 << 20: "1 MiB", 64 << 20: "64 MiB"}
        for size in sizes:
            for i in range(5):
                (project / f"{size}.{i}").write_bytes(os.urandom(size))
        (project / "edited").write_text("0")
        os.environ["VRUN_FREEZE"] = "0"
        clusters["not"] = Cluster(root, nodes=0)
        del os.environ["VRUN_FREEZE"]
        clusters["frozen"] = Cluster(root, nodes=0)

        def submit(name):
            (project / "edited").write_text(str(time.perf_counter()))
            c = clusters[name]
            return lib.timed(c.command("vbatch", "-D", "/root/project", "--", "true"), c.environment)
        submit("not")
        began = time.perf_counter()
        submit("frozen")
        home = clusters["frozen"].pid_of("home")
        wait_until("all files are held", lambda: frozen(clusters["frozen"]), 600)
        first_s = time.perf_counter() - began
        files, left_out = frozen(clusters["frozen"])[0]
        times = lib.interleaved({name: lambda name=name: submit(name) for name in clusters}, options.runs)
        with_ms, without_ms = (lib.median(times[name]) * 1000 for name in ("frozen", "not"))
        added = with_ms - without_ms
        jobs = options.runs + 4
        wait_until("each tree is held", lambda: len(frozen(clusters["frozen"])) >= jobs, 120)
        report.line("freeze added", added, "ms", "vbatch without", without_ms, f"<= {ADDED_MS} ms", added <= ADDED_MS,
                    files=files, with_ms=round(with_ms, 2), p90_ms=round(lib.percentile(times["frozen"], 0.9) * 1000, 2))
        report.line("freeze held", first_s, "s", files=files, left_out=left_out, descriptors=len(os.listdir(f"/proc/{home}/fd")),
                    home_mib=status(home, "VmRSS") >> 10)
        trees = sum(f.stat().st_size for f in (clusters["frozen"].directory / "home").rglob("frozen/store/blobs/*"))
        report.line("freeze trees", trees / 1e6, "MB", jobs=jobs)
        for size, text in sizes.items():
            report.line(f"freeze writer {text}", lib.median(waits(project, size, 5)), "ms", goal="<= 45 s: fs.lease-break-time")
        return report.exit_code()
    finally:
        for c in clusters.values():
            c.close()
        shutil.rmtree(directory, ignore_errors=True)
