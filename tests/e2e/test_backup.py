# SPDX-License-Identifier: Apache-2.0
"""The controller's state in a file, while jobs are submitted, and a cluster that goes on from it: on SQLite, and on PostgreSQL."""
import re
import shutil
import signal
import stat
import subprocess
import threading

import pytest
from cluster import BIN, SLOW, wait_until
from postgres import Postgres, programs

# Counts until it is told to end: what is lost, or printed twice, shows.
COUNTS = "i=0; while [ ! -e /root/enough ]; do echo $i; i=$((i+1)); sleep 0.05; done; echo end $i"


class Load:
    """Submits jobs that wait, one after another, until it is left."""
    def __init__(self, c):
        self.c, self.end, self.numbers = c, threading.Event(), []
        self.thread = threading.Thread(target=self.submit)

    def submit(self):
        while not self.end.is_set():
            said = self.c.run("vbatch", "--parsable", "-D", "/root", "-H", "--", "true")
            if said.returncode == 0:
                self.numbers.append(int(said.stdout))

    def __enter__(self):
        self.thread.start()
        wait_until("some are submitted", lambda: len(self.numbers) >= 3)
        return self

    def __exit__(self, *_):
        self.end.set()
        self.thread.join()


def submit(c, *words, script):
    return int(c.run("vbatch", "--parsable", "-D", "/root", *words, "--", "sh", "-c", script, check=True).stdout)


def counted(text):
    lines = [line for line in text.splitlines() if not line.startswith("vrun")]
    assert re.fullmatch(r"end \d+", lines[-1]), lines[-3:]
    assert lines[:-1] == [str(i) for i in range(int(lines[-1].split()[1]))], "lines are lost or twice"


def usage_of(c, job):
    return [row for row in c.json("usage", "--by", "job", "--from", "-1h")["rows"] if row["job"] == job]


class Lived:
    """What a cluster has lived through before its backup, and what must be there afterwards."""
    def __init__(self, c):
        self.c = c
        self.ended = submit(c, script="sleep 1")
        c.run("vctl", "wait", str(self.ended), timeout=60)
        self.attached = c.popen("vrun", "-D", "/root", "--", "sh", "-c", COUNTS, stdout=-1, stderr=-1, text=True)
        self.batch = submit(c, "--view=live", "-o", "/root/batch.out", script=COUNTS)
        wait_until("both run", lambda: [j["state"] for j in c.json("jobs")["jobs"]] == ["RUNNING"] * 2)
        self.waits = submit(c, "-H", script="echo waited")
        c.vctl("user", "add", "anna")
        c.vctl("token", "create", "robot", "--user", "root@somewhere")
        self.usage = usage_of(c, self.ended)
        assert len(self.usage) == 1 and self.usage[0]["attempts"] == 1, self.usage

    def goes_on(self, early, exact):
        c = self.c
        wait_until("the node is ready", lambda: c.node_state("n1") == "ready")
        jobs = {j["job"]: j["state"] for j in c.json("jobs", "--all")["jobs"]}
        assert jobs[self.ended] == "COMPLETED" and jobs[self.batch] == "RUNNING" and jobs[self.waits] == "PENDING", jobs
        assert set(early) <= set(jobs), "a job that was there before the backup is lost"
        assert usage_of(c, self.ended) == self.usage
        assert [t["name"] for t in c.json("token", "list")["tokens"]] == ["robot"]
        assert list((c.home_state / "controller/people/invitations").iterdir()), "the invitation is lost"
        audit = [a["what"] for a in c.json("admin", "audit")["audit"]]
        assert {"submit", "invite"} <= set(audit), audit
        new = submit(c, script="true")
        assert new > 1_000_000 or exact and new == max(jobs) + 1, (new, max(jobs))
        c.run("vctl", "wait", str(new), timeout=60)
        c.vctl("release", str(self.waits))
        (c.root / "root/enough").touch()
        out, err = self.attached.communicate(timeout=60)
        assert self.attached.returncode == 0, err
        counted(out)
        for job in (self.batch, self.waits):
            c.run("vctl", "wait", str(job), timeout=60)
            info = c.json("job", str(job))
            assert info["state"] == "COMPLETED" and info["attempt"] == 1, info
        counted((c.root / "root/batch.out").read_text())


@pytest.mark.seconds(180)
def test_a_lost_state_comes_back_and_no_job_notices(own):
    c = own()
    lived = Lived(c)
    file = c.directory / "vrun.backup"
    with Load(c) as load:
        early = list(load.numbers)
        told = c.json("admin", "backup", str(file))
    assert told["rows"] > len(early) and told["files"] >= 3 and told["database"] == "SQLite" and not told["authority"], told
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and file.stat().st_size == told["bytes"]
    assert not [f for f in c.directory.iterdir() if f.name.startswith("vrun.backup.")], "something is left beside it"
    refused = c.run("vctl", "admin", "restore", str(file))
    assert refused.returncode == 1 and "a controller runs on" in refused.stderr and refused.stderr.count("\n") == 1, refused.stderr

    c.kill_daemon("controller")
    shutil.rmtree(c.home_state / "controller")
    cut = c.directory / "cut.backup"
    cut.write_bytes(file.read_bytes()[:-100])
    damaged = c.run("vctl", "admin", "restore", str(cut))
    assert damaged.returncode == 1 and "damaged or was cut off" in damaged.stderr, damaged.stderr
    assert not (c.home_state / "controller/vrun.db").exists()
    put = c.json("admin", "restore", str(file))
    assert put["rows"] == told["rows"] and put["moved"] == "" and "1000" in put["notes"][0], put
    c.up()
    lived.goes_on(early, exact=False)


@pytest.mark.seconds(180)
@pytest.mark.skipif(programs() is None, reason="needs tools/install-deps --test: PostgreSQL")
def test_from_sqlite_to_postgresql_and_no_job_notices(own):
    c = own()
    lived = Lived(c)
    postgres = Postgres()
    process = None
    try:
        c.kill_daemon("controller", signal.SIGTERM)
        file, state = c.directory / "vrun.backup", c.home_state / "controller"
        c.vctl("admin", "backup", "--with-authority", str(file))
        put = c.json("admin", "restore", "--exact", "--database", postgres.url(), str(file))
        assert put["database"] == "SQLite" and put["authority"] and put["moved"] == "" and put["rows"] > 5, put
        again = c.run("vctl", "admin", "restore", "--exact", "--database", postgres.url(), str(file))
        assert again.returncode == 1 and "--replace" in again.stderr, again.stderr
        with open(c.directory / "postgres-controller.log", "ab") as log:
            process = subprocess.Popen([BIN / "vrund", "controller", "--listen", f"0.0.0.0:{c.port}", "--state-dir", state, "--pki",
                                        c.pki() / "controller", "--authority", c.pki(), "--database", postgres.url()],
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=c.environment)
        wait_until("it answers", lambda: c.run("vctl", "jobs").returncode == 0)
        lived.goes_on([], exact=True)
        # And back, while it runs.
        told = c.json("admin", "backup", "--database", postgres.url(), str(c.directory / "back.backup"))
        assert told["database"] == "PostgreSQL" and told["rows"] >= put["rows"], told
        back = c.json("admin", "restore", "--state-dir", str(c.directory / "elsewhere"), str(c.directory / "back.backup"))
        assert back["rows"] == told["rows"], back
    finally:
        if process:
            process.terminate()
            process.wait(30 * SLOW)
        postgres.close()


@pytest.mark.parametrize("words, says", [
    (["backup"], "no file"), (["restore", "a", "b"], "unexpected"), (["backup", "--replace", "a"], "--replace is for restore"),
    (["audit", "--exact"], "--exact is for backup and restore"), (["rewind", "a"], "backup FILE or restore FILE")])
def test_wrong_words_are_one_line(cluster, words, says):
    said = cluster.run("vctl", "admin", *words)
    assert said.returncode == 2 and says in said.stderr and said.stderr.count("\n") == 1, said.stderr
