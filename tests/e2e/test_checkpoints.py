# SPDX-License-Identifier: Apache-2.0
"""Preemption of jobs that save their state: what they come to, and what is counted. The GPUs are only claimed: no job touches one."""
import csv
import datetime
import io
import pathlib
import re
import shlex
import statistics
import subprocess
import textwrap

import pytest

from cluster import SLOW, wait_until
from test_gangs import needs

TOP = pathlib.Path(__file__).resolve().parents[2]
GPUS = ("--gpus", "2", "--gpu-type", "fake", "--milli-cpus", "8000")

# A training loop of several processes: all meet after each step, and so all save at the same one. `reduce` gives each process the sums of
# what all have. Without torch the first process adds up, in the order of the ranks, so that the sum is the same in each run.
TRAINING = """
import json, os, signal, socket, subprocess, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = os.environ["VRUN_CKPT_DIR"] + "/state.json"
leave = []
signal.signal(signal.SIGUSR1, lambda *_: leave.append(1))

def with_sockets():
    port = int(os.environ["MASTER_PORT"])
    if rank == 0:
        listening = socket.create_server(("", port))
        others = {}
        while len(others) < world - 1:
            f = listening.accept()[0].makefile("rw")
            others[json.loads(f.readline())] = f
        def reduce(mine):
            all_of_them = [mine] + [json.loads(others[r].readline()) for r in range(1, world)]
            sums = [sum(column) for column in zip(*all_of_them)]
            for f in others.values():
                print(json.dumps(sums), file=f, flush=True)
            return sums
        return reduce
    for _ in range(600):
        try:
            f = socket.create_connection((os.environ["MASTER_ADDR"], port)).makefile("rw")
            break
        except OSError:
            time.sleep(0.1)
    print(json.dumps(rank), file=f, flush=True)
    def reduce(mine):
        print(json.dumps(mine), file=f, flush=True)
        return json.loads(f.readline())
    return reduce

def with_torch():
    import torch
    import torch.distributed
    torch.distributed.init_process_group("gloo")
    def reduce(mine):
        t = torch.tensor(mine, dtype=torch.float64)
        torch.distributed.all_reduce(t)
        return t.tolist()
    return reduce

reduce = with_torch() if sys.argv[2] == "torch" else with_sockets()
step, weights = 0, [0.0, 0.0]
if os.path.exists(place):
    step, weights = json.load(open(place))
print(f"rank {rank} begins at step {step} on {os.environ['SLURMD_NODENAME']}", flush=True)
while step < int(sys.argv[1]):
    step += 1
    x = (step * 7 + rank * 3) % 11 / 11.0          # this process's share of the data
    error = weights[0] * x + weights[1] - (2.0 * x - 0.5)
    gradient = reduce([error * x, error, error * error, len(leave)])
    weights = [w - 0.1 * g / world for w, g in zip(weights, gradient)]
    time.sleep(0.05)
    if gradient[3]:
        if rank == 0:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place + ".new", "w") as f:
                json.dump([step, weights], f)
            os.rename(place + ".new", place)
            print(f"saved at step {step} at {time.time()}", flush=True)
            subprocess.run(["/run/vrun/notify", "SAVED=1"], check=True)
        sys.exit(0)
if rank == 0:
    print("loss", repr(gradient[2]), "weights", *map(repr, weights), flush=True)
"""


def submit(c, *args):
    return int(c.run("vbatch", "-D", "/root", "--parsable", *args, check=True).stdout)


def output(c, job):
    path = c.root / f"root/vrun-{job}.out"
    return path.read_text() if path.exists() else ""


def account(c, job):
    rows = csv.DictReader(io.StringIO(c.vctl("accounting").stdout))
    return next(row for row in rows if row["job"] == str(job))


def losses(c, job):
    return [line for line in output(c, job).splitlines() if line.startswith("loss")]


@pytest.mark.seconds(600)
@pytest.mark.parametrize("means", ["sockets", "torch"])
def test_a_gang_that_is_preempted_learns_the_same(sturdy, means):
    c = sturdy(nodes=5, uplink_mbit=0, node_options=GPUS)
    if means == "torch":
        needs(c, "python3-torch")
    (c.root / "root/train.py").write_text(TRAINING)
    gang = ("-N", "4", "--gpus-per-node", "2", "--class", "experiment", "--checkpoint", "signal:USR1,grace:60s,save:1s,restore:1s", "--",
            "python3", "train.py", "60", means)
    undisturbed = submit(c, *gang)
    assert c.vctl("wait", undisturbed, timeout=300).returncode == 0
    victim = submit(c, *gang)
    wait_until("all four run", lambda: output(c, victim).count("begins at step 0") == 4, 120)
    node = c.json("job", victim)["pods"][0]["node"]
    # It keeps this node until the gang has begun elsewhere: there are four others.
    urgent = c.popen("vrun", "-D", "/root", "-q", "--class", "production", "-G", "2", "-w", node, "--", "sh", "-c", "echo mine; read line",
                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert urgent.stdout.readline() == "mine\n"
    assert c.vctl("wait", victim, timeout=300).returncode == 0
    urgent.communicate("over\n", timeout=60)
    assert losses(c, victim) == losses(c, undisturbed) != []
    begun = re.findall(r"rank (\d) begins at step (\d+) on (\S+)", output(c, victim))
    assert len(begun) == 8 and all(b[1] == "0" for b in begun[:4])
    [(saved, at)] = re.findall(r"saved at step (\d+) at (\S+)", output(c, victim))
    assert 0 < int(saved) < 60 and {b[1] for b in begun[4:]} == {saved}
    assert node not in {b[2] for b in begun[4:]} and len({b[2] for b in begun[4:]}) == 4
    info = c.json("job", victim)
    assert [a["state"] for a in info["attempts"]] == ["PREEMPTED", "COMPLETED"]
    row = account(c, victim)
    assert (row["attempts"], row["preemptions"]) == ("2", "1")
    # What was saved is saved: at most the time from the save to the end of all four (which is known to the second) is lost.
    left = datetime.datetime.fromisoformat(info["attempts"][0]["ended"]).timestamp()
    assert info["lost_s"] < left + 1 - float(at), info["lost_s"]


# Counts its preemptions in its checkpoint, says when it has left its room, and ends by itself after the last one.
COUNTER = """
mkdir -p $VRUN_CKPT_DIR
n=$(cat $VRUN_CKPT_DIR/n 2>/dev/null || echo 0)
trap 'echo $((n + 1)) > $VRUN_CKPT_DIR/n; echo left $EPOCHREALTIME; exit 0' USR1
echo attempt $VRUN_RESTART_COUNT from $n
[ $n -lt $1 ] || exit 7
sleep 1000 & wait
"""


@pytest.mark.seconds(600)
def test_many_preemptions_are_counted_exactly(sturdy):
    count = 100
    c = sturdy(node_options=GPUS)
    victim = submit(c, "-G", "2", "--class", "scavenger", "--checkpoint", "signal:USR1,grace:60s,save:0.1s,restore:0.1s", "--",
                    "bash", "-c", COUNTER, "counter", count)
    begun = []
    for i in range(count):
        wait_until(f"attempt {i} runs", lambda: f"attempt {i} from {i}\n" in output(c, victim), 60)
        # One that fails teaches the scheduler no run time: for a job of some milliseconds it would preempt nobody.
        r = c.vrun("-q", "--class", "production", "-G", "2", "--", "bash", "-c", "echo $EPOCHREALTIME; exit 1")
        assert r.returncode == 1, r.stderr
        begun.append(float(r.stdout))
    assert c.vctl("wait", victim, check=False, timeout=120).returncode == 7
    attempts = re.findall(r"^attempt (\d+) from (\d+)$", output(c, victim), re.MULTILINE)
    assert attempts == [(str(i), str(i)) for i in range(count + 1)]
    info = c.json("job", victim)
    assert [a["state"] for a in info["attempts"]] == ["PREEMPTED"] * count + ["FAILED"]
    assert [a["attempt"] for a in info["attempts"]] == list(range(1, count + 2))
    row = account(c, victim)
    assert (row["attempts"], row["preemptions"]) == (str(count + 1), str(count))
    # All of its time counts, for it has saved each time.
    assert info["lost_s"] == 0 and row["duration"] == row["held_s"] and float(row["held_s"]) > 0
    left = [float(t) for t in re.findall(r"^left ([\d.]+)$", output(c, victim), re.MULTILINE)]
    gaps = sorted(b - l for l, b in zip(left, begun, strict=True))
    assert gaps[0] > 0, "nobody starts where another one still is"
    # With the start of its sandbox.
    assert statistics.median(gaps) < 1 * SLOW, gaps
    print(f"from the end of the victim to the command of the other: median {statistics.median(gaps) * 1000:.0f} ms, "
          f"most {gaps[-1] * 1000:.0f} ms, of {count}")


def preempted(c, script, checkpoint):
    """What becomes of a job of this script that makes room once for another: its information, and its output."""
    victim = submit(c, "-G", "2", "--class", "experiment", *checkpoint, "--", "bash", "-c", "echo attempt $VRUN_RESTART_COUNT\n" +
                    textwrap.dedent(script))
    wait_until("it runs", lambda: "ready\n" in output(c, victim))
    assert c.vrun("-q", "--class", "production", "-G", "2", "--", "true", timeout=90).returncode == 0
    assert c.vctl("wait", victim, timeout=90).returncode == 0
    info = c.json("job", victim)
    assert [a["state"] for a in info["attempts"]] == ["PREEMPTED", "COMPLETED"]
    assert account(c, victim)["preemptions"] == "1"
    return info, output(c, victim)


SAVES = ("--checkpoint", "signal:USR1,grace:2s,save:1s,restore:1s")


@pytest.mark.seconds(180)
def test_one_that_ignores_the_signal_is_killed_after_its_grace(sturdy):
    info, said = preempted(sturdy(node_options=GPUS), """
        [ $VRUN_RESTART_COUNT = 0 ] || exit 0
        trap '' USR1 TERM; echo ready
        while :; do sleep 0.1; done""", SAVES)
    assert "attempt 1\n" in said
    assert info["lost_s"] >= 2, "all that it ran, and its grace"


@pytest.mark.seconds(180)
@pytest.mark.parametrize("end", ["kill -9 $$", "kill -SEGV $$"])
def test_one_that_dies_while_it_saves_has_lost_its_work(sturdy, end):
    info, said = preempted(sturdy(node_options=GPUS), f"""
        [ $VRUN_RESTART_COUNT = 0 ] || {{ cat $VRUN_CKPT_DIR/state; exit 0; }}
        mkdir -p $VRUN_CKPT_DIR; echo old > $VRUN_CKPT_DIR/state
        trap 'echo half > $VRUN_CKPT_DIR/state.new; {end}' USR1
        sleep 0.5; echo ready; sleep 1000 & wait""", SAVES)
    assert "attempt 1\nold\n" in said
    assert info["lost_s"] >= 0.5


@pytest.mark.seconds(180)
def test_one_that_lies_is_believed_and_begins_anew(sturdy):
    info, said = preempted(sturdy(node_options=GPUS), """
        [ $VRUN_RESTART_COUNT = 0 ] || { ls $VRUN_CKPT_DIR | wc -l; exit 0; }
        mkdir -p $VRUN_CKPT_DIR; trap '/run/vrun/notify SAVED=1' USR1; echo ready
        while :; do sleep 0.1; done""", ("--checkpoint", "signal:USR1,grace:50s,save:1s,restore:1s"))
    assert "attempt 1\n0\n" in said
    assert info["lost_s"] < 5 * SLOW, "its word ends its grace"


@pytest.mark.seconds(180)
def test_work_is_lost_since_the_last_save_only(sturdy):
    info, _ = preempted(sturdy(node_options=GPUS), """
        [ $VRUN_RESTART_COUNT = 0 ] || exit 0
        trap '' USR1 TERM; sleep 3; /run/vrun/notify SAVED=1; echo ready
        while :; do sleep 0.1; done""", SAVES)
    assert info["saved"] and 2 <= info["lost_s"] <= 2 + 2 * SLOW, "the grace, and the moments before it"


@pytest.mark.seconds(180)
def test_a_word_of_a_job_without_checkpoints_gets_one_line(sturdy):
    c = sturdy(node_options=GPUS)
    job = submit(c, "--", "sh", "-c", "for i in 1 2 3; do /run/vrun/notify SAVED=1; done; echo over")
    assert c.vctl("wait", job).returncode == 0
    assert output(c, job).count("--checkpoint") == 1, output(c, job)
    r = c.vrun("--", "sh", "-c", "/run/vrun/notify SAVED=1; /run/vrun/notify SAVED=1; echo over")
    assert (r.returncode, r.stdout) == (0, "over\n") and r.stderr.count("--checkpoint") == 1, r.stderr


@pytest.mark.seconds(180)
def test_the_example_of_the_guide_runs(sturdy):
    c = sturdy(node_options=GPUS)
    guide = (TOP / "docs/guide/checkpoints.md").read_text()
    [program] = re.findall(r"```python\n(.*?)```", guide, re.S)
    submission, again = re.findall(r"```sh\n(.*?)```", guide, re.S)
    (c.root / "root/train.py").write_text(program)
    job = submit(c, *shlex.split(submission)[1:])
    wait_until("it works", lambda: "begins at step 0\n" in output(c, job), 60)
    assert again == "vctl requeue $(vctl jobs -o name)\n"
    c.vctl("requeue", *c.vctl("jobs", "-o", "name", check=True).stdout.split(), check=True)
    assert c.vctl("wait", job, timeout=120).returncode == 0
    begun = [int(n) for n in re.findall(r"begins at step (\d+)\n", output(c, job))]
    assert len(begun) == 2 and begun[0] == 0 < begun[1] < 100 and "done\n" in output(c, job)
