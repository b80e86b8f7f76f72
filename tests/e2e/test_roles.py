# SPDX-License-Identifier: Apache-2.0
"""What people may do and see; certificates that renew themselves; who is shut out is cut off on every stream; modes of all files."""
import json
import os
import pathlib
import re
import select
import signal
import stat
import subprocess
import time

import pytest
from cluster import wait_until
from test_people import Person, token_for


@pytest.fixture
def cluster(own):
    made, people = own(), []

    def person(name):
        people.append(Person(made, made.directory / name))
        people[-1].run("vctl", "login", token_for(made, "user", "add", name), "--name", "laptop", check=True)
        return people[-1]
    yield made, person
    for one in people:
        one.close()


def me(person):
    return json.loads(person.run("vctl", "whoami", "-o", "json", check=True).stdout)


def configure(c, text):
    (c.directory / "home/scheduler.toml").write_text(text)
    os.kill(c.pid_of("controller"), signal.SIGHUP)


@pytest.mark.seconds(120)
def test_people_do_and_see_what_the_administrator_says(cluster):
    c, person = cluster
    assert c.json("whoami")["role"] == "operator"   # nobody is named, and his certificate did not come by a token
    bob, amy, lea = person("bob"), person("amy"), person("lea")
    assert (me(bob)["name"], me(bob)["role"], me(bob)["max_class"]) == ("bob@laptop", "user", "inference")
    refused = bob.run("vctl", "drain", "n1")
    assert refused.returncode == 1 and "only an operator or an admin may" in refused.stderr, refused.stderr

    configure(c, 'admins = ["root"]\nvisibility = "team"\n[team.vision]\nusers = ["amy"]\nleads = ["lea"]\n')
    wait_until("the configuration is read", lambda: c.json("whoami")["role"] == "admin")
    assert me(amy)["teams"] == ["vision"] and me(lea)["role"] == "lead" and me(lea)["leads"] == ["vision"]
    assert re.search(r"^role +lead$", lea.run("vctl", "whoami", check=True).stdout, re.M)
    for words, says in [(("-A", "vision"), "you are not in its list"), (("--class", "inference"), "at most"), (("-A", "other"), "no such team")]:
        said = bob.run("vrun", *words, "-D", "/root", "--", "true")
        assert said.returncode == 125 and says in said.stderr, said.stderr
    job = int(amy.run("vbatch", "--parsable", "-J", "secret-plan", "-D", "/root", "--", "sleep", "300", check=True).stdout)

    def seen(by):
        [found] = [j for j in json.loads(by.run("vctl", "jobs", "-o", "json", check=True).stdout)["jobs"] if j["job"] == job]
        return found
    assert (seen(lea)["name"], seen(lea)["user"]) == ("secret-plan", "amy@laptop")
    assert "secret-plan" not in json.dumps(seen(bob)) and "amy" not in json.dumps(seen(bob))
    assert "does not show others' jobs" in bob.run("vctl", "why", str(job)).stderr
    for by, may in [(bob, False), (lea, True)]:
        said = by.run("vctl", "cancel", str(job))
        assert (said.returncode == 0) == may and ("only its owner" in said.stderr) != may, said.stderr


def until(pem):
    said = subprocess.run(["openssl", "x509", "-noout", "-enddate", "-in", pem], capture_output=True, text=True, check=True).stdout
    return said.strip()


@pytest.mark.seconds(150)
def test_certificates_renew_themselves(monkeypatch, own):
    monkeypatch.setenv("VRUN_CERTIFICATE_SECONDS", "12")
    c = own()
    bob = Person(c, c.directory / "bob")
    try:
        bob.run("vctl", "login", token_for(c, "user", "add", "bob"), "--name", "laptop", check=True)
        c.reserve("n2")
        c.make_host("n2")
        node = c.nodes["n2"]
        said = c.vctl("node", "token", "--pool", "gpu", "--controller", f"{node['ours']}:{c.port}")
        node["token"] = re.search(r"--join (\S+)", said.stdout).group(1)
        c.launch_node("n2")
        c.await_node("n2")
        run = ("vrun", "-p", "gpu", "-D", "/root", "--", "echo", "there")
        assert bob.run(*run, check=True).stdout == "there\n"
        [of_bob] = bob.directory.rglob("bob@laptop.pem")
        [of_node] = (c.directory / "n2/state").rglob("n2.pem")
        first = until(of_bob), until(of_node)
        began = time.monotonic()
        long = c.popen("vrun", "-p", "gpu", "-D", "/root", "--", "sh", "-c", "sleep 30; echo done", env=bob.environment, stdout=subprocess.PIPE, text=True)
        wait_until("both are renewed", lambda: until(of_bob) != first[0] and until(of_node) != first[1])
        wait_until("the first ones have ended", lambda: time.monotonic() - began > 14)
        # All connect again, with what is there now.
        c.kill_daemon("controller")
        c.up()
        c.await_node("n2")
        assert bob.run(*run, check=True).stdout == "there\n"
        assert long.communicate(timeout=60)[0] == "done\n"
        # Both were off beyond the end.
        bob.run("vctl", "down", "--all")
        c.stop_node("n2")
        time.sleep(13)
        c.launch_node("n2")
        c.await_node("n2")
        assert bob.run(*run, check=True).stdout == "there\n"
        # Whoever is shut out gets no other one.
        bob.run("vctl", "down", "--all")
        c.vctl("user", "revoke", "bob")
        time.sleep(13)
        assert bob.run(*run).returncode == 125
    finally:
        bob.close()


def falls_silent(process, seconds):
    """Nothing more comes for 5 s, within so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ready, _, _ = select.select([process.stdout], [], [], 5)
        if not ready or not os.read(process.stdout.fileno(), 65536):
            return True
    return False


@pytest.mark.seconds(180)
def test_who_is_shut_out_is_cut_off_on_every_stream(cluster):
    c, person = cluster
    bob = person("bob")
    ticks = ("-D", "/root", "--", "sh", "-c", "while :; do echo tick; sleep 0.2; done")
    of_bob = c.popen("vrun", *ticks, env=bob.environment, stdout=subprocess.PIPE)
    mine = c.popen("vrun", *ticks, stdout=subprocess.PIPE)
    for process in (of_bob, mine):
        assert process.stdout.readline() == b"tick\n"
    c.vctl("user", "revoke", "bob")
    assert falls_silent(of_bob, 60)
    assert "1 users and 0 nodes are shut out" in (c.directory / "n1/node.log").read_text()
    os.read(mine.stdout.fileno(), 1 << 20)
    assert os.read(mine.stdout.fileno(), 1 << 20)   # others do not feel it
    mine.kill()
    # A node: home ends its connections.
    c.start_node("n2")
    there = c.popen("vrun", "-w", "n2", *ticks, stdout=subprocess.PIPE)
    assert there.stdout.readline() == b"tick\n"
    c.vctl("node", "revoke", "n2")
    assert falls_silent(there, 60)
    wait_until("home knows it", lambda: "was shut out of the cluster" in c.logs(), 60)


# What others on the machine may read, and why.
MEANT = [
    r".*\.pem$",                              # certificates are public
    r".*/controller/address$",                # as is where it listens
    r".*/(config\.toml|scheduler\.toml)$",    # written by people; they hold no secrets
    r".*/tasks/[^/]+/(online|hosts)$",        # the job has them in its /sys and /etc
]


def open_to_others(top, skip=()):
    for directory, below, files in os.walk(top):
        below[:] = [d for d in below if not any(re.search(s, f"{directory}/{d}") for s in skip)]
        for name in [*below, *files]:
            path = pathlib.Path(directory) / name
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                continue
            if stat.S_ISLNK(mode) or mode & 0o077 == 0 or any(re.match(m, str(path)) for m in MEANT):
                continue
            yield f"{stat.filemode(mode)} {path}"


@pytest.mark.seconds(120)
def test_nobody_else_may_read_what_we_write(cluster):
    c, person = cluster
    bob = person("bob")
    token_for(c, "node", "token")
    c.sh("echo x > /root/written; env > /root/environment")
    bob.run("vrun", "-D", "/root", "--", "true", check=True)
    c.run("vbatch", "-D", "/root", "--", "sh", "-c", "echo out", check=True)
    c.run("vbatch", "-D", "/root", "--writes=keep", "--", "sh", "-c", "echo x > /root/kept", check=True)
    wait_until("all have ended", lambda: not c.json("jobs")["jobs"])
    running = c.popen("vrun", "-D", "/root", "--", "sleep", "60", stdout=subprocess.DEVNULL)
    wait_until("one runs", lambda: [j["state"] for j in c.json("jobs")["jobs"]] == ["RUNNING"])
    # Below a task's directory, in kept writes and in views are files of jobs, with the modes that they gave them.
    of_jobs = [r"/node/tasks/[^/]+/", r"/node/kept/[^/]+/", r"/node/views$", r"/opt/vrun$"]
    found = [*open_to_others(c.directory / "home"), *open_to_others(c.directory / "bob"), *open_to_others(c.directory / "n1/state", of_jobs)]
    assert not found, "\n".join(found)
    running.kill()
