# SPDX-License-Identifier: Apache-2.0
"""After home has started: no live run waits until it has scanned the root, and none sees what was there before (docs/decisions/0046)."""
import hashlib
import os
import random
import time

import pytest

from cluster import wait_until

pytestmark = pytest.mark.seconds(120)


def end_home(cluster):
    cluster.kill_daemon("home")


def slow_scans(cluster, milliseconds):
    """Of homes that are started from now on."""
    cluster.environment["VRUN_SCAN_PAUSE"] = str(milliseconds)


def scanned(cluster):
    return cluster.json("status")["scanned"]


@pytest.fixture
def place(own):
    """A cluster, and directories with files that its jobs have seen."""
    cluster = own()
    here = cluster.root / "root/place"
    for d in ("a/b/c", "d/e", "f"):
        (here / d).mkdir(parents=True)
        for i in range(5):
            (here / d / f"file{i}").write_text(f"{d} {i}\n")
    assert cluster.vrun("--", "find", "/root/place").returncode == 0
    return cluster, here


def test_a_run_sees_what_was_changed_while_home_was_away_long_before_the_scan_ends(place):
    cluster, here = place
    end_home(cluster)
    (here / "a/b/c/file1").write_text("changed\n")
    (here / "a/b/c/file2").unlink()
    (here / "a/b/c/new").write_text("new\n")
    (here / "d").rename(here / "g")
    slow_scans(cluster, 20_000)
    began = time.monotonic()
    r = cluster.vrun("--", "sh", "-c", "cd place; cat a/b/c/file0 a/b/c/file1 a/b/c/new g/e/file3; ls; ls a/b/c d", check=False)
    assert r.stdout == "a/b/c 0\nchanged\nnew\nd/e 3\na\nf\ng\na/b/c:\nfile0\nfile1\nfile3\nfile4\nnew\n", (r, cluster.logs())
    assert time.monotonic() - began < 15 and not scanned(cluster)


def test_a_running_job_sees_it_too(place):
    cluster, here = place
    slow_scans(cluster, 20_000)   # of the home that this vrun starts
    job = cluster.popen("vrun", "-D", "/root/place", "--", "sh", "-c", "cat a/b/c/*; echo ready; while read -r c; do eval \"$c\"; echo; done",
                        stdin=-1, stdout=-1, text=True)
    while job.stdout.readline() != "ready\n":
        pass
    end_home(cluster)
    (here / "a/b/c/file1").write_text("changed\n")
    (here / "d/e/file0").write_text("changed too\n")

    def asked(command):
        job.stdin.write(command + "\n")
        job.stdin.flush()
        said = []
        while (line := job.stdout.readline()) not in ("\n", ""):
            said.append(line)
        return "".join(said)

    wait_until("the job sees the changes", lambda: asked("cat a/b/c/file1 d/e/file0") == "changed\nchanged too\n", 15)
    assert not scanned(cluster)
    job.stdin.close()
    assert job.wait(30) == 0


def test_a_frozen_run_waits_and_is_whole(place):
    cluster, here = place
    end_home(cluster)
    (here / "f/file4").write_text("changed\n")
    slow_scans(cluster, 100)
    r = cluster.run("vrun", "--view=frozen", "-D", "/root", "--", "cat", "place/f/file4", timeout=90)
    assert r.stdout == "changed\n", r
    assert scanned(cluster)


def change(chosen, here, files):
    path = here / chosen.choice("adf") / f"file{chosen.randrange(6)}"
    other = here / chosen.choice("adf") / chosen.choice(["b", "e", "c"]) / f"file{chosen.randrange(6)}"
    what = chosen.randrange(6)
    try:
        if what == 0:
            path.unlink()
        elif what == 1:
            path.rename(other)
        elif what == 2:
            os.link(path, other)
        elif what == 3:
            other.parent.mkdir(parents=True)
        else:
            with open(chosen.choice([path, other]), "a") as f:
                f.write(f"{files}\n")
    except OSError:
        pass


def test_random_changes_while_home_is_away_and_while_it_starts(place):
    cluster, here = place
    chosen = random.Random(int(os.environ.get("VRUN_RANDOM_SEED", "3")))
    slow_scans(cluster, 200)
    number = 0
    for _ in range(6):
        end_home(cluster)
        for _ in range(30):
            change(chosen, here, number := number + 1)
        for _ in range(4):
            change(chosen, here, number := number + 1)
            expected = sorted(f"{hashlib.sha256(p.read_bytes()).hexdigest()}  ./{p.relative_to(here)}"
                              for p in here.rglob("*") if p.is_file())
            r = cluster.run("vrun", "-D", "/root/place", "--", "sh", "-c", "find . -type f -exec sha256sum {} +")
            assert sorted(r.stdout.splitlines()) == expected, (number, r, cluster.logs())
