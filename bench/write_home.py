# SPDX-License-Identifier: Apache-2.0
"""What a job in a live view writes, until home has all of it: a large file against the link, 5,000 small files against sshfs.

500 Mbit/s and 1 ms. Both sides make a fresh directory each time and are timed inside the command, to which the end of the run
(home has everything durably) is added: no start of a job, no mount. sshfs is as Debian ships it, mounted once.
"""
import argparse
import pathlib
import shutil
import subprocess
import tempfile
import time

import lib
import miniroot
from cluster import Cluster, wait_until
from cold_import import Sshfs, lib_quote
from launch import daemons

SMALL = """
import os, sys, time
top, files = sys.argv[1], int(sys.argv[2])
print(time.time(), flush=True)
os.mkdir(top)
for i in range(files):
    if i % 100 == 0: os.mkdir(f"{top}/{i // 100}")
    with open(f"{top}/{i // 100}/{i}", "wb") as f: f.write(i.to_bytes(4, "big") * 1024)
"""
LARGE = """
import sys, time
piece = bytes(range(256)) * 4096
print(time.time(), flush=True)
with open(sys.argv[1], "wb") as f:
    for _ in range(int(sys.argv[2])): f.write(piece)
"""


def live(cluster, script, *args):
    out = cluster.run("vrun", "--view=live", "-q", "-D", "/root", "--", "python3", f"/root/{script}", *args, check=True, timeout=300)
    return time.time() - float(out.stdout)


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run write-home", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rate-mbit", type=float, default=500)
    parser.add_argument("--rtt-ms", type=float, default=1)
    o = parser.parse_args(arguments)
    report = lib.Report()
    link = ["--rate-mbit", str(o.rate_mbit), "--rtt-ms", str(o.rtt_ms), "--tunlink", str(lib.build_tunlink())]
    more = {"rate_mbit": o.rate_mbit, "rtt_ms": o.rtt_ms, "runs": o.runs}
    with tempfile.TemporaryDirectory(prefix="vrun-bench-", dir="/var/tmp") as name, daemons() as start:
        root = miniroot.make(pathlib.Path(name) / "root")
        for script, text in (("small.py", SMALL), ("large.py", LARGE)):
            (root / "root" / script).write_text(text)
        cluster = Cluster(root, link=link)
        try:
            wait_until("home has scanned the root", lambda: cluster.json("status")["scanned"], 120)
            live(cluster, "small.py", "/root/warm", 10)
            index = cluster.nodes["n1"]["index"]
            directory = pathlib.Path(name) / "sshfs"
            directory.mkdir()
            sshfs = Sshfs(start, directory, root, f"10.213.{index}.1", f"vrun-n1-{index}")
            mount = " ".join(lib_quote(a) for a in sshfs.mount()[4:]).replace("ro,", "", 1)

            def over_sshfs(k):
                script = (f"{mount} && trap 'fusermount3 -u {sshfs.point} || umount -l {sshfs.point}' EXIT && "
                          f"python3 {root}/root/small.py {sshfs.point}/root/sshfs{k} {o.files} && date +%s.%N")
                out = subprocess.run(["ip", "netns", "exec", sshfs.netns, "sh", "-ec", script], check=True, capture_output=True,
                                     text=True).stdout.split()
                return float(out[1]) - float(out[0])
            times = {"small": [], "sshfs": [], "large": []}
            for k in range(o.runs):
                times["small"].append(live(cluster, "small.py", f"/root/live{k}", o.files))
                times["sshfs"].append(over_sshfs(k))
                times["large"].append(live(cluster, "large.py", f"/root/large{k}", o.mib))
                assert (root / f"root/large{k}").stat().st_size == o.mib << 20
                assert len(list((root / f"root/live{k}").glob("*/*"))) == o.files
                for left in (root / f"root/large{k}", root / f"root/live{k}", root / f"root/sshfs{k}"):
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
                lib.note(f"round {k + 1}: " + ", ".join(f"{n} {v[-1]:.2f}" for n, v in times.items()))
        finally:
            cluster.close()
    m = {n: lib.median(v) for n, v in times.items()}
    megabytes = (o.mib << 20) / 1e6
    report.line("write-home large", megabytes / m["large"], "MB/s", "the link", o.rate_mbit / 8, "ratio >= 0.8",
                megabytes / m["large"] >= 0.8 * o.rate_mbit / 8, mib=o.mib, **more)
    report.line("write-home small", o.files / m["small"], "files/s", "sshfs", o.files / m["sshfs"], "ratio >= 5",
                m["sshfs"] >= 5 * m["small"], files=o.files, **more)
    return report.exit_code()
