# SPDX-License-Identifier: Apache-2.0
"""A root of 300,000 files in 30,000 directories: scanned, shipped to a node that never saw it, mounted, listed.

The clock starts when `vrun` does, home having scanned; the link is 500 Mbit/s and 1 ms. "mounted": `vrun true` on a new node,
which home has never spoken to, is over, view and tree included; "shipped": the last directory object is on the node. "encode":
home's CPU time meanwhile, for packing, compressing, encrypting and sending (a scan keeps directories as they are encoded).
Bytes are those of the link's packets, headers and all. Baselines: find that asks for every attribute, on this machine, for
the scan; for the rest `rsync -a --list-only` through ssh over the same link, which also sends nothing but names and
attributes. A job reads nothing of the files, so they are as sparse as the file system makes them.
"""
import argparse
import contextlib
import pathlib
import random
import tempfile
import time

import lib
import miniroot
from cluster import Cluster, wait_until
from cold_import import Sshfs
from launch import daemons
from serve import cpu

MOUNTED_S, WIRE_MB = 0.5, 12
STEMS = """index main utils config test types core base parser model view client server http json cache error event util helper
common constants factory handler manager options plugin query reader render schema state store string table token tree value
writer async buffer stream socket session auth login user admin form field widget layout theme style button dialog menu""".split()
KINDS = (["{0}.py", "__pycache__/{0}.cpython-311.pyc"], ["{0}.js", "{0}.d.ts", "{0}.js.map"], ["{0}.h", "{0}.cc", "{0}_test.cc"],
         ["{0}.png", "{0}@2x.png"], ["lib{0}.so.{1}", "{0}.a"], ["{0}-{1}.json"], ["{0}.{1}.gz"])


def size_of(chance):
    """As in the /usr of a developer: median 2 kB, a tenth empty, some of them large."""
    kind = chance.random()
    if kind < 0.1:
        return 0
    return int(chance.lognormvariate(7.7, 1.6)) if kind < 0.996 else chance.randrange(1 << 20, 200 << 20)


def fill(root, files, directories, seed=1):
    """Packages as installers leave them: times in the order of unpacking, whole seconds in half of the packages."""
    chance = random.Random(seed)
    tree = [root / "usr/share/tree"]
    clock = 1_600_000_000 * 10**9
    tree[0].mkdir(parents=True)
    while len(tree) < directories:
        parent = tree[int(len(tree) * chance.random() ** 0.7)]
        child = parent / f"{chance.choice(STEMS)}{chance.choice(['', '-', '_', '.'])}{chance.choice(STEMS)}{len(tree) % 97 or ''}"
        if not child.exists():
            child.mkdir()
            tree.append(child)
    made = 0
    while made < files:
        directory = tree[made * directories // files]
        kind, whole = chance.choice(KINDS), chance.random() < 0.5
        clock += chance.randrange(10**12)
        for i in range(min(files - made, files // directories)):
            name = kind[i % len(kind)].rsplit("/", 1)[-1].format(chance.choice(STEMS) + str(i // 2 or ""), chance.randrange(99))
            clock += chance.randrange(10**6)
            stamp = clock // 10**9 * 10**9 if whole else clock
            with open(directory / name, "ab") as f:
                f.truncate(size_of(chance))
            lib.os.utime(directory / name, ns=(stamp, stamp))
            made += 1


def link_bytes(cluster, node):
    """What this machine has sent to the node."""
    return int(pathlib.Path(f"/sys/class/net/vh{cluster.nodes[node]['index']}/statistics/tx_bytes").read_text())


def first_contact(cluster, node, argv):
    """Seconds until a first command is over and until the node has all of the tree; bytes on the link by then, and home's CPU
    seconds."""
    cluster.start_node(node)
    home = [cluster.pid_of("home")]
    used, before, began = cpu(home), link_bytes(cluster, node), time.time()
    command = lib.timed(cluster.command("vrun", "-D", "/", "-q", "--", *argv), cluster.environment)

    def shipped():
        # What the job had goes meanwhile.
        with contextlib.suppress(FileNotFoundError):
            return [f.stat().st_mtime - began for f in (cluster.nodes[node]["directory"] / "state").rglob("last-tree")]
    whole = wait_until("the node has the tree", shipped, 120)[0]
    sent, used = link_bytes(cluster, node) - before, cpu(home) - used
    cluster.stop_node(node)
    return command, whole, sent, used


def rsync_list(cluster, start, directory, root, node):
    """Seconds and bytes of a list of the root by rsync over the node's link."""
    index = cluster.nodes[node]["index"]
    ssh = Sshfs(start, directory, root, f"10.213.{index}.1", f"vrun-{node}-{index}")
    shell = f"ssh -p {ssh.port} -i {directory}/user -o StrictHostKeyChecking=no -o UserKnownHostsFile={directory}/known -o LogLevel=ERROR"
    before = link_bytes(cluster, node)
    took = lib.timed(["/usr/sbin/ip", "netns", "exec", ssh.netns, "/usr/bin/rsync", "-a", "--list-only", "-e", shell,
                      f"root@{ssh.address}:{root}/"])
    return took, link_bytes(cluster, node) - before


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run index", description=__doc__)
    parser.add_argument("--files", type=int, default=300_000)
    parser.add_argument("--directories", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate-mbit", type=float, default=500)
    parser.add_argument("--rtt-ms", type=float, default=1)
    o = parser.parse_args(arguments)
    report = lib.Report()
    link = ["--rate-mbit", str(o.rate_mbit), "--rtt-ms", str(o.rtt_ms), "--tunlink", str(lib.build_tunlink())]
    more = {"files": o.files, "directories": o.directories, "rounds": o.rounds, "rate_mbit": o.rate_mbit, "rtt_ms": o.rtt_ms}
    results = {k: [] for k in ("mounted", "shipped", "sent", "encode", "listed", "rsync", "rsync_sent", "find")}
    with tempfile.TemporaryDirectory(prefix="vrun-bench-", dir="/var/tmp") as name, daemons() as start:
        root = pathlib.Path(miniroot.make(pathlib.Path(name) / "root", with_python=False))
        fill(root, o.files, o.directories)
        find = ["/usr/bin/find", str(root), "-xdev", "-printf", "%s %C@ %T@ %i %m\n"]
        lib.timed(find)
        cluster = Cluster(root, nodes=0, link=link)
        try:
            wait_until("home has scanned the root", lambda: cluster.json("status")["scanned"], 300)
            log = "\n".join(p.read_text() for p in (cluster.directory / "home").rglob("*.log"))
            scan = float(log.split("root scanned: ")[1].split(" bytes, ")[1].split(" s,")[0])
            for k in range(o.rounds):
                command, whole, sent, encode = first_contact(cluster, f"n{2 * k + 1}", ["/bin/true"])
                listed, *_ = first_contact(cluster, f"n{2 * k + 2}", ["/usr/bin/find", "/", "-xdev", "-newer", "/bin/sh"])
                d = pathlib.Path(name) / f"ssh{k}"
                d.mkdir()
                took, rsync_sent = rsync_list(cluster, start, d, root, f"n{2 * k + 1}")
                for key, value in zip(results, (command, whole, sent / 1e6, encode, listed, took, rsync_sent / 1e6, lib.timed(find))):
                    results[key].append(value)
                lib.note(f"round {k + 1}: " + ", ".join(f"{key} {v[-1]:.2f}" for key, v in results.items()))
        finally:
            cluster.close()
    m = {k: lib.median(v) for k, v in results.items()}
    report.line("index.scan", scan, "s", "find with attributes, natively", m["find"], **more)
    report.line("index.mounted", m["mounted"], "s", "rsync --list-only", m["rsync"], f"<= {MOUNTED_S} s", m["mounted"] <= MOUNTED_S, **more)
    report.line("index.shipped", m["shipped"], "s", "rsync --list-only", m["rsync"], **more)
    report.line("index.wire", m["sent"], "MB", "rsync --list-only", m["rsync_sent"], f"<= {WIRE_MB} MB", m["sent"] <= WIRE_MB, **more)
    report.line("index.encode", m["encode"], "s", **more)
    report.line("index.listed", m["listed"], "s", "rsync --list-only", m["rsync"], **more)
    return report.exit_code()
