# SPDX-License-Identifier: Apache-2.0
"""Roots that lead out of themselves, also while they change under the sandbox that is being made; many starts at once."""
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import pytest

# How many starts each race has. The whole file takes about a second for a hundred of them.
STARTS = int(os.environ.get("VRUN_SECURITY_STARTS", "400"))
IDS = 0x40000000   # of sandbox_run: this machine's id of the job's root
VIEWS = pytest.mark.parametrize("view", [["--live"], []], ids=["live", "frozen"])
PLACES = ("dev", "dev/null", "dev/pts", "dev/shm", "proc", "sys", "run", "tmp", "etc", "etc/ld.so.cache", "etc/resolv.conf", "etc/hosts", "usr/lib")


class Root:
    """A root of busybox, which the job's root owns, and beside it a directory of the node that nobody may reach."""
    def __init__(self, directory):
        self.path, self.victim = directory / "root", directory / "victim"
        for name in ("bin", "etc", "proc", "sys", "run", "tmp", "usr/lib", "dev/pts", "dev/shm", "other"):
            (self.path / name).mkdir(parents=True)
        shutil.copy("/bin/busybox", self.path / "bin/busybox")
        for name in ("dev/null", "etc/ld.so.cache", "etc/resolv.conf", "etc/hosts"):
            (self.path / name).write_text("of the root\n")
        self.victim.mkdir()
        for name in ("marker", "null", "file"):
            (self.victim / name).write_text("secret\n")
        self.victim.chmod(0o777)
        self.own()
        self.before = self.seen()

    def own(self):
        subprocess.run(["chown", "-hR", f"{IDS}:{IDS}", self.path], check=True)

    def seen(self):
        return {str(p): (p.lstat().st_mode, p.lstat().st_uid, p.read_text() if p.is_file() else "") for p in [self.victim, *self.victim.rglob("*")]}

    def targets(self):
        """What leads to the victim for somebody who follows links as this machine does."""
        return (str(self.victim), "../" * 20 + str(self.victim)[1:], f"/proc/1/root{self.victim}", f"/proc/self/root{self.victim}",
                f"/proc/self/cwd/../../../../../../..{self.victim}", "/proc/self/fd/7")


@pytest.fixture
def root(box):
    return Root(box.directory)


# Looks for the victim wherever it could have come to be, and writes to all places.
LOOK = """
for p in / /dev /dev/null /dev/pts /dev/shm /proc /sys /run /tmp /etc /usr/lib /other; do
  busybox cat $p/marker 2>/dev/null
  busybox touch $p/made 2>/dev/null
  busybox chmod 0700 $p 2>/dev/null
done
busybox cat /dev/null /etc/ld.so.cache /etc/resolv.conf /etc/hosts 2>/dev/null | busybox grep secret
[ "$(busybox stat -c %t:%T /dev/null)" = 1:3 ] || exit 9
for p in /dev /proc /sys /run; do busybox grep -q " $p " /proc/mounts || exit 9; done
busybox grep -q 'Seccomp:.[01]' /proc/self/status 2>/dev/null && busybox echo unfiltered   # in a live view /proc may be away just now
[ "$(busybox readlink /proc/1/root)" = "" ] || busybox echo pid 1
exit 0
"""


def start(box, root, *options, **kw):
    return box.run("/bin/busybox", "sh", "-c", LOOK, options=["--root", str(root.path), *options], env={"PATH": "/bin"}, **kw)


@VIEWS
def test_5_a_root_without_links_is_the_control(box, root, view):
    r = start(box, root, *view)
    assert (r.returncode, r.stdout) == (0, ""), r
    # Outside each of the links leads there.
    (box.directory / "link").symlink_to(root.targets()[1])
    assert (box.directory / "link/marker").read_text() == "secret\n"


@VIEWS
@pytest.mark.parametrize("place", PLACES)
def test_5_a_place_of_the_root_that_is_a_link_leads_nowhere(box, root, place, view):
    for target in root.targets():
        path = root.path / place
        path.unlink(missing_ok=True) if path.is_symlink() or not path.is_dir() else shutil.rmtree(path)
        path.symlink_to(target)
        root.own()
        r = start(box, root, *view)
        assert root.seen() == root.before, (target, r)
        assert "secret" not in r.stdout and "unfiltered" not in r.stdout and r.returncode in (0, 9, 125), (target, r)
        if r.returncode == 125:
            assert r.stderr.count("\n") == 1, r


SWAP = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
a, b = (os.fsencode(p) for p in sys.argv[1:3])
print("ready", flush=True)
while True:
    libc.renameat2(-100, a, -100, b, 2)   # exchange
"""


@VIEWS
@pytest.mark.parametrize("place", ["dev", "proc", "run", "etc", "tmp"])
def test_race_a_place_that_becomes_a_link_while_the_sandbox_is_made(box, root, place, view):
    """CVE-2021-30465, CVE-2025-31133: the directory is checked and then is another one."""
    link = root.path / "link"
    link.symlink_to(root.targets()[1])
    root.own()
    swap = subprocess.Popen([sys.executable, "-c", SWAP, root.path / place, link], stdout=subprocess.PIPE, text=True)
    try:
        assert swap.stdout.readline() == "ready\n"
        started = refused = 0
        while started + refused < STARTS // 2:
            # Ends with the first one that is not whole; the time of each start is a line.
            r = start(box, root, *view, "--starts", str(STARTS // 2 - started - refused), timeout=240)
            assert r.returncode in (0, 9, 125) and all(line.isdigit() for line in r.stdout.split()), r
            assert root.seen() == root.before
            started += len(r.stdout.split())
            refused += r.returncode == 125
    finally:
        swap.kill()
        swap.wait()


def test_race_many_starts_at_once_see_nothing_of_each_other(box):
    """Each looks for what the others leave and leaves the same."""
    code = textwrap.dedent("""
        seen=$(ls /tmp /dev/shm | grep -c left)
        touch /tmp/left /dev/shm/left
        others=$(ls /proc | grep -c '^[0-9]')
        [ "$seen" = 0 ] && [ "$others" -le 5 ] && [ "$(grep -c 'Seccomp:.2' /proc/self/status)" = 1 ] || exit 7
        """)
    several = 4
    jobs = [box.popen("sh", "-c", code, options=["--starts", str(STARTS // 2)]) for _ in range(several)]
    for job in jobs:
        _, err = job.communicate(timeout=240)
        assert job.returncode == 0, err[-2000:]
    left = [p for job in jobs for p in pathlib.Path("/sys/fs/cgroup").rglob(f"box.{job.pid}*")]
    assert not left
