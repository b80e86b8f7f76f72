# SPDX-License-Identifier: Apache-2.0
"""A program that writes in place and neither closes its file nor calls fsync (HDF5, the logs of Keras): home has what is quiet."""
import subprocess

import pytest

from cluster import wait_until
from test_live import finish, inside, sh, started

pytestmark = pytest.mark.seconds(120)

# A header that is written again, and records behind it.
WRITER = """
import sys
f = open("log.bin", "w+b", buffering=0)
f.write(b"n=000" + bytes(1 << 20))
print("ready", flush=True)
for line in sys.stdin:
    f.seek(2)
    f.write(line[:3].encode())
    f.seek(500_000)
    f.write(line[:3].encode())
sys.exit(3)
"""


def go(p, text):
    p.stdin.write(text + "\n")
    p.stdin.flush()


def test_what_is_quiet_is_at_home(live):
    (live.place / "writer.py").write_text(WRITER)
    p = started(live, "exec python3 writer.py")
    log = live.place / "log.bin"
    wait_until("the new file is there", lambda: log.exists() and log.stat().st_size == (1 << 20) + 5, 30)
    for i in range(1, 4):
        go(p, f"{i:03}")
        wait_until("what was written in place is there",
                   lambda: log.read_bytes()[:5] == b"n=%03d" % i and log.read_bytes()[500_000:500_003] == b"%03d" % i, 30)
    finish(p)
    assert log.read_bytes()[:5] == b"n=003"


def test_a_file_of_homes(live):
    """Its rest is fetched before."""
    log = live.place / "log.bin"
    log.write_bytes(b"n=000" + b"x" * (3 << 20))
    (live.place / "writer.py").write_text(WRITER.replace('"w+b"', '"r+b"').replace('f.write(b"n=000" + bytes(1 << 20))', ""))
    p = started(live, "exec python3 writer.py")
    go(p, "001")
    wait_until("what was written in place is there", lambda: log.read_bytes()[:5] == b"n=001", 30)
    assert log.read_bytes()[5:500_000] == b"x" * (500_000 - 5) and log.stat().st_size == (3 << 20) + 5
    finish(p)


def test_a_program_that_never_pauses_for_a_second(live):
    script = """
import sys, time
f = open("log.bin", "w+b", buffering=0)
f.write(b"00000")
print("ready", flush=True)
sys.stdin.close()
i = 0
while True:
    i += 1
    f.seek(0)
    f.write(b"%05d" % i)
    time.sleep(0.3)
"""
    (live.place / "writer.py").write_text(script)
    p = started(live, "exec timeout 60 python3 writer.py")
    try:
        log = live.place / "log.bin"
        wait_until("some of it is there", lambda: log.exists() and int(log.read_bytes() or b"0") > 0, 40)
        seen = int(log.read_bytes())
        wait_until("and more", lambda: int(log.read_bytes() or b"0") > seen, 40)
    finally:
        p.terminate()
        p.wait(30)
