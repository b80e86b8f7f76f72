# SPDX-License-Identifier: Apache-2.0
"""A whole cluster for a test: controller and home on this machine, nodes that are other hosts (tools/emulate-host)."""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("VRUN_BIN", TOP / "build/bin"))


def wait_until(what, condition, seconds=30):
    """Waits for an external state that has no event to wait for; fails loudly."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not so after {seconds} s")
        time.sleep(0.02)
    return value


def free_port(host="127.0.0.1"):
    with socket.socket() as s:
        s.bind((host, 0))
        return s.getsockname()[1]


def empty(root):
    """The root is there and has nothing: whoever runs here does not run on it."""
    for entry in pathlib.Path(root).iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def free_link():
    """A number for a link (10.213.N.0/30) that no other cluster on this machine uses."""
    start = 20 + os.getpid() % 100
    return next(i for i in [*range(start, 250), *range(20, start)] if not os.path.exists(f"/sys/class/net/vh{i}"))


class Bridge:
    """A network on which nodes reach each other; what this machine sends into it (home's uplink) may be shaped."""
    def __init__(self, uplink_mbit=0):
        start = os.getpid() % 100
        self.index = next(i for i in [*range(start, 250), *range(start)] if not os.path.exists(f"/sys/class/net/vb{i}"))
        self.name = f"vb{self.index}"
        self.ip("link", "add", self.name, "type", "bridge")
        self.ip("addr", "add", f"{self.address(1)}/24", "dev", self.name)
        self.ip("link", "set", self.name, "up")
        if uplink_mbit:
            subprocess.run(["tc", "qdisc", "add", "dev", self.name, "root", "tbf", "rate", f"{uplink_mbit}mbit", "burst", "256kb",
                            "latency", "50ms"], check=True)

    def ip(self, *args, check=True):
        subprocess.run(["ip", *args], check=check)

    def address(self, host):
        return f"10.214.{self.index}.{host}"

    def sent_bytes(self):
        """What this machine has sent into it, headers and all."""
        return int(pathlib.Path(f"/sys/class/net/{self.name}/statistics/tx_bytes").read_text())

    def close(self):
        self.ip("link", "delete", self.name, check=False)


class Cluster:
    """Everything lies below one directory; close() stops all of it, whatever state it is in. With `bridge` (a Bridge, closed
    with the cluster) nodes reach each other. `view`: of every vrun that does not name one; None: vrun's own default."""
    def __init__(self, root, nodes=1, node_options=(), link=(), directory=None, bridge=None, view=None):
        self.bridge = bridge
        self.view = view
        self.root = pathlib.Path(root)
        self.directory = pathlib.Path(directory or tempfile.mkdtemp(prefix="vrun-e2e-", dir="/var/tmp"))
        # What home makes and removes meanwhile is no place to look for something in.
        self.home_state = self.directory / "home/state"
        self.environment = dict(os.environ, VRUN_DIR=str(self.directory / "home"), VRUN_LOG=os.environ.get("VRUN_LOG", "info"))
        for name in list(self.environment):
            if name.startswith(("SLURM_", "VRUN_JOB")):
                del self.environment[name]
        self.link = list(link)
        self.node_options = [*([] if "--milli-cpus" in node_options else ["--milli-cpus", "64000"]), *node_options]
        self.nodes = {}
        self.started = []
        try:
            # The controller listens where every node can reach it: all links end on this machine.
            self.port = free_port()
            self.vctl("up", "--no-node", "--listen", f"0.0.0.0:{self.port}", "--root", str(self.root))
            for i in range(nodes):
                self.start_node(f"n{i + 1}")
        except BaseException:
            self.close()
            raise

    # --- the commands

    def command(self, *args):
        view = [f"--view={self.view}"] if self.view and args[0] == "vrun" else []
        return [str(BIN / args[0]), *view, *map(str, args[1:])]

    def popen(self, *args, **kw):
        kw.setdefault("env", self.environment)
        kw.setdefault("cwd", "/")
        self.started.append(subprocess.Popen(self.command(*args), **kw))
        return self.started[-1]

    def settle(self):
        """Ends what a test left behind, so that a failed test is one failed test."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()
        self.started.clear()
        left = [str(j["job"]) for j in self.json("jobs")["jobs"]]
        if left:
            self.run("vctl", "cancel", *left)
            wait_until("jobs left by the test are over", lambda: not self.json("jobs")["jobs"])

    def run(self, *args, input=None, timeout=60, check=False, cwd="/", env=None, text=True, **kw):
        if input is None and "stdin" not in kw:
            kw["stdin"] = subprocess.DEVNULL
        result = subprocess.run(self.command(*args), input=input, capture_output=True, text=text, timeout=timeout, cwd=cwd,
                                env=env or self.environment, **kw)
        if check and result.returncode != 0:
            raise AssertionError(f"{args} exited {result.returncode}\n{result.stdout}\n{result.stderr}\n{self.logs()}")
        return result

    def vrun(self, *args, **kw):
        return self.run("vrun", "-D", "/root", *args, **kw)

    def vctl(self, *args, **kw):
        return self.run("vctl", *args, **{"check": True, **kw})

    def json(self, *args):
        return json.loads(self.vctl(*args, "-o", "json").stdout)

    def json_any(self, *args):
        """Of a command whose exit status is an answer too."""
        return json.loads(self.run("vctl", *args, "-o", "json").stdout)

    def sh(self, script, **kw):
        return self.vrun("--", "sh", "-c", script, **kw)

    # --- the nodes

    def pki(self):
        return self.directory / "home/pki"

    def start_node(self, name):
        index = self.nodes[name]["index"] if name in self.nodes else free_link()
        host = self.directory / name
        if name not in self.nodes:
            link = self.link
            if self.bridge:
                link = ["--bridge", self.bridge.name, "--address", f"{self.bridge.address(len(self.nodes) + 2)}/24"]
            subprocess.run([TOP / "tools/emulate-host", "up", f"{name}-{index}", "--dir", host, "--index", str(index),
                            *link, "--copy", BIN / "vrund", BIN / "vrund-task"], check=True)
            pki = host / "state/pki"
            self.run("vrund", "pki", "issue", "--ca", str(self.pki()), "--dir", str(pki), "--role", "node", "--name", name,
                     check=True)
        if name in self.nodes:
            ours, theirs = self.nodes[name]["ours"], self.nodes[name]["theirs"]
        elif self.bridge:
            ours, theirs = self.bridge.address(1), self.bridge.address(len(self.nodes) + 2)
        else:
            ours, theirs = f"10.213.{index}.1", f"10.213.{index}.2"
        ready, told = os.pipe()
        log = open(host / "node.log", "ab")
        process = subprocess.Popen(
            [TOP / "tools/emulate-host", "exec", f"{name}-{index}", "--dir", host, "--", "/opt/vrun/vrund", "node",
             "--controller", f"{ours}:{self.port}", "--name", name, "--pool", "local", "--state-dir",
             "/var/lib/vrun/node", "--pki", "/var/lib/vrun/pki", "--listen", theirs, *self.node_options],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment, start_new_session=True)
        os.close(told)
        os.close(ready)
        self.nodes[name] = {"index": index, "process": process, "directory": host, "ours": ours, "theirs": theirs}
        try:
            wait_until(f"node {name} is ready", lambda: self.node_state(name) == "ready" or process.poll() is not None)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.logs()}") from None
        if process.poll() is not None:
            raise AssertionError(f"node {name} ended: {(host / 'node.log').read_text()}")

    def node_state(self, name):
        for node in self.json("nodes")["nodes"]:
            if node["name"] == name:
                return node["state"]
        return None

    def node_pids(self, name, program):
        """Pids on this machine of a program that runs on an emulated host."""
        marker = f"vrun-{name}-{self.nodes[name]['index']}"
        wanted = os.stat(f"/run/netns/{marker}").st_ino
        found = []
        for p in pathlib.Path("/proc").iterdir():
            if not p.name.isdigit():
                continue
            try:
                if os.stat(p / "ns/net").st_ino == wanted and program in (p / "cmdline").read_bytes().split(b"\0")[0].decode():
                    found.append(int(p.name))
            except OSError:
                continue
        return found

    def stop_node(self, name, how=signal.SIGTERM):
        process = self.nodes[name]["process"]
        if process.poll() is None:
            process.send_signal(how)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def pid_of(self, daemon):
        """Pid of "home", "controller" or "snapshots"."""
        for p in pathlib.Path("/proc").iterdir():
            if not p.name.isdigit():
                continue
            try:
                argv = (p / "cmdline").read_bytes().split(b"\0")
                environment = (p / "environ").read_bytes()
            except OSError:
                continue
            if len(argv) > 1 and argv[0].endswith(b"vrund") and argv[1] == daemon.encode() and \
                    f"VRUN_DIR={self.directory}/home\0".encode() in environment + b"\0":
                return int(p.name)
        return None

    # --- the end

    def logs(self):
        text, logs = [], []
        for directory, below, files in os.walk(self.directory):
            below[:] = [d for d in below if d != "upper"]  # those are of jobs
            logs += [pathlib.Path(directory) / f for f in files if f.endswith(".log")]
        for log in sorted(logs):
            text.append(f"--- {log}\n" + "".join(log.read_text(errors="replace").splitlines(True)[-40:]))
        return "\n".join(text)

    def close(self):
        for process in self.started:   # a client that still waits would start home again
            if process.poll() is None:
                process.kill()
                process.wait()
        for name, node in self.nodes.items():
            self.stop_node(name)
            subprocess.run([TOP / "tools/emulate-host", "down", f"{name}-{node['index']}", "--dir", node["directory"]])
        if self.bridge:
            self.bridge.close()
        try:
            self.run("vctl", "down", "--all", timeout=30)
        except (subprocess.TimeoutExpired, OSError):
            pass
        for daemon in ("home", "snapshots", "controller"):
            pid = self.pid_of(daemon)
            if pid:
                os.kill(pid, signal.SIGKILL)
        if os.environ.get("VRUN_KEEP"):
            print(f"kept {self.directory}")
        else:
            shutil.rmtree(self.directory, ignore_errors=True)
