# SPDX-License-Identifier: Apache-2.0
"""A cold file of 1 GiB from home to a node, verified and encrypted: MB/s, and CPU seconds per GB of either end.

The job reads the file in sequence; every byte is read, hashed and encrypted at home, decrypted, hashed, written to the
store and given to the kernel on the node. The link is not shaped and both ends share two cores of this machine, the baselines
too, however many it has; what it does beside it moves the rates of all, so the CPU seconds are what counts. Baselines over
the same link, interleaved, the same bytes through OpenSSL alone (TLS 1.3, AES-GCM as ours; hashes and keeps nothing), scp (it
keeps the file) and a plain TCP copy. The file does not compress.
"""
import argparse
import contextlib
import os
import pathlib
import resource
import subprocess
import tempfile
import time

import lib
import miniroot
from cluster import Cluster
from cold_import import Sshfs
from compression import tcp_copy
from launch import daemons

GOAL_MB_S = 500


def cpu(pids):
    """CPU seconds, user and system, that processes have used so far."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            ticks += sum(map(int, pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def children_cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(run):
    """Seconds of run(), and the CPU seconds of the processes that it waited for."""
    before, began = children_cpu(), time.perf_counter()
    run()
    return time.perf_counter() - began, children_cpu() - before


SEND = """import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2])
with socket.create_server((sys.argv[1], 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    listener.settimeout(30)
    with context.wrap_socket(listener.accept()[0], server_side=True) as s, open(sys.argv[3], "rb", 0) as f:
        while data := f.read(1 << 20):
            s.sendall(data)
"""
RECEIVE = """import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
buffer, left = bytearray(1 << 20), int(sys.argv[3])
with context.wrap_socket(socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)) as s:
    assert "GCM" in s.cipher()[0]
    while n := s.recv_into(buffer):
        left -= n
sys.exit(left != 0)
"""


class Tls:
    """A file through OpenSSL: a reader here, a counter on the node."""

    def __init__(self, directory, address, netns):
        self.pem, self.address, self.netns = directory / "tls.pem", address, netns
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=x",
                        "-keyout", self.pem, "-out", directory / "certificate"], check=True, capture_output=True)
        self.pem.write_text(self.pem.read_text() + (directory / "certificate").read_text())

    def copy(self, file):
        with subprocess.Popen(["/usr/bin/python3", "-c", SEND, self.address, self.pem, file], stdout=subprocess.PIPE, text=True) as server:
            port = server.stdout.readline().strip()
            subprocess.run(["ip", "netns", "exec", self.netns, "/usr/bin/python3", "-c", RECEIVE, self.address, port,
                            str(os.path.getsize(file))], check=True, timeout=300)


def ssh_copy(ssh, argv):
    subprocess.run(["ip", "netns", "exec", ssh.netns, *argv], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Sides:
    """What is measured of one file: {name: (seconds, CPU seconds)}; ours are of home and of the node, scp's without sshd's."""

    def __init__(self, cluster, start, directory, touch):
        self.touch = touch
        index = cluster.nodes["n1"]["index"]
        self.cluster, self.index, self.directory = cluster, index, directory
        self.ssh = Sshfs(start, directory, cluster.root, f"10.213.{index}.1", f"vrun-n1-{index}")
        self.tls = Tls(directory, self.ssh.address, self.ssh.netns)
        key = f"-o IdentityFile={directory}/user -o StrictHostKeyChecking=no -o UserKnownHostsFile={directory}/known"
        self.scp = ["scp", "-q", "-P", str(self.ssh.port), *key.split(), f"root@{self.ssh.address}:"]

    def vrun(self, file):
        home, node = [self.cluster.pid_of("home")], self.cluster.node_pids("n1", "vrund")
        before = cpu(home), cpu(node)
        took, _ = measured(lambda: self.cluster.sh(f"cat {file.name} > /dev/null", check=True, timeout=300))
        return took, cpu(home) - before[0], cpu(node) - before[1]

    def scp_copy(self, file):
        target = self.directory / "copy"
        ssh_copy(self.ssh, [*self.scp[:-1], self.scp[-1] + str(file), target])
        target.unlink()

    def all(self, file):
        # Ours last, and the file goes at once: home would compress what a run has touched while the others are measured.
        values = {}
        for side, run in {"tls": lambda: measured(lambda: self.tls.copy(file)), "scp": lambda: measured(lambda: self.scp_copy(file)),
                          "tcp": lambda: measured(lambda: tcp_copy(file, self.index)), "vrun": lambda: self.vrun(file)}.items():
            if self.touch:
                lib.touch_memory(4 * os.path.getsize(file) >> 20)
            values[side] = run()
        return values


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run serve", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mb", type=int, default=1024)
    parser.add_argument("--fresh-memory", action="store_true", help="do not touch memory before: see lib.touch_memory")
    o = parser.parse_args(arguments)
    report, results = lib.Report(), {}
    with lib.two_cores() as cores, tempfile.TemporaryDirectory(prefix="vrun-bench-", dir="/var/tmp") as name, daemons() as start:
        root = pathlib.Path(miniroot.make(pathlib.Path(name) / "root", with_python=False))
        cluster = Cluster(root)
        try:
            cluster.sh("true", check=True)
            sides = Sides(cluster, start, pathlib.Path(name), not o.fresh_memory)
            for k in range(o.rounds):
                file = root / f"root/file{k}"
                with open(file, "wb") as f:
                    for _ in range(o.mb):
                        f.write(os.urandom(1 << 20))
                for side, values in sides.all(file).items():
                    results.setdefault(side, []).append(values)
                file.unlink()
                lib.note(f"round {k + 1}: " + ", ".join(f"{s} {' '.join(f'{x:.2f}' for x in v[-1])}" for s, v in results.items()))
        finally:
            cluster.close()
    megabytes = o.mb * 1.048576
    m = {side: [lib.median(column) for column in zip(*values)] for side, values in results.items()}
    rate = {side: megabytes / v[0] for side, v in m.items()}
    more = {"mb": o.mb, "rounds": o.rounds, "cores": cores, "load": round(os.getloadavg()[0], 1)}
    report.line("serve", rate["vrun"], "MB/s", "OpenSSL, both ends", rate["tls"], f">= {GOAL_MB_S} MB/s",
                rate["vrun"] >= GOAL_MB_S, **more)
    report.line("serve, rate", rate["vrun"], "MB/s", "scp", rate["scp"], **more)
    report.line("serve, rate unencrypted", rate["vrun"], "MB/s", "plain TCP copy", rate["tcp"], **more)
    both = (m["vrun"][1] + m["vrun"][2]) / megabytes * 1000
    report.line("serve, CPU of both ends", both, "s/GB", "OpenSSL, both ends", m["tls"][1] / megabytes * 1000, **more)
    report.line("serve, CPU of home", m["vrun"][1] / megabytes * 1000, "s/GB", **more)
    report.line("serve, CPU of the node", m["vrun"][2] / megabytes * 1000, "s/GB", **more)
    return report.exit_code()
