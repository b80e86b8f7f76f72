# SPDX-License-Identifier: Apache-2.0
"""What is fetched in one burst by a trace, while the ground moves: the cache's disk fills, the files change at home."""
import hashlib
import os
import subprocess

import pytest

from cluster import wait_until
from test_cache import fill, small_disk
from test_fs_restart import burst, start_burst, traced

pytestmark = pytest.mark.view("frozen")

FILE_BY_FILE = """
import hashlib, os
here = os.path.dirname(os.path.abspath(__file__))
print("ready", flush=True)
for i in range(60):
    try:
        print(i, hashlib.sha256(open(f"{here}/f{i}", "rb").read()).hexdigest())
    except OSError as e:
        print(i, "error")
"""


def test_the_disk_fills_in_a_burst(own):
    states = []
    cluster, digest = burst(own, lambda c: states.append(small_disk(c, 24, "n2")))
    try:
        p = start_burst(cluster)
        fill(states[0] / "filler")
        out, err = p.communicate(timeout=50)
        assert (p.returncode, out, err) == (6, f"{digest}\n", "")
        os.unlink(states[0] / "filler")
        again = cluster.vrun("--", "python3", "/root/traced/script.py")
        assert (again.returncode, again.stdout) == (6, f"ready\n{digest}\n"), again.stderr
    finally:
        cluster.stop_node("n2")
        subprocess.run(["umount", "-l", states[0]])


def forget_frames(cluster):
    """What home has compressed in advance is of the files as they were, and would be served: it is to read them."""
    def frames():
        return [f for d in (cluster.directory / "home").rglob("traces/frames") for f in d.glob("[0-9a-f]*")]
    wait_until("all frames are there", lambda: sum(f.stat().st_size for f in frames()) > 60 * 200_000)
    for frame in frames():
        frame.unlink()


def replace(path, content):
    (path.parent / "new").write_bytes(content)
    os.rename(path.parent / "new", path)


def rewrite(path, content):
    with open(path, "r+b") as f:
        f.write(content)


def truncate(path, content):
    os.truncate(path, len(content) // 2)


@pytest.mark.parametrize("change", [replace, rewrite, truncate])
def test_files_change_at_home_in_a_burst(own, change):
    """Each is read as it was when the job began, or is an error that names it: never a mixture, never something else."""
    cluster, contents, first = traced(own, FILE_BY_FILE)
    forget_frames(cluster)
    old = [hashlib.sha256(content).hexdigest() for content in contents]
    assert first.stdout == "ready\n" + "".join(f"{i} {old[i]}\n" for i in range(60)), first.stderr
    p = start_burst(cluster)
    changed = range(20, 60)
    here = cluster.root / "root/traced"
    for i in reversed(changed):
        change(here / f"f{i}", os.urandom(200_000))
    out, err = p.communicate(timeout=50)
    lines = dict(line.split() for line in out.splitlines())
    assert len(lines) == 60
    wrong = {i: lines[str(i)] for i in range(60) if lines[str(i)] not in ([old[i], "error"] if i in changed else [old[i]])}
    assert not wrong, err
    lost = [i for i in changed if lines[str(i)] == "error"]
    # At this link's rate the last of them cannot have come before they changed.
    assert lost and "changed" in err and any(f"f{i}" in err for i in lost), (lost, err)
    # The next job reads what is there now.
    wait_until("home has seen it", lambda: cluster.sh("cat traced/f20 | sha256sum").stdout.split()[0] ==
               hashlib.sha256((here / "f20").read_bytes()).hexdigest())
    assert cluster.sh("cat traced/f* | sha256sum").stdout == subprocess.run(
        "cat f* | sha256sum", shell=True, cwd=here, capture_output=True, text=True).stdout
