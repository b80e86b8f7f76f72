# SPDX-License-Identifier: Apache-2.0
"""Asking for parts of GPUs and seeing who has them. The nodes only describe GPUs: no job touches one."""


import pytest

from cluster import wait_until

# Two H100s in MIG mode, two whole ones.
GPUS = ("--gpus", "4", "--gpu-type", "h100", "--milli-cpus", "64000", "--emulate-gpus", "h100:80:h100-80gb:2")


def submit(cluster, *args):
    return int(cluster.run("vbatch", "-D", "/root", "--parsable", *args, check=True).stdout)


def waits_for(cluster, job, state):
    wait_until(f"job {job} is {state}", lambda: cluster.json("job", job)["state"] == state, 30)


def gpus(cluster):
    return {g["gpu"]: g for g in cluster.json("gpus")["gpus"]}


@pytest.mark.seconds(120)
def test_shares_instances_and_memory(sturdy):
    c = sturdy(node_options=GPUS)
    free = gpus(c)
    assert [free[i]["mode"] for i in range(4)] == ["mig", "mig", "free", "free"]
    assert (free[0]["memory_bytes"], free[0]["type"], free[0]["health"]) == (80 << 30, "h100", "ok")
    jobs = {
        "share": submit(c, "-G", "h100:0.25..1", "--wrap", "sleep 300"),
        "instance": submit(c, "-G", "1g.10gb", "--wrap", "sleep 300"),
        "memory": submit(c, "--gpu-mem", "20G", "--wrap", "sleep 300"),
        "time": submit(c, "-G", "0.5", "--share", "time", "--wrap", "sleep 300"),
    }
    for job in jobs.values():
        waits_for(c, job, "RUNNING")
    seen = gpus(c)
    users = {u["job"]: (i, u) for i, g in seen.items() for u in g["users"]}
    gpu, share = users[jobs["share"]]
    assert (seen[gpu]["mode"], share["part"], share["sharing"]) == ("mps", 0.25, "mps")
    gpu, instance = users[jobs["instance"]]
    assert (seen[gpu]["mode"], instance["mig_profile"], gpu < 2) == ("mig", "1g.10gb", True)
    _, memory = users[jobs["memory"]]
    assert memory["mig_profile"] == "1g.20gb"
    gpu, time = users[jobs["time"]]
    assert (seen[gpu]["mode"], time["part"]) == ("time", 0.5)
    table = c.vctl("gpus").stdout
    assert f"{jobs['share']}:0.25 " in table and f"{jobs['instance']}:1g.10gb@" in table
    assert "GPU-emulated-3" in c.vctl("gpus", "-o", "wide").stdout
    r = c.run("vctl", "gpus", "nobody")
    assert r.returncode != 0 and r.stderr == "vctl: node nobody: no such node: `vctl nodes` lists them\n"
    assert "h100:0.25..1 of one, by MPS" in c.vctl("job", jobs["share"]).stdout
    assert {j["job"] for j in c.json("top")["jobs"]} == set(jobs.values())
    # Both whole GPUs are shared: nobody gets a whole one, and the reason is said.
    waiting = submit(c, "-G", "1", "--wrap", "true")
    why = c.vctl("why", waiting).stdout
    assert "needs 1 gpu; the best node of pool local has 0 free; others are in MIG mode" in why
    for job in jobs.values():
        c.vctl("cancel", job)
    c.vctl("wait", waiting)


@pytest.mark.seconds(60)
def test_what_can_never_be_is_said_at_once(sturdy):
    c = sturdy(node_options=GPUS)

    def refused(*args):
        r = c.vrun(*args, "--", "true")
        assert r.returncode in (2, 125), r
        return r.stderr

    assert "a share is less than one GPU" in refused("-G", "1.5")
    assert "no GPU has the MIG profile 1g.11gb: known are 1g.5gb, " in refused("-G", "1g.11gb")
    assert "4 GPUs have too little memory" in refused("--gpu-mem", "200G")
    assert "2 cannot be cut like that" in refused("-G", "1g.5gb")
    assert "leave one out" in refused("-G", "0.25", "--gpus-per-task", "2")
    assert "a pod gets 16 GPUs at most" in refused("-G", "17")
    assert "no node of pool local that is up has that type, but " in refused("-G", "rtx:1")
    assert "not a GPU type" in refused("--gres=gpu:-1")
    assert "it would start now" in c.vrun("--test-only", "-G", "0.25", "--", "true").stderr


@pytest.mark.seconds(120)
def test_the_controller_is_started_again(sturdy):
    c = sturdy(node_options=GPUS)
    jobs = [submit(c, "-G", "3g.40gb", "--wrap", "sleep 300") for _ in range(4)]
    for job in jobs:
        waits_for(c, job, "RUNNING")
    before = gpus(c)
    c.kill_daemon("controller")
    c.vctl("up", "--no-node", "--listen", f"0.0.0.0:{c.port}", "--root", str(c.root))
    wait_until("the node is back", lambda: c.json("nodes")["nodes"][0]["state"] == "ready", 30)
    assert {i: g["users"] for i, g in gpus(c).items()} == {i: g["users"] for i, g in before.items()}
    waiting = submit(c, "-G", "1g.10gb", "--wrap", "true")
    assert "2 have too little left" in c.vctl("why", waiting).stdout
    c.vctl("cancel", jobs[0])
    c.vctl("wait", waiting)
    for job in jobs[1:]:
        c.vctl("cancel", job)
