# SPDX-License-Identifier: Apache-2.0
"""A file that a job has open is read to its end, whatever the job does with its name."""
import itertools
import os
import time

import pytest

from cluster import wait_until

pytestmark = pytest.mark.seconds(120)

# `size` bytes a file, made by its name; 'over': another file is renamed over it.
READ_WHAT_HAS_NO_NAME = """
import os, sys, time
how, size = sys.argv[1], int(sys.argv[2])
for name in sorted(os.listdir(".")):
    fd = os.open(name, os.O_RDONLY)
    if how == "over":
        with open("../new", "w") as f:
            f.write("new")
        os.rename("../new", name)
    else:
        os.unlink(name)
    if how == "later":
        time.sleep(0.05)
    content = b""
    while data := os.read(fd, 1 << 20):
        content += data
    assert content == (name.encode() * size)[:size], (name, len(content))
    os.close(fd)
"""


@pytest.mark.parametrize("view", [pytest.param(v, marks=pytest.mark.view(v)) for v in ("live", "frozen")])
def test_what_lost_its_name_before_anything_was_read(sturdy, view):
    cluster = sturdy(view=view)
    for how, (size, count) in itertools.product(["at once", "later", "over"], [(4, 60), (300_000, 60), (3_000_000, 8)]):
        there = cluster.root / f"root/{how} {size}"
        there.mkdir()
        for i in range(count):
            name = f"name{i:03}"
            (there / name).write_bytes((name.encode() * size)[:size])
        r = cluster.vrun("-D", f"/root/{there.name}", "--", "python3", "-c", READ_WHAT_HAS_NO_NAME, how, str(size))
        assert (r.returncode, r.stdout, r.stderr) == (0, "", ""), (there.name, r)
        assert [(there / n).read_text() for n in os.listdir(there)] == (count * ["new"] if how == "over" else [])


def test_shells_idioms(sturdy):
    cluster = sturdy(view="live")
    data = cluster.root / "root/data"
    data.write_text("b\na\n" * 3000)
    assert cluster.sh("exec 3<data; rm data; sleep 0.1; wc -c <&3").stdout == "12000\n"
    assert not data.exists()
    data.write_text("b\na\n" * 3000)
    assert cluster.sh("(rm data; sleep 0.1; sort -u > data) < data").returncode == 0
    assert data.read_text() == "a\nb\n"


@pytest.mark.alone   # a removed file whose FORGET takes more than 3 ms counts as open, and is fetched
def test_a_tree_of_which_nothing_was_read_goes_as_fast_as_before(sturdy):
    """What nobody has open is not waited for, and no content of it is fetched."""
    cluster = sturdy(view="live")
    there = cluster.root / "root/many"
    for i in range(20):
        (there / f"d{i}").mkdir(parents=True)
        for j in range(100):
            (there / f"d{i}/f{j}").write_bytes(os.urandom(20_000))
    cluster.vrun("--", "true", check=True)
    served = [-1]

    def quiet():  # nothing more comes of the first run
        served.append(cluster.json("status")["served_bytes"])
        time.sleep(0.3)
        return served[-1] == served[-2]
    wait_until("home has served the first run", quiet)
    before = served[-1]
    assert cluster.sh("rm -r many").returncode == 0
    assert not there.exists()
    assert int(cluster.json("status")["served_bytes"]) - int(before) < 4_000_000, "of 40 MB"
