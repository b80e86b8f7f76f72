# SPDX-License-Identifier: Apache-2.0
"""All that a root may hold, compared with home field by field, in both views: what a job sees is what is here."""
import os
import pathlib
import shutil
import socket
import subprocess

import pytest

from test_cache import OtherHome

VIEWS = ["live", "frozen"]

# One line for each name below a directory: type and mode, owners, device, size, links, times, blocks, where it has data, content,
# link target, attributes. Of directories no size, link count and ctime (docs/known-issues.md). It goes down by chdir, since paths
# may be longer than the kernel takes.
WALK = r"""
import errno, hashlib, os, stat, sys

def data(fd, size):
    at, found = 0, []
    while at < size:
        try:
            first = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as e:
            if e.errno != errno.ENXIO:
                raise
            break
        at = os.lseek(fd, first, os.SEEK_HOLE)
        found.append((first, at))
    return found

def look(name, said):
    s = os.lstat(name)
    fields = [oct(s.st_mode), s.st_uid, s.st_gid, s.st_mtime_ns]
    if not stat.S_ISDIR(s.st_mode):
        fields += [s.st_nlink, s.st_ctime_ns, s.st_size]
    if stat.S_ISREG(s.st_mode):
        fd = os.open(name, os.O_RDONLY)
        parts, digest = data(fd, s.st_size), hashlib.sha256()
        for first, end in parts if s.st_size > 1 << 30 else [(0, s.st_size)]:
            while first < end:
                piece = os.pread(fd, min(1 << 20, end - first), first)
                assert piece, "short"
                digest.update(piece)
                first += len(piece)
        os.close(fd)
        fields += [s.st_blocks, parts, digest.hexdigest()]
    if stat.S_ISLNK(s.st_mode):
        fields.append(os.readlink(name))
    names = [] if len(said) > 4000 else sorted(os.listxattr(name, follow_symlinks=False))
    print(repr((said, fields, [(a, os.getxattr(name, a, follow_symlinks=False)) for a in names])))
    return s

def walk(said):
    for entry in sorted(os.listdir(b".")):
        if not said and entry in OF_THE_JOB or (said, entry) == (b"/etc", b"hosts"):
            continue
        if stat.S_ISDIR(look(entry, said + b"/" + entry).st_mode):
            here = os.open(b".", os.O_PATH)
            os.chdir(entry)
            walk(said + b"/" + entry)
            os.fchdir(here)
            os.close(here)

OF_THE_JOB = {b"proc", b"sys", b"dev", b"tmp", b"run"}
os.chdir(sys.argv[1])
walk(b"")
"""


def make_tree(top):
    """What `top` may hold beside plain files. A socket that must stay open is returned."""
    noise = os.urandom(1 << 20)
    (top / "file").write_bytes(noise * 3)
    os.link(top / "file", top / "hard")
    os.utime(top / "file", ns=(1_600_000_000_123_456_789, 1_500_000_000_987_654_321))
    os.chown(top / "file", 1000, 4242)
    os.chmod(top / "file", 0o4751)
    os.symlink("file", top / "soft")
    os.link(top / "soft", top / "soft-too", follow_symlinks=False)
    os.symlink("x" * 4095, top / "far")
    os.symlink(b"\xff\n", top / "odd-target")
    os.mkfifo(top / "fifo")
    os.mknod(top / "null", 0o666 | 0o020000, os.makedev(1, 3))
    os.mknod(top / "loop", 0o660 | 0o060000, os.makedev(7, 300))
    s = socket.socket(socket.AF_UNIX)
    cwd = os.getcwd()
    os.chdir(top)
    s.bind("sock")
    os.chdir(cwd)
    for name in [b"new\nline", b"\xff\xfe no utf-8", b"x" * 255, "é✓".encode(), b" -rf *", b"'\"", b"\x01"]:
        (top / os.fsdecode(name)).write_bytes(name)
    (top / "empty").touch()
    for name, when in (("before", -123_456_789_123), ("epoch", 0), ("late", 7_000_000_000_000_000_001)):
        (top / name).touch()
        os.utime(top / name, ns=(when, when))
    # Sparse: holes at the begin, in the middle and at the end, below and above 1 MiB and 4 GiB; nothing but a hole; none.
    for name, size, parts in (("tail", 300_000, [0]), ("head", 300_000, [290_000]), ("inner", 300_000, [0, 290_000]),
                              ("hole", 300, []), ("large-hole", 3 << 20, []), ("large", 50 << 20, [20 << 20, (50 << 20) - 3]),
                              ("huge", (5 << 30) + 7, [0, (4 << 30) - 50, 5 << 30])):
        with open(top / f"sparse-{name}", "wb") as f:
            f.truncate(size)
            for at in parts:
                f.seek(at)
                f.write(noise[:min(100, size - at)])
    (top / "marked/below").mkdir(parents=True)
    for path in ("file", "empty", "marked", "marked/below"):
        os.setxattr(top / path, "user.note", b"a\0b")
    os.setxattr(top / "empty", "user.none", b"")
    os.setxattr(top / "empty", "user.much", noise[:3000])
    shutil.copy("/bin/true", top / "able")
    subprocess.run(["setcap", "cap_net_raw+ep", top / "able"], check=True)
    subprocess.run(["setfacl", "-m", "u:1000:rw,g:33:r", top / "empty"], check=True)
    subprocess.run(["setfacl", "-m", "u:1000:rwx", "-m", "d:u:1001:rx,d:g:44:-", top / "marked"], check=True)
    (top / "bits").mkdir()
    os.chmod(top / "bits", 0o7711)
    deep = b"d" * 255
    os.chdir(top)
    for _ in range(20):
        os.mkdir(deep)
        os.chdir(deep)
    pathlib.Path("leaf").write_text("deeper than PATH_MAX")
    os.chdir(cwd)
    return s


@pytest.mark.seconds(120)
@pytest.mark.parametrize("view", VIEWS)
def test_the_whole_root_is_homes(sturdy, view):
    cluster = sturdy(view=view)
    for left in (cluster.root / "root").iterdir():  # by other tests: keys, which no job sees
        shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    top = cluster.root / "root/rich"
    top.mkdir()
    s = make_tree(top)
    (cluster.root / "root/walk.py").write_text(WALK)
    local = subprocess.run(["/usr/bin/python3", cluster.root / "root/walk.py", cluster.root], capture_output=True, text=True, check=True)
    here = local.stdout.splitlines()
    for _ in range(2):  # fetched, then from the caches
        there = cluster.vrun("--", "python3", "/root/walk.py", "/", check=True).stdout.splitlines()
        assert [pair for pair in zip(here, there) if pair[0] != pair[1]][:3] == [] and len(here) == len(there)
    # A copy of what is sparse is sparse, and costs no more than its data.
    before = int(cluster.json("status")["served_bytes"])
    r = cluster.sh("cd rich && cp sparse-huge /tmp/copy && stat -c '%s %b' sparse-huge /tmp/copy", check=True)
    assert len(set(r.stdout.splitlines())) == 1
    assert int(cluster.json("status")["served_bytes"]) - before < 1 << 20
    s.close()


@pytest.mark.parametrize("view", VIEWS)
def test_what_a_job_changes_keeps_an_owner_that_has_no_id_there(sturdy, view):
    cluster = sturdy(view=view)
    for name in ("mode", "content", "both"):
        (cluster.root / "root" / name).write_text("old\n")
        os.chown(cluster.root / "root" / name, 3_000_000, 3_000_001)
    r = cluster.sh("stat -c %u mode; chmod 640 mode; echo new >> content; echo new > both; chmod 600 both; echo x > made")
    assert r.returncode == 0, r.stderr
    assert r.stdout == "65534\n"
    for name, text, mode in (("mode", "old\n", 0o640), ("content", "old\nnew\n", 0o644), ("both", "new\n", 0o600)):
        s = (cluster.root / "root" / name).stat()
        assert (s.st_uid, s.st_gid, s.st_mode & 0o777) == (3_000_000, 3_000_001, mode), name
        assert (cluster.root / "root" / name).read_text() == text
    assert (cluster.root / "root/made").stat().st_uid == 0


@pytest.mark.seconds(120)
@pytest.mark.parametrize("view", VIEWS)
def test_a_user_of_a_directory_service_owns_their_files(sturdy, view):
    """Ids above 65535, as such services give them out."""
    uid, gid, team = 1_200_345, 1_200_400, 3_999_999_999
    cluster = sturdy(view=view)
    root = cluster.root
    ann = root / "home/ann"
    ann.mkdir(mode=0o700)
    (ann / "private").write_text("mine\n")
    (ann / "private").chmod(0o600)
    (ann / "of-the-team").write_text("ours\n")
    for path, owner, group in ((ann, uid, gid), (ann / "private", uid, gid), (ann / "of-the-team", 4242, team)):
        os.chown(path, owner, group)
    (ann / "of-the-team").chmod(0o640)
    home = OtherHome(cluster, "ann@corp", root)
    for path in [home.directory, *home.directory.rglob("*")]:
        os.chown(path, uid, gid)
    for path in (cluster.directory, root.parent):
        path.chmod(0o755)
    try:
        def vrun(script):
            return home.run("vrun", "-D", "/home/ann", f"--view={view}", "--", "sh", "-c", script, user=uid, group=gid, extra_groups=[team])
        r = vrun("id -u; id -g; cat private of-the-team; stat -c '%u %g' . private of-the-team; echo new > made; stat -c '%u %g' made")
        assert r.returncode == 0, r.stderr
        assert r.stdout == f"{uid}\n{gid}\nmine\nours\n{uid} {gid}\n{uid} {gid}\n4242 {team}\n{uid} {gid}\n"
        made = (ann / "made").stat()
        assert (made.st_uid, made.st_gid) == (uid, gid) and (ann / "made").read_text() == "new\n"
        r = vrun("cat made; chown :%d made; echo more >> private; stat -c '%%u %%g' made private" % team)
        assert r.stdout == f"new\n{uid} {team}\n{uid} {gid}\n", r.stderr
        assert (ann / "made").stat().st_gid == team and (ann / "private").read_text() == "mine\nmore\n"
    finally:
        home.close()
