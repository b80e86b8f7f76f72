# SPDX-License-Identifier: Apache-2.0
"""vbatch --away: after "safe to disconnect" a job needs nothing of the machine that submitted it."""
import hashlib
import os
import pathlib
import shutil
import socket
import subprocess

import pytest

import s3
from cluster import empty, wait_until

pytestmark = [pytest.mark.skipif(s3.MISSING is not None, reason=s3.MISSING or ""), pytest.mark.seconds(240)]
LONG = 120   # for what takes a moment on a machine that has nothing else to do


@pytest.fixture
def away(sturdy, server):
    """A cluster whose snapshots are in the store. Its node n1 reaches it, and runs or not."""
    def make(more="", nodes=1):
        cluster = sturdy(fresh=0, store=server, configuration='s3_snapshots = "on"\n' + more)
        if nodes:
            cluster.start_node("n1")
        else:
            cluster.reserve("n1")
            cluster.make_host("n1")
        server.route(cluster, "n1")
        return cluster
    return make


def submit(cluster, *args, **kw):
    r = cluster.run("vbatch", "--parsable", "--away", "-D", "/root", *args, timeout=LONG, check=True, **kw)
    return int(r.stdout), r


def kill_home(cluster):
    cluster.kill_daemon("home")


def destroy_home(cluster):
    """Its machine and all that was on it; a new one has the same certificate and home id, and nothing else."""
    kill_home(cluster)
    for entry in cluster.home_state.iterdir():
        if entry.name in ("home_id", "snapshots", "controller"):
            continue
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    empty(cluster.root)
    (cluster.root / "root").mkdir()


class Gate:
    """What a job waits for, with the words `wait`, until it is opened here: home is not needed for that."""
    def __init__(self, cluster):
        self.listener = socket.socket()
        self.listener.bind(("0.0.0.0", 0))
        port = self.listener.getsockname()[1]
        self.wait = f"until (exec 3<>/dev/tcp/{cluster.nodes['n1']['ours']}/{port}) 2> /dev/null; do sleep 0.1; done"

    def open(self):
        self.listener.listen()


def has_ended(cluster, job):
    """Without home, which commands would start."""
    return list((cluster.directory / "n1/state/node/kept").glob(f"*/{job}.1/record"))


def is_over(cluster, job):
    """All that home will get of it is home."""
    return cluster.json("job", job)["ended"]


def snapshots_are_gone(cluster):
    try:
        return not list(pathlib.Path(cluster.directory).glob("home/**/snapshots/owners/*/snapshots/.away-*"))
    except FileNotFoundError:   # a folder was removed while we walked
        return False


def test_home_is_destroyed_after_safe(away, server):
    cluster = away(nodes=0)
    root = cluster.root / "root"
    data = os.urandom(3 << 20)
    (root / "data").write_bytes(data)
    (root / "work.py").write_text("import hashlib, os, sys\n"
                                  "print('read', hashlib.sha256(open('/root/data', 'rb').read()).hexdigest())\n"
                                  "os.makedirs('/root/out/deep')\n"
                                  "open('/root/out/deep/result', 'w').write('42\\n')\n"
                                  "print('to stderr', file=sys.stderr)\n"
                                  "sys.exit(7)\n")
    job, said = submit(cluster, "python3", "work.py")
    assert "safe to disconnect" in said.stderr
    destroy_home(cluster)
    # Nobody has fetched anything yet: it starts now.
    cluster.launch_node("n1")
    wait_until("the job has ended without home", lambda: has_ended(cluster, job), LONG)
    wait_until("a new home knows the end", lambda: is_over(cluster, job), LONG)
    info = cluster.json("job", job)
    assert info["exit"] == 7, info
    assert (root / "out/deep/result").read_text() == "42\n"
    log = (root / f"vrun-{job}.out").read_text()
    assert f"read {hashlib.sha256(data).hexdigest()}" in log and "to stderr" in log, log
    assert [k["state"] for k in info["kept"]] == ["pulled"]
    wait_until("its snapshot is removed", lambda: snapshots_are_gone(cluster), LONG)


def test_it_runs_while_its_root_is_sent(away, server):
    cluster = away()
    root = cluster.root / "root"
    (root / "late").write_text("read while it was sent\n")
    cluster.vctl("snapshot", "list")   # the snapshot store has read what the bucket has
    server.pause()   # nothing can become safe
    try:
        r = cluster.run("vbatch", "--parsable", "--away", "--no-wait", "-D", "/root", "--", "sh", "-c", "cat late; echo done > out",
                        timeout=LONG, check=True)
        job = int(r.stdout)
        wait_until("it has run", lambda: (root / "out").exists(), LONG)
    finally:
        server.resume()
    assert "read while it was sent" in (root / f"vrun-{job}.out").read_text()
    wait_until("its snapshot is removed", lambda: snapshots_are_gone(cluster), LONG)


def test_the_same_home_comes_back(away):
    """Files that the job appended to, changed and removed; more output than a connection holds back; a private file."""
    cluster = away()
    root = cluster.root / "root"
    (root / "rows").write_text("header\n")
    (root / "mine").write_text("first\n")
    (root / "gone").write_text("x")
    (root / ".ssh").mkdir(exist_ok=True)
    (root / ".ssh/id_ed25519").write_text("a secret")
    lines = 400_000   # 8 MB
    gate = Gate(cluster)
    script = (f"test ! -e /root/.ssh/id_ed25519 || exit 3; {gate.wait}; "
              f"echo row >> rows; echo theirs > mine; rm gone; seq -f 'line %012.0f' {lines}")
    job, _ = submit(cluster, "-o", "log", "--", "bash", "-c", script)
    kill_home(cluster)
    (root / "mine").write_text("changed meanwhile\n")
    (root / "rows").write_text("header\nmine\n")
    gate.open()
    wait_until("the job has ended without home", lambda: has_ended(cluster, job), LONG)
    wait_until("home has it all", lambda: is_over(cluster, job), LONG)
    info = cluster.json("job", job)
    assert info["exit"] == 0 and info["conflicts"] == 1, info
    assert (root / "rows").read_text() == "header\nmine\nrow\n"
    assert (root / "mine").read_text() == "changed meanwhile\n" and (root / f"mine.vrun-{job}").read_text() == "theirs\n"
    assert not (root / "gone").exists()
    printed = [line for line in (root / "log").read_text().splitlines() if line.startswith("line ")]
    assert len(printed) == lines and printed[-1] == f"line {lines:012}"


def test_the_store_is_away_and_home_is_killed_meanwhile(away, server):
    cluster = away()
    root = cluster.root / "root"
    cluster.vctl("snapshot", "list")
    (root / "new").write_bytes(os.urandom(1 << 20))
    server.stop()
    gate = Gate(cluster)
    waiting = cluster.popen("vbatch", "--parsable", "--away", "-D", "/root", "--", "bash", "-c",
                            f"{gate.wait}; sha256sum < new", stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)
    said = waiting.stdout.readline()
    assert said, waiting.stderr.read()
    job = int(said)
    state = wait_until("what is wrong is said", lambda: (lambda a: a if a["problem"] else None)(cluster.json("job", job)["away"]), LONG)
    assert not state["safe"] and "S3" in state["problem"], state
    assert "not safe to disconnect" in cluster.vctl("job", job).stdout
    kill_home(cluster)
    was = hashlib.sha256((root / "new").read_bytes()).hexdigest()
    server.start()
    assert waiting.wait(LONG) == 0
    assert "safe to disconnect" in waiting.stderr.read().splitlines()[-1]
    assert cluster.json("job", job)["away"]["safe"]
    (root / "new").write_text("something else")   # the job sees what it was submitted with
    kill_home(cluster)
    gate.open()
    wait_until("the job has ended without home", lambda: has_ended(cluster, job), LONG)
    wait_until("home has it all", lambda: is_over(cluster, job), LONG)
    assert was in (root / f"vrun-{job}.out").read_text()


def test_a_file_that_changes_while_it_is_sent(away, server):
    cluster = away()
    root = cluster.root / "root"
    (root / "late").write_text("as submitted\n")
    gate = Gate(cluster)
    r = cluster.run("vbatch", "--parsable", "--away", "--no-wait", "-D", "/root", "--", "bash", "-c",
                    f"{gate.wait}; cat late", timeout=LONG, check=True)
    job = int(r.stdout)
    (root / "late").write_text("changed\n")
    gate.open()
    wait_until("home has it all", lambda: is_over(cluster, job), LONG)
    assert "as submitted" in (root / f"vrun-{job}.out").read_text()


def test_the_configuration_makes_it_the_default(away):
    cluster = away('away = "on"\n')
    r = cluster.run("vbatch", "-D", "/root", "--", "true", timeout=LONG, check=True)
    assert "safe to disconnect" in r.stderr
    assert "safe to disconnect" not in cluster.run("vbatch", "--no-away", "-D", "/root", "--", "true", timeout=LONG, check=True).stderr
    r = cluster.run("vbatch", "-q", "-f", "-D", "/root", "--", "echo", "here", timeout=LONG, check=True)
    assert (r.stdout, r.stderr) == ("here\n", "")


def test_what_is_wrong_is_one_line(cluster):
    for command, words, says in [("vbatch", ["--away", "-D", "/root", "--", "true"], 's3_snapshots = "on"'),
                                 ("vrun", ["--away", "--", "true"], "vbatch --away"),
                                 ("vbatch", ["--away", "-f", "--", "true"], "--away with -f"),
                                 ("vbatch", ["--away", "--expose", "/root/.ssh", "--", "true"], "private files")]:
        r = cluster.run(command, *words, timeout=LONG)
        assert r.returncode in (2, 125) and r.stderr.count("\n") == 1 and says in r.stderr, (words, r)
