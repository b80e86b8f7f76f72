# SPDX-License-Identifier: Apache-2.0
"""Live views whose home is silent, or goes, or takes away what they read: nothing is stale without a word, nothing is lost."""
import hashlib
import os
import random
import re
import signal
import subprocess
import time

import pytest

from cluster import wait_until
from test_away import Gate
from test_live import SHELL, started

pytestmark = pytest.mark.seconds(240)

# Says every moment what it sees of the file, until that is the last word; then how often, and the longest pause between two.
LOOK = """
import os, time
seen, last, pause = [open("f").read()], time.monotonic(), 0
print("ready", flush=True)
while seen[-1] != "last":
    text = open("f").read()
    os.stat("known"); os.path.exists("absent")
    now = time.monotonic()
    pause, last = max(pause, now - last), now
    if seen[-1] != text: seen.append(text)
    time.sleep(0.02)
print(*seen, flush=True)
"""


def job(cluster):
    return cluster.json("job", cluster.json("jobs")["jobs"][0]["job"])


def behind(cluster):
    """Seconds, as `vctl job` says."""
    said = re.match(r"behind home by (\d+) s", job(cluster)["view_state"])
    return int(said[1]) if said else 0


def looks(cluster):
    (cluster.place / "f").write_text("first")
    (cluster.place / "known").write_text("")
    (cluster.place / "look.py").write_text(LOOK)
    return started(cluster, "exec python3 look.py")


class Cut:
    """Nothing that this machine sends reaches the node, and nobody is told: the connections stay open and silent."""
    def __init__(self, cluster, node):
        self.device = f"vh{cluster.nodes[node]['index']}"

    def tc(self, *args):
        subprocess.run(["tc", "qdisc", *args, "dev", self.device, "root"], check=True)

    def __enter__(self):
        subprocess.run(["tc", "qdisc", "add", "dev", self.device, "root", "pfifo", "limit", "0"], check=True)

    def __exit__(self, *error):
        subprocess.run(["tc", "qdisc", "del", "dev", self.device, "root"], check=True)


def test_home_is_stopped_and_goes_on(live):
    p = looks(live)
    home = live.pid_of("home")
    os.kill(home, signal.SIGSTOP)
    try:
        # Longer than home may be silent: the view is in doubt, and the job goes on.
        time.sleep(5)
        (live.place / "f").write_text("last")
    finally:
        os.kill(home, signal.SIGCONT)
    out, err = p.communicate(timeout=60)
    assert (p.returncode, out) == (0, "first last\n"), err


def test_a_cut_link_is_said_and_what_changed_meanwhile_is_seen_after_it(live):
    p = looks(live)
    about = job(live)
    assert (about["view"], about["view_state"]) == ("live", "")
    with Cut(live, about["node"]):
        (live.place / "f").write_text("last")
        wait_until("it is said", lambda: behind(live) >= 3, 30)
        assert "live, behind home by " in live.vctl("job", about["job"]).stdout
    out, err = p.communicate(timeout=90)
    assert (p.returncode, out) == (0, "first last\n"), err


def test_a_view_that_has_heard_again_is_not_behind(live):
    p = started(live, SHELL)
    about = job(live)
    with Cut(live, about["node"]):
        wait_until("it is said", lambda: behind(live) >= 3, 30)
    wait_until("it is over", lambda: behind(live) == 0, 60)
    wait_until("and nothing else is wrong", lambda: job(live)["view_state"] == "", 30)
    finish_with(p, 3)


def finish_with(p, code):
    """What was said of the connection meanwhile is not looked at."""
    p.communicate(timeout=90)
    assert p.returncode == code


# --- what home takes away ---

READ = """
import hashlib, sys
files = [open(name, "rb", buffering=0) for name in ("removed", "replaced")]
for f in files: f.read(65536)
print("ready", flush=True)
sys.stdin.readline()
for f in files:
    f.seek(0)
    digest = hashlib.sha256()
    while data := f.read(1 << 20): digest.update(data)
    print(digest.hexdigest(), flush=True)
"""


def test_what_is_open_is_read_to_its_end_though_home_removes_or_replaces_it(live):
    want = []
    for name in ("removed", "replaced"):
        data = random.Random(name).randbytes(96 << 20)
        want.append(hashlib.sha256(data).hexdigest())
        (live.place / name).write_bytes(data)
    (live.place / "read.py").write_text(READ)
    p = started(live, "exec python3 read.py")
    (live.place / "removed").unlink()
    (live.place / "other").write_bytes(b"other" * 1000)
    os.rename(live.place / "other", live.place / "replaced")
    out, err = p.communicate("go\n", timeout=120)
    assert (p.returncode, out.split()) == (0, want), err


# --- what a node that died had ---

def node_that_died(sturdy, then):
    """A cluster whose node n1 is dead, and has what a job wrote in a live view, of which home, stopped meanwhile, has taken nothing;
    it gets the signal `then`. And where the node's views are."""
    cluster = sturdy(fresh=1)
    place = cluster.root / "root/place"
    place.mkdir()
    (place / "old").write_text("old\n")
    gate = Gate(cluster)
    # First all programs once, and all of them to the last page: later home does not answer for them.
    script = ("cat /bin/{bash,mkdir,mv,rm,sleep} /lib/*-linux-gnu/lib{c,tinfo,selinux,acl,attr,pcre2-8}.so* > /dev/null 2>&1; "
              f"mkdir w; mv w v; rm -r v; cat old > /dev/null; sleep 0; echo ready; {gate.wait}; "
              "for i in {1..50}; do echo $i > f$i; done; mkdir d; mv f1 d/moved; rm f2; echo tail >> f3; echo new >> old; exec 5> open; echo half >&5; echo over > finished; sleep 1000")
    p = cluster.popen("vrun", "--view=live", "-D", "/root/place", "--", "bash", "-c", script, stdin=subprocess.DEVNULL,
                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "ready\n", p.stderr.read()
    home = cluster.pid_of("home")
    os.kill(home, signal.SIGSTOP)   # it takes nothing
    gate.open()
    try:
        views = cluster.directory / "n1/state/node/views"
        wait_until("all is written on the node",
                   lambda: any(b"finished" in j.read_bytes() for j in views.rglob("live/*/journal")), 60)
        assert not (place / "finished").exists()
        cluster.stop_node("n1", signal.SIGKILL)
    finally:
        p.kill()
        p.wait()
        os.kill(home, then)
    return cluster, views


def test_what_a_dead_nodes_view_had_goes_home_with_the_next_job_there(sturdy):
    cluster, views = node_that_died(sturdy, signal.SIGCONT)
    place = cluster.root / "root/place"
    cluster.start_node("n1")
    assert cluster.run("vrun", "--view=live", "-D", "/root", "--", "true", timeout=120).returncode == 0, cluster.logs()
    wait_until("it is at home", lambda: (place / "finished").exists(), 60)
    assert (place / "finished").read_text() == "over\n"
    assert {f.name: f.read_text() for f in place.iterdir() if f.name.startswith("f") and f.name != "finished"} == \
        {f"f{i}": f"{i}\n" + ("tail\n" if i == 3 else "") for i in range(3, 51)}
    assert (place / "d/moved").read_text() == "1\n"
    assert (place / "old").read_text() == "old\nnew\n"
    wait_until("what was open, too", lambda: (place / "open").exists() and (place / "open").read_text() == "half\n", 60)
    wait_until("it is not kept", lambda: len(list(views.glob("*/live/*/journal"))) <= 1, 60)


def test_what_a_view_had_before_the_machine_was_restarted_is_kept_there(sturdy):
    """What of it reached the disk is not known: nobody sends it, nobody removes it, and it is said where it is."""
    cluster, views = node_that_died(sturdy, signal.SIGKILL)
    place = cluster.root / "root/place"
    (journal,) = views.glob("*/live/*/journal")
    left = journal.parent
    (left / "boot").write_text("00000000-0000-0000-0000-000000000000\n")

    def kept():
        files = [left / "journal", left / "boot", *(left / "written").rglob("*")]
        return {f.relative_to(left): f.read_bytes() for f in files if f.is_file()}
    there = kept()
    assert len(there) > 3

    def told():
        return (cluster.directory / "n1/node.log").read_text().count(f"it is kept in /var/lib/vrun/node/{left.relative_to(views.parent)}\n")
    cluster.start_node("n1")
    for starts in (1, 2):
        # One may be placed there before the controller hears of the restart: that one fails, and says why.
        wait_until("a job runs", lambda: cluster.run("vrun", "--view=live", "-D", "/root", "--", "true", timeout=120).returncode == 0, 60)
        wait_until("it is said", lambda: told() == starts, 60)
        # A job's own writes, which come after whatever would be sent.
        assert cluster.run("vrun", "--view=live", "-D", "/root", "--", "sh", "-c", "echo here > own", timeout=120).returncode == 0
        assert (cluster.root / "root/own").read_text() == "here\n"
        assert kept() == there
        assert [f.name for f in place.iterdir()] == ["old"] and (place / "old").read_text() == "old\n"
        if starts == 1:
            cluster.stop_node("n1", signal.SIGKILL)
            cluster.start_node("n1")
