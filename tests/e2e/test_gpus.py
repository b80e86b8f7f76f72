# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node, with a fake driver (tests/testlib/fake_gpus.py): found, given out, watched, and nothing of them left."""
import csv
import os
import pathlib
import signal

import fake_gpus
import pytest
from cluster import wait_until
from fake_gpus import FakeGpus

pytestmark = [pytest.mark.seconds(120), pytest.mark.skipif(not fake_gpus.built(), reason="the fake driver is not built: ninja fake_gpu")]
GIB = 1 << 30


@pytest.fixture
def with_gpus(own):
    """with_gpus(count=2, mig=[0], ...) is a cluster of one node with such GPUs, which are `c.gpus`."""
    def make(options=(), **gpus):
        c = own(nodes=0)
        c.next_nodes(("--milli-cpus", "8000", "--gpu-interval-ms", "300", *FakeGpus.NODE_OPTIONS, *options))
        c.reserve("n1")
        c.make_host("n1")
        c.gpus = FakeGpus.for_node(c, "n1", **gpus)
        c.state = c.nodes["n1"]["directory"] / "state/node"
        c.launch_node("n1")
        c.await_node("n1")
        return c
    return make


def node(c):
    return c.json("nodes")["nodes"][0]


def log(c):
    return (c.nodes["n1"]["directory"] / "node.log").read_text()


def kill_agent(c):
    """Whoever started it starts it again."""
    [pid] = [p for p in c.node_pids("n1", "/opt/vrun/vrund") if is_agent(p)]
    os.kill(pid, signal.SIGKILL)
    wait_until("another agent runs", lambda: any(is_agent(p) and p != pid for p in c.node_pids("n1", "/opt/vrun/vrund")))
    c.await_node("n1")


def is_agent(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1] == b"node"
    except (OSError, IndexError):
        return False


def mps_daemons(c):
    """Not who asks one of them something just now."""
    found = []
    for pid in c.node_pids("n1", "nvidia-cuda-mps-control"):
        try:
            found += [pid] if b"\0-f\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() else []
        except OSError:
            pass
    return found


def starts(c, *args, use=""):
    """A job that runs until it is told to end. `use`: what its processes use (fake_gpus.py)."""
    command = ["env", f"FAKE_GPU_USE={use}", "sh", "-c", "echo begun; read end"] if use else ["sh", "-c", "echo begun; read end"]
    job = c.popen("vrun", "-D", "/root", *args, "--", *command, stdin=-1, stdout=-1, stderr=-1, text=True)
    if job.stdout.readline() == "begun\n":
        return job
    said = job.communicate()[1]
    raise AssertionError(said + c.logs())


def ends(job):
    job.communicate("\n", timeout=30)
    return job.returncode


def test_a_node_finds_its_gpus(with_gpus):
    c = with_gpus(count=4, nvlink=False)
    n = node(c)
    assert n["total"]["gpus"] == 4 and n["total"]["gpu_type"] == "h100"
    assert n["gpu_groups"] == [3, 12] and n["bad_gpus"] == 0
    assert c.json("gpus")["gpus"][1]["uuid"] == "GPU-00000001-fa4e-fa4e-fa4e-000000000001"
    assert "80G each, near 0,1 2,3" in c.vctl("nodes", "-o", "wide").stdout
    assert "GPUs: 4 of type h100, driver 580.159.04" in log(c)
    assert c.sh("echo $CUDA_VISIBLE_DEVICES", check=True).stdout == "\n"
    assert c.vrun("-G", "h100:2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES", check=True).stdout.count(",") == 1


def test_an_agent_that_is_killed_goes_on_with_its_jobs_gpus(with_gpus):
    c = with_gpus(count=2)
    job = starts(c, "-G", "2")
    kill_agent(c)
    assert node(c)["used"]["gpus"] == 2
    assert ends(job) == 0
    assert c.vrun("-G", "2", "--", "true").returncode == 0


def test_a_gpu_that_breaks_is_given_to_nobody(with_gpus):
    c = with_gpus(count=2)
    c.gpus.xid(1, 79)
    wait_until("the log says it", lambda: "GPU 1: no job gets it: XID 79" in log(c))
    kill_agent(c)   # after a reset it is fit again
    c.gpus.lose(0)
    wait_until("it is lost", lambda: "GPU 0: no job gets it: it does not answer" in log(c))
    kill_agent(c)
    assert node(c)["bad_gpus"] == 1
    assert c.vrun("-G", "1", "--", "sh", "-c", "echo $VRUN_JOB_ID", check=True).returncode == 0


def test_a_job_is_told_whose_fault_it_was(with_gpus):
    c = with_gpus(count=2)
    job = c.popen("vrun", "-D", "/root", "-G", "2", "--", "sh", "-c", "echo begun; read end; exit 3", stdin=-1, stdout=-1, stderr=-1, text=True)
    assert job.stdout.readline() == "begun\n"
    c.gpus.xid(1, 31)   # a page fault: the program goes on if it can
    wait_until("it is told", lambda: "XID 31" in c.json("job", 1)["reason"])
    said = job.communicate("\n", timeout=30)[1]
    assert job.returncode == 3 and "GPU 1 of n1: XID 31: " in c.json("job", 1)["reason"], said
    assert "(by the job itself)" in c.json("job", 1)["reason"] and node(c)["bad_gpus"] == 0
    job = starts(c, "-G", "2")
    c.gpus.lose(1)      # it cannot go on
    assert job.wait(timeout=60) != 0
    said = job.stderr.read()
    assert "GPU 1 of n1: it does not answer" in said and "(not the job's doing)" in said
    assert node(c)["bad_gpus"] == 2 and "out of service 1" in c.vctl("nodes", "-o", "wide").stdout
    r = c.vrun("-G", "2", "--", "true")
    assert r.returncode == 125 and "others are out of service: see `vctl gpus`" in r.stderr


def test_a_job_starts_again_when_its_gpu_broke(with_gpus):
    c = with_gpus(count=1)
    job = c.run("vbatch", "-D", "/root", "--parsable", "-o", "/dev/null", "--requeue", "-G", "1", "--wrap", "test $VRUN_RESTART_COUNT -gt 0 || sleep 300",
                check=True).stdout.strip()
    wait_until("it runs", lambda: c.json("job", job)["state"] == "RUNNING", 60)
    c.gpus.xid(0, 79)
    wait_until("it waits", lambda: c.json("job", job)["state"] == "PENDING", 30)
    assert "XID 79" in c.json("job", job)["reason"]
    kill_agent(c)       # the GPU was reset
    wait_until("it is done", lambda: c.json("job", job)["state"] == "COMPLETED", 60)


def test_the_next_job_waits_until_memory_is_free(with_gpus):
    c = with_gpus(count=1)
    assert c.vrun("-G", "1", "--", "true").returncode == 0
    c.gpus.set(0, used=8 * GIB)
    job = c.popen("vrun", "-D", "/root", "-G", "1", "--", "sh", "-c", "echo begun", stdout=-1, text=True)
    wait_until("it is placed", lambda: node(c)["used"]["gpus"] == 1)
    assert job.poll() is None
    c.gpus.set(0, used=0)
    assert job.communicate(timeout=30)[0] == "begun\n"


def test_a_gpu_that_does_not_become_free(with_gpus):
    c = with_gpus(count=1)
    c.gpus.set(0, used=8 * GIB)
    refused = c.vrun("-G", "1", "--", "true", timeout=60)
    assert refused.returncode != 0 and "8192 MiB of its memory are used by nobody" in refused.stderr


def test_shares_have_one_daemon_for_a_user_until_the_last_ends(with_gpus):
    c = with_gpus(count=1)
    first = starts(c, "-G", "0.25")
    second = starts(c, "-G", "0.5")
    [daemon] = c.gpus.mps_log(c.state).values()
    assert "set_default_active_thread_percentage 25" in daemon and "set_default_active_thread_percentage 50" in daemon
    assert len(mps_daemons(c)) == 1
    kill_agent(c)
    assert len(mps_daemons(c)) == 1
    assert ends(second) == 0
    assert len(mps_daemons(c)) == 1
    assert ends(first) == 0
    wait_until("the daemon is gone", lambda: not mps_daemons(c) and not list((c.state / "gpus/mps").iterdir()))


def test_an_instance_is_made_for_a_job(with_gpus):
    c = with_gpus(count=1, mig=[0])
    job = starts(c, "-G", "1g.10gb")
    [instance] = c.gpus.instances()
    assert instance["computes"] and instance["profile"] == 19
    kill_agent(c)
    assert c.gpus.instances() == [instance]
    assert ends(job) == 0
    wait_until("it is destroyed", lambda: not c.gpus.instances())


def test_a_node_that_stops_leaves_neither_daemons_nor_instances(with_gpus):
    c = with_gpus(count=2, mig=[0])
    starts(c, "-G", "1g.10gb")
    starts(c, "-G", "0.25")
    c.stop_node("n1")
    assert not c.gpus.instances() and not list((c.state / "gpus/mps").iterdir())


def test_a_host_that_is_killed_leaves_them_to_the_next_agent(with_gpus):
    c = with_gpus(count=2, mig=[0])
    starts(c, "-G", "1g.10gb")
    starts(c, "-G", "0.25")
    c.stop_node("n1", signal.SIGKILL)
    assert c.gpus.instances()
    c.start_node("n1")
    wait_until("all is taken down", lambda: not c.gpus.instances() and not list((c.state / "gpus/mps").iterdir()))


def usage(c):
    return c.json("jobs")["jobs"][0]["gpu_usage"]


def test_use_of_whole_gpus_is_metered(with_gpus):
    c = with_gpus(count=1, options=("--dcgm-job-dir", "/var/lib/vrun/dcgm"))
    c.gpus.set(0, utilization=60)
    job = starts(c, "-G", "1")
    exporter = c.nodes["n1"]["directory"] / "state/dcgm/0"
    assert exporter.read_text().strip() == "1"   # whose the GPU is, for DCGM's exporter
    wait_until("it is told", lambda: usage(c) and usage(c)["busy_gpu_s"] > 0.5)
    assert usage(c)["utilization_percent"] == 60 and usage(c)["sm_gpu_s"] > 0
    assert usage(c)["busy_gpu_s"] < usage(c)["metered_s"] * 0.8
    assert [j["job"] for j in c.json("top")["jobs"]] == [1]
    assert ends(job) == 0
    # vrun ends with the command; the controller hears of it from the node.
    wait_until("the controller knows that it is over", lambda: not c.json("jobs")["jobs"])
    [account] = csv.DictReader(c.vctl("accounting").stdout.splitlines())
    assert float(account["gpu_busy_s"]) > 0.5 and float(account["gpu_energy_j"]) > 0
    wait_until("the exporter forgets it", lambda: not exporter.exists() or not exporter.read_text())


def test_use_of_a_share_is_that_of_its_own_processes(with_gpus):
    c = with_gpus(count=1)
    job = starts(c, "-G", "0.25", use=f"0:{GIB}:20")
    other = starts(c, "-G", "0.25", use=f"0:{3 * GIB}:50")
    def told():
        jobs = {j["job"]: j.get("gpu_usage") for j in c.json("jobs")["jobs"]}
        return all(jobs.values()) and {j: u["utilization_percent"] for j, u in jobs.items()} == {1: 20, 2: 50} and \
            {j: u["memory_bytes"] for j, u in jobs.items()} == {1: GIB, 2: 3 * GIB}
    wait_until("each has its own", told)
    assert ends(job) == 0 and ends(other) == 0


@pytest.mark.parametrize("view", ["live", "frozen"])
def test_a_job_has_its_devices_and_the_driver(with_gpus, view):
    c = with_gpus(count=4)
    starts_cuda = "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_int(); print(cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(n)), n.value)"
    code = f'ls /dev; ls /run/vrun/nvidia/lib64; echo $CUDA_VISIBLE_DEVICES; python3 -c "{starts_cuda}"'
    *seen, init, counted, count = c.vrun(f"--view={view}", "-G", "2", "--", "sh", "-c", code, check=True).stdout.split()
    assert (init, counted, count) == ("0", "0", "2")
    assert "nvidiactl" in seen and "libcuda.so.1" in seen and "nvidia-uvm" in seen and seen[-1] == "0,1"
    assert len([name for name in seen if name[:6] == "nvidia" and name[6:].isdigit()]) == 2
