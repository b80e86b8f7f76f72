# SPDX-License-Identifier: Apache-2.0
"""Two controllers on one real PostgreSQL: one is active, the other takes over within seconds, and no job notices."""
import re
import signal
import time

import pytest
from cluster import SLOW, wait_until
from conftest import Copy
from postgres import Postgres, SharedCluster, Wire, programs

pytestmark = [pytest.mark.seconds(180), pytest.mark.skipif(programs() is None, reason="needs tools/install-deps --test: PostgreSQL")]
# Counts until it is told to end: what is lost, or printed twice, shows.
COUNTS = "i=0; while [ ! -e /root/enough ]; do echo $i; i=$((i+1)); sleep 0.05; done; echo end $i"


@pytest.fixture(scope="module")
def database():
    postgres = Postgres()
    yield postgres
    postgres.close()


@pytest.fixture
def pair(database, template_root):
    """pair() is a cluster of two controllers and a node; pair(wired=True): each has its own way to the database."""
    made = []

    def make(wired=False):
        database.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        copy = Copy(template_root)
        c = SharedCluster.__new__(SharedCluster)
        made.append((c, copy))
        if wired:
            class Wired(SharedCluster):
                def start_controller(self, name):
                    self.wires.setdefault(name, Wire(database.port))
                    super().start_controller(name)
            c.__class__ = Wired
        c.__init__(copy.root, database, nodes=1)
        return c
    yield make
    for c, copy in made:
        c.close()
        copy.remove()


def other(c, name):
    return next(n for n in c.ports if n != name)


def counted(text):
    """What the job printed, without vrun's own lines."""
    lines = [line for line in text.splitlines() if not line.startswith("vrun")]
    assert re.fullmatch(r"end \d+", lines[-1]), lines[-3:]
    assert lines[:-1] == [str(i) for i in range(int(lines[-1].split()[1]))], "lines are lost or twice"
    return len(lines)


def taken_over(c, before, limit=5):
    """The other one is active, and a new job runs to its end. Returns the seconds until the first."""
    began = time.monotonic()
    after = other(c, before)
    wait_until(f"{after} is active", lambda: c.active() == after, 20)
    seconds = time.monotonic() - began
    assert seconds < limit * SLOW, seconds
    return seconds


def run_to_its_end(c):
    """A job from now; the node may still be looking for the controller."""
    return wait_until("a new job runs", lambda: c.vrun("-q", "--", "echo", "new", timeout=60).stdout == "new\n", 60)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_job_does_not_notice(pair, how):
    c = pair()
    before = c.active()
    assert "stands by" in c.log(f"{other(c, before)}/controller.log")
    attached = c.popen("vrun", "-D", "/root", "--", "sh", "-c", COUNTS, stdout=-1, stderr=-1, text=True)
    batch = re.search(r"\d+", c.run("vbatch", "--view=live", "-D", "/root", "-o", "/root/batch.out", "--", "sh", "-c", COUNTS, check=True).stdout)[0]
    wait_until("both run", lambda: [j["state"] for j in c.json("jobs")["jobs"]] == ["RUNNING"] * 2)
    waits = re.search(r"\d+", c.run("vbatch", "-D", "/root", "-H", "--", "true", check=True).stdout)[0]

    began = time.monotonic()
    c.daemons[before].send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    taken_over(c, before)
    wait_until("somebody answers", lambda: c.run("vctl", "jobs").returncode == 0, 60)
    assert time.monotonic() - began <= 5 * SLOW, time.monotonic() - began
    run_to_its_end(c)
    states = {str(j["job"]): j["state"] for j in c.json("jobs")["jobs"]}
    assert states[batch] == "RUNNING" and states[waits] == "PENDING", states
    if how == "stopped":   # it lives again: it has nothing any more, and says so
        c.daemons[before].send_signal(signal.SIGCONT)
        assert c.daemons[before].wait(20) == 1
        assert re.search("the session is lost|has not answered", c.log(f"{before}/controller.log"))

    c.start_controller(before)   # it stands by
    wait_until("it stands by", lambda: f"controller" in c.log(f"{before}/controller.log").rsplit("stands by", 1)[-1])
    assert c.active() == other(c, before)
    c.vctl("release", waits)
    (c.root / "root/enough").touch()
    out, err = attached.communicate(timeout=60 * SLOW)
    assert attached.returncode == 0, err
    assert counted(out) > 3
    for job in (batch, waits):
        c.vctl("wait", job)
        info = c.json("job", job)
        assert info["state"] == "COMPLETED" and info["attempt"] == 1, info
    assert counted((c.root / "root/batch.out").read_text()) > 3


def test_a_controller_without_its_database_ends(pair):
    """Nothing comes through any more, and no connection ends: the other one takes over, and nodes do not stay with the first."""
    c = pair(wired=True)
    before = c.active()
    attached = c.popen("vrun", "-D", "/root", "--", "sh", "-c", COUNTS, stdout=-1, stderr=-1, text=True)
    wait_until("it runs", lambda: [j["state"] for j in c.json("jobs")["jobs"]] == ["RUNNING"])
    c.wires[before].stop()
    taken_over(c, before, limit=6)
    assert c.daemons[before].wait(20) == 1
    run_to_its_end(c)
    (c.root / "root/enough").touch()
    out, err = attached.communicate(timeout=60 * SLOW)
    assert attached.returncode == 0, err
    counted(out)


def test_the_database_is_started_again(pair, database):
    """Both controllers lose it. Whoever starts them again (systemd) finds all jobs."""
    c = pair()
    job = re.search(r"\d+", c.run("vbatch", "-D", "/root", "-H", "--", "true", check=True).stdout)[0]
    attached = c.popen("vrun", "-D", "/root", "--", "sh", "-c", COUNTS, stdout=-1, stderr=-1, text=True)
    wait_until("it runs", lambda: "RUNNING" in [j["state"] for j in c.json("jobs")["jobs"]])
    before = c.active()
    database.stop(signal.SIGQUIT)
    assert c.daemons[before].wait(20) == 1
    database.start()
    c.up()
    run_to_its_end(c)
    assert {str(j["job"]): j["state"] for j in c.json("jobs")["jobs"]}[job] == "PENDING"
    (c.root / "root/enough").touch()
    out, err = attached.communicate(timeout=60 * SLOW)
    assert attached.returncode == 0, err
    counted(out)


def test_wrong_words_are_one_line(pair, tmp_path, database):
    c = pair()
    for database_url, says in (("postgresql://[", "state database"), ("nonsense", "state database")):
        told = c.run("vrund", "controller", "--listen", "127.0.0.1:0", "--state-dir", str(tmp_path / "x"), "--pki", str(c.pki()),
                     "--database", database_url)
        assert told.returncode == 1 and says in told.stderr and len(told.stderr.strip().splitlines()) == 1, told.stderr
    (c.directory / "home/config.toml").write_text('controller = "somewhere:1,else:2"\n')
    told = c.run("vctl", "jobs")
    assert "numeric IPv4" in told.stderr, told.stderr


def test_vctl_works_on_what_the_controllers_share(pair):
    """On the machine of either of them, active or not: who is shut out there is out, and a backup is of the database in use."""
    c = pair()
    home = c.directory / "home"
    (home / "state/cluster").mkdir()
    (home / "state/cluster/controller.listen").write_text("127.0.0.1\n")   # as `vctl up` on a machine whose controller is `name`
    for name in (c.active(), other(c, c.active())):
        (home / "state/controller").symlink_to(c.directory / name)
        made = c.json("admin", "backup", str(c.directory / f"{name}.backup"))
        assert made["database"] == "PostgreSQL", made
        assert [a["what"] for a in c.json("admin", "audit")["audit"]].count("backup") > 0
        if name != c.active():
            assert c.vrun("--", "true").returncode == 0
            c.run("vctl", "user", "revoke", "root", check=True)
            refused = c.vrun("--", "true")
            assert refused.returncode != 0 and "shut out" in refused.stderr, refused.stderr
        (home / "state/controller").unlink()
