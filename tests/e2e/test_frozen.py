# SPDX-License-Identifier: Apache-2.0
"""A batch job, or one with --view=frozen, sees the root as it was when it was submitted, in every attempt, whatever
happened at home meanwhile."""
import hashlib
import os
import shutil
import signal
import subprocess
import time

import pytest

from cluster import preempted_once, wait_until
from test_scheduler import GPUS, submit, wait_for

# All that can be said of the project, as text.
LOOK = ("cd /root/proj && find . -path ./.git -prune -o -type f -print | sort | xargs sha256sum && "
        "find . -path ./.git -prune -o -print | sort | xargs stat -c '%n %a %F' && cat lib/pkg/version")


def git(directory, *args):
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *args], cwd=directory, check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def make_project(cluster):
    """With two branches; it is on the first. What a job has to see of it."""
    project = cluster.root / "root/proj"
    project.mkdir()
    git(project, "init", "-b", "one")
    for branch in ("two", "one"):
        git(project, "checkout", "-B", branch)
        for i in range(40):
            (project / f"module{i}.py").write_text(f"branch {branch} {i}\n" * (i + 1))
        (project / f"only_{branch}").write_text(branch)
        if branch == "one":
            (project / "only_two").unlink()
        git(project, "add", ".")
        git(project, "commit", "-m", branch)
    (project / "lib/pkg").mkdir(parents=True)
    (project / "lib/pkg/version").write_text("1.0\n")
    (project / "lib/pkg/code.py").write_text("old\n" * 1000)
    (project / "build/deep").mkdir(parents=True)
    for i in range(40):
        (project / f"build/deep/{i}.o").write_bytes(bytes([i]) * 5000)
    for name in ("inplace", "append", "truncate", "chmod", "large", "touch"):
        (project / name).write_text(name * 100)
    (project / "large").write_bytes(os.urandom(3 << 20))
    script = LOOK.replace("/root/proj", str(project))
    return subprocess.run(["sh", "-c", script], check=True, capture_output=True, text=True).stdout


def change_all(cluster):
    """What a developer does while his job waits."""
    project = cluster.root / "root/proj"
    git(project, "checkout", "two")
    # As pip does: the new package beside the old one, then the old one goes.
    (project / "lib/new").mkdir()
    (project / "lib/new/version").write_text("2.0\n")
    (project / "lib/new/more.py").write_text("new\n")
    os.rename(project / "lib/pkg", project / "lib/old")
    os.rename(project / "lib/new", project / "lib/pkg")
    shutil.rmtree(project / "lib/old")
    shutil.rmtree(project / "build")
    with open(project / "inplace", "r+") as f:
        f.write("CHANGED")
    with open(project / "append", "a") as f:
        f.write("more")
    os.truncate(project / "truncate", 7)
    os.chmod(project / "chmod", 0o700)
    os.utime(project / "touch")
    with open(project / "large", "r+b") as f:
        f.seek(1 << 20)
        f.write(b"x" * 100)


def held(cluster, jobs):
    """Home has every file of the roots of so many jobs."""
    wait_until("the files are held", lambda: cluster.logs().count("frozen root: ") >= jobs)


def output(cluster, job):
    return (cluster.root / f"root/vrun-{job}.out").read_text()


def end_home(cluster, how):
    cluster.kill_daemon("home", how)


@pytest.mark.seconds(180)
@pytest.mark.parametrize("restart", [None, signal.SIGTERM, signal.SIGKILL])
def test_what_was_changed_between_submission_and_start_is_as_it_was(sturdy, restart):
    c = sturdy(node_options=GPUS)
    expected = make_project(c)
    holder = submit(c, "-G", "2", "--", "sleep", "300")
    wait_for(c, holder, "RUNNING")
    job = submit(c, "-G", "2", "--", "sh", "-c", LOOK)
    held(c, 2)
    files = {f.stat().st_ino for f in (c.root / "root/proj").rglob("*") if f.is_file() and ".git" not in f.parts}
    assert c.json("status")["frozen"]["jobs"] == 2
    assert " files held" in c.vctl("job", job).stdout
    change_all(c)
    wait_until("copies are told", lambda: c.json("status")["frozen"]["kept_files"] > 0)
    if restart:
        if restart == signal.SIGKILL:
            # What is only held open is copied within seconds. Copies have the inode in their names.
            content = c.home_state / "frozen/content"
            wait_until("what has lost its name is kept",
                       lambda: files <= {int(f.name.split("-")[1], 16) for f in content.iterdir() if f.name[0] != "n"})
        end_home(c, restart)
    c.vctl("cancel", holder)
    c.vctl("wait", job)
    assert output(c, job) == expected
    # And nothing of it is left.
    wait_until("its tree is gone", lambda: not list((c.home_state / "frozen/jobs").iterdir()))
    wait_until("its content is gone", lambda: not list((c.home_state / "frozen/content").iterdir()))


@pytest.mark.seconds(180)
@pytest.mark.parametrize("options", [(), ("--writes=discard",), ("--requeue",)])
def test_a_run_in_the_foreground_sees_the_root_as_it_was_when_it_was_typed(sturdy, options):
    c = sturdy(view="live")
    expected = make_project(c)
    p = c.popen("vrun", "--view=frozen", *options, "--", "sh", "-c", f"echo ready; read line; {LOOK}", stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "ready\n"
    held(c, 1)
    change_all(c)
    out, err = p.communicate("\n", timeout=60)
    assert (p.returncode, out, err) == (0, expected, "")
    assert not list(c.home_state.glob("frozen/jobs/*"))


@pytest.mark.seconds(120)
def test_a_run_in_the_foreground_outlives_home_in_its_frozen_root(sturdy):
    c = sturdy(view="live")
    expected = make_project(c)
    p = c.popen("vrun", "--view=frozen", "--", "sh", "-c", f"echo ready; read line; {LOOK}", stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "ready\n"
    held(c, 1)
    change_all(c)
    wait_until("copies are told", lambda: c.json("status")["frozen"]["kept_files"] > 0)
    wait_until("its tree is on the disk", lambda: any(f.stat().st_size for f in c.home_state.glob("frozen/jobs/*") if ".tmp" not in f.name))
    end_home(c, signal.SIGTERM)
    out, err = p.communicate("\n", timeout=90)
    assert (p.returncode, out) == (0, expected), err
    wait_until("its tree is gone", lambda: not list(c.home_state.glob("frozen/jobs/*")))


@pytest.mark.seconds(120)
def test_what_is_lost_to_a_run_in_the_foreground_fails_it_and_is_named_once(sturdy):
    c = sturdy(view="live")
    make_project(c)
    p = c.popen("vrun", "--view=frozen", "--", "sh", "-c", "echo ready; read line; cat /root/proj/large; sleep 60; exit 0",
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert p.stdout.readline() == b"ready\n"
    wait_until("its tree is on the disk", lambda: any(f.stat().st_size for f in c.home_state.glob("frozen/jobs/*") if ".tmp" not in f.name))
    os.kill(p.pid, signal.SIGSTOP)  # or it starts the next home
    end_home(c, signal.SIGKILL)
    with open(c.root / "root/proj/large", "r+b") as f:  # while nobody looks
        f.write(b"CHANGED")
    os.kill(p.pid, signal.SIGCONT)
    out, err = p.communicate(b"\n", timeout=90)
    assert p.returncode == 125 and b"CHANGED" not in out, (p.returncode, err)
    last = err.splitlines()[-1]
    assert last.count(b"/root/proj/large") == 1 and b"changed at home" in last, err


@pytest.mark.seconds(120)
def test_a_home_that_has_not_looked_at_its_root_yet(sturdy):
    """What a large root's home does in its first second: it applies nothing that it should not, and loses nobody's content."""
    c = sturdy(node_options=GPUS)
    secrets = c.root / "root/.ssh"
    secrets.mkdir(mode=0o700, exist_ok=True)
    (secrets / "id_rsa").write_text("home's own")
    for i in range(60):
        (c.root / f"many/{i}").mkdir(parents=True)
        for k in range(1000):
            os.close(os.open(c.root / f"many/{i}/{k}", os.O_CREAT | os.O_WRONLY))
    cold = {f"cold{i}": os.urandom(100_000) for i in range(20)}
    for name, content in cold.items():
        (c.root / "root" / name).write_bytes(content)
    writer = submit(c, "-G", "1", "--", "sh", "-c", "echo ready; sleep 3; mkdir -p /root/.ssh; echo mine > /root/.ssh/id_rsa; "
                    "echo mine > /root/.ssh/id_new; echo mine > /root/fine")
    reader = submit(c, "-G", "1", "--", "sh", "-c", "echo ready; sleep 3; cat /root/cold* | sha256sum")
    # Its content comes by the same stream: of a tree that a home which begins does not know at all.
    live = c.popen("vrun", "--view=live", "--", "sh", "-c", "echo ready; sleep 3.2; cat /root/cold* | sha256sum", stdout=subprocess.PIPE,
                   stderr=subprocess.PIPE, text=True)
    assert live.stdout.readline() == "ready\n"
    for job in (writer, reader):
        wait_until("it runs", lambda: (c.root / f"root/vrun-{job}.out").exists() and output(c, job))
    held(c, 2)
    os.kill(live.pid, signal.SIGSTOP)  # or it starts the next home
    end_home(c, signal.SIGKILL)
    time.sleep(4)
    os.kill(live.pid, signal.SIGCONT)
    out, err = live.communicate(timeout=60)
    digest = hashlib.sha256(b"".join(cold[name] for name in sorted(cold))).hexdigest() + "  -\n"
    assert (live.returncode, out) == (0, digest), err
    c.vctl("wait", reader, timeout=60)
    # Of two jobs on a node vrun does not know which one asked for a withheld file: both are told.
    read = "".join(line for line in output(c, reader).splitlines(True) if "withheld from the job" not in line)
    assert read == "ready\n" + digest and c.json("job", reader)["state"] == "COMPLETED", output(c, reader)
    wait_until("it is told", lambda: output(c, writer).count("jobs may not write here") == 2)
    assert (c.root / "root/fine").read_text() == "mine\n"
    assert (secrets / "id_rsa").read_text() == "home's own" and not (secrets / "id_new").exists(), output(c, writer)
    assert not list(secrets.glob("*.vrun-*"))


@pytest.mark.seconds(60)
def test_whoever_comes_while_home_ends_gets_the_next_one(sturdy):
    c = sturdy(node_options=GPUS)
    for i in range(20):
        (c.root / f"many/{i}").mkdir(parents=True)
        for k in range(500):
            (c.root / f"many/{i}/{k}").write_text("x")
    submit(c, "-G", "1", "--", "sleep", "50")
    held(c, 1)
    for _ in range(3):
        os.kill(c.pid_of("home"), signal.SIGTERM)
        until = time.monotonic() + 1
        while time.monotonic() < until:
            assert c.vctl("jobs", check=False).returncode == 0


@pytest.mark.seconds(120)
def test_a_live_batch_job_that_waits_outlives_home(sturdy):
    c = sturdy(node_options=GPUS)
    holder = submit(c, "-G", "2", "--", "sleep", "300")
    wait_for(c, holder, "RUNNING")
    job = submit(c, "-G", "2", "--view=live", "--", "cat", "/root/now")
    end_home(c, signal.SIGKILL)
    (c.root / "root/now").write_text("as it is")
    c.vctl("cancel", holder)
    c.vctl("wait", job)
    assert output(c, job) == "as it is"
    wait_until("nothing is left of it", lambda: not list(c.home_state.glob("frozen/jobs/*")))


@pytest.mark.seconds(180)
@pytest.mark.parametrize("restart", [False, True])
def test_every_attempt_sees_the_same_and_what_the_job_wrote(sturdy, restart):
    c = sturdy(node_options=GPUS)
    expected = make_project(c)
    script = (f"if [ $VRUN_RESTART_COUNT = 0 ]; then echo mine > /root/mark; rm /root/gone; mkdir /root/out; echo x > /root/out/x; "
              f"cat /root/proj/module1.py; exec sleep 300; fi; {LOOK}; cat /root/mark /root/out/x; cd /root; ls -d gone mark new out proj 2>/dev/null; true")
    (c.root / "root/gone").write_text("")
    job = submit(c, "-G", "2", "--class", "experiment", "-o", "/out", "--", "sh", "-c", script)
    out = c.root / "out"
    wait_until("it has read", lambda: out.exists() and out.read_text())
    held(c, 1)
    change_all(c)
    urgent = submit(c, "-G", "2", "--class", "production", "--no-requeue", "--", "sleep", "300")
    wait_for(c, urgent, "RUNNING")
    wait_for(c, job, "PENDING")
    held(c, 3)  # the root of the second attempt, with what the first one wrote
    (c.root / "root/mark").write_text("somebody else's\n")
    (c.root / "root/new").write_text("somebody else's\n")
    if restart:
        end_home(c, signal.SIGTERM)
    c.vctl("cancel", urgent)
    c.vctl("wait", job, timeout=90)
    first = "branch one 1\n" * 2
    text = preempted_once(out)
    assert text.startswith(first)
    assert text[len(first):] == expected + "mine\nx\nmark\nout\nproj\n", "what it made, not what it removed, nothing of others"


@pytest.mark.seconds(120)
def test_what_could_not_be_preserved_fails_the_job_and_is_named(sturdy):
    c = sturdy(node_options=GPUS)
    make_project(c)
    holder = submit(c, "-G", "2", "--", "sleep", "300")
    wait_for(c, holder, "RUNNING")
    # It would go on, and end with 0, if it were let.
    job = submit(c, "-G", "2", "--", "sh", "-c", "cat /root/proj/append; cat /root/proj/inplace; sleep 300; exit 0")
    held(c, 2)
    end_home(c, signal.SIGKILL)
    with open(c.root / "root/proj/inplace", "r+") as f:  # while nobody looks
        f.write("CHANGED")
    c.vctl("cancel", holder)
    assert c.vctl("wait", job, check=False, timeout=90).returncode == 125
    info = c.json("job", job)
    assert info["state"] == "FAILED"
    assert info["reason"].startswith("/root/proj/inplace: ") and "changed at home" in info["reason"], info
    # vrun's own lines may come before them.
    printed = "".join(line for line in output(c, job).splitlines(True) if not line.startswith("vrun: "))
    assert "CHANGED" not in printed and printed.startswith("append")


@pytest.mark.seconds(120)
def test_a_tree_that_was_lost_fails_the_job(sturdy):
    c = sturdy(node_options=GPUS)
    holder = submit(c, "-G", "2", "--", "sleep", "300")
    wait_for(c, holder, "RUNNING")
    job = submit(c, "-G", "2", "--", "true")
    held(c, 2)
    end_home(c, signal.SIGKILL)
    shutil.rmtree(c.home_state / "frozen/store")
    c.vctl("cancel", holder)
    assert c.vctl("wait", job, check=False, timeout=90).returncode == 125
    info = c.json("job", job)
    assert info["state"] == "FAILED" and "home no longer has the root from when this job was submitted" in info["reason"], info


@pytest.mark.seconds(120)
def test_what_a_job_renames_and_links_comes_home_whatever_home_did(sturdy):
    c = sturdy(node_options=GPUS)
    place = c.root / "root/proj"
    (place / "dir/sub").mkdir(parents=True)
    for name in ("edited", "removed", "moved", "linked", "both", "dir/f", "dir/sub/g", "plain"):
        (place / name).write_text("as it was")
    holder = submit(c, "-G", "2", "--", "sleep", "300")
    wait_for(c, holder, "RUNNING")
    job = submit(c, "-G", "2", "--", "sh", "-c", "cd /root/proj && mv edited edited.new && mv removed removed.new && "
                 "mv moved moved.new && ln linked linked.new && mv both both.bak && echo new > both && mv dir dir.new && "
                 "echo new > dir.new/h && chmod 600 plain && touch -d 2001-01-01 plain && ln plain plain.too && "
                 "cat edited.new removed.new moved.new linked.new dir.new/f")
    held(c, 2)
    for name in ("edited", "linked", "both"):
        (place / name).write_text("edited at home")
    (place / "removed").unlink()
    os.rename(place / "moved", place / "elsewhere")
    shutil.rmtree(place / "dir")
    c.vctl("cancel", holder)
    c.vctl("wait", job)
    assert c.json("job", job)["state"] == "COMPLETED"
    assert (place / "plain.too").samefile(place / "plain"), "what the job alone has changed is linked"
    for name in ("plain", "plain.too"):
        (place / name).unlink()
    home = {str(f.relative_to(place)): f.read_text() for f in place.rglob("*") if f.is_file()}
    assert home == {
        "edited": "edited at home", "edited.new": "as it was", "removed.new": "as it was", "moved.new": "as it was",
        "elsewhere": "as it was", "linked": "edited at home", "linked.new": "as it was", "both": "edited at home",
        f"both.vrun-{job}": "new\n", "both.bak": "as it was", "dir.new/f": "as it was", "dir.new/sub/g": "as it was",
        "dir.new/h": "new\n"}
    # There is nobody else to be told: the output ends with it.
    told = output(c, job)
    assert told.startswith("as it was" * 5), told
    assert f"vrun: /root/proj/both changed at home while job {job} ran: its version is in /root/proj/both.vrun-{job}\n" in told
    assert f"vrun: /root/proj/edited changed at home while job {job} ran: it stays, and /root/proj/edited.new is a copy" in told


class BusyDisk:
    """The record of the next root that nobody has seen yet does not get to the disk: home waits for whoever reads this pipe."""
    def __init__(self, cluster):
        self.pipe = cluster.home_state / "frozen/common.new"   # as home/frozen/records.cc names it

    def __enter__(self):
        os.mkfifo(self.pipe)
        return self

    def __exit__(self, *error):
        reader = os.open(self.pipe, os.O_RDONLY | os.O_NONBLOCK)   # whoever waits goes on, and fails
        self.pipe.unlink(missing_ok=True)                          # who comes later finds a disk; home may have been first
        os.close(reader)


@pytest.mark.seconds(120)
def test_a_job_that_is_over_before_its_tree_is_on_the_disk_ends_well(sturdy):
    c = sturdy()
    first = submit(c, "--", "true")
    c.vctl("wait", first)
    with BusyDisk(c) as disk:
        (c.root / "root/f").write_text("as it was")
        job = submit(c, "--", "cat", "/root/f")
        c.vctl("wait", job)
        assert disk.pipe.is_fifo()
        assert c.json("job", job)["state"] == "COMPLETED"
        assert output(c, job) == "as it was"
    wait_until("nothing of it is left", lambda: not list((c.home_state / "frozen/jobs").iterdir()))
    # Home goes on.
    last = submit(c, "--", "cat", "/root/f")
    c.vctl("wait", last)
    assert output(c, last) == "as it was"


@pytest.mark.seconds(120)
def test_home_is_killed_before_the_tree_is_on_the_disk(sturdy):
    c = sturdy(node_options=GPUS)
    holder = submit(c, "-G", "2", "--", "sleep", "300")
    wait_for(c, holder, "RUNNING")
    (c.root / "root/f").write_text("a root of its own")
    with BusyDisk(c) as disk:
        job = submit(c, "-G", "2", "--", "true")   # answered nevertheless
        assert job == holder + 1 and disk.pipe.is_fifo()
        end_home(c, signal.SIGKILL)
    c.vctl("cancel", holder)
    assert c.vctl("wait", job, check=False, timeout=90).returncode == 125
    info = c.json("job", job)
    assert info["state"] == "FAILED" and "home no longer has the root from when this job was submitted" in info["reason"], info
