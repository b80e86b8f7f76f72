# SPDX-License-Identifier: Apache-2.0
"""Processor time of home and of a node by what it is spent on, counted with perf: 499 samples a second of each processor, and each counts
for the first frame of its stack that a step names."""
import collections
import contextlib
import pathlib
import re
import shutil
import subprocess
import tempfile

import lib

HERTZ = 499
# A frame is "symbol (file)". The first step with a match is taken; the stack is walked from its leaf.
STEPS = [(step, re.compile(pattern)) for step, pattern in (
    ("compress or decompress", r"libzstd|ZSTD_|HUF_|FSE_|HIST_"),
    ("encrypt, decrypt, sign", r"libcrypto|libssl|aes_|gcm_|ed25519|tsi_"),
    ("verify", r"blake3"),
    ("page faults", r"exc_page_fault|handle_mm_fault"),
    ("answer the kernel", r"fuse_|io_uring|fuse_uring"),
    ("network", r"tcp_|inet_|__sys_send|__sys_recv|sock_(send|recv|write|read)|net_rx|ip_output|veth|tun_"),
    ("store", r"ext4_.*write|generic_perform_write|vfs_write|ext4_(create|symlink|link|unlink|rename|mkdir)|fsync|ftruncate|fallocate|do_mknodat"),
    ("read files", r"filemap_read|ext4_file_read|vfs_read|splice|do_sys_open|path_openat|vfs_statx|iterate_dir|getname"),
    ("copies and memory", r"(memcpy|memmove|memset|memcmp|malloc|free)\w* \(.*libc|^operator (new|delete)"),
    ("wait and wake", r"futex|epoll|schedule|poll_|eventfd|hrtimer"),
    ("messages (gRPC)", r"libgrpc|libgpr|libprotobuf|libabsl|grpc|absl::|google::protobuf"))]


def step_of(frames):
    for frame in frames:
        for step, pattern in STEPS:
            if pattern.search(frame):
                return step
    return "other"


def processes(cluster):
    """{pid: "home", "controller", or what a node's program is}."""
    found = {cluster.pid_of(name): name for name in ("home", "controller")}
    for node in cluster.nodes:
        for pid in cluster.node_pids(node, "vrund"):
            with contextlib.suppress(OSError):
                argv = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                name = argv[1].decode() if len(argv) > 1 else ""
                found[pid] = "file system server" if name.startswith("fs") else "node, the rest"
    return found


class Steps:
    def __init__(self, wanted):
        if wanted and not shutil.which("perf"):
            raise SystemExit("--processor needs perf: apt-get install linux-perf")
        self.wanted, self.seconds, self.times = wanted, {}, collections.Counter()

    @contextlib.contextmanager
    def counted(self, what, cluster):
        """Counts what runs meanwhile."""
        if not self.wanted:
            yield
            return
        with tempfile.NamedTemporaryFile(prefix="vrun-perf-", dir="/var/tmp") as data:
            perf = subprocess.Popen(["perf", "record", "-q", "-a", "-g", "-F", str(HERTZ), "-e", "cpu-clock", "-o", data.name, "sleep", "600"],
                                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                yield
            finally:
                perf.terminate()
                perf.wait()
            self._add(what, processes(cluster), data.name)

    def _add(self, what, names, data):
        text = subprocess.run(["perf", "script", "-i", data, "-F", "pid,ip,sym,dso"], check=True, capture_output=True, text=True,
                              errors="replace").stdout
        counts = self.seconds.setdefault(what, collections.Counter())
        self.times[what] += 1
        for sample in text.split("\n\n"):
            lines = sample.strip().splitlines()
            if len(lines) > 1 and (name := names.get(int(lines[0].split()[0]))):
                counts[name, step_of([line.strip().partition(" ")[2] for line in lines[1:]])] += 1 / HERTZ

    def report(self, report, **more):
        for what, counts in self.seconds.items():
            for (name, step), seconds in sorted(counts.items(), key=lambda item: (item[0][0], -item[1])):
                report.line(f"cold-import.processor, {what}, {name}: {step}", seconds / self.times[what], "s", **more)
            lib.note(f"{what}: {sum(counts.values()) / self.times[what]:.2f} s of home and node a run")
