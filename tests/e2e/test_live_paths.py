# SPDX-License-Identifier: Apache-2.0
"""--live DIR: a directory of a frozen root that is home's own at any moment."""
import os
import re
import signal
import subprocess

import pytest

from cluster import wait_until
from test_fs_restart import program_pids

pytestmark = pytest.mark.seconds(120)


@pytest.fixture
def two(sturdy):
    c = sturdy(nodes=2, uplink_mbit=0)
    (c.root / "root/shared").mkdir()
    (c.root / "root/shared/old").write_text("one\n")
    (c.root / "root/code").write_text("one\n")
    return c


def submit(c, *args):
    return int(c.run("vbatch", "-D", "/root", "--parsable", *args, check=True).stdout)


def output(c, job):
    path = c.root / f"root/vrun-{job}.out"
    return path.read_text() if path.exists() else ""


WAITS = """
echo up
until [ -e shared/go ]; do sleep 0.1; done
cat code shared/go
echo live > shared/mine
echo frozen > mine
until [ -e shared/end ]; do sleep 0.1; done
echo last > shared/last
"""


@pytest.mark.parametrize("who", ["nobody", "agent", "home", "fs"])
def test_a_batch_job_sees_it_and_writes_it_at_once(two, who):
    c = two
    job = submit(c, "--live", "shared", "--wrap", WAITS)
    wait_until("it runs", lambda: output(c, job) == "up\n")
    node = c.json("job", job)["node"]
    if who == "home":
        c.await_root(job)
        c.kill_daemon("home")
        c.up()
    elif who != "nobody":
        for pid in program_pids(c, {"agent": "node"}.get(who, who), node):
            os.kill(pid, signal.SIGKILL)
    (c.root / "root/code").write_text("two\n")
    (c.root / "root/shared/go").write_text("new\n")
    wait_until("it has written", lambda: (c.root / "root/shared/mine").exists())
    assert (c.root / "root/shared/mine").read_text() == "live\n"
    assert not (c.root / "root/mine").exists(), "the rest goes home at the end"
    (c.root / "root/shared/end").touch()
    assert c.vctl("wait", job, timeout=90).returncode == 0
    assert output(c, job) == "up\none\nnew\n", "the rest is as it was at submission"
    assert (c.root / "root/mine").read_text() == "frozen\n"
    assert (c.root / "root/shared/last").read_text() == "last\n", "all of it is home when the job is over"
    wait_until("nothing is left", lambda: not list((c.directory / node / "state/node/tasks").glob(f"{job}.*")))


def test_jobs_of_two_nodes_see_what_the_other_writes(two):
    c = two
    script = "echo $SLURM_PROCID > shared/from-$SLURM_PROCID; until [ -e shared/from-$((1 - SLURM_PROCID)) ]; do sleep 0.1; done; echo met"
    r = c.run("vrun", "-D", "/root", "-q", "--view=frozen", "--live=/root/shared", "-N", 2, "--", "sh", "-c", script, timeout=60)
    assert (r.returncode, r.stdout) == (0, "met\nmet\n"), r.stderr
    assert (c.root / "root/shared/from-1").read_text() == "1\n"


def test_an_attempt_goes_on_with_what_the_last_one_wrote(two):
    c = two
    script = 'echo "$VRUN_RESTART_COUNT $(cat shared/state 2>/dev/null)"; echo saved-$VRUN_RESTART_COUNT > shared/state; [ $VRUN_RESTART_COUNT = 1 ] || sleep 300'
    job = submit(c, "--live", "shared", "--wrap", script)
    wait_until("it has saved", lambda: (c.root / "root/shared/state").exists())
    c.vctl("requeue", job)
    assert c.vctl("wait", job, timeout=90).returncode == 0
    assert re.findall(r"^\d.*$", output(c, job), re.M) == ["0 ", "1 saved-0"], output(c, job)


@pytest.mark.parametrize("options, why", [
    (["--live", "missing"], "--live missing: No such file or directory"),
    (["--live", "code"], "--live code: not a directory: name the one that it is in"),
    (["--live", "/"], "--live /: that is everything: write --view=live"),
    (["--live", "/tmp"], "--live /tmp: each job has a /tmp of its own"),
    (["--live", "shared", "--snapshot", "s"], "--live with --snapshot: a snapshot does not change: leave one out"),
    (["--live", "shared", "--away"], "--away with --live: changes here cannot reach a job while this machine is off: leave one out")])
def test_bad_input_is_one_line(two, options, why):
    r = two.run("vbatch", "-D", "/root", *options, "--", "true")
    assert r.returncode != 0 and r.stdout == "" and why in r.stderr and len(r.stderr.splitlines()) == 1, r.stderr


def test_in_a_live_view_it_is_so_anyway(two):
    r = two.run("vrun", "-D", "/root", "-q", "--view=live", "--live", "shared", "--", "cat", "shared/old")
    assert (r.returncode, r.stdout) == (0, "one\n"), r.stderr
