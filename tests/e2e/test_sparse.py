# SPDX-License-Identifier: Apache-2.0
"""Sparse files of 64 GiB: every copy that we make costs their data."""
import mmap
import os
import subprocess
import time

import pytest

from cluster import wait_until
from test_fs_restart import both_views

pytestmark = pytest.mark.seconds(120)
SIZE = 64 << 30
FAST = 20   # s; reading the holes takes a minute

# As LMDB with a write map: a file that is mapped as a whole, written here and there and flushed.
STORE = f"""
import mmap, os, sys, time
fd = os.open("map", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, {SIZE})
m = mmap.mmap(fd, {SIZE})
slowest = 0
for turn in range(4):
    for i in range(16):
        at = (i << 32) + (turn << 20)
        m[at:at + 5] = b"turn%d" % turn
    begin = time.monotonic()
    m.flush()
    os.fsync(fd)
    slowest = max(slowest, time.monotonic() - begin)
print(int(slowest))
"""


def right(path, turns=4):
    assert path.stat().st_size == SIZE and path.stat().st_blocks * 512 < 256 << 20
    with open(path, "rb") as f:
        for i in range(16):
            for turn in range(turns):
                assert os.pread(f.fileno(), 6, (i << 32) + (turn << 20)) == b"turn%d\0" % turn, (i, turn)


@both_views
def test_a_job_writes_one(sturdy, view):
    cluster = sturdy(view=view)
    (cluster.root / "root/store.py").write_text(STORE)
    path = cluster.root / "root/map"
    for _ in range(2):   # a new file, and one that home has
        begin = time.monotonic()
        r = cluster.sh("python3 store.py")
        assert (r.returncode, r.stderr) == (0, ""), r
        assert int(r.stdout) < FAST and time.monotonic() - begin < 2 * FAST
        right(path)


def test_home_changes_one_that_a_frozen_job_needs(sturdy):
    cluster = sturdy(view="frozen")
    path = cluster.root / "root/map"
    with open(path, "wb") as f:
        f.truncate(SIZE)
        for i in range(16):
            os.pwrite(f.fileno(), b"turn0", i << 32)
    p = cluster.popen("vrun", "-D", "/root", "--", "bash", "-c",
                      "echo ready; read go; tail -c +$((1 + (3 << 32))) map | head -c 5", stdin=subprocess.PIPE,
                      stdout=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "ready\n"
    time.sleep(2.5)   # home protects the files of a short run after two seconds
    begin = time.monotonic()
    with open(path, "r+b") as f:
        os.pwrite(f.fileno(), b"other", 3 << 32)
    assert time.monotonic() - begin < FAST
    out, _ = p.communicate("go\n", timeout=60)
    assert (p.returncode, out) == (0, "turn0")
