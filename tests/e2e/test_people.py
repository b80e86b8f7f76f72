# SPDX-License-Identifier: Apache-2.0
"""Who belongs to a cluster: a second person logs in by a token, a node joins by one, both can be shut out."""
import datetime
import json
import os
import pathlib
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time

import pytest
from cluster import BIN, wait_until


class Person:
    """Another user's machine, as far as vrun sees it: a directory of its own for all that vrun keeps."""
    def __init__(self, cluster, directory):
        self.cluster, self.directory = cluster, directory
        directory.mkdir()
        self.environment = {**cluster.environment, "VRUN_DIR": str(directory)}
        (directory / "config.toml").write_text(f'root = "{cluster.root}"\n')

    def run(self, *args, **kw):
        return self.cluster.run(*args, env=self.environment, **kw)

    def close(self):
        self.cluster.end_clients()   # one that still waits would start this home again
        self.run("vctl", "down", "--all")


@pytest.fixture
def team(own):
    c = own()
    people = []

    def person(name):
        people.append(Person(c, c.directory / name))
        return people[-1]
    yield c, person
    for p in people:
        p.close()


def token_for(c, *words):
    answer = json.loads(c.vctl(*words, "--controller", f"127.0.0.1:{c.port}", "-o", "json").stdout)
    assert answer["command"].endswith(answer["token"])
    return answer["token"]


def test_a_second_person_logs_in_and_is_shut_out(team):
    c, person = team
    bob, eve = person("bob"), person("eve")
    before = bob.run("vrun", "true")
    assert before.returncode == 125 and "no cluster" in before.stderr, before.stderr
    token = token_for(c, "user", "add", "bob")
    said = bob.run("vctl", "login", "-", "--name", "laptop", input=token + "\n", check=True)
    assert "you are bob@laptop" in said.stdout
    assert bob.run("vrun", "-D", "/root", "--", "echo", "hello", check=True).stdout == "hello\n"
    assert c.sh("echo anna").stdout == "anna\n"

    again = eve.run("vctl", "login", token)
    assert again.returncode == 1 and "used before" in again.stderr, again.stderr
    assert [(u["user"], u["machine"], u["revoked"]) for u in c.json("user", "list")["users"]] == [("bob", "laptop", False)]

    long = bob.cluster.popen("vrun", "-D", "/root", "--", "sleep", "300", env=bob.environment)
    wait_until("bob's job runs", lambda: [j["state"] for j in json.loads(bob.run("vctl", "jobs", "-o", "json").stdout)["jobs"]] == ["RUNNING"])
    [seen] = c.json("jobs")["jobs"]   # that it is there, not what it is
    assert seen["user"] == "bob@laptop" and not seen["argv"], seen
    waiting = int(bob.run("vbatch", "--hold", "--parsable", "--wrap", "true", check=True).stdout)
    said = c.vctl("user", "revoke", "bo").stderr
    assert "nobody of the name bo has joined" in said, said
    said = c.vctl("user", "revoke", "bob").stderr
    assert "nobody" not in said, said
    assert "its open streams and its jobs end within a minute" in said, said
    refused = bob.run("vbatch", "true")
    assert refused.returncode != 0 and "shut out" in refused.stderr, refused.stderr
    assert c.sh("echo anna").stdout == "anna\n"
    # His jobs end, also the one that has not begun.
    wait_until("his jobs are cancelled", lambda: not {waiting, seen["job"]} & {j["job"] for j in c.json("jobs")["jobs"] if j["state"] in ("PENDING", "RUNNING")}, 60)
    wait_until("nothing of them runs on the node", lambda: not c.node_pids("n1", "sleep"), 60)
    assert c.run("vctl", "user", "add", "bob").returncode == 1
    long.kill()
    told = [(a["who"], a["what"], a["of"], a["result"]) for a in c.json("admin", "audit")["audit"]]
    assert told[:3] == [("uid 0", "invite", "home bob", "ok"), ("home bob@laptop", "join", "", "ok"), ("home bob@laptop", "submit", "job 1", "ok")]
    assert ("uid 0", "revoke", "home bob", "ok") in told
    who = c.json("user", "list")["users"][0]["user"]
    assert who == "bob"


def test_what_was_refused_is_in_the_audit_log(team):
    c, person = team
    (c.directory / "home/scheduler.toml").write_text('admins = ["root"]\n')
    os.kill(c.pid_of("controller"), signal.SIGHUP)
    wait_until("the configuration is read", lambda: c.json("whoami")["role"] == "admin")
    bob = person("bob")
    bob.run("vctl", "login", token_for(c, "user", "add", "bob"), "--name", "laptop", check=True)
    job = int(c.run("vbatch", "--hold", "--parsable", "--wrap", "true", check=True).stdout)
    began = time.time()
    for words in (("cancel", str(job)), ("release", str(job)), ("drain", "n1")):
        refused = bob.run("vctl", *words)
        assert refused.returncode != 0 and len(refused.stderr.splitlines()) == 1, refused
    assert c.json("job", str(job))["state"] == "PENDING" and c.node_state("n1") == "ready"
    bobs = [a for a in c.json("admin", "audit")["audit"] if a["who"] == "home bob@laptop" and a["what"] not in ("join", "login")]
    assert [(a["what"], a["of"]) for a in bobs] == [("cancel", f"job {job}"), ("release", f"job {job}"), ("drain", "node n1")], bobs
    for entry in bobs:
        assert entry["from"].startswith("ipv4:127.0.0.1:"), entry
        assert entry["result"].startswith("refused: "), entry
        when = datetime.datetime.fromisoformat(entry["time"].replace("Z", "+00:00")).timestamp()
        assert began - 1 <= when <= time.time(), entry


def test_tokens_that_are_none(team):
    c, person = team
    eve = person("eve")
    good = token_for(c, "user", "add", "eve")
    address, rest = good.rsplit("/", 1)
    authority, secret = rest.split(".")
    for token, says in [("", "not whole"), ("x", "not whole"), (good[:-1], "not whole"),
                        (f"{address}/{'0' * 64}.{secret}", "not the cluster of this token"),
                        (f"{address}/{authority}.{'0' * 32}", "unknown, or was used before"),
                        (f"127.0.0.1:1/{authority}.{secret}", "nobody answers"),
                        (token_for(c, "node", "token"), "for a node")]:
        said = eve.run("vctl", "login", token)
        assert said.returncode == 1 and says in said.stderr and len(said.stderr.splitlines()) == 1, (token, said.stderr)
    said = eve.run("vctl", "login", good, "--name", "my laptop")
    assert said.returncode == 1 and "not a name" in said.stderr, said.stderr
    assert "controller" not in (eve.directory / "config.toml").read_text()
    short = token_for(c, "user", "add", "eve", "--for", "0:01")
    time.sleep(2.5)
    assert "ended at" in eve.run("vctl", "login", short).stderr
    eve.run("vctl", "login", good, check=True)   # none of that used it up
    for words in [("user",), ("user", "add"), ("user", "add", "a@b"), ("user", "grow", "x"), ("user", "add", "x", "y"),
                  ("user", "add", "x", "--for", "0"), ("user", "add", "x", "--controller", "nowhere"), ("node",), ("node", "token", "x"),
                  ("node", "token", "--gpus", "many"), ("node", "revoke"), ("login", "a", "b")]:
        said = c.run("vctl", *words)
        assert said.returncode == 2 and said.stderr.startswith("vctl"), (words, said.stderr)
    assert c.run("vctl", "user", "add", "../x").returncode == 1
    elsewhere = eve.run("vctl", "user", "add", "x")
    assert elsewhere.returncode == 1 and "no controller of yours runs here" in elsewhere.stderr


def test_a_node_joins_by_a_token(own):
    c = own()
    c.reserve("n2")
    c.make_host("n2")
    node = c.nodes["n2"]

    def token(*words):
        said = c.vctl("node", "token", "--controller", f"{node['ours']}:{c.port}", *words)
        return re.search(r"--join (\S+)", said.stdout).group(1)

    # A token of another pool: what the node says of itself does not count.
    node["token"], node["options"] = token("--pool", "gpu"), [*node["options"], "--pool", "local"]
    c.launch_node("n2")
    log = c.directory / "n2/node.log"
    wait_until("the node is refused", lambda: "its token was for the pool gpu" in log.read_text())
    assert c.node_state("n2") is None
    c.stop_node("n2")
    node["options"] = node["options"][:-2]
    # It has joined; the pool is that of its token.
    c.launch_node("n2")
    c.await_node("n2")
    assert {n["name"]: n["pool"] for n in c.json("nodes")["nodes"]} == {"n1": "local", "n2": "gpu"}
    assert c.run("vrun", "-p", "gpu", "--", "hostname", check=True).stdout.strip() != ""
    # The token was used; the node that was stopped and is started by the same command has joined before.
    c.stop_node("n2")
    wait_until("it is away", lambda: c.node_state("n2") != "ready")
    c.launch_node("n2")
    c.await_node("n2")

    c.vctl("node", "revoke", "n2")
    wait_until("it is shut out", lambda: c.node_state("n2") != "ready", 60)
    wait_until("it knows why", lambda: "shut out" in log.read_text())
    assert c.sh("echo n1").stdout == "n1\n"


def test_another_user_of_the_machine_types_vrun(own, monkeypatch):
    nobody = pwd.getpwnam("nobody")
    door = f"/run/vrun-test-{os.getpid()}.sock"
    monkeypatch.setenv("VRUN_DOOR", door)
    c = own()
    home = pathlib.Path(tempfile.mkdtemp(prefix="vrun-nobody-", dir="/var/tmp"))
    programs = home / "bin"
    c.root.parent.chmod(0o755)
    shutil.copytree(BIN, programs, symlinks=True, ignore=lambda d, names: [n for n in names if not re.match(r"v(run|ctl|batch)", n)])
    (home / "config.toml").write_text(f'root = "{c.root}"\n')
    subprocess.run(["chown", "-R", "nobody", home], check=True)
    environment = {"VRUN_DIR": str(home), "VRUN_DOOR": door, "PATH": f"{programs}:/usr/bin:/bin", "HOME": str(home)}

    def run(*words):
        return subprocess.run(words, env=environment, user=nobody.pw_uid, group=nobody.pw_gid, extra_groups=[], cwd="/", text=True,
                              capture_output=True, timeout=120)
    try:
        first = run("vrun", "-D", "/", "--", "id", "-u")
        assert first.returncode == 0 and first.stdout == f"{nobody.pw_uid}\n", first
        assert "you are nobody@" in first.stderr
        second = run("vrun", "-D", "/", "--", "echo", "again")
        assert (second.returncode, second.stdout, second.stderr) == (0, "again\n", "")
        assert [u["user"] for u in c.json("user", "list")["users"]] == ["nobody"]
        for place in ("pki", "state"):   # the cluster's own are not for him
            assert run("ls", str(c.directory / "home" / place)).returncode != 0
        c.vctl("user", "revoke", "nobody")
        assert "shut out" in run("vbatch", "true").stderr
    finally:
        run("vctl", "down", "--all")
        shutil.rmtree(home, ignore_errors=True)
