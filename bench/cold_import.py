# SPDX-License-Identifier: Apache-2.0
"""`import torch` on a node that has never seen the environment, 500 Mbit/s and 1 ms, against native and sshfs.

The root is a debootstrap with python3-torch (numpy with --package numpy where disk is short), made once and kept in
--root. Cold: a fresh emulated host each time, the first run ever: home has started anew and knows of no run, but has scanned the
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
from launch import daemons

PACKAGES = {"torch": ["python3", "python3-numpy", "python3-torch"], "numpy": ["python3", "python3-numpy"]}
ENV = {"PATH": "/usr/bin:/bin", "HOME": "/root", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}


def make_root(root, package):
    done = root / ".complete"
    if done.exists() and done.read_text() == package:
        return
    if shutil.disk_usage(root.parent).free < 8 << 30 and package == "torch":
        raise SystemExit("less than 8 GB free: use --package numpy")
    targets = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"],
                             capture_output=True, text=True, check=True).stdout.split("\n")
    mirror = next(t.split()[0] for t in targets if t.endswith(" bookworm"))
    lib.note(f"making {root} (a few minutes, once)")
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(["debootstrap", "--variant=minbase", "bookworm", root, mirror], check=True, stdout=subprocess.DEVNULL)
    for f in pathlib.Path("/etc/apt/apt.conf.d").glob("*"):
        if "roxy" in f.read_text():
            shutil.copy(f, root / "etc/apt/apt.conf.d")
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    chroot = ["chroot", root, "env", "DEBIAN_FRONTEND=noninteractive"]
    subprocess.run([*chroot, "apt-get", "update", "-qq"], check=True)
    subprocess.run([*chroot, "apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES[package]], check=True,
                   stdout=subprocess.DEVNULL)
    subprocess.run([*chroot, "apt-get", "clean"], check=True)
    done.write_text(package)


def mounts(root):
    """Lines of shell that give a root its /proc, /dev and /tmp; in a mount namespace of its own, which takes them with it."""
    return f"mount -t proc proc {root}/proc\nmount --bind /dev {root}/dev\nmount -t tmpfs tmpfs {root}/tmp\n"


def chrooted(root, statement):
    """argv of the statement in a root that has its mounts."""
    environment = [f"{k}={v}" for k, v in ENV.items()]
    return ["/usr/sbin/chroot", str(root), "/usr/bin/env", "-i", *environment, "/usr/bin/python3", "-c", statement]


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

    def run(self, statement, times):
        """Seconds of `times` runs one after the other on one fresh mount."""
        script = f"""set -e
{' '.join(f"'{a}'" for a in self.mount()[4:])}
trap 'umount -l {self.point}' EXIT
{mounts(self.point)}
for i in $(seq {times}); do date +%s.%N; {' '.join(lib_quote(a) for a in chrooted(self.point, statement))}; date +%s.%N; done"""
        out = subprocess.run(["ip", "netns", "exec", self.netns, "sh", "-c", script], check=True, capture_output=True, text=True).stdout
        stamps = list(map(float, out.split()))
        return [b - a for a, b in zip(stamps[::2], stamps[1::2])]

    def copy(self, statement, directory):
        """Seconds of copying the whole root to an empty directory, packed, and one run in it."""
        ssh = ["ssh", "-p", str(self.port), "-i", f"{self.directory}/user", "-o", "StrictHostKeyChecking=no",
               "-o", f"UserKnownHostsFile={self.directory}/known", f"root@{self.address}",
               f"tar -C {self.root} --one-file-system -c . | zstd -1"]
        script = f"""set -eo pipefail
{' '.join(lib_quote(a) for a in ssh)} | zstd -d | tar -x -C {directory}
{mounts(directory)}
{' '.join(lib_quote(a) for a in chrooted(str(directory), statement))}"""
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
    parser.add_argument("--package", choices=PACKAGES, default="torch")
    parser.add_argument("--root", default="/var/tmp/vrun-bench-root")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate-mbit", type=float, default=500)
    parser.add_argument("--rtt-ms", type=float, default=1)
    parser.add_argument("--no-sshfs", action="store_true")
    parser.add_argument("--explain", action="store_true", help="show what --explain-io says instead of timing the traced run")
    o = parser.parse_args(arguments)
    root = pathlib.Path(f"{o.root}-{o.package}")
    make_root(root, o.package)
    statement = f"import {o.package}"
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
            vrun = cluster.command("vrun", *lib.VIEW, "-D", "/", "-q", "-c", str(os.cpu_count()), "--", "/usr/bin/python3", "-c", statement)
            env = dict(cluster.environment, **ENV)
            for k in range(o.rounds):
                first_run_ever(cluster)
                # The developer has just run it here, and nothing else has gone through the root.
                subprocess.run(["sync"])
                pathlib.Path("/proc/sys/vm/drop_caches").write_text("1")
                natively.timed(chrooted(root, statement))
                node = start_node(f"n{2 * k + 1}")
                before = int(cluster.json("status")["served_bytes"])
                times["cold"].append(lib.timed(vrun, env))
                fetched.append(int(cluster.json("status")["served_bytes"]) - before)
                for _ in range(5):
                    times["warm"].append(lib.timed(vrun, env))
                    times["native"].append(natively.timed(chrooted(root, statement)))
                if not o.no_sshfs:
                    index = cluster.nodes[node]["index"]
                    sshfs = Sshfs(start, directory.make(directory.path / f"sshfs{k}"), root, f"10.213.{index}.1", f"vrun-{node}-{index}")
                    s = sshfs.run(statement, 2)
                    times["sshfs_cold"].append(s[0])
                    times["sshfs_warm"].append(s[1])
                    if k == o.rounds - 1:
                        times["copy"].append(sshfs.copy(statement, directory.make(directory.path / "copy")))
                cluster.stop_node(node)
                subprocess.run(["sync"])   # of what the copy wrote, which is not ours to wait for
                wait_for_frames(cluster)
                node = start_node(f"n{2 * k + 2}")
                before = int(cluster.json("status")["served_bytes"])
                if o.explain:
                    subprocess.run([*vrun[:1], "--explain-io", *vrun[1:]], env=env, stdout=subprocess.DEVNULL)
                else:
                    times["traced"].append(lib.timed(vrun, env))
                traced_bytes.append(int(cluster.json("status")["served_bytes"]) - before)
                cluster.stop_node(node)
                lib.note(f"round {k + 1}: " + ", ".join(f"{n} {v[-1]:.2f}" for n, v in times.items() if v))
        finally:
            cluster.close()
    m = {n: lib.median(v) for n, v in times.items() if v}
    here = native_name(root)
    more = {"package": o.package, "rate_mbit": o.rate_mbit, "rtt_ms": o.rtt_ms, "rounds": o.rounds}
    if "sshfs_cold" in m:
        report.line("cold-import.cold", m["cold"], "s", "sshfs cold", m["sshfs_cold"], **more)
        report.line("cold-import.warm_vs_sshfs", m["warm"], "s", "sshfs warm", m["sshfs_warm"], **more)
    report.line("cold-import.warm", m["warm"], "s", here, m["native"], **more)
    first = {"goal": "<= 4 s", "met": m["cold"] <= 4.0} if o.rtt_ms < 10 else {}
    report.line("cold-import.cold_vs_native", m["cold"], "s", here, m["native"], **first, **more)
    if "traced" in m:
        limit = 2.0 if o.rtt_ms < 10 else 2.5
        report.line("cold-import.traced", m["traced"], "s", here, m["native"], f"<= {limit} s", m["traced"] <= limit, **more)
        report.line("cold-import.traced_fetched", lib.median(traced_bytes) / 1e6, "MB", None, None, "<= 50 MB",
                    lib.median(traced_bytes) <= 50e6, **more)
        for name, rival, most in (("sshfs_cold", "sshfs cold", 0.2), ("copy", "copy everything first", 0.1)):
            if name in m:
                report.line(f"cold-import.traced_vs_{name.split('_')[0]}", m["traced"], "s", rival, m[name], f"ratio <= {most}",
                            m["traced"] <= most * m[name], **more)
    report.line("cold-import.fetched", lib.median(fetched) / 1e6, "MB", **more)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
