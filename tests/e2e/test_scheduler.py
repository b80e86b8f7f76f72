# SPDX-License-Identifier: Apache-2.0
"""Giving room to other jobs, teams, and why a job waits. The GPUs are only claimed: no job touches one."""
import contextlib
import csv
import io
import json
import os
import pathlib
import re
import shutil
import signal
import sqlite3
import subprocess
import tempfile

import pytest

from cluster import preempted_once, wait_until

GPUS = ("--gpus", "2", "--gpu-type", "fake", "--milli-cpus", "8000")


def submit(cluster, *args):
    return int(cluster.run("vbatch", "-D", "/root", "--parsable", *args, check=True).stdout)


def state(cluster, job):
    return cluster.json("job", job)["state"]


def wait_for(cluster, job, wanted, seconds=30):
    wait_until(f"job {job} is {wanted}", lambda: state(cluster, job) == wanted, seconds)


def configured(own, text, **options):
    """A cluster whose controller begins with this scheduler.toml."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="vrun-e2e-", dir="/var/tmp"))
    (directory / "home").mkdir(mode=0o700)
    (directory / "home/scheduler.toml").write_text(text)
    return own(directory=directory, **options)


# Its first attempt goes on until it is told to leave, a later one ends.
VICTIM = """
if [ $VRUN_RESTART_COUNT = 0 ]; then echo kept > /root/mark; fi
echo attempt $VRUN_RESTART_COUNT   # whoever sees it may stop the job
if [ $VRUN_RESTART_COUNT = 0 ]; then exec sleep 300; fi
cat /root/mark
exit 7
"""


@pytest.mark.seconds(120)
def test_a_production_job_takes_the_room_and_the_victim_is_started_again(sturdy):
    c = sturdy(node_options=GPUS)
    victim = submit(c, "-G", "2", "--class", "experiment", "--", "sh", "-c", VICTIM)
    wait_for(c, victim, "RUNNING")
    wait_until("it has written", lambda: (c.root / f"root/vrun-{victim}.out").read_text())
    r = c.vrun("-q", "--class", "production", "-G", "2", "--", "sh", "-c", "echo mine: $CUDA_VISIBLE_DEVICES")
    assert (r.returncode, r.stdout) == (0, "mine: 0,1\n"), r.stderr
    assert c.vctl("wait", victim, check=False).returncode == 7
    assert preempted_once(c.root / f"root/vrun-{victim}.out") == "attempt 0\nattempt 1\nkept\n"
    info = c.json("job", victim)
    assert [a["state"] for a in info["attempts"]] == ["PREEMPTED", "FAILED"]
    assert re.match(r"preempted: job \d+ \(production, team root\) needs its room", info["attempts"][0]["reason"])
    assert "preempted: job" in c.vctl("job", victim).stdout
    assert "preempted: job" in c.vctl("why", victim).stdout


@pytest.mark.seconds(120)
def test_an_attached_victim_goes_on_in_the_same_streams(sturdy):
    c = sturdy(node_options=GPUS)
    script = ("read line; echo $line at attempt $VRUN_RESTART_COUNT; echo and >&2; "
              "[ $VRUN_RESTART_COUNT = 1 ] || exec sleep 300; exit 9")
    v = c.popen("vrun", "-D", "/root", "-G", "2", "--requeue", "--", "sh", "-c", script, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    v.stdin.write("one\n")
    v.stdin.flush()
    assert v.stdout.readline() == "one at attempt 0\n"
    assert c.vrun("-q", "--class", "production", "-G", "1", "--", "true").returncode == 0
    v.stdin.write("two\n")
    out, err = v.communicate(timeout=60)
    assert (v.returncode, out) == (9, "two at attempt 1\n")
    assert [x for x in err.splitlines() if x == "and"] == ["and"] * 2
    told = [x for x in err.splitlines() if "preempted" in x]
    assert len(told) == 1 and re.match(r"vrun: preempted: job \d+ \(production, .*started again", told[0]), err


@pytest.mark.seconds(120)
def test_the_signal_and_the_time_to_save(sturdy):
    c = sturdy(node_options=GPUS)
    script = ("trap 'echo state > /root/ckpt; exit 0' USR1; "
              "if [ -e /root/ckpt ]; then cat /root/ckpt; echo grace $VRUN_GRACE_S; exit 0; fi; "
              "echo ready; while :; do sleep 0.1; done")
    victim = submit(c, "-G", "2", "--signal", "USR1@45", "--", "sh", "-c", script)
    out = c.root / f"root/vrun-{victim}.out"
    wait_until("it runs", lambda: out.exists() and "ready" in out.read_text())
    assert c.vrun("-q", "--class", "production", "-G", "2", "--", "true").returncode == 0
    c.vctl("wait", victim)
    said = out.read_text().splitlines()
    assert said[0] == "ready" and said[-2:] == ["state", "grace 45"]  # between them the shell tells what its sleep died of


@pytest.mark.seconds(120)
def test_who_asked_to_be_left_alone_is(sturdy):
    c = sturdy(node_options=GPUS)
    held = submit(c, "-G", "2", "--class", "scavenger", "--no-requeue", "--", "sleep", "300")
    wait_for(c, held, "RUNNING")
    urgent = submit(c, "-G", "2", "--class", "inference", "--", "true")
    why = c.json("why", urgent)
    assert why["blockers"][0]["kind"] == "no-room"
    assert why["blockers"][0]["text"] == "needs 2 gpus; the best node of pool local has 0 free"
    assert state(c, held) == "RUNNING"
    c.vctl("cancel", held)
    c.vctl("wait", urgent)


@pytest.mark.seconds(120)
def test_a_job_after_another_sees_what_that_wrote(sturdy):
    c = sturdy()
    first = submit(c, "--", "sh", "-c", "sleep 1; head -c 20000000 /dev/zero > /root/data; echo done > /root/result")
    second = submit(c, "-d", f"afterok:{first}", "--", "sh", "-c", "wc -c < /root/data; cat /root/result")
    assert f"waits for the end of job {first}" in c.vctl("why", second).stdout
    assert c.vctl("wait", second, check=False).returncode == 0
    assert (c.root / f"root/vrun-{second}.out").read_text() == "20000000\ndone\n"
    fails = submit(c, "--begin", "now+2", "--", "false")
    assert "begins at " in c.vctl("why", fails).stdout
    never = submit(c, "-d", f"afterok:{first}:{fails}", "--", "true")
    always = submit(c, "--dependency", f"afterany:{fails}", "--", "true")
    assert c.vctl("wait", fails, check=False).returncode == 1
    assert c.vctl("wait", always, check=False).returncode == 0
    wait_for(c, never, "CANCELLED")
    assert f"job {fails} did not succeed" in c.json("job", never)["reason"]
    r = c.vrun("--begin", "now+2", "-d", f"afterany:{fails}", "--", "echo", "here")
    assert (r.returncode, r.stdout) == (0, "here\n"), r.stderr
    r = c.run("vbatch", "--deadline", "hard:now+30minutes", "-t", "2", "-D", "/root", "--", "true")
    assert "will be met" in r.stderr, r.stderr
    for wrong in (("-d", f"afterok:{fails}"), ("-d", "afterok:4711"), ("--deadline", "2020-01-01")):
        r = c.run("vbatch", "-D", "/root", *wrong, "--", "true")
        assert r.returncode != 0 and len(r.stderr.splitlines()) == 1, (wrong, r.stderr)


@pytest.mark.seconds(120)
def test_home_is_killed_while_a_job_waits_for_another(sturdy):
    c = sturdy()
    first = submit(c, "--", "sh", "-c", "sleep 1; echo runs; sleep 4; echo done > /root/late")
    wait_until("it runs", lambda: (c.root / f"root/vrun-{first}.out").read_text())
    second = submit(c, "-d", f"afterok:{first}", "--", "cat", "/root/late")
    c.await_root(first, second)
    c.kill_daemon("home")
    assert c.vctl("wait", second, check=False).returncode == 0
    assert (c.root / f"root/vrun-{second}.out").read_text() == "done\n"


@pytest.mark.seconds(120)
def test_why_says_the_truth(sturdy):
    c = sturdy(nodes=2, node_options=GPUS)
    holders = [submit(c, "-G", "1", "--no-requeue", "-t", "10", "--", "sleep", "300") for _ in range(3)]
    for job in holders:
        wait_for(c, job, "RUNNING")
    free = [n for n in c.json("nodes")["nodes"] if n["used"]["gpus"] == 1]
    assert len(free) == 1
    waits = submit(c, "-G", "2", "--no-requeue", "--", "true")
    second = submit(c, "-G", "2", "--no-requeue", "--", "true")
    why = c.json("why", waits)
    assert why["state"] == "PENDING" and why["queue_position"] == 1 and why["queue_length"] == 2
    assert why["blockers"][0]["text"] == "needs 2 gpus; the best node of pool local has 1 free"
    on_free = [j for j in holders if c.json("job", j)["attempts"][-1]["node"] == free[0]["name"]]
    assert why["starts_now"][0] == "with -G 1" and why["starts_now"][1] in [f"if job {j} ended" for j in on_free]
    assert why["expected"] and why["expected"] <= why["expected_late"] and 0 < why["confidence_percent"] < 50
    assert any(f"job {j}" in why["expected_why"] for j in holders)
    decisions = c.json("why", holders[0])["decisions"]
    assert [d["kind"] for d in decisions] == ["started"] and decisions[0]["worth_log2"]["class"] > 0
    assert re.search(r"it may start about \S+ \(in nine of ten cases by \S+; confidence \d+ %\): when job",
                     c.vctl("why", waits).stdout)
    queue = c.json("queue")["jobs"]
    assert [(j["job"], j["queue_position"]) for j in queue] == [(waits, 1), (second, 2)]
    assert re.search(rf"1 +{waits} .*training .*needs 2 gpus", c.vctl("queue").stdout)
    # And what it says would help, helps.
    assert c.vrun("-q", "-G", "1", "--", "true", timeout=30).returncode == 0
    c.vctl("cancel", *holders)
    c.vctl("wait", waits, second)


@pytest.mark.seconds(120)
def test_a_limit_is_honoured_explained_and_can_be_raised(own):
    c = configured(own, '[team.small]\nusers = ["root"]\nlimit = { "" = 1 }\nmax_class = "training"\n', node_options=GPUS)
    first = submit(c, "-G", "1", "--", "sleep", "300")
    wait_for(c, first, "RUNNING")
    second = submit(c, "-G", "1", "--", "true")
    why = c.json("why", second)
    assert why["blockers"][0]["kind"] == "limit"
    assert why["summary"].startswith("team small is limited to 1 gpu and uses 1 gpu")
    quota = c.json("quota")["teams"][0]
    assert quota["name"] == "small" and quota["used_gpus"] == 1 and quota["waiting_gpus"] == 1
    assert quota["quotas"][0]["limit_gpus"] == 1
    assert re.search(r"small +all +1 +- +1 +1", c.vctl("quota").stdout)
    refused = c.run("vbatch", "-G", "1", "--class", "production", "--", "true")
    assert refused.returncode == 125 and "of class training at most" in refused.stderr
    refused = c.run("vbatch", "-A", "large", "--", "true")
    assert refused.returncode == 125 and "team large: no such team: yours are small" in refused.stderr
    # A file that is wrong changes nothing.
    config = c.directory / "home/scheduler.toml"
    config.write_text("[team.small]\nlimit = 2\n")
    os.kill(c.pid_of("controller"), signal.SIGHUP)
    wait_until("the error is logged", lambda: "scheduler.toml:2: team small: limit: expected GPUs" in c.logs())
    assert state(c, second) == "PENDING"
    config.write_text('[team.small]\nusers = ["root"]\nlimit = { "" = 2 }\n')
    os.kill(c.pid_of("controller"), signal.SIGHUP)
    c.vctl("wait", second)
    c.vctl("cancel", first)


def test_a_wrong_file_stops_the_controller_with_its_line(own):
    with pytest.raises(AssertionError, match=r"scheduler.toml:2: team a: weight: expected a number above 0"):
        configured(own, "[team.a]\nweight = 0\n", nodes=0)


@pytest.mark.seconds(180)
@pytest.mark.parametrize("moment", ["ordered", "left"])
def test_the_controller_is_killed_in_the_middle_of_a_preemption(sturdy, moment):
    c = sturdy(node_options=GPUS)
    # It leaves at the end of its grace only.
    script = ("echo attempt $VRUN_RESTART_COUNT; [ $VRUN_RESTART_COUNT = 0 ] || exit 3; trap '' TERM; "
              "while :; do sleep 0.1; done")
    victim = submit(c, "-G", "2", "--signal", "TERM@4", "--", "sh", "-c", script)
    out = c.root / f"root/vrun-{victim}.out"
    wait_until("it runs", lambda: out.exists() and out.read_text())
    urgent = submit(c, "-G", "2", "--class", "production", "--", "sh", "-c", "echo urgent")
    wait_until("it is told to leave", lambda: "it is being stopped" in c.json("why", victim)["summary"])
    if moment == "left":
        os.kill(c.pid_of("controller"), signal.SIGSTOP)
        wait_until("the victim is gone", lambda: not c.node_pids("n1", "sleep") and not c.node_pids("n1", "sh"), 15)
    c.kill_daemon("controller")
    c.vctl("up", "--no-node", "--listen", f"0.0.0.0:{c.port}", "--root", str(c.root))
    assert c.vctl("wait", urgent, victim, check=False, timeout=90).returncode == 3
    assert (c.root / f"root/vrun-{urgent}.out").read_text() == "urgent\n"
    assert preempted_once(out) == "attempt 0\nattempt 1\n"
    assert [a["state"] for a in c.json("job", victim)["attempts"]] == ["PREEMPTED", "FAILED"]
    assert c.json("nodes")["nodes"][0]["used"]["gpus"] == 0


@pytest.mark.seconds(180)
@pytest.mark.parametrize("moment", ["running", "between"])
def test_home_is_killed_around_a_preemption(sturdy, moment):
    c = sturdy(node_options=GPUS)
    victim = submit(c, "-G", "2", "--", "sh", "-c", VICTIM)
    out = c.root / f"root/vrun-{victim}.out"
    wait_until("it runs", lambda: out.exists() and out.read_text())
    if moment == "running":
        # Before that another test kills it: test_home_is_killed_before_the_tree_is_on_the_disk.
        c.await_root(victim)
        c.kill_daemon("home")
    urgent = submit(c, "-G", "2", "--class", "production", "--no-requeue", "--", "sleep", "300")
    wait_for(c, urgent, "RUNNING")
    wait_for(c, victim, "PENDING")
    if moment == "between":
        c.kill_daemon("home")
    c.vctl("cancel", urgent)
    assert c.vctl("wait", victim, check=False, timeout=90).returncode == 7
    assert preempted_once(out) == "attempt 0\nattempt 1\nkept\n"


@pytest.mark.seconds(120)
def test_what_was_can_be_replayed(own):
    c = own(node_options=GPUS)
    for _ in range(3):
        c.vrun("-q", "-G", "1", "-J", "a,\"b", "--", "sleep", "0.2", check=True)
    c.vrun("-q", "--", "true", check=True)
    wait_until("the controller knows that all are over", lambda: not c.json("jobs")["jobs"])
    text = c.vctl("accounting").stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [r["num_gpus"] for r in rows] == ["1", "1", "1", "0"]
    assert all(r["state"] == "COMPLETED" and r["cluster"] == "root" and float(r["duration"]) > 0 for r in rows)
    assert float(rows[0]["duration"]) >= 0.2 and rows[0]["name"] == "a__b"
    trace = c.directory / "trace.csv"
    trace.write_text(text)
    result = json.loads(c.run("vctl", "sim", str(trace), "--nodes", "1x8", "-o", "json", check=True).stdout)
    assert result["arrivals"] == 3 and result["without_gpus"] == 1 and result["avg_wait_s"] == 0


@pytest.mark.seconds(120)
def test_the_journal_of_a_real_controller_replays_to_the_same_decisions(sturdy):
    """It says "rebuilt from the jobs" when a digest of what it decided differs from what is in its database."""
    c = sturdy(node_options=GPUS)
    waiting = submit(c, "-G", "2", "--", "sh", "-c", "sleep 300")
    wait_for(c, waiting, "RUNNING")
    for _ in range(3):
        c.vrun("-q", "-G", "2", "--class", "production", "--", "true", check=True, timeout=90)
    wait_for(c, waiting, "RUNNING")
    c.kill_daemon("controller")
    for file in list(c.home_state.glob("controller/vrun.db*")):   # a copy: nobody else may have it open
        shutil.copy(file, c.directory / f"copy-{file.name}")
    with contextlib.closing(sqlite3.connect(c.directory / "copy-vrun.db")) as database:
        assert database.execute("SELECT count(*) FROM journal").fetchone()[0] >= 10
    c.vctl("up", "--no-node", "--listen", f"0.0.0.0:{c.port}", "--root", str(c.root))
    wait_for(c, waiting, "RUNNING")
    logs = [log.read_text(errors="replace") for log in c.home_state.glob("log/*controller*.log")]
    assert logs and not any("rebuilt from the jobs" in log for log in logs)
    c.vctl("cancel", waiting)
