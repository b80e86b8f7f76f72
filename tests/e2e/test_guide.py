# SPDX-License-Identifier: Apache-2.0
"""docs/guide/administrator.md as its reader follows it: its commands, taken out of the page, on three fresh machines."""
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import tempfile
import time

import pytest

from cluster import BIN, TOP, Bridge, SLOW, Taken, discard, wait_until

GUIDE = TOP / "docs/guide/administrator.md"
PEOPLE = ["anna", "ben", "cleo", "dan", "emil", "fay", "gus", "hana", "ida", "jon"]


def blocks(kind):
    """What follows the kind in the first line of each such block, and the block."""
    return re.findall(rf"^```{kind} ?(\S*)\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)


class Machine:
    """Another host on the bridge: a network and a name of its own. All that a user has there lies below his directory."""
    def __init__(self, bridge, number, name, directory):
        self.name, self.directory, self.ns = name, directory, f"vrun-guide-{bridge.index}-{number}"
        self.address = bridge.address(number)
        here, there = f"vg{bridge.index}x{number}", "eth0"
        for command in (["netns", "add", self.ns], ["-n", self.ns, "link", "set", "lo", "up"],
                        ["link", "add", here, "type", "veth", "peer", "name", there, "netns", self.ns],
                        ["link", "set", here, "master", bridge.name], ["link", "set", here, "up"],
                        ["-n", self.ns, "addr", "add", f"{self.address}/24", "dev", there], ["-n", self.ns, "link", "set", there, "up"]):
            subprocess.run(["ip", *command], check=True)
        self.users = set()

    def run(self, script, user="root", check=True, timeout=120):
        place = self.directory / f"{self.name}-{user}"
        if user not in self.users:
            place.mkdir()
            (place / "config.toml").write_text(f'root = "{self.directory / "root"}"\n')
            self.users.add(user)
        environment = {"PATH": f"{BIN}:{os.environ['PATH']}", "VRUN_DIR": str(place), "HOME": str(place)}
        said = subprocess.run(["nsenter", f"--net=/run/netns/{self.ns}", "unshare", "--uts", "sh", "-ec",
                               f"echo {self.name} > /proc/sys/kernel/hostname; cd {self.directory / 'root/root'}\n{script}"], text=True,
                              capture_output=True, stdin=subprocess.DEVNULL, env=environment, timeout=timeout * SLOW)
        assert not check or said.returncode == 0, (script, said.stdout, said.stderr)
        return said

    def close(self):
        for user in self.users:
            self.run("vctl down --all", user, check=False)
        subprocess.run(["ip", "netns", "delete", self.ns])


@pytest.fixture
def site(template_root):
    """Two machines for people, and the bridge for all."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="vrun-guide-", dir="/var/tmp"))
    bridge = Bridge()
    made = []
    try:
        subprocess.run(["cp", "-a", template_root, directory / "root"], check=True)
        (directory / "root/root").mkdir(exist_ok=True)
        for number, name in ((11, "head"), (12, "laptop")):
            made.append(Machine(bridge, number, name, directory))
        yield (*made, bridge, directory)
    finally:
        for machine in reversed(made):
            machine.close()
        bridge.close()
        discard(directory)


def test_every_command_of_the_page_says_where_it_is_run():
    assert {where for where, _ in blocks("sh")} == {"controller", "node", "laptop"}


@pytest.mark.seconds(600)
def test_from_three_machines_to_a_cluster_of_ten(site):
    head, laptop, bridge, directory = site
    node = None
    began = time.monotonic()
    steps = iter(blocks("sh"))

    def step(where, contains):
        there, script = next(steps)
        assert there == where and contains in script, (there, script)
        return script

    def token(said):
        return re.search(r"(?:--join|vctl login) (\S+)$", said.stdout.strip()).group(1)

    index = Taken.number("link", range(20, 250), lambda n: not os.path.exists(f"/sys/class/net/vh{n}"))
    host = ["--dir", str(directory / "node")]
    try:
        head.run(step("controller", "vctl up"))
        joins = token(head.run(step("controller", "vctl node token")))
        subprocess.run([TOP / "tools/emulate-host", "up", "n7", *host, "--index", str(index), "--bridge", bridge.name, "--address",
                        f"{bridge.address(13)}/24", "--copy", BIN / "vrund", BIN / "vrund-task"], check=True)
        words = shlex.split(step("node", "vrund node").replace("TOKEN", joins))
        with open(directory / "node.log", "wb") as log:
            node = subprocess.Popen([TOP / "tools/emulate-host", "exec", "n7", *host, "--", "/opt/vrun/" + words[0], *words[1:]],
                                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        nodes = lambda: json.loads(head.run("vctl nodes -o json").stdout)["nodes"]
        wait_until("the node is there", lambda: [(n["pool"], n["state"]) for n in nodes()] == [("gpu", "ready")], 60)

        invite, enter = step("controller", "vctl user add anna"), step("laptop", "vctl login TOKEN")
        for person in PEOPLE:
            one = token(head.run(invite.replace("anna", person)))
            said = laptop.run(enter.replace("TOKEN", one), person)
            assert f"you are {person}@laptop" in said.stdout and re.search(rf"user +{person}$", said.stdout, re.M), said.stdout
        assert time.monotonic() - began < 15 * 60
        # What `vctl login` advises works as it is: the cluster has one pool.
        assert laptop.run("vrun -- hostname", "ben").stdout == "n7\n"

        # The settings of the page.
        settings = [text for _, text in blocks("toml")]
        assert len(settings) == 2
        (head.directory / "head-root/scheduler.toml").write_text(settings[1] + settings[0].split("# ca")[0])
        pid = next(p for p in pathlib.Path("/proc").iterdir() if p.name.isdigit() and is_controller_of(p, directory / "head-root"))
        os.kill(int(pid.name), signal.SIGHUP)
        me = lambda person: json.loads(laptop.run("vctl whoami -o json", person).stdout)
        wait_until("the settings are read", lambda: me("anna")["leads"] == ["vision"])
        assert (me("anna")["role"], me("ben")["teams"], me("cleo")["teams"]) == ("lead", ["vision"], [])

        address = head.run(step("controller", "vctl user address")).stdout.strip()
        assert re.fullmatch(rf"{re.escape(head.address)}:7420/[0-9a-f]{{64}}", address), address

        before = head.run("vctl user list -o name").stdout.split()
        assert before == [f"{p}@laptop" for p in PEOPLE]
        head.run(step("controller", "vctl user revoke anna"))
        refused = laptop.run("vrun -- true", "anna", check=False)
        assert refused.returncode != 0 and "shut out" in refused.stderr, refused.stderr
        audit = head.run(step("controller", "vctl admin audit")).stdout
        for what in ("invite", "join", "submit", "revoke"):
            assert what in audit, audit

        head.run(step("controller", "vctl admin backup"))
        head.run("vctl user add late")
        head.run(step("controller", "vctl admin restore"))
        assert head.run("vctl user list -o name").stdout.split() == before
        assert "backup" in head.run("vctl admin audit").stdout
        # Who was shut out stays out: anna, and the node.
        refused = laptop.run("vrun -- true", "anna", check=False)
        assert refused.returncode != 0 and "shut out" in refused.stderr, refused.stderr
        wait_until("the node is given up", lambda: [(n["name"], n["pool"], n["state"]) for n in nodes()] == [("n7", "gpu", "lost")], 60)
        assert json.loads(laptop.run("vctl whoami -o json", "ben").stdout)["teams"] == ["vision"]
        assert next(steps, None) is None
    finally:
        if node:
            node.terminate()
            node.wait(30)
        subprocess.run([TOP / "tools/emulate-host", "down", "n7", *host])
        Taken.let_go("link", index)


def is_controller_of(process, place):
    try:
        argv = (process / "cmdline").read_bytes().split(b"\0")
        return argv[0].endswith(b"vrund") and argv[1] == b"controller" and f"VRUN_DIR={place}\0".encode() in (process / "environ").read_bytes() + b"\0"
    except (OSError, IndexError):
        return False
