# SPDX-License-Identifier: Apache-2.0
"""Jobs of several processes on several nodes: environment, streams, failures, launchers."""
import json
import os
import re
import shutil
import signal
import subprocess
import textwrap

import pytest

import miniroot
from cluster import wait_until

pytestmark = pytest.mark.seconds(180)


@pytest.fixture
def four(sturdy):
    """Four nodes that reach each other."""
    return sturdy(nodes=4, uplink_mbit=0)


def lines(text):
    return sorted(text.splitlines())


def python(text, *args):
    return ("python3", "-c", textwrap.dedent(text), *map(str, args))


def installed(*packages):
    found = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *packages], capture_output=True, text=True)
    return [p for p in packages if f"{p} installed" not in found.stdout]


def needs(c, *packages):
    """Skips without these packages; places them, with what they depend on, in the root."""
    missing = installed(*packages)
    if missing:
        pytest.skip(f"needs {' '.join(missing)}")
    closure = subprocess.run(["apt-cache", "depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks",
                              "--no-replaces", "--no-enhances", "--installed", *packages], capture_output=True, text=True).stdout
    names = {line.strip() for line in closure.splitlines() if re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", line)}
    names -= {"libc6", "python3", "python3.11", "python3-minimal", "python3.11-minimal", "libpython3.11-stdlib", "dpkg", "debconf"}
    miniroot.place_packages(c.root, *sorted(n for n in names if not installed(n)))
    # The alternatives: mpirun is a link to a link.
    for name in ("mpirun", "mpiexec", "ompi_info"):
        real = os.path.realpath(f"/usr/bin/{name}")
        if os.path.exists(real) and os.path.basename(real) != name:
            place = c.root / "usr/bin" / name
            place.unlink(missing_ok=True)
            place.symlink_to(os.path.basename(real))


# --- what the processes see

ENVIRONMENT = """
import os
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_NODEID SLURM_JOB_NUM_NODES"
print(*(os.environ.get(n, "-") for n in names.split()))
"""


def test_each_rank_knows_its_place(four):
    r = four.vrun("-q", "-N", 4, "--ntasks-per-node", 2, "--", *python(ENVIRONMENT))
    assert r.returncode == 0, r.stderr
    wanted = [f"{rank} 8 {rank % 2} 2 {rank // 2} {rank} 8 {rank % 2} {rank // 2} 4" for rank in range(8)]
    assert lines(r.stdout) == wanted


def test_the_pods_are_on_four_nodes_and_reach_each_other_by_name(four):
    # Each rank listens; the first one says hello to all by the names of their pods.
    r = four.vrun("-q", "-N", 4, "--", *python("""
        import os, socket, time
        rank = int(os.environ["RANK"])
        if rank != 0:
            with socket.create_server(("", 7000)) as s:
                c, _ = s.accept()
                print(rank, c.recv(9).decode(), os.environ["SLURM_JOB_NODELIST"])
        else:
            for other in range(1, 4):
                for _ in range(200):
                    try:
                        with socket.create_connection((f"worker-{other}", 7000), 5) as c:
                            c.send(b"hello")
                            break
                    except OSError:
                        time.sleep(0.05)
        """))
    assert r.returncode == 0, r.stderr
    got = [line.split() for line in lines(r.stdout)]
    assert [g[:2] for g in got] == [["1", "hello"], ["2", "hello"], ["3", "hello"]]
    assert len({g[2] for g in got}) == 1


def test_slurms_variables_are_there_or_not(four):
    r = four.vrun("-q", "-N", 2, "--no-slurm-env", "--", "sh", "-c", "env | grep -c ^SLURM_ || true")
    assert (r.returncode, r.stdout) == (0, "0\n0\n"), r.stderr


def test_no_gang_has_none_of_it(four):
    r = four.vrun("-q", "--", "sh", "-c", "echo ${RANK-none} ${SLURM_PROCID-none}")
    assert r.stdout == "none none\n"


# --- streams

def test_labels(four):
    r = four.vrun("-q", "-l", "-N", 2, "--ntasks-per-node", 2, "--", "sh", "-c", "echo out; echo err >&2")
    assert r.returncode == 0, r.stderr
    assert lines(r.stdout) == [f"{rank}: out" for rank in range(4)]
    assert lines(r.stderr) == [f"{rank}: err" for rank in range(4)]


def test_no_line_is_torn_and_none_is_lost(four):
    count = 3000
    r = four.vrun("-q", "-N", 4, "--ntasks-per-node", 2, "--", *python("""
        import os, sys
        rank = os.environ["RANK"]
        for i in range(int(sys.argv[1])):
            sys.stdout.write(f"{rank} {i} " + rank * (i % 97) + "\\n")
            if i % 7 == 0: sys.stdout.flush()
        """, count))
    assert r.returncode == 0, r.stderr
    by_rank = {str(rank): [] for rank in range(8)}
    for line in r.stdout.splitlines():
        by_rank[line[0]].append(line)
    for rank, got in by_rank.items():
        assert got == [f"{rank} {i} {rank * (i % 97)}" for i in range(count)]


@pytest.mark.parametrize("which, wanted", [((), ["0 in"]), (("--input=2",), ["2 in"]), (("--input=all",), [f"{r} in" for r in range(4)]),
                                           (("--input=none",), [])])
def test_input(four, which, wanted):
    r = four.vrun("-q", "-N", 2, "--ntasks-per-node", 2, *which, "--", "sh", "-c", "while read x; do echo $RANK $x; done", input="in\n")
    assert r.returncode == 0, r.stderr
    assert lines(r.stdout) == wanted


def test_much_input_for_all(four):
    text = "".join(f"line {i}\n" for i in range(200_000))
    r = four.vrun("-q", "-N", 3, "--input=all", "--", "sha256sum", input=text)
    assert r.returncode == 0, r.stderr
    assert len(set(r.stdout.splitlines())) == 1 and len(r.stdout.splitlines()) == 3


# --- how it ends

def status(c, *args):
    path = c.directory / "status.json"
    r = c.vrun("--status-json", path, *args)
    return r, json.loads(path.read_text())


def test_the_first_failure_is_named_and_ends_the_others(four):
    r, told = status(four, "-q", "-N", 4, "--", "sh", "-c", "[ $RANK = 2 ] && exit 5; exec sleep 100")
    assert r.returncode == 5, r.stderr
    assert re.search(r"rank 2 on n\d: exit 5", r.stderr), r.stderr
    assert told["exit"] == 5 and told["state"] == "FAILED"
    assert [rank["rank"] for rank in told["ranks"]] == [0, 1, 2, 3]
    assert [rank["killed"] for rank in told["ranks"]] == [True, True, False, True]


def test_the_failure_of_a_rank_ends_the_others_of_its_pod(four):
    r = four.vrun("-q", "-N", 1, "-n", 3, "--", "sh", "-c", "[ $RANK = 1 ] && exit 4; exec sleep 100")
    assert r.returncode == 4 and re.search(r"rank 1 on n\d: exit 4", r.stderr), r.stderr


def test_no_kill_lets_the_others_go_on_and_the_highest_status_counts(four):
    r, told = status(four, "-q", "-N", 3, "--no-kill", "--", "sh", "-c", "sleep $RANK; echo over; exit $RANK")
    assert r.returncode == 2
    assert r.stdout == "over\n" * 3
    assert [rank["exit"] for rank in told["ranks"]] == [0, 1, 2]
    assert re.search(r"rank 1 on n\d: exit 1", r.stderr), "the first one is the reason"


def test_a_clean_end_lets_the_others_go_on(four):
    r = four.vrun("-q", "-N", 2, "--", "sh", "-c", "[ $RANK = 0 ] || { sleep 2; echo late; }")
    assert (r.returncode, r.stdout) == (0, "late\n"), r.stderr


def test_wait_ends_stragglers(four):
    r = four.vrun("-q", "-N", 2, "--wait", 1, "--", "sh", "-c", "[ $RANK = 0 ] || exec sleep 100")
    assert r.returncode != 0, "not all have ended well"


def test_a_signal_goes_to_all(four):
    p = four.popen("vrun", "-D", "/root", "-q", "-N", 2, "--", "sh", "-c", "trap 'echo got $RANK; exit 0' USR1; echo up; while :; do sleep 0.1; done",
                   stdout=subprocess.PIPE, text=True)
    assert [p.stdout.readline() for _ in range(2)] == ["up\n"] * 2
    p.send_signal(signal.SIGUSR1)
    out, _ = p.communicate(timeout=30)
    assert lines(out) == ["got 0", "got 1"] and p.returncode == 0


def test_cancel_ends_all(four):
    job = int(four.run("vbatch", "-D", "/root", "--parsable", "-N", 3, "--", "sleep", 100, check=True).stdout)
    wait_until("it runs", lambda: four.json("job", job)["state"] == "RUNNING")
    four.vctl("cancel", job)
    wait_until("it is over", lambda: four.json("job", job)["state"] == "CANCELLED")
    assert all(node["jobs"] == 0 for node in four.json("nodes")["nodes"])


def test_a_pod_that_is_killed_is_named(four):
    p = four.popen("vrun", "-D", "/root", "-q", "-N", 3, "--", "sh", "-c", "echo up; exec sleep 987",
                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert [p.stdout.readline() for _ in range(3)] == ["up\n"] * 3
    job = four.json("jobs")["jobs"][0]
    node = four.json("job", job["job"])["pods"][1]["node"]
    victims = [pid for pid in four.node_pids(node, "sleep")]
    assert victims
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 128 + signal.SIGKILL
    assert re.search(rf"rank 1 on {node}: signal KILL", err), err


def test_a_lost_node_is_named(four):
    p = four.popen("vrun", "-D", "/root", "-q", "-N", 2, "--", "sh", "-c", "echo up; exec sleep 300",
                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert [p.stdout.readline() for _ in range(2)] == ["up\n"] * 2
    job = four.json("jobs")["jobs"][0]["job"]
    node = four.json("job", job)["pods"][1]["node"]
    four.remove_node(node)
    _, err = p.communicate(timeout=120)
    assert p.returncode != 0
    assert node in err, err


# --- home

def test_home_is_killed_and_no_line_is_lost_or_doubled(four):
    p = four.popen("vrun", "-D", "/root", "-N", 3, "--", *python("""
        import os, time
        for i in range(400):
            print(os.environ["RANK"], i, flush=True)
            time.sleep(0.01)
        """), stdout=subprocess.PIPE, text=True)
    for _ in range(50):
        p.stdout.readline()
    os.kill(four.pid_of("home"), signal.SIGKILL)
    rest, _ = p.communicate(timeout=90)
    assert p.returncode == 0
    for rank in range(3):
        got = [int(line.split()[1]) for line in rest.splitlines() if line.startswith(f"{rank} ")]
        assert got == list(range(got[0], 400))


# --- batch

def batch(c, *args):
    job = int(c.run("vbatch", "-D", "/root", "--parsable", *args, check=True).stdout)
    c.vctl("wait", job, check=False)
    return job


def test_one_file_for_each_rank(four):
    job = batch(four, "-N", 2, "--ntasks-per-node", 2, "-o", "out-%j-%t", "-e", "err-%N", "--", "sh", "-c",
                "echo from $RANK; echo to $RANK >&2")
    for rank in range(4):
        assert (four.root / f"root/out-{job}-{rank}").read_text() == f"from {rank}\n"
    nodes = [pod["node"] for pod in four.json("job", job)["pods"]]
    assert lines((four.root / f"root/err-{nodes[0]}").read_text()) == ["to 0", "to 1"]
    assert lines((four.root / f"root/err-{nodes[1]}").read_text()) == ["to 2", "to 3"]


def test_one_file_for_all(four):
    job = batch(four, "-l", "-N", 3, "--", "sh", "-c", "echo hello")
    assert lines((four.root / f"root/vrun-{job}.out").read_text()) == ["0: hello", "1: hello", "2: hello"]
    assert lines(four.vctl("logs", job).stdout) == ["0: hello", "1: hello", "2: hello"]


def test_a_script_with_slurms_lines(four):
    script = four.root / "root/job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=2\n#SBATCH -o slurm-%t\n"
                      "echo $SLURM_PROCID of $SLURM_NTASKS on $SLURM_JOB_NUM_NODES\n")
    batch(four, str(script))
    assert [(four.root / f"root/slurm-{t}").read_text() for t in range(4)] == [f"{t} of 4 on 2\n" for t in range(4)]


def test_a_job_shows_its_pods(four):
    job = batch(four, "-N", 2, "--no-kill", "--", "sh", "-c", "exit $RANK")
    told = four.json("job", job)
    assert told["exit"] == 1 and told["nodes"] == 2
    assert [pod["ranks"][0]["exit"] for pod in told["pods"]] == [0, 1]
    assert "pod 1" in four.vctl("job", job).stdout


def test_mistakes_cost_one_line(four):
    for args in (("-N", "0"), ("-n", "5", "--ntasks-per-node", "2", "-N", "2"), ("-N", "2", "-T")):
        r = four.vrun(*args, "--", "true")
        assert r.returncode == 2 and len(r.stderr.splitlines()) == 1, r.stderr


# --- the root

def test_what_all_pods_write_comes_home(four):
    r = four.vrun("-q", "--view=frozen", "-N", 3, "--", "sh", "-c", "echo $RANK > of-$RANK; echo same > same; echo $RANK > differs")
    assert r.returncode == 0, r.stderr
    home = four.root / "root"
    assert [(home / f"of-{rank}").read_text() for rank in range(3)] == ["0\n", "1\n", "2\n"]
    assert (home / "same").read_text() == "same\n" and not list(home.glob("same.*"))
    assert len(list(home.glob("differs.vrun-*"))) == 2 and "differs" in r.stderr


MEETING = """
import os, sys, time
rank, world, path = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1]
# All create one file at once, append to it and read it until all are there.
fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(fd, f"rank {rank}\\n".encode())
os.close(fd)
end = time.time() + 60
while time.time() < end and len(open(path).read().splitlines()) < world: time.sleep(0.05)
print(*sorted(open(path).read().splitlines()), sep=",")
"""


def test_pods_meet_in_a_file_of_a_live_view(four):
    for i in range(3):
        r = four.vrun("-q", "--view=live", "-N", 3, "--", *python(MEETING, f"/root/store{i}"))
        assert (r.returncode, r.stdout) == (0, "rank 0,rank 1,rank 2\n" * 3), r.stderr
        assert sorted((four.root / f"root/store{i}").read_text().splitlines()) == ["rank 0", "rank 1", "rank 2"]


# --- launchers

ALL_REDUCE = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(x)
print(dist.get_rank(), dist.get_world_size(), int(x.item()), flush=True)
"""


@pytest.mark.seconds(600)
def test_torch_without_a_launcher(four):
    needs(four, "python3-torch")
    (four.root / "root/train.py").write_text(ALL_REDUCE)
    r = four.vrun("-q", "-N", 2, "--ntasks-per-node", 2, "--", "python3", "train.py", timeout=300)
    assert r.returncode == 0, r.stderr
    assert lines(r.stdout) == [f"{rank} 4 10" for rank in range(4)]


@pytest.mark.seconds(600)
def test_torchrun_needs_no_flags(four):
    needs(four, "python3-torch")
    (four.root / "root/train.py").write_text(ALL_REDUCE)
    (four.root.parent / "nothing.py").write_text("")
    if subprocess.run(["python3", "-m", "torch.distributed.run", "--nproc_per_node", "1", four.root.parent / "nothing.py"],
                      capture_output=True).returncode != 0:
        pytest.skip("this torchrun fails without vrun, too: torch 1.13 with Python 3.11 cannot read its own default of --redirects")
    torchrun = ("torchrun",) if shutil.which("torchrun") else ("python3", "-m", "torch.distributed.run")
    r = four.vrun("-q", "-N", 2, "--", *torchrun, "train.py", timeout=300)
    assert r.returncode == 0, r.stderr
    assert lines(r.stdout) == ["0 2 3", "1 2 3"]


MPI = """
import os, sys
from mpi4py import MPI
world = MPI.COMM_WORLD
line = f"{world.Get_rank()} {world.Get_size()} {world.allreduce(world.Get_rank() + 1)}\\n"
os.write(1, line.encode())   # at once: mpirun itself tears lines
"""


@pytest.mark.seconds(300)
def test_mpirun(four):
    needs(four, "openmpi-bin", "python3-mpi4py")
    (four.root / "root/mpi.py").write_text(MPI)
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}   # mpirun asks for these where it is run by root
    r = four.vrun("-q", "-N", 2, "--ntasks-per-node", 2, "--", "mpirun", "-n", 4, "python3", "mpi.py", timeout=120,
                  env={**four.environment, **root})
    assert r.returncode == 0, r.stderr
    assert lines(r.stdout) == [f"{rank} 4 10" for rank in range(4)]
