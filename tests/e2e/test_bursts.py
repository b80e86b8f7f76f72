# SPDX-License-Identifier: Apache-2.0
"""What is fetched in one burst by a trace, or read from a large file, while the ground moves: the cache's disk fills, the files
change at home."""
import contextlib
import hashlib
import os
import subprocess

import pytest

from cluster import wait_until
from test_cache import fill, small_disk
from test_fs_restart import both_views, burst, start_burst, traced, without_progress

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


@both_views
def test_the_disk_fills_in_a_burst(sturdy, view):
    with contextlib.ExitStack() as disks:
        states = []
        cluster, digest = burst(sturdy, view, lambda c: states.append(disks.enter_context(small_disk(c, 24, "n2"))))
        p = start_burst(cluster)
        fill(states[0] / "filler")
        out, err = p.communicate(timeout=50)
        assert (p.returncode, out, without_progress(err)) == (6, f"{digest}\n", ""), err
        os.unlink(states[0] / "filler")
        again = cluster.vrun("--", "python3", "/root/traced/script.py")
        assert (again.returncode, again.stdout) == (6, f"ready\n{digest}\n"), again.stderr
        # There is room again, so what runs there may write.
        wait_until("jobs write again", lambda: cluster.sh("echo on > /root/on").returncode == 0, 20)
        assert (cluster.root / "root/on").read_text() == "on\n"


def forget_frames(cluster):
    """What home has compressed in advance is of the files as they were, and would be served: it is to read them."""
    def frames():
        return list(cluster.home_state.glob("traces/frames/[0-9a-f]*"))
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


@both_views
@pytest.mark.parametrize("change", [replace, rewrite, truncate])
def test_files_change_at_home_in_a_burst(sturdy, change, view):
    """Each is read as it was when the job began (in a live view: or as it is now, or is an error that names it): never a
    mixture, never something else."""
    cluster, contents, first = traced(sturdy, FILE_BY_FILE, view)
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
    new = [hashlib.sha256((here / f"f{i}").read_bytes()).hexdigest() for i in range(60)]
    right = [[old[i], *(["error", new[i]] if view == "live" else [])] if i in changed else [old[i]] for i in range(60)]
    wrong = {i: lines[str(i)] for i in range(60) if lines[str(i)] not in right[i]}
    assert not wrong, err
    lost = [i for i in changed if lines[str(i)] == "error"]
    if view == "live":
        # At this link's rate the last of them cannot have come before they changed.
        assert any(lines[str(i)] != old[i] for i in changed), err
    else:
        assert p.returncode == first.returncode and without_progress(err) == "", err
    if lost:
        assert "changed" in err and any(f"f{i}" in err for i in lost), (lost, err)
    # The next job reads what is there now.
    wait_until("home has seen it", lambda: cluster.sh("cat traced/f20 | sha256sum").stdout.split()[0] ==
               hashlib.sha256((here / "f20").read_bytes()).hexdigest())
    assert cluster.sh("cat traced/f* | sha256sum").stdout == subprocess.run(
        "cat f* | sha256sum", shell=True, cwd=here, capture_output=True, text=True).stdout


READ_LARGE = """
import hashlib, os
digest = hashlib.sha256()
with open("/root/large", "rb", buffering=0) as f:
    digest.update(f.read(1 << 20))
    print("ready", flush=True)
    try:
        while piece := f.read(1 << 20):
            digest.update(piece)
        print(digest.hexdigest())
    except OSError as e:
        print(os.strerror(e.errno))
"""


@pytest.mark.parametrize("change", [replace, truncate])
def test_a_large_file_changes_at_home_while_a_live_job_reads_it(sturdy, change):
    """It gets one version or an error, never a mixture; who opens it afterwards gets what is there now."""
    cluster = sturdy(fresh=1, view="live", link=["--rate-mbit", "100"])
    large = cluster.root / "root/large"
    versions = [os.urandom(24 << 20), os.urandom(24 << 20)]
    large.write_bytes(versions[0])
    (cluster.root / "root/read.py").write_text(READ_LARGE)
    p = cluster.popen("vrun", "-D", "/root", "--", "python3", "read.py", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                      stderr=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "ready\n", p.stderr.read()
    change(large, versions[1])   # 23 MiB take two seconds: it is not here yet
    out, err = p.communicate(timeout=40)
    now = hashlib.sha256(large.read_bytes()).hexdigest()
    assert out.strip() in [hashlib.sha256(versions[0]).hexdigest(), now, "Input/output error"], (out, err)
    if out.strip() == "Input/output error":
        assert "/root/large" in err, err
    assert cluster.sh("sha256sum < large").stdout.split()[0] == now
