# SPDX-License-Identifier: Apache-2.0
"""Something of a gang dies in each of its states: all of it goes on or ends, the first failure is named, and nothing is left."""
import contextlib
import os
import pathlib
import re
import signal
import subprocess

import pytest

from cluster import wait_until
from test_fs_restart import program_pids

pytestmark = pytest.mark.seconds(180)

# Goes on until it is told to end.
UNTIL_TOLD = """
echo up $RANK $VRUN_RESTART_COUNT
until [ -e /root/go ]; do sleep 0.1; done
echo $RANK $VRUN_RESTART_COUNT > /root/result-$RANK
"""
# Ends at once. One of them has more to send home than fits between its supervisor and a slow link.
WITH_WRITES = """
head -c $((RANK == 1 ? 20000000 : 1000)) /dev/urandom > /root/data-$RANK
sha256sum < /root/data-$RANK
"""


@pytest.fixture
def four(sturdy):
    return sturdy(nodes=4, uplink_mbit=0)


def submit(c, *args):
    return int(c.run("vbatch", "-D", "/root", "--parsable", *args, check=True).stdout)


def state(c, job):
    return c.json("job", job)["state"]


def output(c, job):
    path = c.root / f"root/vrun-{job}.out"
    return path.read_text() if path.exists() else ""


def node_of(c, job, pod):
    return c.json("job", job)["pods"][pod]["node"]


def slow(c, name, on):
    """What the node sends goes slowly."""
    index = c.nodes[name]["index"]
    rate = ["root", "tbf", "rate", "400kbit", "burst", "32kb", "latency", "400ms"] if on else ["root"]
    subprocess.run(["tc", "-n", f"vrun-{name}-{index}", "qdisc", "add" if on else "del", "dev", f"vn{index}", *rate], check=True)


def inside(c, name):
    """Processes of jobs on a node: all that are neither the host's first one nor vrun's own."""
    found = []
    for pid in c.node_pids(name, ""):
        try:
            argv = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode()
            program = os.readlink(f"/proc/{pid}/exe")
        except OSError:
            continue
        if not program.startswith("/opt/vrun/") and "emulate-host" not in argv:
            found.append((pid, argv))
    return found


def groups(c, job, names):
    """Control groups of the job's processes on these nodes. Their names are the same in other clusters of this machine."""
    found = set()
    for name in names:
        for pid, _ in inside(c, name):
            lines = []
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):   # a short sleep
                lines = pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines()
            for line in lines:
                _, controllers, path = line.split(":", 2)
                at = pathlib.Path("/sys/fs/cgroup", controllers.split(",")[0] or "unified", path.lstrip("/"))
                if f"/{job}." in path and at.exists():
                    found.add(at)
    return found


def ours(c, pids):
    """Those of them that are processes of jobs on our nodes."""
    return {str(pid) for name in c.nodes for pid, _ in inside(c, name)} & set(pids)


def nothing_is_left(c, job, its_groups=(), kept=()):
    for name in c.nodes:
        if c.nodes[name]["process"].poll() is not None:
            continue
        wait_until(f"no process is left on {name}", lambda: not inside(c, name))
        tasks = c.directory / name / "state/node/tasks"
        wait_until(f"no task is left on {name}", lambda: name in kept or not list(tasks.glob(f"{job}.*")))
        agent = wait_until("there is an agent", lambda: program_pids(c, "node", name))[0]
        mounts = pathlib.Path(f"/proc/{agent}/mountinfo").read_text()
        assert name in kept or f"tasks/{job}." not in mounts, mounts
    for group in its_groups:
        assert not group.exists() or not ours(c, (group / "cgroup.procs").read_text().split()), group


def kill(pids):
    assert pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):   # a sandbox ends with its supervisor
            os.kill(pid, signal.SIGKILL)


def die(c, who, name):
    """Kills it. An agent is started again by its host, a host, home and the controller by us."""
    if who == "rank":
        kill([pid for pid, argv in inside(c, name) if argv.startswith("sh\0")])
    elif who == "supervisor":
        kill(c.node_pids(name, "vrund-task"))
    elif who == "agent":
        agents = program_pids(c, "node", name)
        kill(agents)
        wait_until("another agent runs", lambda: (now := program_pids(c, "node", name)) and now != agents)
    elif who == "host":
        c.stop_node(name, signal.SIGKILL)
        c.launch_node(name)
    else:
        c.kill_daemon(who)
        c.up()


def placed(c, *args):
    """A gang on n1, n2 and n3; another node is free."""
    holder = submit(c, "-c", "64", "-w", "n4", "--", "sleep", "300")
    wait_until("it holds n4", lambda: state(c, holder) == "RUNNING")
    job = submit(c, *args)
    wait_until("it is placed", lambda: state(c, job) != "PENDING")
    c.vctl("cancel", holder)
    wait_until("n4 is free", lambda: state(c, holder) == "CANCELLED")
    return job


def ended(c, job):
    status = c.vctl("wait", job, check=False, timeout=120).returncode
    info = c.json("job", job)
    return status, [a["state"] for a in info["attempts"]], info


GOES_ON = ["COMPLETED"]
AGAIN = ["FAILED", "COMPLETED"]


def waiting_for_one(c, job, name):
    """The gang is about to begin and cannot, because the agent of this node sleeps."""
    wait_until("the others are ready", lambda: "2 of its 3 pods are ready" in c.json("why", job)["summary"])


@pytest.mark.parametrize("who, attempts, reason", [
    ("supervisor", AGAIN, r"pod \d on NODE: the task supervisor died"),
    ("agent", GOES_ON, ""),
    ("host", AGAIN, "node NODE was restarted"),
    ("home", GOES_ON, ""),
    ("controller", GOES_ON, "")])
def test_before_it_has_begun(four, who, attempts, reason):
    c = four
    sleeper, = program_pids(c, "node", "n3")
    os.kill(sleeper, signal.SIGSTOP)
    try:
        job = placed(c, "--view=live", "-N", 3, "--", "sh", "-c", UNTIL_TOLD)
        waiting_for_one(c, job, "n3")
        name = next(pod["node"] for pod in c.json("job", job)["pods"] if pod["node"] != "n3")
        die(c, who, name)
        if attempts == AGAIN:   # else the last pod may be ready before anybody knows of the loss, and the others begin
            wait_until("the controller knows of it", lambda: re.search(rf"job {job} of \S+ its other pods end", c.log("home/state/log/controller.log")))
    finally:
        os.kill(sleeper, signal.SIGCONT)
    (c.root / "root/go").touch()
    status, states, info = ended(c, job)
    assert (status, states) == (0, attempts), info
    assert re.search(reason.replace("NODE", name), info["attempts"][0]["reason"]), info
    # Nothing has run before all could: of each rank there is one beginning.
    said = output(c, job).splitlines()
    assert sorted(line for line in said if line.startswith("up")) == [f"up {rank} {len(attempts) - 1}" for rank in range(3)], said
    nothing_is_left(c, job)


@pytest.mark.parametrize("who, status, attempts, reason", [
    ("rank", 137, ["FAILED"], "rank 1 on NODE: signal KILL"),
    ("supervisor", 125, ["FAILED"], "pod 1 on NODE: the task supervisor died"),
    ("agent", 0, GOES_ON, ""),
    ("host", 0, AGAIN, "node NODE was restarted"),
    ("home", 0, GOES_ON, ""),
    ("controller", 0, GOES_ON, "")])
def test_while_it_runs(four, who, status, attempts, reason):
    c = four
    job = placed(c, "--view=live", "-N", 3, "--", "sh", "-c", UNTIL_TOLD)
    wait_until("all run", lambda: len(re.findall("^up . 0$", output(c, job), re.M)) == 3)
    name = node_of(c, job, 1)
    its_groups = groups(c, job, [pod["node"] for pod in c.json("job", job)["pods"]])
    assert its_groups
    die(c, who, name)
    if who == "host":
        wait_until("the controller knows", lambda: f"node {name} was restarted" in c.log("home/state/log/controller.log"))
    if status == 0:
        (c.root / "root/go").touch()
    got, states, info = ended(c, job)
    assert (got, states) == (status, attempts), info
    assert re.search(reason.replace("NODE", name), info["attempts"][0]["reason"] + info["reason"]), info
    results = [f"{rank} {len(attempts) - 1}\n" for rank in range(3)] if status == 0 else []
    assert [p.read_text() for p in sorted((c.root / "root").glob("result-*"))] == results
    nothing_is_left(c, job, its_groups)


@pytest.mark.parametrize("who, kept", [("supervisor", True), ("agent", False), ("host", True), ("home", False), ("controller", False)])
def test_while_its_writes_are_on_the_way(four, who, kept):
    c = four
    job = placed(c, "--view=frozen", "-N", 3, "--", "sh", "-c", "sleep 1\n" + WITH_WRITES)
    name = node_of(c, job, 1)
    slow(c, name, True)
    try:
        wait_until("the commands have ended", lambda: state(c, job) == "COMPLETING")
        die(c, who, name)
    finally:
        slow(c, name, False)
    status, states, info = ended(c, job)
    home = c.root / "root"
    if kept:
        # Its writes are still there, and it is said where. A job that has not written what it should is no success.
        assert (status, states) == (125, ["FAILED"]), info
        assert f"kept on {name} in " in info["reason"], info
        assert len(list((c.directory / name / "state/node/tasks").glob(f"{job}.1*/upper/root/data-1"))) == 1
    else:
        assert (status, states) == (0, GOES_ON), info
        sums = {subprocess.run(["sha256sum"], stdin=open(f, "rb"), capture_output=True, text=True).stdout for f in home.glob("data-*")}
        assert sums == set(re.findall("^[0-9a-f]{64}  -\n", output(c, job), re.M)) and len(sums) == 3
    nothing_is_left(c, job, kept=[name] if kept else [])


def test_a_host_does_not_come_back(four):
    """After the lease: who may be started again is, elsewhere; another one says which node it was."""
    c = four
    again = placed(c, "--view=live", "-N", 3, "--", "sh", "-c", UNTIL_TOLD)
    once = submit(c, "--view=live", "-N", 3, "-w", "n1,n2,n3", "--no-requeue", "--", "sh", "-c", "exec sleep 300")
    wait_until("both run", lambda: {state(c, again), state(c, once)} == {"RUNNING"})
    wait_until("all run", lambda: output(c, again).count("up") == 3)
    lost = node_of(c, once, 1)
    c.remove_node(lost)
    status, states, info = ended(c, once)
    assert status != 0 and states == ["FAILED"] and re.search(f"node {lost} is lost", info["reason"]), info
    (c.root / "root/go").touch()
    status, states, info = ended(c, again)
    assert (status, states) == (0, AGAIN), info
    assert lost not in {pod["node"] for pod in info["pods"]} and f"node {lost} is lost" in info["attempts"][0]["reason"]
    for job in (again, once):
        nothing_is_left(c, job)


def test_the_host_of_an_attached_job_is_restarted(four):
    c = four
    p = c.popen("vrun", "-D", "/root", "-q", "--requeue", "-N", 3, "--", "sh", "-c", UNTIL_TOLD, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert sorted(p.stdout.readline() for _ in range(3)) == [f"up {rank} 0\n" for rank in range(3)]
    job = c.json("jobs")["jobs"][0]["job"]
    name = node_of(c, job, 1)
    die(c, "host", name)
    assert sorted(p.stdout.readline() for _ in range(3)) == [f"up {rank} 1\n" for rank in range(3)]
    (c.root / "root/go").touch()
    _, err = p.communicate(timeout=60)
    assert p.returncode == 0 and f"node {name} was restarted" in err, err
    assert ended(c, job)[:2] == (0, AGAIN)
    nothing_is_left(c, job)


@pytest.mark.parametrize("pods", [1, 3])
def test_a_host_is_restarted_while_home_is_off(four, pods):
    c = four
    job = submit(c, "--view=frozen", "-N", pods, "--", "sh", "-c",
                 "echo up $VRUN_RESTART_COUNT; [ $VRUN_RESTART_COUNT = 1 ] || exec sleep 300; echo over > /root/over")
    wait_until("it runs", lambda: output(c, job).count("up 0\n") == pods)
    c.await_root(job)
    info = c.json("job", job)
    name = info["pods"][-1]["node"] if pods > 1 else info["node"]
    c.kill_daemon("home")
    c.stop_node(name, signal.SIGKILL)
    c.launch_node(name)
    wait_until("the controller knows", lambda: f"node {name} was restarted" in c.log("home/state/log/controller.log"))
    status, states, info = ended(c, job)
    assert (status, states) == (0, AGAIN), info
    assert output(c, job).count("up 1\n") == pods and (c.root / "root/over").read_text() == "over\n"
    nothing_is_left(c, job)


def test_a_node_that_has_lost_the_controller_alone(four):
    """It cannot know that the job goes on elsewhere. Home does, and ends what still runs there."""
    c = four
    job = placed(c, "--view=live", "-N", 3, "--", "sh", "-c", UNTIL_TOLD)
    wait_until("all run", lambda: len(re.findall("^up . 0$", output(c, job), re.M)) == 3)
    name = node_of(c, job, 1)
    index = c.nodes[name]["index"]
    rule = ["ip", "netns", "exec", f"vrun-{name}-{index}", "iptables", "-w", "-A", "OUTPUT", "-p", "tcp", "--dport", str(c.port), "-j", "DROP"]
    subprocess.run(rule, check=True)
    try:
        wait_until("it runs again", lambda: len(re.findall("^up . 1$", output(c, job), re.M)) == 3, 90)
        wait_until("nothing runs there", lambda: not inside(c, name))
        (c.root / "root/go").touch()
        status, states, info = ended(c, job)
        assert (status, states) == (0, AGAIN), info
        assert f"node {name} is lost" in info["attempts"][0]["reason"] and name not in {pod["node"] for pod in info["pods"]}
    finally:
        subprocess.run([{"-A": "-D"}.get(word, word) for word in rule], check=True)
    wait_until("it is back", lambda: c.node_state(name) == "ready")
    nothing_is_left(c, job)
