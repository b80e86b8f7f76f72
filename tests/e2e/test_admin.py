# SPDX-License-Identifier: Apache-2.0
"""Where jobs run, and what people ask of jobs and nodes: labels, places, lists of nodes, drains, maintenance, holds, retries."""
import pathlib
import re
import tempfile

import pytest

from cluster import wait_until

TOPOLOGY = """
SwitchName=leaf1 Nodes=n1
SwitchName=leaf2 Nodes=n[2-3]
SwitchName=spine Switches=leaf[1-2]
"""


def submit(cluster, *args):
    return int(cluster.run("vbatch", "-D", "/root", "--parsable", *args, check=True).stdout)


def state(cluster, job):
    return cluster.json("job", job)["state"]


def wait_for(cluster, job, wanted, seconds=30):
    wait_until(f"job {job} is {wanted}", lambda: state(cluster, job) == wanted, seconds)


def node_of(cluster, *args):
    """Where a job with these options runs."""
    r = cluster.vrun("-q", *args, "--", "sh", "-c", "echo $VRUN_NODELIST")
    assert r.returncode == 0, r.stderr
    return r.stdout.strip()


def refusal(cluster, *args):
    r = cluster.run("vbatch", "-D", "/root", *args, "--", "true")
    assert r.returncode != 0 and len(r.stderr.splitlines()) == 1, (args, r.stdout, r.stderr)
    return r.stderr


def node(cluster, name):
    return next(n for n in cluster.json("nodes")["nodes"] if n["name"] == name)


@pytest.fixture
def racks(own):
    """Three nodes in two racks, by a topology file; n3 is for tests only."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="vrun-e2e-", dir="/var/tmp"))
    (directory / "home").mkdir(mode=0o700)
    (directory / "home/topology.conf").write_text(TOPOLOGY)
    (directory / "home/scheduler.toml").write_text('topology = "topology.conf"\n[price]\nfake = 2\n')
    gpus = ("--gpus", "4", "--gpu-type", "fake", "--milli-cpus", "8000")
    c = own(directory=directory, nodes=1, node_options=(*gpus, "--label", "ssd", "--label", "net=ib"))
    c.next_nodes((*gpus, "--label", "ssd", "--gpu-group", "0-1", "--gpu-group", "2-3"))
    c.start_node("n2")
    c.next_nodes((*gpus, "--label", "new", "--taint", "test"))
    c.start_node("n3")
    return c


@pytest.mark.seconds(180)
def test_a_job_runs_where_it_asks_for(racks):
    c = racks
    assert node(c, "n2")["rack"] == "leaf2" and node(c, "n2")["block"] == "spine"
    assert node(c, "n2")["gpu_groups"] == [3, 12] and node(c, "n2")["price"] == 2
    wide = c.vctl("nodes", "-o", "wide").stdout
    assert re.search(r"n1 .*spine/leaf1 +ssd,net=ib", wide) and re.search(r"n3 .*spine/leaf2 +new +test", wide), wide
    assert node_of(c, "-C", "ssd&net=ib") == "n1"
    assert node_of(c, "-w", "n[2-3]") == "n2"
    assert node_of(c, "-x", "n[2,3]") == "n1"
    assert node_of(c, "--constraint=new", "--tolerate", "test") == "n3"
    job = submit(c, "-C", "ssd", "-x", "n1", "--topology=rack:prefer", "--checkpoint",
                 "signal:USR1,grace:20s,save:5s,every:10m", "--", "true")
    assert c.vctl("wait", job).returncode == 0
    info = c.json("job", job)
    assert info["labels"] == ["ssd"] and info["excluded_nodes"] == ["n1"] and info["node"] == "n2"
    text = c.vctl("job", job).stdout
    assert "within one rack if possible" in text and "takes 0:05" in text, text
    # The options of a script.
    (c.root / "root/job.sh").write_text("#!/bin/sh\n#SBATCH --constraint=ssd -x n1\n#SBATCH --switches=1@0:10\necho $VRUN_NODELIST\n")
    job = submit(c, str(c.root / "root/job.sh"))
    c.vctl("wait", job)
    assert (c.root / f"root/vrun-{job}.out").read_text() == "n2\n"
    # What nobody has is refused by its name.
    assert "constraint nvme: no node of pool local has this label: there are net=ib, new, ssd" in refusal(c, "-C", "nvme")
    assert "node n9: no such node" in refusal(c, "-w", "n1,n9")
    assert "topology: no node of pool local says its zone" in refusal(c, "--topology", "zone")
    assert "the request can never be met" in refusal(c, "-C", "new")
    assert "not a list of nodes" in refusal(c, "-w", "n[1-")
    assert "no such level" in refusal(c, "--topology", "shelf")


@pytest.mark.seconds(180)
def test_drain_and_resume(racks):
    c = racks
    running = submit(c, "-w", "n1", "--", "sleep", "300")
    wait_for(c, running, "RUNNING")
    assert re.search(r"n1 .*draining", c.vctl("drain", "n1", "--reason", "disk is full").stdout)
    assert node(c, "n1")["reason"] == "disk is full" and "disk is full" in c.vctl("nodes", "-o", "wide").stdout
    assert state(c, running) == "RUNNING"
    waits = submit(c, "-w", "n1", "--", "true")
    why = c.vctl("why", waits).stdout
    assert "that it may use is up (it asks for nodes n1)" in why, why
    assert node_of(c) == "n2"
    # A drained node stays drained, whoever starts again.
    c.stop_node("n1")
    c.vctl("down", "--all")
    c.up()
    c.launch_node("n1")
    wait_until("it is back", lambda: node(c, "n1")["state"] in ("draining", "drained"))
    assert node(c, "n1")["reason"] == "disk is full" and state(c, waits) == "PENDING"
    c.vctl("resume", "n[1-1]")
    assert c.vctl("wait", waits).returncode == 0
    r = c.run("vctl", "drain", "n7")
    assert r.returncode == 1 and r.stderr == "vctl: node n7: no such node: `vctl nodes` lists them\n"


@pytest.mark.seconds(180)
def test_maintenance(racks):
    c = racks
    c.vctl("maintenance", "add", "firmware", "--nodes", "n[1-2]", "--from", "now+1hour", "--for", "2:00:00")
    listed = c.json("maintenance")["maintenance"]
    assert [(w["name"], w["nodes"]) for w in listed] == [("firmware", ["n1", "n2"])]
    assert "maintenance firmware from" in node(c, "n1")["reason"]
    long = submit(c, "-t", "3:00:00", "--no-requeue", "--", "true")
    short = submit(c, "-t", "10", "--no-requeue", "--", "true")
    assert c.vctl("wait", short).returncode == 0
    assert state(c, long) == "PENDING"
    assert "out of service before it could end" in c.vctl("why", long).stdout
    c.vctl("maintenance", "remove", "firmware")
    assert c.vctl("wait", long).returncode == 0
    assert c.json("maintenance")["maintenance"] == []
    for wrong in (["add", "x", "--nodes", "n9", "--for", "10"], ["remove", "firmware"]):
        r = c.run("vctl", "maintenance", *wrong)
        assert r.returncode == 1 and len(r.stderr.splitlines()) == 1, (wrong, r.stderr)
    for wrong in (["add", "x"], ["add", "x", "--nodes", "n1"], ["adds"], ["list", "--for", "10"]):
        assert c.run("vctl", "maintenance", *wrong).returncode == 2, wrong


@pytest.mark.seconds(180)
def test_hold_release_and_requeue(sturdy):
    c = sturdy()
    held = submit(c, "--hold", "--", "echo", "released")
    after = submit(c, "-d", f"afterok:{held}", "--", "true")
    assert "it is held: `vctl release" in c.vctl("why", held).stdout
    assert c.json("job", held)["held"] and state(c, after) == "PENDING"
    assert c.vctl("hold", after).returncode == 0
    c.vctl("release", held)
    assert c.vctl("wait", held).returncode == 0
    assert state(c, after) == "PENDING"
    c.vctl("release", after)
    assert c.vctl("wait", after).returncode == 0
    r = c.run("vctl", "release", after)
    assert r.returncode == 1 and r.stderr == f"vctl: job {after}: it has ended\n"
    again = submit(c, "--", "sh", "-c", "echo attempt $VRUN_RESTART_COUNT; [ $VRUN_RESTART_COUNT = 1 ] || exec sleep 300")
    out = c.root / f"root/vrun-{again}.out"
    wait_until("it runs", lambda: out.exists() and "attempt 0" in out.read_text())
    c.vctl("requeue", again)
    assert c.vctl("wait", again).returncode == 0
    assert "attempt 1\n" in out.read_text()


@pytest.mark.seconds(180)
def test_a_job_is_started_again_by_its_rules(sturdy):
    c = sturdy()
    script = "echo attempt $VRUN_RESTART_COUNT; [ $VRUN_RESTART_COUNT = 2 ] || exit 3"
    job = submit(c, "--retry", "3@1s:3,oom", "--", "sh", "-c", script)
    assert c.vctl("wait", job).returncode == 0
    info = c.json("job", job)
    assert [a["state"] for a in info["attempts"]] == ["FAILED", "FAILED", "COMPLETED"]
    assert info["attempts"][0]["reason"].startswith("retry (rule 1): exit status 3")
    lines = [x for x in (c.root / f"root/vrun-{job}.out").read_text().splitlines() if x.startswith("attempt")]
    assert lines == ["attempt 0", "attempt 1", "attempt 2"]
    # Another end is none of the rule's, and tries are counted.
    job = submit(c, "--retry", "3:4", "--", "sh", "-c", "exit 3")
    assert c.vctl("wait", job, check=False).returncode == 3
    assert len(c.json("job", job).get("attempts", [])) == 1
    r = c.vrun("--retry", "1", "--", "sh", "-c", "echo $VRUN_RESTART_COUNT; exit 5")
    assert (r.returncode, r.stdout) == (5, "0\n1\n"), r.stderr


@pytest.mark.seconds(120)
def test_a_test_says_when_and_where(racks):
    c = racks
    r = c.run("vbatch", "--test-only", "-t", "60", "-G", "2", "-w", "n2", "--", "true", check=True)
    assert r.stderr == ("vbatch: it would start now on n2; if it runs for all of its time limit, it costs its team 4.00 GPU-hours "
                        "at the price of its nodes\n")
    r = c.vrun("--test-only", "--", "true")
    assert r.returncode == 0 and r.stderr.startswith("vrun: it would start now on "), r.stderr
    assert c.json("jobs", "--all")["jobs"] == []
