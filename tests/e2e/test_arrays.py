# SPDX-License-Identifier: Apache-2.0
"""Arrays, sweeps and dependencies: vbatch --array, --sweep and -d."""
import os
import re
import signal
import subprocess
import textwrap
import time

import pytest

from cluster import BIN, SLOW, TOP, wait_until

pytestmark = pytest.mark.seconds(120)

# Waits until there is a file of this name, which the test makes: in a live view.
UNTIL = "until [ -e /root/{} ]; do sleep 0.05; done"


@pytest.fixture
def place(cluster, request):
    """A directory of the test's own in the root."""
    directory = cluster.root / "root" / re.sub(r"\W", "-", request.node.name)
    directory.mkdir()
    return directory


def submit(c, place, *args, **kw):
    return int(c.run("vbatch", "--parsable", "-D", f"/root/{place.name}", *args, check=True, **kw).stdout)


def refused(c, *args, status=2):
    r = c.run("vbatch", "-D", "/root", *args)
    assert (r.returncode, r.stdout, len(r.stderr.splitlines())) == (status, "", 1), r
    return r.stderr


def wait(c, *jobs, timeout=90):
    return c.run("vctl", "wait", *jobs, timeout=timeout).returncode


def running(c, array):
    """Indexes of its elements whose command runs."""
    return sorted(j["array_index"] for j in c.json("jobs")["jobs"] if j["array"] == array and j["state"] == "RUNNING")


def runs(c, array, *indexes):
    wait_until(f"{indexes} run", lambda: running(c, array) == sorted(indexes))


# --- what an element is

def test_an_array_runs_a_few_at_a_time_and_each_knows_its_index(cluster, place):
    array = submit(cluster, place, "-a", "0-19%4", "-o", "out-%A_%3a", "--", "sh", "-c",
                   "date +%s.%N; env | grep -E '^(VRUN|SLURM)_ARRAY' | sort; sleep 0.3; date +%s.%N")
    assert wait(cluster, array) == 0
    intervals = []
    for index in range(20):
        first, *said, last = (place / f"out-{array}_{index:03}").read_text().splitlines()
        values = {"JOB_ID": array, "TASK_COUNT": 20, "TASK_ID": index, "TASK_MAX": 19, "TASK_MIN": 0}
        assert said == [f"{who}_ARRAY_{name}={value}" for who in ("SLURM", "VRUN") for name, value in values.items()]
        intervals.append((float(first), float(last)))
    assert max(sum(begin <= at < end for begin, end in intervals) for at, _ in intervals) <= 4
    told = cluster.json("job", array)
    assert (told["state"], told["elements"]) == ("COMPLETED", {
        "indexes": "0-19", "count": 20, "most_running": 4, "waiting": 0, "running": 0, "completed": 20, "failed": 0})
    assert f"elements:   20: 20 completed\n" in cluster.vctl("job", array).stdout


def test_indexes_need_not_be_without_gaps(cluster, place):
    script = place / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --array=1,3,10-30:10%2\necho $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT\n")
    array = submit(cluster, place, script)
    assert wait(cluster, array) == 0
    assert sorted(f.name for f in place.glob("*.out")) == sorted(f"vrun-{array}_{i}.out" for i in (1, 3, 10, 20, 30))
    assert (place / f"vrun-{array}_20.out").read_text() == "20 of 5\n"


def test_a_sweep_puts_values_into_arguments_and_environment(cluster, place):
    array = submit(cluster, place, "--sweep", "lr=0.1,0.01", "--sweep", "seed=0:3", "--export", "ALL,RATE=r{lr}",
                   "--", "sh", "-c", 'echo "$@" $RATE {} ${seed-none}', "x", "--lr", "{lr}", "--seed={seed}")
    assert wait(cluster, array) == 0
    wanted = [(lr, seed) for lr in ("0.1", "0.01") for seed in range(3)]
    for index, (lr, seed) in enumerate(wanted):
        assert (place / f"vrun-{array}_{index}.out").read_text() == f"--lr {lr} --seed={seed} r{lr} {{}} none\n"
    told = cluster.json("job", f"{array}_4")
    assert told["variables"] == {"lr": "0.01", "seed": "1"} and (told["array"], told["array_index"]) == (array, 4)
    assert "variables:  lr=0.01 seed=1\n" in cluster.vctl("job", f"{array}_4").stdout


def test_elements_see_the_files_as_they_were_at_the_submission(cluster, place):
    (place / "data").write_text("before\n")
    array = submit(cluster, place, "-a", "0-5%1", "--", "sh", "-c", "cat data; echo $VRUN_ARRAY_TASK_ID > written-$VRUN_ARRAY_TASK_ID")
    (place / "data").write_text("after\n")
    assert wait(cluster, array) == 0
    for index in range(6):
        assert (place / f"vrun-{array}_{index}.out").read_text() == "before\n"
        assert (place / f"written-{index}").read_text() == f"{index}\n"
    wait_until("no root is kept", lambda: not list(cluster.home_state.glob("frozen/jobs/*")))
    assert not list(cluster.home_state.glob(f"runs/{array}*"))


def test_an_array_of_gangs(sturdy):
    c = sturdy(nodes=4, uplink_mbit=0)
    (c.root / "root/gangs").mkdir()
    array = submit(c, c.root / "root/gangs", "-a", "0-1", "-N", 2, "-o", "%a-%t", "--", "sh", "-c",
                   "echo $RANK of $WORLD_SIZE in $SLURM_ARRAY_TASK_ID")
    assert wait(c, array) == 0
    for index in range(2):
        for rank in range(2):
            assert (c.root / f"root/gangs/{index}-{rank}").read_text() == f"{rank} of 2 in {index}\n"


# --- how it ends

def test_an_element_that_fails_decides_the_status(cluster, place):
    array = submit(cluster, place, "-a", "0-5", "--no-requeue", "--", "sh", "-c", "exit $((VRUN_ARRAY_TASK_ID % 3))")
    assert wait(cluster, array) == 2
    told = cluster.json("job", array)
    assert (told["state"], told["elements"]["completed"], told["elements"]["failed"]) == ("FAILED", 2, 4)
    assert "4 of 6 elements failed" in told["reason"]
    assert [wait(cluster, f"{array}_{index}") for index in range(6)] == [0, 1, 2, 0, 1, 2]
    assert wait(cluster, f"{array}_[0,3]") == 0 and wait(cluster, f"{array}_[3-4]") == 1
    ended = cluster.json_any("wait", f"{array}_4-5")["jobs"]
    assert [(j["array_index"], j["exit"]) for j in ended] == [(4, 1), (5, 2)]


def test_some_elements_are_cancelled(cluster, place):
    array = submit(cluster, place, "-a", "0-9%2", "--view=live", "--", "sh", "-c", UNTIL.format(f"{place.name}/go") + "; echo done")
    runs(cluster, array, 0, 1)
    cluster.vctl("cancel", f"{array}_[1,5-7]")
    runs(cluster, array, 0, 2)
    (place / "go").touch()
    assert wait(cluster, array) != 0
    told = cluster.json("job", array)
    assert told["state"] != "COMPLETED" and told["elements"]["completed"] == 6
    for index in (0, 2, 3, 4, 8, 9):
        assert (place / f"vrun-{array}_{index}.out").read_text() == "done\n"
    for index in (1, 5, 6, 7):
        assert cluster.json("job", f"{array}_{index}")["state"] == "CANCELLED"
        output = place / f"vrun-{array}_{index}.out"
        assert not output.exists() or "done" not in output.read_text()


def test_all_of_it_is_cancelled(cluster, place):
    array = submit(cluster, place, "-a", "0-99999%2", "--", "sleep", "1000")
    runs(cluster, array, 0, 1)
    cluster.vctl("cancel", array)
    assert wait(cluster, array) != 0
    assert cluster.json("job", array)["state"] == "CANCELLED"
    wait_until("none of it runs", lambda: not cluster.json("jobs")["jobs"])


# --- what people see

def test_elements_that_run_are_listed_with_their_array(cluster, place):
    array = submit(cluster, place, "-J", "sweep", "-a", "0-99999%2", "--view=live", "--", "sh", "-c",
                   "echo hello from $VRUN_ARRAY_TASK_ID; " + UNTIL.format(f"{place.name}/go"))
    runs(cluster, array, 0, 1)
    for command in ("jobs", "queue"):
        rows = [line.split() for line in cluster.vctl(command, "--no-headers").stdout.splitlines()]
        ids = [next(word for word in row if word.startswith(str(array))) for row in rows]
        assert ids == [f"{array}_[0-99999%2]", f"{array}_0", f"{array}_1"], (command, rows)
    assert cluster.vctl("jobs", "-o", "name").stdout.split() == [str(array), f"{array}_0", f"{array}_1"]
    info = cluster.json("job", array)["elements"]
    assert (info["count"], info["running"], info["waiting"]) == (100_000, 2, 99_998)
    element = cluster.json("job", f"{array}_1")
    assert (element["array"], element["array_index"], element["state"]) == (array, 1, "RUNNING") and element["job"] > array
    assert cluster.json("job", element["job"])["array_index"] == 1
    assert cluster.json("job", f"{array}_777")["state"] == "PENDING"
    wait_until("it is in the log", lambda: cluster.vctl("logs", f"{array}_1").stdout == "hello from 1\n")
    assert cluster.json("why", f"{array}_777")["state"] == "PENDING"
    for mistake, said in ((("logs", array), f"job {array} is an array: name an element, as in `vctl logs {array}_0`"),
                          (("logs", f"{array}_777"), f"job {array}_777: it has not begun"),
                          (("job", f"{array}_100000"), "100000"), (("cancel", f"{array}_100000"), "100000")):
        r = cluster.run("vctl", *mistake)
        assert r.returncode == 1 and said in r.stderr and len(r.stderr.splitlines()) == 1, r
    for mistake in (("job", f"{array}_[0-1]"), ("logs", f"{array}_"), ("cancel", f"{array}_[3")):
        assert cluster.run("vctl", *mistake).returncode == 2
    cluster.vctl("cancel", array)
    wait_until("it is over", lambda: not cluster.json("jobs")["jobs"])


def test_the_log_of_an_element_can_be_followed(cluster, place):
    array = submit(cluster, place, "-a", "0-1%1", "--view=live", "--", "sh", "-c", "echo $VRUN_ARRAY_TASK_ID begun; " +
                   UNTIL.format(f"{place.name}/go") + "; echo over")
    runs(cluster, array, 0)
    follow = cluster.popen("vctl", "logs", "-f", f"{array}_1", stdout=subprocess.PIPE, text=True)
    (place / "go").touch()
    out, _ = follow.communicate(timeout=60)
    assert (follow.returncode, out) == (0, "1 begun\nover\n")


def test_elements_are_held_released_and_started_again(cluster, place):
    array = submit(cluster, place, "-a", "0-3%2", "--view=live", "--requeue", "--", "sh", "-c",
                   f"echo begun >> begun-$VRUN_ARRAY_TASK_ID; " + UNTIL.format(f"{place.name}/go"))
    runs(cluster, array, 0, 1)
    cluster.vctl("hold", f"{array}_[2-3]")
    cluster.vctl("requeue", f"{array}_0")
    wait_until("it has begun twice", lambda: (place / "begun-0").read_text() == "begun\n" * 2)
    (place / "go").touch()
    assert wait(cluster, f"{array}_0", f"{array}_1") == 0
    assert cluster.json("job", f"{array}_2")["state"] == "PENDING" and not (place / "begun-2").exists()
    cluster.vctl("release", f"{array}_[2-3]")
    assert wait(cluster, array) == 0
    assert (place / "begun-3").read_text() == "begun\n"


# --- daemons end

LINES = "echo begin $VRUN_ARRAY_TASK_ID; sleep 0.5; echo end $VRUN_ARRAY_TASK_ID"


def check_lines(place, array, count):
    for index in range(count):
        said = (place / f"vrun-{array}_{index}.out").read_text()
        assert said == f"begin {index}\nend {index}\n", (index, said)


def some_ended(c, array, count):
    wait_until("some have ended", lambda: c.json("job", array)["elements"]["completed"] >= count, 60)


def test_home_is_killed_in_the_middle(sturdy):
    c = sturdy()
    place = c.root / "root/killed"
    place.mkdir()
    (place / "data").write_text("before\n")
    array = submit(c, place, "-a", "0-15%3", "--", "sh", "-c", LINES + "; cat data > seen-$VRUN_ARRAY_TASK_ID")
    (place / "data").write_text("after\n")
    c.await_root(array)
    for count in (2, 6):
        some_ended(c, array, count)
        os.kill(c.pid_of("home"), signal.SIGKILL)
    assert wait(c, array) == 0
    check_lines(place, array, 16)
    assert [(place / f"seen-{index}").read_text() for index in range(16)] == ["before\n"] * 16


def test_home_is_away_while_elements_are_cancelled(sturdy):
    c = sturdy()
    place = c.root / "root/away"
    place.mkdir()
    array = submit(c, place, "-a", "0-9%2", "--", "sleep", "1000")
    runs(c, array, 0, 1)
    c.vctl("cancel", f"{array}_[4-9]")
    os.kill(c.pid_of("home"), signal.SIGKILL)
    c.vctl("cancel", array)   # starts home again
    assert wait(c, array) != 0
    wait_until("no root is kept", lambda: not list(c.home_state.glob("frozen/jobs/*")))
    wait_until("nothing is remembered", lambda: not list(c.home_state.glob(f"runs/{array}*")))


def test_the_controller_is_killed_in_the_middle(sturdy):
    c = sturdy()
    place = c.root / "root/controller"
    place.mkdir()
    array = submit(c, place, "-a", "0-15%3", "--", "sh", "-c", LINES)
    for count in (2, 6):
        some_ended(c, array, count)
        c.kill_daemon("controller")
        c.up()
    assert wait(c, array) == 0
    check_lines(place, array, 16)
    assert c.json("job", array)["elements"]["completed"] == 16


# --- after other jobs

def test_an_element_comes_after_the_one_of_the_same_index(cluster, place):
    first = submit(cluster, place, "-a", "0-3", "--view=live", "--", "sh", "-c",
                   f"[ $VRUN_ARRAY_TASK_ID = 3 ] && {UNTIL.format(place.name + '/go')}; [ $VRUN_ARRAY_TASK_ID = 1 ] && exit 1;"
                   "echo $VRUN_ARRAY_TASK_ID > of-$VRUN_ARRAY_TASK_ID")
    second = submit(cluster, place, "-a", "0-3", "-d", f"aftercorr:{first}", "--", "sh", "-c", "cat of-$VRUN_ARRAY_TASK_ID")
    assert wait(cluster, f"{second}_0", f"{second}_2") == 0   # while element 3 of the first still runs
    assert running(cluster, first) == [3]
    assert cluster.json("job", f"{second}_3")["state"] == "PENDING"
    (place / "go").touch()
    assert wait(cluster, second) != 0
    for index in (0, 2, 3):
        assert (place / f"vrun-{second}_{index}.out").read_text() == f"{index}\n"
    assert cluster.json("job", f"{second}_1")["state"] == "CANCELLED"


def test_a_job_comes_after_a_whole_array(cluster, place):
    array = submit(cluster, place, "-a", "0-4", "--", "sh", "-c", "sleep 0.3; echo $VRUN_ARRAY_TASK_ID > of-$VRUN_ARRAY_TASK_ID")
    job = submit(cluster, place, "-d", f"afterok:{array}", "-o", "sum", "--", "sh", "-c", "cat of-*")
    assert wait(cluster, job) == 0
    assert (place / "sum").read_text() == "0\n1\n2\n3\n4\n"


def test_a_job_comes_after_a_failure(cluster, place):
    until = UNTIL.format(f"{place.name}/go")
    good = submit(cluster, place, "--view=live", "--", "sh", "-c", until)
    bad = submit(cluster, place, "--view=live", "--no-requeue", "--", "sh", "-c", f"{until}; exit 3")
    after_bad = submit(cluster, place, "-d", f"afternotok:{bad}", "-o", "after-bad", "--", "echo", "mended")
    after_good = submit(cluster, place, "-d", f"afternotok:{good}", "--", "echo", "never")
    after_both = submit(cluster, place, "-d", f"afterok:{good},afternotok:{bad}", "-o", "both", "--", "echo", "both")
    (place / "go").touch()
    assert wait(cluster, after_bad, after_both) == 0
    assert (place / "after-bad").read_text() == "mended\n" and (place / "both").read_text() == "both\n"
    assert wait(cluster, after_good) != 0
    told = cluster.json("job", after_good)
    assert told["state"] == "CANCELLED" and str(good) in told["reason"]


def test_a_job_starts_when_another_has_started(cluster, place):
    first = submit(cluster, place, "--begin", "now+1hour", "--", "true")
    second = submit(cluster, place, "--view=live", "--", "sh", "-c", UNTIL.format(f"{place.name}/go"))
    wait_until("it runs", lambda: cluster.json("job", second)["state"] == "RUNNING")
    after = [submit(cluster, place, "-d", f"after:{job}", "--", "true") for job in (first, second)]
    assert wait(cluster, after[1]) == 0
    assert cluster.json("job", after[0])["state"] == "PENDING"
    (place / "go").touch()
    cluster.vctl("cancel", first)
    assert wait(cluster, after[0]) in (0, 125)


def test_one_of_a_name_runs_at_a_time(cluster, place):
    command = ("-J", "nightly", "-d", "singleton", "-o", "%j", "--", "sh", "-c", "date +%s.%N; sleep 0.4; date +%s.%N")
    jobs = [submit(cluster, place, *command) for _ in range(4)]
    other = submit(cluster, place, "-J", "other", *command[2:])
    assert wait(cluster, *jobs, other) == 0
    times = [[float(t) for t in (place / str(job)).read_text().split()] for job in jobs]
    assert times == sorted(times) and all(a[1] <= b[0] for a, b in zip(times, times[1:])), times


# --- mistakes

def test_mistakes_cost_one_line(cluster, place):
    before = len(cluster.json("jobs", "--all")["jobs"])
    for args, said in ((("-a", "0-999999999", "true"), "array: 1000000000 elements are asked for, 1000000 are the limit"),
                       (("-a", "9-1", "true"), "--array: 9-1: the second index is the larger one"),
                       (("-a", "0-9%0", "true"), "--array: 0-9%0: behind the %"),
                       (("--sweep", "lr=", "true"), "--sweep: lr=: no values"),
                       (("--sweep", "seed=5:5", "true"), "--sweep: 5:5: no value"),
                       (("--sweep", "lr=1,2", "true", "{rate}"), "no sweep is called {rate}: use {lr}"),
                       (("--sweep", "lr=1,2", "-a", "0-2", "true"), "a sweep has the indexes 0-1"),
                       (("--sweep", "lr=1", "--sweep", "lr=2", "true"), "sweep lr: there are two of this name"),
                       (("-d", "afterok:1_2", "true"), "one element of an array cannot be waited for"),
                       (("-d", "afterok:1?afterok:2", "true"), "one of several jobs cannot be waited for"),
                       (("-f", "-a", "0-1", "true"), "-f: the elements of an array")):
        assert said in refused(cluster, *args)
    assert "/root/nowhere/" in refused(cluster, "-a", "0-1", "-o", "/root/nowhere/%a", "true", status=125)
    for option in ("--array=0-1", "--sweep=a=1"):
        r = cluster.vrun(option, "true")
        assert (r.returncode, r.stderr) == (2, f"vrun: {option.split('=')[0]}: not supported yet: an array runs in the background, use vbatch\n")
    assert len([j for j in cluster.json("jobs", "--all")["jobs"] if j["state"] != "CANCELLED"]) <= before
    r = cluster.run("vbatch", "-D", f"/root/{place.name}", "-a", "0-1", "-o", "same", "true")
    assert r.returncode == 0 and r.stderr == "vbatch: same: all elements write into this file: name their index in it with %a\n"


# --- size

@pytest.mark.alone
def test_100000_elements_cost_what_one_job_costs_until_they_run(cluster, place):
    def kept():
        return {f for pattern in ("runs/*", "frozen/jobs/*") for f in cluster.home_state.glob(pattern)}
    before = kept()   # what home has not removed yet of earlier jobs
    began = time.monotonic()
    array = submit(cluster, place, "-a", "0-99999", "-H", "--", "true")
    took = time.monotonic() - began
    assert took < 5, took
    assert len(kept() - before) < 10
    assert len(cluster.json("jobs")["jobs"]) == 1
    cluster.vctl("cancel", array)
    assert wait(cluster, array) == 125


# --- the guide

def test_the_examples_of_the_guide_run(cluster, place):
    blocks = re.findall(r"```sh\n(.*?)```", (TOP / "docs/guide/sweeps.md").read_text(), re.S)
    assert len(blocks) == 5
    (place / "element.sh").write_text("#!/bin/sh\nsleep 1\necho element $VRUN_ARRAY_TASK_ID $RATE\n")   # others come after it
    (place / "element.sh").chmod(0o755)
    (place / "train.py").write_text("import sys\nprint(*sys.argv[1:])\n")
    environment = dict(cluster.environment, PATH=f"{BIN}:{os.environ['PATH']}")
    for block in blocks:
        for line in block.splitlines():
            assert "#" not in line or "  #" in line, line
        r = subprocess.run(["bash", "-ec", block.replace("~/project", str(place))], env=environment, capture_output=True, text=True,
                           stdin=subprocess.DEVNULL, timeout=100 * SLOW)
        assert r.returncode == 0, (block, r.stdout, r.stderr)
    wait_until("all is over", lambda: not cluster.json("jobs")["jobs"], 90)
    said = sorted(f.read_text() for f in place.glob("vrun-*_*.out"))
    assert "--lr 0.01 --seed=2\n" in said and "element 1 0.01\n" in said and "element 30\n" in said
    assert (place / "out-9.txt").read_text() == "element 9\n"
