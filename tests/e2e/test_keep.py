# SPDX-License-Identifier: Apache-2.0
"""--writes=keep: what a job writes stays on its node until it is pulled, dropped, or too old."""
import json
import os
import pathlib

import pytest

from cluster import preempted_once, wait_until
from test_scheduler import GPUS, submit, wait_for


def keep(cluster, script, *options):
    """Runs it to its end; its id."""
    r = cluster.vrun("--writes=keep", "--status-json", str(cluster.directory / "status.json"), *options, "--", "sh", "-c", script,
                     check=True)
    assert ("is kept on node" in r.stderr) == (script != "true"), r.stderr
    return json.loads((cluster.directory / "status.json").read_text())["job"]


def kept(cluster, job):
    return cluster.json("job", job)["kept"]


def names(cluster, job, *paths):
    return set(cluster.vctl("job", job, "pull", *paths, "--list", "-o", "name").stdout.split())


def on_disk(cluster, job, node="n1"):
    """The files of its content on the node."""
    return sorted(f.name for f in (cluster.directory / node / "state/node/kept").glob(f"*/{job}.*/*"))


def test_what_was_written_stays_until_it_is_pulled(cluster, tmp_path):
    root = cluster.root / "root"
    (root / "keep").mkdir()
    (root / "keep/old").write_text("old\n")
    (root / "keep/gone").write_text("x")
    job = keep(cluster, "cd /root/keep && mkdir -p out/deep && echo one > out/a && head -c 3000000 /dev/zero | tr '\\0' z > out/deep/big && "
               "ln -s a out/link && ln out/a out/hard && echo new > old && rm gone && mv out/deep out/moved")
    assert sorted(os.listdir(root / "keep")) == ["gone", "old"] and (root / "keep/old").read_text() == "old\n"
    assert [(k["state"], k["node"], k["files"]) for k in kept(cluster, job)] == [("kept", "n1", 3)]
    assert "kept on n1: 3 files" in cluster.vctl("job", job).stdout
    # A list fetches nothing and changes nothing.
    inside = "/root/keep"
    assert names(cluster, job) >= {f"{inside}/out", f"{inside}/out/a", f"{inside}/out/moved/big", f"{inside}/gone", f"{inside}/old"}
    assert names(cluster, job, f"{inside}/out/moved") == {f"{inside}/out", f"{inside}/out/moved", f"{inside}/out/moved/big"}
    assert "2.9M" in cluster.vctl("job", job, "pull", "--list").stdout
    # Elsewhere: the files, and what is there stays.
    to = tmp_path / "copy"
    r = cluster.vctl("job", job, "pull", "--to", to)
    assert (to / "root/keep/out/a").read_text() == "one\n" and (to / "root/keep/old").read_text() == "new\n"
    assert (to / "root/keep/out/moved/big").stat().st_size == 3000000
    assert "it stays there" in r.stdout and "were skipped" in r.stderr
    assert not (root / "keep/out").exists()
    # Some of it, by a name relative to here.
    cluster.vctl("job", job, "pull", "out/a", cwd=root / "keep")
    assert os.listdir(root / "keep/out") == ["a"] and (root / "keep/gone").exists()
    assert kept(cluster, job)[0]["state"] == "kept"
    # All of it, once. What is there already is no conflict.
    r = cluster.vctl("job", job, "pull")
    assert "vrun-" not in r.stderr
    assert sorted(os.listdir(root / "keep")) == ["old", "out"] and (root / "keep/old").read_text() == "new\n"
    assert sorted(os.listdir(root / "keep/out")) == ["a", "hard", "link", "moved"]
    assert (root / "keep/out/hard").samefile(root / "keep/out/a") and os.readlink(root / "keep/out/link") == "a"
    assert [k["state"] for k in kept(cluster, job)] == ["pulled"] and on_disk(cluster, job) == ["record"]
    r = cluster.vctl("job", job, "pull", check=False)
    assert r.returncode == 1 and r.stderr.count("\n") == 1 and "pulled already" in r.stderr


def test_a_conflict_keeps_both(cluster):
    root = cluster.root / "root"
    (root / "conflict").write_text("first\n")
    job = keep(cluster, "echo theirs > /root/conflict; echo fine > /root/noconflict")
    (root / "conflict").write_text("mine\n")
    r = cluster.vctl("job", job, "pull")
    assert f"conflict.vrun-{job}" in r.stderr
    assert (root / "conflict").read_text() == "mine\n" and (root / f"conflict.vrun-{job}").read_text() == "theirs\n"
    assert (root / "noconflict").read_text() == "fine\n"


def test_dropped_is_gone_and_what_is_wrong_is_one_line(cluster):
    job = keep(cluster, "echo x > /root/dropped")
    assert "dropped 1 files" in cluster.vctl("job", job, "drop").stdout
    assert on_disk(cluster, job) == ["record"] and [k["state"] for k in kept(cluster, job)] == ["dropped"]
    assert "dropped: 1 file" in cluster.vctl("job", job).stdout

    def refused(*words):
        r = cluster.vctl(*words, check=False)
        assert r.returncode in (1, 2) and r.stderr.count("\n") == 1, (words, r.stderr)
        return r.stderr
    assert "it was dropped" in refused("job", job, "drop")
    assert "it was dropped" in refused("job", job, "pull", "--list")
    other = json.loads(cluster.vctl("jobs", "--all", "-o", "json").stdout)["jobs"]
    assert "no such job" in refused("job", max(j["job"] for j in other) + 1000, "pull")
    cluster.sh("true", check=True)
    last = max(j["job"] for j in cluster.json("jobs", "--all")["jobs"])
    assert "was not kept" in refused("job", last, "pull")
    assert "not one of" in refused("job", job, "push")
    assert "--list" in refused("job", job, "--list")
    r = cluster.vrun("--view=live", "--writes=keep", "--", "true")
    assert r.returncode == 2 and "--writes=keep" in r.stderr


def test_nothing_written_is_nothing_kept(cluster):
    job = keep(cluster, "true")
    assert [k["files"] for k in kept(cluster, job)] == [0]
    assert "nothing was written" in cluster.vctl("job", job).stdout


@pytest.mark.seconds(180)
def test_it_outlives_home_controller_and_node(sturdy):
    c = sturdy()
    c.vctl("status")
    r = c.run("vbatch", "--parsable", "--writes=keep", "-D", "/root", "-o", "/out", "--", "sh", "-c", "echo kept > /root/result",
              check=True)
    job = int(r.stdout)
    c.vctl("wait", job)
    assert not (c.root / "root/result").exists()
    for daemon in ("home", "controller"):
        c.kill_daemon(daemon)
    c.vctl("up", "--no-node", "--listen", f"0.0.0.0:{c.port}", "--root", str(c.root))
    c.stop_node("n1")
    wait_until("the node is known to be away", lambda: c.node_state("n1") != "ready", 60)
    r = c.vctl("job", job, "pull", check=False)
    assert r.returncode == 1 and "n1" in r.stderr and r.stderr.count("\n") == 1, r.stderr
    assert "n1" in c.vctl("job", job).stdout.split("writes:")[1].splitlines()[0]
    c.start_node("n1")
    c.vctl("job", job, "pull")
    assert (c.root / "root/result").read_text() == "kept\n"


@pytest.mark.seconds(120)
def test_the_oldest_goes_when_the_node_is_full_of_it(sturdy):
    c = sturdy(fresh=1, node_options=["--kept-bytes", "3000000"])
    first, second = [keep(c, f"head -c 2000000 /dev/zero > /root/out{i}") for i in range(2)]
    wait_until("the first one has gone", lambda: kept(c, first)[0]["state"] == "expired")
    assert kept(c, second)[0]["state"] == "kept"
    assert "expired on n1: 1 file" in c.vctl("job", first).stdout
    r = c.vctl("job", first, "pull", check=False)
    assert r.returncode == 1 and "no room" in r.stderr and r.stderr.count("\n") == 1
    c.vctl("job", second, "pull")
    assert (c.root / "root/out1").stat().st_size == 2000000


@pytest.mark.seconds(180)
def test_the_next_attempt_goes_on_with_what_was_written(sturdy):
    c = sturdy(node_options=GPUS)
    (c.root / "root/home").write_text("home\n")
    script = ("cd /root; if [ $VRUN_RESTART_COUNT = 0 ]; then echo mine >> home; echo first > mark; mkdir d; echo begun; exec sleep 300; fi; "
              "cat home mark; echo second >> mark; ls -d d")
    job = submit(c, "-G", "2", "--class", "experiment", "--writes=keep", "-o", "/out", "--", "sh", "-c", script)
    out = pathlib.Path(c.root / "out")
    wait_until("it has begun", lambda: out.exists() and out.read_text())
    urgent = submit(c, "-G", "2", "--class", "production", "--no-requeue", "--", "sleep", "300")
    wait_for(c, urgent, "RUNNING")
    wait_for(c, job, "PENDING")
    assert [k["attempt"] for k in kept(c, job)] == [1]
    (c.root / "root/home").write_text("changed\n")
    c.vctl("cancel", urgent)
    c.vctl("wait", job, timeout=90)
    assert preempted_once(out) == "begun\nhome\nmine\nfirst\nd\n"
    # All of it is in the last one.
    assert [k["attempt"] for k in kept(c, job)] == [2]
    r = c.vctl("job", job, "pull")
    assert (c.root / "root/mark").read_text() == "first\nsecond\n" and (c.root / "root/d").is_dir()
    assert (c.root / "root/home").read_text() == "changed\n" and (c.root / f"root/home.vrun-{job}").read_text() == "home\nmine\n"
    assert f"home.vrun-{job}" in r.stderr
