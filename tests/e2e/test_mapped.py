# SPDX-License-Identifier: Apache-2.0
"""Programs at home that write through shared mappings (np.memmap, LMDB): no event tells of it, and jobs see it all the same."""
import contextlib
import itertools
import mmap
import subprocess
import time

from cluster import wait_until
from test_fs_restart import both_views


def known(cluster, store, path):
    """Waits until home has found the mapping, which it looks for in a twentieth of its time: from then on all that is stored is seen.
    One value may be seen before, with an event of the file's that is older."""
    values = itertools.cycle(b"123456789")

    def seen():
        value = next(values)
        store(value)
        return cluster.sh(f"head -c 1 {path}").stdout == chr(value)
    wait_until("home knows the mapping", lambda: seen() and seen())


@contextlib.contextmanager
def mapped(path):
    with open(path, "r+b") as f, mmap.mmap(f.fileno(), 0) as array:
        f.close()
        yield array


@both_views
def test_what_is_stored_is_seen_by_the_next_run(sturdy, view):
    cluster = sturdy(view=view)
    path = cluster.root / "root/array"
    path.write_bytes(b"0" * (1 << 20))
    assert cluster.sh("head -c 1 /root/array").stdout == "0"
    with mapped(path) as array:
        def store(value):
            array[0] = array[-1] = value
        known(cluster, store, "/root/array")
        for value in b"abcdefgh":
            store(value)
            done = cluster.sh("head -c 1 /root/array; tail -c 1 /root/array")
            assert (done.stdout, done.stderr) == (2 * chr(value), ""), done
    assert cluster.sh("head -c 1 /root/array").stdout == "h"


def test_a_job_that_runs_sees_it(sturdy):
    cluster = sturdy(view="live")
    path = cluster.root / "root/array"
    path.write_bytes(b"0" * 8192)
    with mapped(path) as array:
        p = cluster.popen("vrun", "-D", "/root", "--", "bash", "-c",
                          "for v in a b c d; do until [ $(head -c 1 array) = $v ]; do sleep 0.05; done; echo $v; done",
                          stdout=subprocess.PIPE, text=True)
        for value in "abcd":
            array[0] = ord(value)
            assert p.stdout.readline() == value + "\n"
        assert p.wait(20) == 0


@both_views
def test_a_program_that_makes_an_array_and_ends(sturdy, view):
    """As np.memmap(mode="w+") does: what is stored last is seen, whatever was read in between."""
    cluster = sturdy(view=view)
    for turn in range(4):
        path = cluster.root / f"root/array{turn}"
        path.write_bytes(b"")
        with open(path, "r+b") as f:
            f.truncate(1 << 16)
        with mapped(path) as array:
            array[:5] = b"first"
            time.sleep(turn * 0.02)
            assert cluster.sh(f"head -c 5 {path.name}").stdout in ("first", 5 * "\0")
            array[:5] = b"final"
        assert cluster.sh(f"head -c 5 {path.name}").stdout == "final"


def test_in_another_place_of_another_namespace(sturdy):
    """As in a container that has the project at /work."""
    cluster = sturdy(view="live")
    project = cluster.root / "root/project"
    project.mkdir()
    path = project / "array"
    path.write_bytes(b"0" * 8192)
    program = """
import mmap, sys
with open("/mnt/array", "r+b") as f:
    array = mmap.mmap(f.fileno(), 0)
for line in sys.stdin:
    array[0] = ord(line[0])
    print("stored", flush=True)
"""
    p = subprocess.Popen(["unshare", "-m", "sh", "-c", f"mount --bind {project} /mnt && exec /usr/bin/python3 -c '{program}'"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        def store(value):
            p.stdin.write(chr(value) + "\n")
            p.stdin.flush()
            assert p.stdout.readline() == "stored\n"
        known(cluster, store, "/root/project/array")
        for value in "abcd":
            store(ord(value))
            assert cluster.sh("head -c 1 /root/project/array").stdout == value
    finally:
        p.stdin.close()
        p.wait(10)
