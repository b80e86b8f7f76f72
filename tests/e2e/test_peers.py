# SPDX-License-Identifier: Apache-2.0
"""Nodes that start together fetch from each other: home sends everything once, whoever dies in between."""
import hashlib
import json
import os
import signal
import subprocess
import time

import pytest

from cluster import SLOW, Bridge, wait_until
from test_cache import fs_pid
from test_trace import traces

pytestmark = pytest.mark.view("frozen")

NODES = 3
READ = "cd /root/data && cat $(find . -type f | LC_ALL=C sort) | sha256sum"


def fill(root, large, small):
    """Files that do not compress; what `READ` prints of them, and their bytes."""
    here = root / "root/data"
    (here / "many").mkdir(parents=True)
    (here / "large").write_bytes(os.urandom(large))
    for i in range(small):
        (here / f"many/f{i}").write_bytes(os.urandom(2000 + 700 * i))
    files = sorted((f for f in here.rglob("*") if f.is_file()), key=lambda f: f"./{f.relative_to(here)}".encode())
    content = b"".join(f.read_bytes() for f in files)
    return hashlib.sha256(content).hexdigest() + "  -\n", len(content)


def start(sturdy, uplink_mbit):
    # One job fills a node, so that three jobs are on three nodes.
    cluster = sturdy(nodes=NODES, node_options=["--milli-cpus", "1000"], uplink_mbit=uplink_mbit)
    jobs = begin(cluster, "read line", stdin=subprocess.PIPE)
    wait_until("each knows of the others", lambda: [n.get("peers") for n in stats(cluster)] == [NODES - 1] * NODES)
    for job in jobs:
        job.communicate(timeout=50)
    return cluster


def stats(cluster):
    return json.loads(cluster.run("vctl", "cache", "stat", "-o", "json").stdout)["nodes"]


def begin(cluster, script, stdin=subprocess.DEVNULL):
    return [cluster.popen("vrun", "-q", "-c", "1", "-D", "/", "--", "sh", "-c", script, stdin=stdin,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(NODES)]


def on_all(cluster, script):
    jobs = begin(cluster, script)
    return [(*job.communicate(timeout=50), job.returncode) for job in jobs]


def test_three_nodes_read_the_same_and_home_sends_it_about_once(sturdy):
    cluster = start(sturdy, 0)
    expected, size = fill(cluster.root, 12 << 20, 100)
    before = cluster.bridge.sent_bytes()
    assert on_all(cluster, READ) == [(expected, "", 0)] * NODES
    sent = cluster.bridge.sent_bytes() - before
    assert sent < 1.15 * size, f"{sent / size:.2f} times its size"
    told = stats(cluster)
    assert all(n["peer_fetched_bytes"] > size / 2 and n["peer_served_bytes"] > size / 3 for n in told), told
    assert all(n["peer_lies"] == 0 for n in told), told


@pytest.mark.parametrize("view", ["frozen", "live"])
def test_nodes_whose_jobs_have_ended_hold_nobody_up(sturdy, view):
    """Home gives them nothing, so they do not answer for it."""
    cluster = start(sturdy, 0)
    expected, _ = fill(cluster.root, 1 << 20, 40)
    began = time.monotonic()
    job = cluster.run("vrun", "-q", f"--view={view}", "-c", "1", "-D", "/", "--", "sh", "-c", READ, timeout=120)
    took = time.monotonic() - began
    assert (job.stdout, job.returncode) == (expected, 0), job.stderr
    assert took < 5 * SLOW, took  # an owner that asks home in vain costs 2 s for each file


def test_a_node_killed_in_the_middle_costs_its_share_and_no_byte_is_wrong(sturdy):
    cluster = start(sturdy, 80)
    expected, size = fill(cluster.root, 16 << 20, 60)
    before = cluster.bridge.sent_bytes()
    jobs = begin(cluster, READ)
    wait_until("some of it has come", lambda: cluster.bridge.sent_bytes() - before > size / 3)
    os.kill(fs_pid(cluster, "n3"), signal.SIGKILL)
    # Its keeper starts another one; that node's job sees no more of it than the others do.
    wait_until("all are done", lambda: all(job.poll() is not None for job in jobs), 80)
    assert [job.stdout.read() for job in jobs] == [expected] * NODES
    sent = cluster.bridge.sent_bytes() - before
    assert sent < 2 * size, f"{sent / size:.2f} times its size"


@pytest.mark.alone
def test_a_server_that_stops_in_the_middle_costs_the_others_a_moment(sturdy):
    """It is there, its streams are open, and it says nothing any more."""
    cluster = start(sturdy, 80)
    expected, size = fill(cluster.root, 16 << 20, 60)
    before = cluster.bridge.sent_bytes()
    jobs = begin(cluster, READ)
    wait_until("some of it has come", lambda: cluster.bridge.sent_bytes() - before > size / 3)
    stopped = fs_pid(cluster, "n3")
    began = time.monotonic()
    os.kill(stopped, signal.SIGSTOP)
    try:
        wait_until("the others are done", lambda: sum(job.poll() == 0 for job in jobs) >= NODES - 1, 40)
        took = time.monotonic() - began
    finally:
        os.kill(stopped, signal.SIGCONT)
    wait_until("all are done", lambda: all(job.poll() is not None for job in jobs), 40)
    assert [job.stdout.read() for job in jobs] == [expected] * NODES
    assert took < 7, took  # the link needs more than one for it


def test_a_node_that_is_gone_for_good_costs_the_others_its_share(sturdy):
    """The whole host, in the middle: agent, keeper, server and all that it had."""
    cluster = start(sturdy, 80)
    expected, size = fill(cluster.root, 16 << 20, 60)
    before = cluster.bridge.sent_bytes()
    jobs = begin(cluster, READ)
    wait_until("some of it has come", lambda: cluster.bridge.sent_bytes() - before > size / 3)
    cluster.stop_node("n3", signal.SIGKILL)
    wait_until("two are done", lambda: sum(job.poll() == 0 for job in jobs) >= NODES - 1, 80)
    # The third died with its host; if it is told yet, then never as success with something else than the bytes.
    assert all(job.stdout.read() == expected for job in jobs if job.poll() == 0)
    sent = cluster.bridge.sent_bytes() - before
    assert sent < 2 * size, f"{sent / size:.2f} times its size"


def test_what_a_job_began_to_read_from_a_peer_home_holds(own):
    """The first of it came from another node, and home has another file by that name before the rest is asked for."""
    cluster = own(nodes=2, node_options=["--milli-cpus", "1000"], bridge=Bridge(0))
    place = cluster.root / "root/data"
    place.mkdir(parents=True)
    content = {}
    for i in range(6):  # in parts because it is a library, or because it is large
        name, size = f"lib{i}.so", (16 << 20) if i % 2 else (600 << 10)
        content[name] = os.urandom(size)
        with open(place / name, "wb") as f:
            f.write(content[name])
            os.fsync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # or home takes it for read
    head = "for i in 3 4 5 6 7 8; do dd bs=4096 count=1 of=/tmp/head$i <&$i 2>/dev/null; done; echo begun; read line"
    rest = "for i in 3 4 5 6 7 8; do cat /tmp/head$i - <&$i | sha256sum; done"
    files = "exec " + " ".join(f"{i + 3}<lib{i}.so" for i in range(6))
    # One job fills a node. That of the frozen view reads first; home holds nothing for it.
    jobs = [cluster.popen("vrun", "-q", "-c", "1", f"--view={view}", "-D", "/root/data", "--", "sh", "-c",
                          f"read line; {files}; {head}; {rest}", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) for view in ("frozen", "live")]

    def say(job):
        job.stdin.write("go on\n")
        job.stdin.flush()

    wait_until("each knows of the other", lambda: [n.get("peers") for n in stats(cluster)] == [1, 1])
    for job in jobs:
        say(job)
        assert job.stdout.readline() == "begun\n"
    assert sum(n["peer_fetched_bytes"] for n in stats(cluster)) > 0
    for name in content:
        (place / "next").write_bytes(b"of another version")
        os.rename(place / "next", place / name)
    say(jobs[1])
    assert jobs[1].stdout.read().split("  -\n") == [hashlib.sha256(content[name]).hexdigest() for name in content] + [""]
    assert jobs[1].wait(timeout=20) == 0, jobs[1].stderr.read()


def hold(cluster):
    """A job that fills a node and reads nothing more, once it runs."""
    job = cluster.popen("vrun", "-q", "-c", "1", "-D", "/", "--", "sh", "-c", "echo held; read line", stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert job.stdout.readline() == "held\n", job.stderr.read()
    return job


@pytest.mark.alone
def test_a_traced_run_has_it_from_the_node_that_ran_it_first(own):
    """That one ran it without a trace, and does nothing now."""
    cluster = own(nodes=1, node_options=["--milli-cpus", "1000"], bridge=Bridge(80))
    here = cluster.root / "root/traced"
    here.mkdir()
    content = {f"f{i}": os.urandom(3 << 20 if i < 4 else 70000) for i in range(40)}
    for name, data in content.items():
        (here / name).write_bytes(data)
    (here / "script.py").write_text("import hashlib\nall = hashlib.sha256()\nfor i in range(40):\n"
                                    "    all.update(open(f'/root/traced/f{i}', 'rb').read())\nprint(all.hexdigest())\n")
    size = sum(map(len, content.values()))

    def run():
        before, began = cluster.bridge.sent_bytes(), time.monotonic()
        r = cluster.vrun("-q", "-c", "1", "--", "python3", "/root/traced/script.py", check=True)
        assert r.stdout == hashlib.sha256(b"".join(content.values())).hexdigest() + "\n"
        return cluster.bridge.sent_bytes() - before, time.monotonic() - began

    first, first_took = run()
    assert first > size
    wait_until("the trace is home", lambda: traces(cluster))
    held = hold(cluster)
    cluster.start_node("n2")
    known = hold(cluster)
    wait_until("each knows of the other", lambda: [n.get("peers") for n in stats(cluster)] == [1, 1])
    known.communicate(timeout=20)
    second, second_took = run()
    assert sum(n["peer_fetched_bytes"] for n in stats(cluster)) > size / 2, stats(cluster)
    assert second < first / 3, f"{second} bytes after {first}"
    assert second_took < first_took + 1, (second_took, first_took)
    held.communicate(timeout=20)


def test_home_killed_in_the_middle_makes_nobody_a_liar(sturdy):
    """What home signed before it was killed holds: nodes go on with one another, and what they have home does not send again."""
    cluster = start(sturdy, 80)
    expected, size = fill(cluster.root, 16 << 20, 60)
    before = cluster.bridge.sent_bytes()
    jobs = begin(cluster, READ)
    for share in (0.25, 0.5, 0.75):
        wait_until("some of it has come", lambda: cluster.bridge.sent_bytes() - before > share * size)
        home = cluster.pid_of("home")
        os.kill(home, signal.SIGKILL)
        wait_until("there is another one", lambda: cluster.pid_of("home") not in (home, None))
    wait_until("all are done", lambda: all(job.poll() is not None for job in jobs), 80)
    assert [job.stdout.read() for job in jobs] == [expected] * NODES
    sent = cluster.bridge.sent_bytes() - before
    assert sent < 2 * size, f"{sent / size:.2f} times its size"  # what was under way at each death comes again
    told = stats(cluster)
    assert all(n["peer_lies"] == 0 for n in told), told
