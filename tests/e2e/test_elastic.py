# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs (-N 2:4): pods leave for other jobs and come back, while the job goes on."""
import itertools
import os
import re
import signal
import subprocess
import textwrap

import pytest

from cluster import wait_until
from test_fs_restart import program_pids

pytestmark = pytest.mark.seconds(240)

# One elastic pod fills a node.
NODES = ("--milli-cpus", "2000")
SIZE = ("-N", "2:4", "-c", "2", "--checkpoint=grace:20s,resize:0")

# Says who is there, as the file and the socket tell it; exits with 3 when it is told to leave, and with 0 when pod number 4 and 5
# have come. Writes a file in either case.
POD = """
import json, os, signal, socket, sys, threading, time
pod = os.environ["VRUN_POD"]
def say(*words):
    sys.stdout.write(" ".join(map(str, ("pod", pod, *words))) + "\\n")
    sys.stdout.flush()
def leave(*_):
    say("leaves")
    open(f"left-{pod}", "w").write("x" * 100000)
    os._exit(3)
def follow():
    s = socket.socket(socket.AF_UNIX)
    s.connect(os.environ["VRUN_JOB_SOCKET"])
    s.sendall(b"MEMBERS=1\\n")
    for line in s.makefile():
        key, value = line.rstrip("\\n").split("=", 1)
        say(key, *(p["pod"] for p in json.loads(value)["pods"]))
signal.signal(signal.SIGTERM, leave)
threading.Thread(target=follow, daemon=True).start()
say("is there", os.environ["PET_NNODES"])
seen = None
while seen != [0, 1, 4, 5]:
    now = [p["pod"] for p in json.load(open("/run/vrun/members.json"))["pods"]]
    if now != seen: say("file", *now)
    seen = now
    time.sleep(0.05)
say("knows", socket.gethostbyname("worker-4") != "" and socket.gethostbyname("worker-5") != "")
open(f"ended-{pod}", "w").write("y")
time.sleep(1)
"""


@pytest.fixture
def small(sturdy):
    return sturdy(nodes=4, uplink_mbit=0, node_options=NODES)


def begun(out):
    """Whether all of its first pods know each other: a process that has just been started does not handle signals yet."""
    text = out.read_text() if out.exists() else ""
    return all(text.count(f"{source} 0 1 2 3") == 4 for source in ("file", "MEMBERS"))


def the_job(c):
    jobs = [j for j in c.json("jobs")["jobs"] if j["state"] == "RUNNING"]
    return jobs[0]["job"] if jobs else None


def states(c, job):
    return {p["pod"]: p["state"] for p in c.json("job", str(job))["pods"]}


def run_other(c):
    """A job that needs two of the four nodes."""
    return c.popen("vrun", "-D", "/root", "-q", "--class", "production", "-N", "2", "-c", "2", "--", "sh", "-c", "echo other; sleep 1",
                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process, seconds=120):
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def check(out):
    by_pod = {}
    for line in out.splitlines():
        found = re.fullmatch(r"pod (\d) (.*)", line)
        assert found, line
        by_pod.setdefault(int(found[1]), []).append(found[2])
    assert set(by_pod) == {0, 1, 2, 3, 4, 5}
    for pod, said in by_pod.items():
        assert said.count("is there 2:4") == 1, (pod, said)
        assert said.count("leaves") == (1 if pod in (2, 3) else 0), (pod, said)
        assert said.count("knows True") == (0 if pod in (2, 3) else 1), (pod, said)
    for source in ("file", "MEMBERS"):
        for pod in (0, 1):
            heard = [s.removeprefix(source + " ") for s in by_pod[pod] if s.startswith(source)]
            # A daemon that was started again may say the same again.
            sizes = [members for members, _ in itertools.groupby(h for h in heard if h in ("0 1 2 3", "0 1", "0 1 4 5"))]
            assert sizes == ["0 1 2 3", "0 1", "0 1 4 5"], (pod, by_pod[pod])


def test_it_gives_up_pods_and_gets_others_back(small):
    c = small
    out = c.directory / "elastic.out"
    with open(out, "w") as file:
        elastic = c.popen("vrun", "-D", "/root", "-q", *SIZE, "--", "python3", "-c", textwrap.dedent(POD), stdout=file,
                          stderr=subprocess.PIPE, text=True)
    wait_until("it runs", lambda: begun(out), 60)
    job = the_job(c)
    wait_until("on all nodes", lambda: states(c, job) == {n: "RUNNING" for n in range(4)})
    other = run_other(c)
    status, said, err = finish(other)
    assert (status, said) == (0, "other\nother\n"), err
    status, _, err = finish(elastic)
    assert status == 0, (err, out.read_text())
    check(out.read_text())
    # What the pods wrote that left is home too.
    written = {p.name: p.stat().st_size for p in (c.root / "root").glob("*-?")}
    assert written == {"left-2": 100000, "left-3": 100000, "ended-0": 1, "ended-1": 1, "ended-4": 1, "ended-5": 1}
    shown = wait_until("all its pods are over", lambda: (now := c.json("job", str(job)))["state"] == "COMPLETED" and now)
    assert [p["state"] for p in shown["pods"]] == ["COMPLETED", "COMPLETED", "LEFT", "LEFT", "COMPLETED", "COMPLETED"]
    assert (shown["state"], shown["min_nodes"], shown["nodes"]) == ("COMPLETED", 2, 4)
    assert "2 to 4 nodes" in c.vctl("job", str(job)).stdout


@pytest.mark.parametrize("daemon", ["controller", "home", "agent"])
def test_what_is_killed_in_the_middle_changes_nothing(small, daemon):
    c = small
    r = c.run("vbatch", "-D", "/root", *SIZE, "-o", "out", "--", "python3", "-c", textwrap.dedent(POD))
    job = int(re.search(r"\d+", r.stdout)[0])
    wait_until("it runs on all nodes", lambda: begun(c.root / "root/out"), 60)
    other = run_other(c)
    wait_until("pods leave", lambda: "LEFT" in states(c, job).values())
    if daemon == "agent":
        node = next(p["node"] for p in c.json("job", str(job))["pods"] if p["pod"] == 1)
        agents = program_pids(c, "node", node)
        for pid in agents:
            os.kill(pid, signal.SIGKILL)   # its host starts it again, and what runs there goes on
        wait_until("another agent runs", lambda: (now := program_pids(c, "node", node)) and now != agents)
    else:
        c.await_root(job)
        c.kill_daemon(daemon)
        if daemon == "controller":   # home's clients start home
            c.up()
        wait_until("there is another", lambda: c.vctl("jobs").returncode == 0 and c.pid_of(daemon))
    status, said, err = finish(other)
    if daemon != "home":   # which it was attached to
        assert (status, said) == (0, "other\nother\n"), err
    wait_until("it has ended", lambda: c.json("job", str(job))["state"] == "COMPLETED", 120)
    check((c.root / "root/out").read_text())


def test_it_starts_with_what_there_is(small):
    c = small
    held = c.popen("vrun", "-D", "/root", "-q", "--class", "production", "-c", "2", "--", "sleep", "60", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until("one node is taken", lambda: any(n["used"]["milli_cpus"] for n in c.json("nodes")["nodes"]))
    r = c.vrun("-q", *SIZE, "--", "sh", "-c", "echo $VRUN_PODS of $PET_NNODES")
    assert (r.returncode, r.stdout) == (0, "3 of 2:4\n" * 3), r.stderr
    held.send_signal(signal.SIGINT)
    held.communicate(timeout=60)


def test_the_failure_of_a_pod_that_stays_is_one(small):
    r = small.vrun("-q", *SIZE, "--", "sh", "-c", "test $VRUN_POD = 0 && sleep 60 || exit 4")
    assert r.returncode == 4, r.stderr
    assert re.search(r"rank \d on n\d: exit 4", r.stderr), r.stderr
