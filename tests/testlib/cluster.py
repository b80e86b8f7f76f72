# SPDX-License-Identifier: Apache-2.0
"""A whole cluster for a test: controller and home on this machine, nodes that are other hosts (tools/emulate-host)."""
import concurrent.futures
import contextlib
import fcntl
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
# How much longer things may take here: many tests run at once (tools/run-tests), or the machine is busy with something else. What a
# test asserts about speed does not change with it.
SLOW = float(os.environ.get("VRUN_E2E_SLOW", "1"))


# Random work goes on for longer than CI has time for (./test full).
FULL = bool(os.environ.get("VRUN_FULL"))


def wait_until(what, condition, seconds=30):
    """Waits for an external state that has no event to wait for; fails loudly."""
    seconds *= SLOW
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not so after {seconds} s")
        time.sleep(0.02)
    return value


class Taken:
    """One of some numbers that no other test on this machine uses, in whatever process: locked until let go or the process ends."""
    DIRECTORY = pathlib.Path("/run/lock/vrun-tests" if os.access("/run/lock", os.W_OK) else f"/tmp/vrun-tests-{os.getuid()}")
    held = {}

    @classmethod
    def number(cls, what, numbers, free=lambda n: True):
        """The first of them, begun at another one in each process."""
        cls.DIRECTORY.mkdir(exist_ok=True)
        begin = os.getpid() * 7 % len(numbers)
        for n in [*numbers[begin:], *numbers[:begin]]:
            if (what, n) in cls.held:
                continue
            lock = os.open(cls.DIRECTORY / f"{what}-{n}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if free(n):
                    cls.held[what, n] = lock
                    return n
            except BlockingIOError:
                pass
            os.close(lock)
        raise AssertionError(f"no {what} of {numbers} is free on this machine")

    @classmethod
    def let_go(cls, what, n):
        lock = cls.held.pop((what, n), None)
        if lock is not None:
            os.close(lock)


def can_be_bound(port, host="0.0.0.0"):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host, port))
        except OSError:
            return False
        return True


def preempted_once(output):
    """What a job itself has written to its output file. vrun's own lines say between it, once, that the job was preempted."""
    lines = output.read_text().splitlines(True)
    ours = [line for line in lines if line.startswith("vrun: ")]
    assert [line.startswith("vrun: preempted: ") for line in ours].count(True) == 1, ours
    return "".join(line for line in lines if line not in ours)


def free_port(host="0.0.0.0"):
    """Not one of those that the kernel gives to whoever asks for any: a daemon that is started again gets it again."""
    return Taken.number("port", range(20000, 30000), lambda n: can_be_bound(n, host))


# Removes what is left of clusters, while the next tests run: namespaces and many directories take a while. Done when Python ends.
cleaner = concurrent.futures.ThreadPoolExecutor(1)


def discard(directory):
    """It is gone for whoever looks for it, and its content goes."""
    if os.environ.get("VRUN_KEEP"):
        print(f"kept {directory}")
        return
    away = pathlib.Path(tempfile.mkdtemp(prefix="vrun-gone-", dir=pathlib.Path(directory).parent))
    with contextlib.suppress(FileNotFoundError):
        os.rename(directory, away / "it")
    cleaner.submit(subprocess.run, ["rm", "-rf", away], stderr=subprocess.DEVNULL)


def empty(root):
    """The root is there and has nothing: whoever runs here does not run on it."""
    for entry in pathlib.Path(root).iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def free_link():
    """A number for a link (10.213.N.0/30) that no other cluster on this machine uses."""
    return Taken.number("link", range(20, 250), lambda n: not os.path.exists(f"/sys/class/net/vh{n}"))


class Bridge:
    """A network on which nodes reach each other; what this machine sends into it (home's uplink) may be shaped."""
    def __init__(self, uplink_mbit=0):
        self.index = Taken.number("bridge", range(250), lambda n: not os.path.exists(f"/sys/class/net/vb{n}"))
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
        Taken.let_go("bridge", self.index)


class Process(subprocess.Popen):
    """What is waited for takes longer where all does (SLOW)."""
    def wait(self, timeout=None):
        return super().wait(timeout and timeout * SLOW)

    def communicate(self, input=None, timeout=None):
        return super().communicate(input, timeout and timeout * SLOW)


class Cluster:
    """Everything lies below one directory; close() stops all of it, whatever state it is in. With `bridge` (a Bridge, closed
    with the cluster) nodes reach each other. `http`: the controller serves its HTTP API. `view`: of every vrun that does not name one; None: vrun's own default.
    `job_writes`: as in config.toml. Tests compare what programs do in a job and at home, setuid bits and all, so it is not the default."""
    def __init__(self, root, nodes=1, node_options=(), link=(), directory=None, bridge=None, view=None, http=False, job_writes="any"):
        self.bridge = bridge
        self.hosts_on_bridge = 0
        self.view = view
        self.root = pathlib.Path(root)
        self.directory = pathlib.Path(directory or tempfile.mkdtemp(prefix="vrun-e2e-", dir="/var/tmp"))
        # What home makes and removes meanwhile is no place to look for something in.
        self.home_state = self.directory / "home/state"
        (self.directory / "home").mkdir(parents=True, exist_ok=True)
        config = self.directory / "home/config.toml"
        if not config.exists() or "job_writes" not in config.read_text():
            with open(config, "a") as more:
                more.write(f'job_writes = "{job_writes}"\n')
        self.environment = dict(os.environ, VRUN_DIR=str(self.directory / "home"), VRUN_LOG=os.environ.get("VRUN_LOG", "info"))
        for name in list(self.environment):
            if name.startswith(("SLURM_", "VRUN_JOB", "OTEL_EXPORTER_", "TRACEPARENT")):
                del self.environment[name]
        self.next_nodes(node_options, link)
        self.nodes = {}
        self.started = []
        self.port = free_port()
        self.http_port = free_port() if http else None
        names = [f"n{i + 1}" for i in range(nodes)]
        self.first_nodes = tuple(names)
        self.marks = {}   # of logs: how long they were when this test began
        try:
            # The hosts are made while the controller and home start.
            with concurrent.futures.ThreadPoolExecutor(max(1, nodes)) as others:
                for name in names:
                    self.reserve(name)
                made = [others.submit(self.make_host, name) for name in names]
                self.up()
                for host in made:
                    host.result()
                list(others.map(self.launch_node, names))
                for name in names:
                    self.await_node(name)
        except BaseException:
            self.close()
            raise

    def up(self):
        """Starts what does not run of controller, snapshot store and home."""
        # The controller listens where every node can reach it: all links end on this machine.
        self.vctl("up", "--no-node", "--listen", f"0.0.0.0:{self.port}", "--root", str(self.root),
                  *(["--http", f"127.0.0.1:{self.http_port}"] if self.http_port else []))

    def controllers(self, here):
        """Where the controller is, for who reaches this machine at the address `here`."""
        return f"{here}:{self.port}"

    # --- the commands

    def command(self, *args):
        view = [f"--view={self.view}"] if self.view and args[0] == "vrun" else []
        return [str(BIN / args[0]), *view, *map(str, args[1:])]

    def popen(self, *args, **kw):
        kw.setdefault("env", self.environment)
        kw.setdefault("cwd", "/")
        self.started.append(Process(self.command(*args), **kw))
        return self.started[-1]

    def settle(self):
        """Ends what a test left behind, so that a failed test is one failed test."""
        self.end_clients()
        left = [str(j["job"]) for j in self.json("jobs")["jobs"]]
        if left:
            self.run("vctl", "cancel", *left)
            wait_until("jobs left by the test are over", lambda: not self.json("jobs")["jobs"])

    def end_clients(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()
        self.started.clear()

    def run(self, *args, input=None, timeout=60, check=False, cwd="/", env=None, text=True, **kw):
        if input is None and "stdin" not in kw:
            kw["stdin"] = subprocess.DEVNULL
        result = subprocess.run(self.command(*args), input=input, capture_output=True, text=text, timeout=timeout * SLOW, cwd=cwd,
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

    def next_nodes(self, node_options=(), link=()):
        """Nodes that are made from now on have these options and this link."""
        self.link = list(link)
        self.node_options = [*([] if "--milli-cpus" in node_options else ["--milli-cpus", "64000"]), *node_options]

    def start_node(self, name):
        """A new one, or one that was stopped, as it was."""
        if name not in self.nodes:
            self.reserve(name)
            self.make_host(name)
        self.launch_node(name)
        self.await_node(name)

    def reserve(self, name):
        """Its numbers."""
        index = free_link()
        if self.bridge:
            self.hosts_on_bridge += 1
            ours, theirs = self.bridge.address(1), self.bridge.address(1 + self.hosts_on_bridge)
        else:
            ours, theirs = f"10.213.{index}.1", f"10.213.{index}.2"
        self.nodes[name] = {"index": index, "process": None, "directory": self.directory / name, "ours": ours, "theirs": theirs,
                            "options": self.node_options}

    def make_host(self, name):
        """The machine, its link and its programs."""
        node = self.nodes[name]
        index, host = node["index"], node["directory"]
        link = ["--bridge", self.bridge.name, "--address", f"{node['theirs']}/24"] if self.bridge else self.link
        subprocess.run([TOP / "tools/emulate-host", "up", f"{name}-{index}", "--dir", host, "--index", str(index),
                        *link, "--copy", BIN / "vrund", BIN / "vrund-task"], check=True)

    def launch_node(self, name):
        node = self.nodes[name]
        host = node["directory"]
        who = ["--controller", self.controllers(node["ours"]), "--name", name, "--pool", "local", "--pki", "/var/lib/vrun/pki"]
        if node.get("token"):   # it joins by that
            who = ["--name", name, "--join", node["token"]]
        elif not (host / "state/pki").exists():
            self.run("vrund", "pki", "issue", "--ca", str(self.pki()), "--dir", str(host / "state/pki"), "--role", "node", "--name", name,
                     check=True)
        with open(host / "node.log", "ab") as log:
            node["process"] = subprocess.Popen(
                [TOP / "tools/emulate-host", "exec", f"{name}-{node['index']}", "--dir", host, "--", "/opt/vrun/vrund", "node",
                 *who, "--state-dir", "/var/lib/vrun/node", "--listen", node["theirs"], *node["options"]],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment, start_new_session=True)

    def await_node(self, name):
        process = self.nodes[name]["process"]
        try:
            wait_until(f"node {name} is ready", lambda: self.node_state(name) == "ready" or process.poll() is not None)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.logs()}") from None
        if process.poll() is not None:
            raise AssertionError(f"node {name} ended: {(self.directory / name / 'node.log').read_text()}")

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
        if process and process.poll() is None:
            process.send_signal(how)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def remove_node(self, name):
        """Its host and all that it had."""
        node = self.nodes[name]
        self.stop_node(name)
        del self.nodes[name]
        cleaner.submit(self.remove_host, f"{name}-{node['index']}", node)

    @staticmethod
    def remove_host(host, node):
        subprocess.run([TOP / "tools/emulate-host", "down", host, "--dir", node["directory"]])
        Taken.let_go("link", node["index"])

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

    def kill_daemon(self, daemon, how=signal.SIGKILL):
        """Returns when all that it held is free: its memory and its first thread go before its sockets, its port and its locks do."""
        pid = self.pid_of(daemon)
        os.kill(pid, how)
        wait_until(f"{daemon} has ended", lambda: not os.path.exists(f"/proc/{pid}"))

    def await_root(self, *jobs):
        """The roots with which they were submitted are on the disk: from then on home may be killed (docs/limitations.md)."""
        for job in jobs:
            root = self.home_state / f"frozen/jobs/{job}"   # it gets its name when it is complete
            wait_until(f"the root of job {job} is on the disk", lambda: root.exists() and root.stat().st_size)

    # --- tests that share it

    def begin(self):
        """A test begins: what was logged before is not its."""
        self.marks = {}
        for log in self.log_files():
            try:
                self.marks[log] = log.stat().st_size
            except FileNotFoundError:   # of a directory that another worker is removing
                continue

    def restore(self, template):
        """All runs that a test may have ended, what it added is gone, and the root is like `template` again."""
        self.end_clients()
        for name in [n for n in self.nodes if n not in self.first_nodes]:
            self.remove_node(name)
            discard(self.directory / name)
        self.up()
        for name in self.first_nodes:
            if name not in self.nodes or self.nodes[name]["process"].poll() is not None:
                self.start_node(name)
        self.settle()
        for snapshot in self.json("snapshot", "list")["snapshots"]:
            self.vctl("snapshot", "delete", snapshot["name"])
        wait_until("no job's root is kept", lambda: not list(self.home_state.glob("frozen/jobs/*")), 10)
        if self.first_nodes:
            self.run("vrun", "-q", "--", "true", timeout=20, check=True)
        for trace in self.home_state.glob("traces/*.trace"):
            trace.unlink()
        subprocess.run(["rsync", "-aHAX", "--delete", f"{template}/", f"{self.root}/"], check=True)

    # --- the end

    def logs(self):
        return "\n".join(f"--- {log}\n" + "".join(self.log(log).splitlines(True)[-40:]) for log in self.log_files())

    def log_files(self):
        found = []
        for directory, below, files in os.walk(self.directory):
            below[:] = [d for d in below if d not in ("upper", "store", "opt")]  # those are of jobs, content, programs
            found += [pathlib.Path(directory) / f for f in files if f.endswith(".log")]
        return sorted(found)

    def log(self, file):
        """What was said in this test."""
        file = self.directory / file
        with open(file, "rb") as f:
            f.seek(self.marks.get(file, 0))
            return f.read().decode(errors="replace")

    def kill(self):
        """Ends all of its processes at once, for a test that hangs: what waits for a file system of theirs goes on."""
        mine = f"VRUN_DIR={self.directory}/home\0".encode()
        hosts = set()
        for name, node in list(self.nodes.items()):
            with contextlib.suppress(OSError):
                hosts.add(os.stat(f"/run/netns/vrun-{name}-{node['index']}").st_ino)
        for p in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.stat(p / "ns/net").st_ino in hosts or mine in (p / "environ").read_bytes() + b"\0":
                    os.kill(int(p.name), signal.SIGKILL)

    def close(self):
        self.end_clients()   # one that still waits would start home again
        with concurrent.futures.ThreadPoolExecutor(max(1, len(self.nodes))) as others:
            list(others.map(self.remove_node, list(self.nodes)))
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
        Taken.let_go("port", self.port)
        discard(self.directory)
