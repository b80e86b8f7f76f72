# SPDX-License-Identifier: Apache-2.0
"""`import torch` on a node that has never seen the environment, 500 Mbit/s and 1 ms, against native and sshfs.

The root is a Debian with PyPI's torch of today in a virtual environment (import_roots.py says which others there are), made
once and kept. Cold: a fresh emulated host each time, the first run ever: home has started anew and knows of no run, but has scanned the
root; the developer's page cache holds what one native run leaves there. Warm: the same command at once again. Traced: another
fresh host, with the trace of that run. Native: chroot, env and python, in a root whose mounts are there already.
sshfs mounts the same root over the same link, as Debian ships it; cold is a fresh mount. Copy everything first: the whole root
as a packed tar over ssh, unpacked, and the import there, once.
"""
import argparse
import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import lib
from cluster import Cluster, free_port, wait_until
from import_roots import ENV, ImportRoot, add_options
from launch import daemons
from processor_steps import Steps
from roots import mounts

def native(root):
    """Times what is chrooted into the root. The mounts are made here, once: they are no part of an import."""
    return contextlib.closing(lib.MountNamespace(lambda: subprocess.run(["sh", "-ec", mounts(root)], check=True)))


def native_name(root):
    """What the native side is a run on."""
    return "native, " + subprocess.run(["findmnt", "-n", "-o", "FSTYPE", "--target", root], check=True, capture_output=True,
                                       text=True).stdout.strip()


class Sshfs:
    """An sshd on this side of the link and the mount on the other."""

    def __init__(self, start, directory, root, address, netns):
        self.directory, self.root, self.netns, self.address = directory, root, netns, address
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / key], check=True)
        shutil.copy(directory / "user.pub", directory / "authorized")
        os.makedirs("/run/sshd", exist_ok=True)
        self.port = free_port(address)
        (directory / "config").write_text(f"Port {self.port}\nListenAddress {address}\nHostKey {directory}/host\n"
                                          f"AuthorizedKeysFile {directory}/authorized\nStrictModes no\nUsePAM no\nPidFile none\n"
                                          f"PermitRootLogin yes\nSubsystem sftp internal-sftp\n")
        start(["/usr/sbin/sshd", "-D", "-e", "-f", directory / "config"], directory / "sshd.log")

        def listens():
            with socket.socket() as s:
                return s.connect_ex((address, self.port)) == 0
        wait_until("sshd listens", listens)
        self.point = directory / "mount"
        self.point.mkdir()

    def mount(self):
        command = ["ip", "netns", "exec", self.netns, "sshfs", f"root@{self.address}:{self.root}", str(self.point), "-p", str(self.port),
                   "-o", f"IdentityFile={self.directory}/user,StrictHostKeyChecking=no,UserKnownHostsFile={self.directory}/known,"
                         "ro,allow_other,no_contain_symlinks"]
        # ip netns exec makes a mount namespace of its own: the mount must be made where the chroot will look for it.
        return command

    def run(self, argv, times):
        """Seconds of `times` runs of a chrooted command one after the other on one fresh mount."""
        script = f"""set -e
{' '.join(f"'{a}'" for a in self.mount()[4:])}
trap 'umount -l {self.point}' EXIT
{mounts(self.point)}
for i in $(seq {times}); do date +%s.%N; {' '.join(lib_quote(a) for a in argv)}; date +%s.%N; done"""
        out = subprocess.run(["ip", "netns", "exec", self.netns, "sh", "-c", script], check=True, capture_output=True, text=True).stdout
        stamps = list(map(float, out.split()))
        return [b - a for a, b in zip(stamps[::2], stamps[1::2])]

    def copy(self, argv, directory):
        """Seconds of copying the whole root to an empty directory, packed, and one run in it."""
        ssh = ["ssh", "-p", str(self.port), "-i", f"{self.directory}/user", "-o", "StrictHostKeyChecking=no",
               "-o", f"UserKnownHostsFile={self.directory}/known", f"root@{self.address}",
               f"tar -C {self.root} --one-file-system -c . | zstd -1"]
        script = f"""set -eo pipefail
{' '.join(lib_quote(a) for a in ssh)} | zstd -d | tar -x -C {directory}
{mounts(directory)}
{' '.join(lib_quote(a) for a in argv)}"""
        return lib.timed(["/usr/sbin/ip", "netns", "exec", self.netns, "bash", "-c", script])


def first_run_ever(cluster):
    """Has home be as before its first run: it starts anew, without traces, frames and digests, and with nothing in its memory
    but the root, which it scans again."""
    pid = cluster.pid_of("home")
    os.kill(pid, signal.SIGTERM)
    wait_until("home has ended", lambda: not os.path.exists(f"/proc/{pid}"))
    for known in [*(cluster.directory / "home").rglob("traces"), *(cluster.directory / "home").rglob("digests")]:
        if known.is_dir():
            shutil.rmtree(known)
        else:
            known.unlink()
    cluster.vctl("up", "--no-node", "--listen", f"0.0.0.0:{cluster.port}", "--root", str(cluster.root))
    home_has_scanned(cluster)


def home_has_scanned(cluster):
    wait_until("home has scanned the root", lambda: cluster.json("status")["scanned"], 120)


def wait_for_frames(cluster):
    """Home compresses what a trace names when it has nothing better to do: until nothing has come for four seconds."""
    seen, since, began = -1, time.monotonic(), time.monotonic()
    while time.monotonic() - since < 4 and time.monotonic() - began < 180:
        now = [(f.name, f.stat().st_size) for d in (cluster.directory / "home").rglob("traces/frames") for f in d.glob("[0-9a-f]*")]
        if now != seen:
            seen, since = now, time.monotonic()
        time.sleep(0.2)


def lib_quote(word):
    return "'" + str(word).replace("'", "'\\''") + "'"


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run cold-import", description=__doc__)
    add_options(parser)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate-mbit", type=float, default=500)
    parser.add_argument("--rtt-ms", type=float, default=1)
    parser.add_argument("--no-sshfs", action="store_true")
    parser.add_argument("--explain", action="store_true", help="show what --explain-io says instead of timing the traced run")
    parser.add_argument("--processor", action="store_true", help="count processor time by step, with perf; the times are not a result then")
    o = parser.parse_args(arguments)
    imported = ImportRoot(o)
    root, natively_run = imported.path, imported.chrooted()
    steps = Steps(o.processor)
    report = lib.Report()
    times = {k: [] for k in ("native", "cold", "warm", "traced", "sshfs_cold", "sshfs_warm", "copy")}
    fetched, traced_bytes = [], []
    link = ["--rate-mbit", str(o.rate_mbit), "--rtt-ms", str(o.rtt_ms), "--tunlink", str(lib.build_tunlink())]
    with native(root) as natively, lib.directory() as directory, daemons() as start:
        cluster = Cluster(root, nodes=0, link=link, directory=directory.path / "cluster")

        def start_node(name):
            directory.make(cluster.directory / name)
            cluster.start_node(name)
            return name
        try:
            home_has_scanned(cluster)
            vrun = cluster.command("vrun", *lib.VIEW, "-D", "/", "-q", "-c", str(os.cpu_count()), "--", *imported.command)
            env = dict(cluster.environment, **ENV)
            for k in range(o.rounds):
                first_run_ever(cluster)
                # The developer has just run it here, and nothing else has gone through the root.
                lib.drop_caches(1)
                natively.timed(natively_run)
                node = start_node(f"n{2 * k + 1}")
                before = int(cluster.json("status")["served_bytes"])
                with steps.counted("first run", cluster):
                    times["cold"].append(lib.timed(vrun, env))
                fetched.append(int(cluster.json("status")["served_bytes"]) - before)
                for _ in range(5):
                    times["warm"].append(lib.timed(vrun, env))
                    times["native"].append(natively.timed(natively_run))
                if not o.no_sshfs:
                    index = cluster.nodes[node]["index"]
                    sshfs = Sshfs(start, directory.make(directory.path / f"sshfs{k}"), root, f"10.213.{index}.1", f"vrun-{node}-{index}")
                    s = sshfs.run(imported.chrooted(sshfs.point), 2)
                    times["sshfs_cold"].append(s[0])
                    times["sshfs_warm"].append(s[1])
                    if k == o.rounds - 1:
                        copied = directory.make(directory.path / "copy")
                        times["copy"].append(sshfs.copy(imported.chrooted(copied), copied))
                cluster.stop_node(node)
                subprocess.run(["sync"])   # of what the copy wrote, which is not ours to wait for
                wait_for_frames(cluster)
                node = start_node(f"n{2 * k + 2}")
                before = int(cluster.json("status")["served_bytes"])
                if o.explain:
                    subprocess.run([*vrun[:1], "--explain-io", *vrun[1:]], env=env, stdout=subprocess.DEVNULL)
                else:
                    with steps.counted("by trace", cluster):
                        times["traced"].append(lib.timed(vrun, env))
                traced_bytes.append(int(cluster.json("status")["served_bytes"]) - before)
                cluster.stop_node(node)
                lib.note(f"round {k + 1}: " + ", ".join(f"{n} {v[-1]:.2f}" for n, v in times.items() if v))
        finally:
            cluster.close()
    m = {n: lib.median(v) for n, v in times.items() if v}
    here = native_name(root)
    more = {**imported.more, "rate_mbit": o.rate_mbit, "rtt_ms": o.rtt_ms, "rounds": o.rounds}
    if o.processor:
        steps.report(report, **more)
        return 0
    if "sshfs_cold" in m:
        report.line("cold-import.cold", m["cold"], "s", "sshfs cold", m["sshfs_cold"], **more)
        report.line("cold-import.warm_vs_sshfs", m["warm"], "s", "sshfs warm", m["sshfs_warm"], **more)
    report.line("cold-import.warm", m["warm"], "s", here, m["native"], **more)
    near = o.rtt_ms < 10
    goal, met = imported.kind.cold
    report.line("cold-import.cold_vs_native", m["cold"], "s", here, m["native"], *((goal, met(m["cold"], m["native"])) if near else ()), **more)
    if "traced" in m:
        goal, met = imported.kind.traced if near or imported.kind.name == "pypi" else ("<= 2.5 s", lambda ours, native: ours <= 2.5)
        report.line("cold-import.traced", m["traced"], "s", here, m["native"], goal, met(m["traced"], m["native"]), **more)
        fetched_mb, most = lib.median(traced_bytes) / 1e6, imported.kind.wire_mb
        report.line("cold-import.traced_fetched", fetched_mb, "MB", None, None, *((f"<= {most} MB", fetched_mb <= most) if most else ()), **more)
        for name, rival, most in (("sshfs_cold", "sshfs cold", 0.2), ("copy", "copy everything first", 0.1)):
            if name in m:
                report.line(f"cold-import.traced_vs_{name.split('_')[0]}", m["traced"], "s", rival, m[name], f"ratio <= {most}",
                            m["traced"] <= most * m[name], **more)
    report.line("cold-import.fetched", lib.median(fetched) / 1e6, "MB", **more)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
