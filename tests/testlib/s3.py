# SPDX-License-Identifier: Apache-2.0
"""A real S3 server for a test (s3server/), on an address that nodes on emulated hosts can reach too."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import urllib.request

from cluster import Taken

HERE = pathlib.Path(__file__).resolve().parent / "s3server"
MISSING = None
if not shutil.which("node"):
    MISSING = "no node: tools/install-deps --test installs it"
elif not (HERE / "node_modules/s3rver").is_dir():
    MISSING = "no S3 server: tools/install-deps --test gets it from the npm registry"


def running():
    """For a fixture."""
    server = S3Server()
    yield server
    server.close()


class S3Server:
    ACCESS, SECRET, BUCKET = "TESTACCESS", "test/secret+key", "vrun-test"

    def __init__(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="vrun-s3-", dir="/var/tmp"))
        self.process = None
        self.port = 0
        # Of this machine's loopback device: every node that has a route here reaches it by the same name.
        self.number = Taken.number("s3", range(250))
        self.address = f"10.215.{self.number}.1"
        subprocess.run(["ip", "addr", "del", f"{self.address}/32", "dev", "lo"], stderr=subprocess.DEVNULL)   # of one that was killed
        subprocess.run(["ip", "addr", "add", f"{self.address}/32", "dev", "lo"], check=True)
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def endpoint(self):
        return f"http://{self.address}:{self.port}"

    def start(self):
        self.process = subprocess.Popen(
            ["node", HERE / "server.js", "--directory", self.directory / "data", "--bucket", self.BUCKET, "--address",
             self.address, "--port", str(self.port), "--access-key", self.ACCESS, "--secret-key", self.SECRET],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("ready "), f"the S3 server did not start: {line!r}"
        self.port = int(line.split()[1])

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def empty(self):
        """Forgets all that it keeps."""
        self.stop()
        shutil.rmtree(self.directory / "data", ignore_errors=True)
        self.start()

    def pause(self):
        """It takes connections (the kernel does) and answers nothing until resume()."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def counts(self):
        with urllib.request.urlopen(self.endpoint + "/-/counts", timeout=10) as answer:
            return json.load(answer)

    def objects(self):
        """The files that hold objects of content."""
        return sorted(f for f in (self.directory / "data").rglob("*_object") if "vrun/v1/" in str(f))

    def snapshot_objects(self):
        return sorted(f for f in (self.directory / "data").rglob("*_object") if "vrun/snapshots/v1/" in str(f))

    def configure(self, directory, secret=None, more=""):
        """Into the configuration that `vctl up` of a cluster in this directory reads; `more`: lines of it."""
        home = pathlib.Path(directory) / "home"
        home.mkdir(parents=True)
        keys = home / "s3-credentials"
        keys.write_text(f"[default]\naws_access_key_id = {self.ACCESS}\naws_secret_access_key = {secret or self.SECRET}\n")
        keys.chmod(0o600)
        (home / "config.toml").write_text(f's3_bucket = "{self.BUCKET}"\ns3_endpoint = "{self.endpoint}"\n'
                                          f's3_credentials = "{keys}"\n{more}')

    def route(self, cluster, node):
        """Lets a node reach the server."""
        index = cluster.nodes[node]["index"]
        subprocess.run(["ip", "-n", f"vrun-{node}-{index}", "route", "add", f"{self.address}/32", "via",
                        f"10.213.{index}.1"], check=True)

    def close(self):
        self.stop()
        subprocess.run(["ip", "addr", "del", f"{self.address}/32", "dev", "lo"])
        Taken.let_go("s3", self.number)
        shutil.rmtree(self.directory, ignore_errors=True)
