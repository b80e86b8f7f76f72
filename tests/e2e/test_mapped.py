# SPDX-License-Identifier: Apache-2.0
"""Programs at home that write through shared mappings (np.memmap, LMDB): no event tells of it, and jobs see it all the same."""
import contextlib
import mmap
import subprocess
import time

import pytest

from test_fs_restart import both_views

SECOND_LOOK = 1.1   # s: home looks for new mappings once a second at most


@contextlib.contextmanager
def mapped(path):
    with open(path, "r+b") as f, mmap.mmap(f.fileno(), 0) as array:
        f.close()
        yield array


@both_views
def test_what_is_stored_is_seen_by_the_next_run(own, view):
    cluster = own(view=view)
    path = cluster.root / "root/array"
    path.write_bytes(b"0" * (1 << 20))
    assert cluster.sh("head -c 1 /root/array").stdout == "0"
    with mapped(path) as array:
        time.sleep(SECOND_LOOK)
        for value in b"abcdefgh":
            array[0] = array[-1] = value
            done = cluster.sh("head -c 1 /root/array; tail -c 1 /root/array")
            assert (done.stdout, done.stderr) == (2 * chr(value), ""), done
    assert cluster.sh("head -c 1 /root/array").stdout == "h"


def test_a_job_that_runs_sees_it(own):
    cluster = own(view="live")
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
