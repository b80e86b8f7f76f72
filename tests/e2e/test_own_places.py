# SPDX-License-Identifier: Apache-2.0
"""What a job has that is not home's: its processors, the names of its node, its /tmp; and what is said of it."""
import os
import pathlib
import subprocess

import pytest

SEEN = "import os; print(len(os.sched_getaffinity(0)), os.cpu_count(), os.environ.get('OMP_NUM_THREADS'))"
VIEWS = pytest.mark.parametrize("view", ["live", "frozen"])


@pytest.fixture
def in_tmp(cluster):
    """A script and a file below home's /tmp."""
    place = cluster.root / "tmp/mine"
    place.mkdir()
    (place / "job.sh").write_text("#!/bin/sh\necho ran\n")
    (place / "job.sh").chmod(0o755)
    (place / "data").write_text("x")
    yield "/tmp/mine"
    subprocess.run(["rm", "-r", place], check=True)


# --- processors

@pytest.mark.parametrize("asked, cores", [([], 1), (["-c", "1"], 1), (["-c", "0.5"], 1), (["-c", "1.5"], 2), (["-c", "3"], 3)])
def test_a_program_sees_the_processors_that_the_job_asked_for(cluster, asked, cores):
    r = cluster.vrun(*asked, "--", "python3", "-c", SEEN, check=True)
    assert r.stdout.split() == [str(min(cores, os.cpu_count()))] * 2 + [str(cores)]


@pytest.mark.skipif(os.cpu_count() < 2, reason="needs two processors")
def test_two_jobs_of_one_core_have_different_processors(cluster):
    affinity = "import os, sys; print(*os.sched_getaffinity(0), flush=True); sys.stdin.read()"
    first, second = [cluster.popen("vrun", "-D", "/root", "-c", "1", "--", "python3", "-c", affinity, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert first.stdout.readline() != second.stdout.readline()
    for p in (first, second):
        p.communicate()


@pytest.mark.skipif(os.cpu_count() < 2, reason="needs two processors")
def test_a_program_cannot_take_more_processors_than_it_was_given(cluster):
    if not os.path.exists("/sys/fs/cgroup/cpuset/tasks") and "cpuset" not in open("/sys/fs/cgroup/cgroup.controllers").read():
        pytest.skip("needs the cpuset controller")
    r = cluster.vrun("-c", "1", "--", "python3", "-c",
                     "import os; os.sched_setaffinity(0, range(1024)); print(len(os.sched_getaffinity(0)))", check=True)
    assert r.stdout == "1\n"


def test_a_number_of_threads_that_the_user_has_set_stays(cluster):
    r = cluster.vrun("-c", "1", "--", "python3", "-c", SEEN, env=dict(cluster.environment, OMP_NUM_THREADS="7"), check=True)
    assert r.stdout.split()[2] == "7"


# --- names

@VIEWS
def test_the_nodes_own_name_resolves_and_homes_names_stay(cluster, view):
    r = cluster.vrun(f"--view={view}", "--", "python3", "-c", """if True:
        import socket
        print(socket.gethostbyname(socket.gethostname()), socket.gethostbyname("localhost"))
        print(open("/etc/hosts").read())""", check=True)
    first, _, hosts = r.stdout.partition("\n")
    assert first == f"{cluster.nodes['n1']['theirs']} 127.0.0.1"
    assert hosts.startswith((cluster.root / "etc/hosts").read_text())


@VIEWS
def test_a_job_that_edits_etc_hosts_hears_that_it_cannot(cluster, view):
    before = (cluster.root / "etc/hosts").read_text()
    r = cluster.vrun(f"--view={view}", "--", "sh", "-c", "echo 192.0.2.1 other >> /etc/hosts")
    assert r.returncode != 0 and "Read-only file system" in r.stderr
    assert (cluster.root / "etc/hosts").read_text() == before


# --- what is not mirrored

def test_a_command_in_tmp_is_refused_by_name(cluster, in_tmp):
    r = cluster.vrun("--", f"{in_tmp}/job.sh")
    assert r.returncode == 127 and r.stdout == ""
    assert r.stderr == (f"vrun: {in_tmp}/job.sh: /tmp is not mirrored, the job has its own: copy it to a directory that is mirrored, "
                        "such as your home directory\n")


@pytest.mark.parametrize("mode", [0o755, 0o644])
def test_a_batch_script_in_tmp_goes_along_with_the_job(cluster, in_tmp, mode):
    path = f"{cluster.root}{in_tmp}/job.sh"
    os.chmod(path, mode)
    r = cluster.run("vbatch", "-f", "-q", "-D", "/root", path)
    assert (r.returncode, r.stdout, r.stderr) == (0, "ran\n", "")


def test_a_batch_program_in_tmp_is_refused_at_once(cluster, in_tmp):
    path = cluster.root / "tmp/mine/program"
    path.write_bytes(pathlib.Path("/bin/true").read_bytes())
    path.chmod(0o755)
    r = cluster.run("vbatch", "-D", "/root", f"{in_tmp}/program")
    assert r.returncode in (125, 127) and r.stdout == ""
    assert r.stderr.startswith(f"vbatch: {in_tmp}/program: ") and "mirrored" in r.stderr and r.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["vrun", "vbatch"])
def test_a_working_directory_in_tmp_is_refused_by_name(cluster, in_tmp, command):
    r = cluster.run(command, "-D", in_tmp, "--", "true")
    assert r.returncode == 125
    assert r.stderr.startswith(f"{command}: working directory {in_tmp}: /tmp is not mirrored") and r.stderr.count("\n") == 1


def test_an_argument_in_tmp_is_said_before_the_command_fails(cluster, in_tmp):
    r = cluster.vrun("--", "cat", f"{in_tmp}/data")
    said, failed = r.stderr.splitlines()
    assert said.startswith(f"vrun: {in_tmp}/data: /tmp is not mirrored") and failed.startswith("cat: ") and r.returncode == 1
    assert cluster.vrun("-q", "--", "cat", f"{in_tmp}/data").stderr.startswith("cat: ")
    assert cluster.vrun("--", "touch", "/tmp/new", "/dev/null").stderr == ""


# --- /tmp

def test_a_result_can_be_moved_from_tmp_into_a_frozen_root(cluster):
    move = "import os; os.mkdir('/tmp/d'); open('/tmp/d/f', 'w').write('x'); os.replace('/tmp/d', '/root/moved'); open('/tmp/g', 'w')"
    cluster.vrun("--view=frozen", "--", "python3", "-c", move, check=True)
    assert (cluster.root / "root/moved/f").read_text() == "x"
    assert not (cluster.root / "tmp/g").exists()
    subprocess.run(["rm", "-r", cluster.root / "root/moved"], check=True)


# --- caches

@VIEWS
def test_what_torch_compile_keeps_is_there_in_the_next_run(cluster, view):
    # In place of torch, which finds its directory just so: keeps what took long to make.
    program = """if True:
        import os, pathlib, tempfile
        cache = pathlib.Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.gettempdir() + "/torchinductor_root")
        kernel = cache / "ab" / "kernel.py"
        print("hit" if kernel.exists() else "miss")
        kernel.parent.mkdir(parents=True, exist_ok=True)
        kernel.write_text("compiled")"""
    env = dict(cluster.environment, XDG_CACHE_HOME=f"/root/cache-{view}")
    assert [cluster.vrun(f"--view={view}", "--", "python3", "-c", program, env=env, check=True).stdout for _ in range(2)] == ["miss\n", "hit\n"]
    assert (cluster.root / f"root/cache-{view}/torchinductor/ab/kernel.py").read_text() == "compiled"
    subprocess.run(["rm", "-r", f"{cluster.root}/root/cache-{view}"], check=True)


# --- a limit of the disk

@VIEWS
def test_a_job_that_keeps_more_on_the_nodes_disk_than_its_limit_is_ended_and_told(cluster, view):
    fill = "open('/tmp/mine', 'wb').write(b'x' * (20 << 20)); print('written', flush=True); import time; time.sleep(60)"
    r = cluster.vrun(f"--view={view}", "--tmp", "4M", "--", "python3", "-c", fill)
    assert r.returncode == 137 and "it wrote more than its 4 MiB of --tmp" in r.stderr, r
    less = "open('/tmp/mine', 'wb').write(b'x' * (20 << 20)); import time; time.sleep(1); print('fine')"
    assert cluster.vrun(f"--view={view}", "--tmp", "1G", "--", "python3", "-c", less, check=True).stdout == "fine\n"


def test_what_is_written_in_a_frozen_root_counts_and_what_goes_home_at_once_does_not(cluster):
    write = "open('/root/large', 'wb').write(b'x' * (20 << 20)); import time; time.sleep({})"
    try:
        r = cluster.vrun("--view=frozen", "--writes=discard", "--tmp", "4M", "--", "python3", "-c", write.format(60))
        assert r.returncode == 137 and "--tmp" in r.stderr, r
        cluster.vrun("--view=live", "--tmp", "4M", "--", "python3", "-c", write.format(1), check=True)
    finally:
        (cluster.root / "root/large").unlink(missing_ok=True)


def test_a_limit_of_the_disk_that_is_none_is_one_line(cluster):
    r = cluster.vrun("--tmp", "lots", "--", "true")
    assert r.returncode == 2 and r.stderr.count("\n") == 1 and "--tmp: lots" in r.stderr
