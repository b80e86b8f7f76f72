# SPDX-License-Identifier: Apache-2.0
"""Jobs that are moved so that others fit, and deadlines that are promised. The GPUs are only claimed: no job touches one."""
import re
import time

import pytest

from cluster import wait_until

GPUS = ("--gpus", "2", "--gpu-type", "fake", "--milli-cpus", "8000")

# Counts to $1, saves the count when it has to leave, and goes on from there.
COUNTS = """
mkdir -p $VRUN_CKPT_DIR
n=$(cat $VRUN_CKPT_DIR/n 2>/dev/null || echo 0)
trap 'echo $n > $VRUN_CKPT_DIR/n; echo left at $n; exit 0' USR1
echo begins at $n on $VRUN_NODELIST at $EPOCHREALTIME
while [ $n -lt $1 ]; do sleep 0.1; n=$((n + 1)); done
echo counted $n
"""


def submit(c, *args):
    return int(c.run("vbatch", "-D", "/root", "--parsable", *args, check=True).stdout)


def state(c, job):
    return c.json("job", job)["state"]


def wait_for(c, job, wanted, seconds=30):
    wait_until(f"job {job} is {wanted}", lambda: state(c, job) == wanted, seconds)


def output(c, job):
    path = c.root / f"root/vrun-{job}.out"
    return path.read_text() if path.exists() else ""


def node_of(c, job):
    return c.json("job", job)["node"]


@pytest.mark.seconds(240)
def test_a_job_is_moved_so_that_a_whole_node_is_free(sturdy):
    c = sturdy(nodes=2, node_options=GPUS)
    moved = submit(c, "-G", "1", "--checkpoint", "signal:USR1,grace:60s,save:0.1s,restore:0.1s", "--", "bash", "-c", COUNTS, "counts", 150)
    wait_until("it runs", lambda: "begins" in output(c, moved))
    before = node_of(c, moved)
    other = next(n for n in ("n1", "n2") if n != before)
    stays = submit(c, "-G", "1", "-w", other, "--no-requeue", "--", "bash", "-c", "until [ -e /root/go ]; do sleep 0.1; done")
    wait_for(c, stays, "RUNNING")
    # Each node has one GPU that is free, and this needs two of one node.
    whole = submit(c, "-G", "2", "--no-requeue", "--", "bash", "-c", "echo $VRUN_NODELIST at $EPOCHREALTIME; sleep 3; echo until $EPOCHREALTIME")
    assert c.vctl("wait", whole, timeout=120).returncode == 0
    assert c.vctl("wait", moved, timeout=120).returncode == 0
    assert state(c, stays) == "RUNNING", "nobody was evicted"
    c.vctl("cancel", stays)
    # Both end right, each on its node, at the same time.
    ran, at, until = re.fullmatch(r"(\S+) at (\S+)\nuntil (\S+)\n", output(c, whole)).groups()
    assert ran == before
    said = output(c, moved)
    begun = re.findall(r"begins at (\d+) on (\S+) at (\S+)", said)
    [left] = re.findall(r"left at (\d+)", said)
    assert [b[:2] for b in begun] == [("0", before), (left, other)] and 0 < int(left) < 150, said
    assert said.endswith("counted 150\n") and float(begun[1][2]) < float(until)
    info = c.json("job", moved)
    assert [(a["state"], a["node"]) for a in info["attempts"]] == [("PREEMPTED", before), ("COMPLETED", other)]
    assert f"job {whole} " in info["attempts"][0]["reason"] and info["lost_s"] == 0


@pytest.mark.seconds(240)
def test_a_promised_job_ends_in_time_although_others_come_first(sturdy):
    c = sturdy(node_options=GPUS)
    holder = submit(c, "-G", "2", "-t", "0:06", "--no-requeue", "--", "sleep", "5")
    wait_for(c, holder, "RUNNING")
    # Shorter ones, which would all come first: they take 16 s, if they use their limits.
    others = [submit(c, "-G", "2", "-t", "0:04", "--no-requeue", "--", "sleep", "3") for _ in range(4)]
    began = time.time()
    promised = c.run("vbatch", "-D", "/root", "-G", "2", "-t", "0:08", "--deadline", "hard:now+24seconds", "--", "bash", "-c",
                     "echo $EPOCHREALTIME; sleep 5; echo $EPOCHREALTIME", check=True)
    assert re.search(r"the deadline, \S+, will be met: it starts by \S+ and should end by \S+", promised.stderr), promised.stderr
    job = int(re.search(r"\d+", promised.stdout)[0])
    assert "will be met" in c.vctl("why", job).stdout
    # What is promised is not promised twice: this one would end before its deadline only if that one did not.
    refused = c.run("vbatch", "-D", "/root", "-G", "2", "-t", "0:08", "--deadline", "hard:now+24seconds", "--no-requeue", "--", "true", check=True)
    assert re.search("cannot be promised: (by what is known it would end at|nobody knows when there will be room)", refused.stderr), refused.stderr
    assert c.vctl("wait", job, timeout=90).returncode == 0
    start, end = map(float, output(c, job).split())
    assert end < began + 24 and start < began + 24 - 8, (start - began, end - began)
    assert state(c, others[-1]) == "PENDING", "it did not come last"
    c.vctl("wait", *others, check=False, timeout=90)
    assert {state(c, j) for j in others} == {"COMPLETED"}


@pytest.mark.seconds(120)
def test_a_deadline_is_refused_with_a_reason(sturdy):
    c = sturdy(node_options=GPUS)
    holder = submit(c, "-G", "2", "--no-requeue", "-t", "60", "--", "sleep", "300")
    wait_for(c, holder, "RUNNING")

    def told(*args):
        r = c.run("vbatch", "-D", "/root", "--no-requeue", *args, "--", "true")
        return r.returncode, r.stderr
    status, why = told("-G", "2", "-t", "10", "--deadline", "hard:now+20minutes")
    assert status == 0 and "cannot be promised: by what is known it would end at" in why, why
    # Without a time limit nothing is known of it.
    status, why = told("-G", "2", "--deadline", "hard:now+20minutes")
    assert status == 0 and "nobody has seen how long this runs: give it a time limit (-t)" in why, why
    status, why = told("-G", "2", "-t", "10", "--deadline", "hard:now+3hours")
    assert status == 0 and "will be met" in why, why
    status, why = told("-t", "10", "--deadline", "hard:2020-01-01")
    assert status != 0 and "is over: choose a later time" in why and len(why.splitlines()) == 1, why
    # A job whose deadline was not promised waits like any other, and `vctl why` says so.
    waits = sorted(j["job"] for j in c.json("jobs")["jobs"] if j["state"] == "PENDING")
    assert len(waits) == 3
    assert "cannot be promised" in c.vctl("why", waits[0]).stdout
    c.vctl("cancel", holder)
    assert c.vctl("wait", *waits, timeout=60).returncode == 0
