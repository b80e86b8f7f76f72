# SPDX-License-Identifier: Apache-2.0
"""A real PostgreSQL of a test's own, and controllers that share it: one is active, the others stand by."""
import glob
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

from cluster import BIN, Cluster, free_port, wait_until

NOBODY = 65534


def programs():
    """Where Debian has the server's; None: it is not installed."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    return pathlib.Path(found[-1]).parent if found else None


class Postgres:
    """Runs as nobody, because it refuses root. Listens on a socket in its directory, and on the loopback."""
    def __init__(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="vrun-pg-", dir="/tmp"))
        os.chown(self.directory, NOBODY, NOBODY)
        self.port = free_port("127.0.0.1")
        with open(self.directory / "log", "wb") as self.log:
            self.spawn("initdb", "-D", self.directory / "data", "-U", "vrun", "-A", "trust", "-N", "--no-locale", "-E", "UTF8").wait()
            self.process = None
            self.start()

    def spawn(self, program, *arguments):
        return subprocess.Popen(["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--pdeathsig", "INT",
                                 programs() / program, *map(str, arguments)], cwd=self.directory, stdin=subprocess.DEVNULL,
                                stdout=self.log, stderr=self.log)

    def start(self):
        with open(self.directory / "log", "ab") as self.log:
            self.process = self.spawn("postgres", "-D", self.directory / "data", "-k", self.directory, "-p", self.port,
                                      "-c", "listen_addresses=127.0.0.1")
        wait_until("PostgreSQL answers", lambda: self.sql("SELECT 1") == "1")

    def stop(self, how=signal.SIGINT):
        self.process.send_signal(how)
        self.process.wait()

    def sql(self, text):
        asked = subprocess.run(["psql", "-h", self.directory, "-p", str(self.port), "-U", "vrun", "-d", "postgres", "-Atqc", text],
                               capture_output=True, text=True)
        return asked.stdout.strip() if asked.returncode == 0 else None

    def url(self, port=None):
        return f"postgresql://vrun@127.0.0.1:{port or self.port}/postgres"

    def close(self):
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.directory, ignore_errors=True)


class Wire:
    """A way to a server that can be cut: `stop` lets nothing through any more and closes nothing."""
    def __init__(self, to):
        self.port = free_port("127.0.0.1")
        self.process = subprocess.Popen([sys.executable, __file__, str(self.port), str(to)], stdin=subprocess.DEVNULL)
        wait_until("the wire is there", self.answers)

    def answers(self):
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def close(self):
        self.process.kill()
        self.process.wait()


class SharedCluster(Cluster):
    """Two controllers, "a" and "b", on one database. What they need besides is in one directory."""
    def __init__(self, root, postgres, **options):
        self.postgres, self.daemons, self.ports, self.wires = postgres, {}, {"a": free_port(), "b": free_port()}, {}
        super().__init__(root, **options)

    def controllers(self, here):
        return ",".join(f"{here}:{port}" for port in self.ports.values())

    def up(self):
        home = self.directory / "home"
        if not self.pki().exists():
            home.mkdir(mode=0o700, exist_ok=True)
            self.run("vrund", "pki", "ca", "--dir", str(self.pki()), check=True)
            for role, name in (("controller", "controller"), ("home", "root")):
                self.run("vrund", "pki", "issue", "--ca", str(self.pki()), "--dir", str(self.pki()), "--role", role, "--name", name, check=True)
            (home / "config.toml").write_text(f'controller = "{self.controllers("127.0.0.1")}"\ncredentials = "{self.pki()}"\n'
                                              f'credentials_name = "root"\nroot = "{self.root}"\njob_writes = "any"\n')
        for name in self.ports:
            if name not in self.daemons or self.daemons[name].poll() is not None:
                self.start_controller(name)
        self.active()

    def start_controller(self, name):
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        with open(directory / "controller.log", "ab") as log:
            self.daemons[name] = subprocess.Popen(
                [BIN / "vrund", "controller", "--listen", f"0.0.0.0:{self.ports[name]}", "--state-dir", directory, "--pki", self.pki(),
                 "--shared-dir", self.directory / "shared", "--pool", "local", "--database",
                 self.postgres.url(self.wires[name].port if name in self.wires else None)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment)

    def active(self):
        """The name of the controller that has the database, when one has it and serves."""
        def look():
            holder = self.postgres.sql("SELECT holder FROM leader WHERE seen > clock_timestamp() - interval '2 s'") or ""
            for name, port in self.ports.items():
                if holder.endswith(f":{port})") and self.daemons[name].poll() is None:
                    with socket.socket() as s:
                        return name if s.connect_ex(("127.0.0.1", port)) == 0 else None
            return None
        return wait_until("a controller is active", look)

    def close(self):
        super().close()
        for process in self.daemons.values():
            if process.poll() is None:
                process.kill()
                process.wait()
        for wire in self.wires.values():
            wire.close()


def carry(port, to):
    """The process of a Wire."""
    import threading

    def copy(source, target):
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
        except OSError:
            pass
        for s in (source, target):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
    server = socket.create_server(("127.0.0.1", port))
    while True:
        near, _ = server.accept()
        try:
            far = socket.create_connection(("127.0.0.1", to))
        except OSError:
            near.close()
            continue
        for s in (near, far):
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for pair in ((near, far), (far, near)):
            threading.Thread(target=copy, args=pair, daemon=True).start()


if __name__ == "__main__":
    carry(int(sys.argv[1]), int(sys.argv[2]))
