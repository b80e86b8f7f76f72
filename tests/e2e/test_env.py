# SPDX-License-Identifier: Apache-2.0
"""Environments: whole roots that live on a storage host, and `vrun` inside of one."""
import os
import pathlib
import signal
import subprocess

import pytest

import miniroot
from cluster import wait_until


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """A small root without Python, as a tar."""
    directory = tmp_path_factory.mktemp("env")
    root = miniroot.make(directory / "root", with_python=False)
    (root / "etc/release").write_text("one\n")
    os.mkfifo(root / "root/fifo")
    os.chown(root / "home/user", 1000, 1000)
    subprocess.run(["tar", "-C", root, "-czf", directory / "root.tar.gz", "."], check=True)
    return directory / "root.tar.gz"


@pytest.fixture
def envs(cluster):
    """Of the shared cluster; what a test leaves is removed."""
    yield cluster
    for name in cluster.vctl("env", "list", "-o", "name").stdout.split():
        cluster.run("vctl", "env", "delete", name, "--force", check=True)
    assert left(cluster) == []


def left(cluster):
    """What lies in the environments' directory that belongs to none."""
    where = cluster.directory / "home/env"
    return sorted(str(p.relative_to(where)) for p in [*where.glob(".new-*"), *where.glob("envs-*"), *where.glob("layers/*"),
                                                       *where.glob("envs/*")])


def shell(cluster, name, script, **kw):
    return cluster.run("vctl", "env", "shell", name, "--", "sh", "-c", script, **kw)


def refused(cluster, *words):
    r = cluster.run("vctl", "env", *words)
    assert r.returncode in (1, 2) and r.stderr.count("\n") == 1, (words, r)
    return r.stderr


def test_made_of_a_tar_used_cloned_and_deleted(envs, archive):
    envs.vctl("env", "create", "base", "--from-tar", archive)
    r = shell(envs, "base", "cat /etc/release; stat -c %u:%F /home/user /root/fifo; echo $VRUN_ENV $HOME; hostname; ls /proc/self/exe "
              "/dev/null; echo two > /etc/release; exit 7")
    assert r.returncode == 7, r
    assert r.stdout == "one\n1000:directory\n0:fifo\nbase /root\nbase\n/dev/null\n/proc/self/exe\n"
    # A clone has what its source has now, and from there on each its own.
    envs.vctl("env", "clone", "base", "copy")
    envs.vctl("env", "create", "more", "--from-env", "copy")
    shell(envs, "copy", "cat /etc/release && echo three > /etc/release && rm -r /home/user && mv /mnt /moved", check=True)
    assert shell(envs, "base", "cat /etc/release; ls -d /home/user /mnt", check=True).stdout == "two\n/home/user\n/mnt\n"
    assert shell(envs, "more", "cat /etc/release; ls -d /home/user", check=True).stdout == "two\n/home/user\n"
    assert shell(envs, "copy", "cat /etc/release; ls -d /moved; ls /home", check=True).stdout == "three\n/moved\n"
    listed = {e["name"]: e for e in envs.json("env", "list")["environments"]}
    assert set(listed) == {"base", "copy", "more"} and listed["copy"]["from"] == "clone base"
    assert "layers" in envs.vctl("env", "show", "copy").stdout
    # What a clone stands on outlives its source.
    envs.vctl("env", "delete", "base")
    assert shell(envs, "more", "cat /etc/release", check=True).stdout == "two\n"


def test_shells_share_an_environment_and_hold_it(envs, archive):
    envs.vctl("env", "create", "used", "--from-tar", archive)
    held = envs.popen("vctl", "env", "shell", "used", "--", "sh", "-c", "echo mine > /tmp/mark; echo ready; read line", stdin=subprocess.PIPE,
                      stdout=subprocess.PIPE, text=True)
    assert held.stdout.readline() == "ready\n"
    # The second one sees the first one's processes and files.
    assert shell(envs, "used", "cat /tmp/mark; grep -c . /proc/2/comm", check=True).stdout == "mine\n1\n"
    assert "in use" in refused(envs, "delete", "used") and "in use" in refused(envs, "clone", "used", "other")
    assert envs.json("env", "list")["environments"][0]["in_use"]
    held.stdin.close()
    assert held.wait(30) == 1
    envs.vctl("env", "clone", "used", "other")
    # With force it ends.
    held = envs.popen("vctl", "env", "shell", "used", "--", "sh", "-c", "echo ready; sleep 1000", stdout=subprocess.PIPE, text=True)
    assert held.stdout.readline() == "ready\n"
    envs.vctl("env", "delete", "used", "--force")
    assert held.wait(30) == 128 + signal.SIGKILL
    assert shell(envs, "other", "cat /tmp/mark", check=True).stdout == "mine\n"


def test_what_is_wrong_is_one_line_and_leaves_nothing(envs, archive, tmp_path):
    envs.vctl("env", "create", "taken", "--from-tar", archive)
    before = left(envs)
    assert "of that name" in refused(envs, "create", "taken", "--from-tar", archive)
    assert "of that name" in refused(envs, "clone", "taken", "taken")
    assert "no such environment" in refused(envs, "clone", "nothing", "new")
    assert "no such environment" in refused(envs, "shell", "nothing")
    assert "no name" in refused(envs, "create", "../x", "--from-tar", archive)
    assert "No such file" in refused(envs, "create", "new", "--from-tar", tmp_path / "nothing")
    (tmp_path / "text").write_text("no archive")
    refused(envs, "create", "new", "--from-tar", tmp_path / "text")
    subprocess.run(["tar", "-C", tmp_path, "-cf", tmp_path / "small.tar", "text"], check=True)
    assert "neither /bin nor /usr" in refused(envs, "create", "new", "--from-tar", tmp_path / "small.tar")
    assert "snapshot" in refused(envs, "create", "new", "--from-snapshot", "nothing")
    assert "wrong arguments" in refused(envs, "create", "new")
    assert "wrong arguments" in refused(envs, "create", "new", "--from-tar", archive, "--from-env", "taken")
    assert "not one of" in refused(envs, "make", "new")
    r = envs.run("vctl", "env", "list", user=65534, group=65534)
    assert r.returncode == 1 and "as root" in r.stderr and r.stderr.count("\n") == 1
    assert left(envs) == before


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_create_that_is_interrupted_leaves_nothing(envs, tmp_path, how):
    fifo = tmp_path / "slow.tar"
    os.mkfifo(fifo)
    writer = os.open(fifo, os.O_RDWR)  # a tar that never comes
    try:
        making = envs.popen("vctl", "env", "create", "slow", "--from-tar", fifo, stderr=subprocess.PIPE, text=True)
        where = envs.directory / "home/env"
        wait_until("it unpacks", lambda: list(where.glob(".new-*/tree")) and children(making.pid))
        tool = children(making.pid)[0]
        making.send_signal(how)
        making.wait(30)
        wait_until("tar is gone", lambda: not os.path.exists(f"/proc/{tool}") or state_of(tool) == "Z")
        if how == signal.SIGKILL:
            # The next one cleans up.
            refused(envs, "create", "other", "--from-tar", "/dev/null")
        assert left(envs) == []
    finally:
        os.close(writer)


def children(pid):
    return [int(c) for c in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"


def test_no_room_is_said_and_leaves_nothing(sturdy, archive):
    c = sturdy(fresh=0)
    where = c.directory / "home/env"
    where.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", where], check=True)
    try:
        assert "is full: free space" in refused(c, "create", "large", "--from-tar", archive)
        assert left(c) == []
    finally:
        subprocess.run(["umount", where], check=True)


@pytest.mark.seconds(180)
def test_vrun_inside_of_an_environment(envs, archive):
    envs.vctl("env", "create", "work", "--from-tar", archive)
    for view in ("frozen", "live"):
        r = shell(envs, "work", f"cd /root && echo {view} > in && vrun --view={view} -- sh -c 'cat in /etc/release; echo out of {view} > out; uname -n' && "
                  "cat out", timeout=120)
        assert r.returncode == 0, r.stdout + r.stderr + envs.logs()
        assert r.stdout.startswith(f"{view}\none\n") and r.stdout.endswith(f"out of {view}\n")
    # Nothing of it is at the home of the cluster's owner.
    assert not (envs.root / "root/out").exists()


@pytest.mark.seconds(180)
def test_made_of_a_snapshot(sturdy):
    c = sturdy()
    (c.root / "root/mark").write_text("then\n")
    c.vctl("snapshot", "create", "s", timeout=120)
    (c.root / "root/mark").write_text("now\n")
    c.vctl("env", "create", "again", "--from-snapshot", "s", timeout=120)
    r = shell(c, "again", "cat /root/mark; ls -A /", check=True)
    assert r.stdout.startswith("then\n") and ".vrun" not in r.stdout
    c.vctl("env", "delete", "again")
