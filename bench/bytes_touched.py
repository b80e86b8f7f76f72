# SPDX-License-Identifier: Apache-2.0
"""What a cold `import torch` with a trace fetches, against the pages that it really touches.

Touched, page-exact: the same root on an ext4 of its own, on a device without read-ahead, with an empty page cache; what is
in the cache after one native import are the pages that were asked for, and no others (fincore). Ours: the import on a node
that never saw the root, by the trace of a run elsewhere. Units are what is in the node's store then, as the disk has it; the
wire is what home has sent.
"""
import argparse
import contextlib
import json
import pathlib
import shutil
import subprocess
import tempfile

import lib
from cluster import Cluster, wait_until
from cold_import import home_has_scanned, native, wait_for_frames
from import_roots import ENV, ImportRoot, add_options

UNITS_RATIO = 1.7


def resident(root):
    """Bytes of regular files below `root` that are in the page cache."""
    found = subprocess.run(["find", root, "-xdev", "-type", "f", "-size", "+0", "-printf", "%i %p\\0"], capture_output=True, check=True)
    files = list(dict(f.split(b" ", 1) for f in found.stdout.split(b"\0")[:-1]).values())   # a file of several names once
    total = 0
    for i in range(0, len(files), 500):
        out = subprocess.run([b"fincore", b"-b", b"-n", b"-r", b"-o", b"RES", *files[i:i + 500]], capture_output=True, check=True)
        total += sum(map(int, out.stdout.split()))
    return total


@contextlib.contextmanager
def mounted(image, point):
    """The file system of an image, with nothing of it cached."""
    subprocess.run(["mount", "-o", "loop,noatime", image, point], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", point], check=True)


def ext4_copy(root, directory):
    """An image of an ext4 that holds the root, and a place to mount it."""
    megabytes = int(subprocess.run(["du", "-sm", root], capture_output=True, text=True, check=True).stdout.split()[0])
    image, point = directory / "image", directory / "copy"
    point.mkdir()
    with open(image, "wb") as f:
        f.truncate((megabytes * 5 // 4 + 256) << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=True)
    with mounted(image, point):
        subprocess.run(["cp", "-a", f"{root}/.", point], check=True)
    return image, point


def touched(image, point, imported):
    """Bytes that a native import brings into the empty page cache of the image."""
    with mounted(image, point), native(point) as natively:
        device = subprocess.run(["mountpoint", "-d", point], capture_output=True, text=True, check=True).stdout.strip()
        pathlib.Path(f"/sys/class/bdi/{device}/read_ahead_kb").write_text("0")
        natively.timed(imported.chrooted(point))
        return resident(point)


def ours(imported, o):
    """Store bytes and wire bytes of a traced cold import on a fresh node."""
    link = ["--rate-mbit", str(o.rate_mbit), "--rtt-ms", str(o.rtt_ms), "--tunlink", str(lib.build_tunlink())]
    cluster = Cluster(imported.path, nodes=0, link=link)
    try:
        home_has_scanned(cluster)
        vrun = cluster.command("vrun", "-D", "/", "-q", "--", *imported.command)
        env = dict(cluster.environment, **ENV)
        cluster.start_node("n1")
        lib.timed(vrun, env)
        cluster.stop_node("n1")
        wait_for_frames(cluster)
        cluster.start_node("n2")
        before = int(cluster.json("status")["served_bytes"])
        lib.timed(vrun, env)
        wire = int(cluster.json("status")["served_bytes"]) - before
        # The store is written behind the readers.
        seen = []

        def settled():
            # The command fails because the first node is gone.
            told = json.loads(cluster.run("vctl", "cache", "stat", "-o", "json").stdout)["nodes"]
            stat = next(s for s in told if s["node"] == "n2" and "error" not in s)
            seen.append(stat)
            return len(seen) > 20 and seen[-20]["bytes"] == stat["bytes"]
        wait_until("the node has stored what came", settled, 120)
        return seen[-1], wire
    finally:
        cluster.close()


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run bytes", description=__doc__)
    add_options(parser)
    parser.add_argument("--rate-mbit", type=float, default=500)
    parser.add_argument("--rtt-ms", type=float, default=1)
    o = parser.parse_args(arguments)
    imported = ImportRoot(o)
    report = lib.Report()
    with tempfile.TemporaryDirectory(prefix="vrun-bench-", dir="/var/tmp") as name:
        if shutil.disk_usage(name).free < imported.kind.gigabytes << 30:
            raise SystemExit(f"less than {imported.kind.gigabytes} GB free: use --root debian-numpy")
        image, point = ext4_copy(imported.path, pathlib.Path(name))
        exact = touched(image, point, imported)
        lib.note(f"touched {exact / 1e6:.1f} MB")
        stat, wire = ours(imported, o)
    more = imported.more
    stored = stat["bytes"]
    report.line("bytes.units", stored / 1e6, "MB", "pages touched, exactly", exact / 1e6, f"ratio <= {UNITS_RATIO}",
                stored <= UNITS_RATIO * exact, objects=stat["objects"], misses=stat["misses"], **more)
    most = imported.kind.wire_mb
    goal = (f"<= {most} MB", wire <= most * 1e6) if most else ()
    report.line("bytes.wire", wire / 1e6, "MB", "pages touched, exactly", exact / 1e6, *goal, **more)
    return report.exit_code()
