# SPDX-License-Identifier: Apache-2.0
"""The developer's root, elsewhere: what the job sees is what is here, and what it writes comes home."""
import csv
import hashlib
import json
import os
import pathlib
import socket
import stat
import shutil
import subprocess
import time

import pytest

from cluster import wait_until


@pytest.fixture
def here(cluster):
    """A directory of the root for one test; `name` is its path inside."""
    path = cluster.root / "root" / f"t{time.monotonic_ns()}"
    path.mkdir()
    return path


def inside(cluster, path):
    return "/" + str(path.relative_to(cluster.root))


def test_what_was_written_before_vrun_is_visible(cluster, here):
    for i in range(20):
        (here / "f").write_text(f"version {i}\n")
        (here / f"new{i}").touch()
        r = cluster.sh(f"cat {inside(cluster, here)}/f; ls {inside(cluster, here)}/new* | wc -l")
        assert r.stdout == f"version {i}\n{i + 1}\n"


def test_deletions_renames_and_modes_are_visible_at_once(cluster, here):
    (here / "a").mkdir()
    (here / "a/x").write_text("x")
    assert cluster.sh(f"cat {inside(cluster, here)}/a/x").stdout == "x"
    os.rename(here / "a", here / "b")
    os.chmod(here / "b/x", 0o640)
    r = cluster.sh(f"ls {inside(cluster, here)}; stat -c %a {inside(cluster, here)}/b/x; cat {inside(cluster, here)}/a/x")
    assert r.stdout == "b\n640\n" and r.returncode == 1
    (here / "b/x").unlink()
    assert cluster.sh(f"ls -A {inside(cluster, here)}/b").stdout == ""


# Types, modes, owners, nanosecond times, links, link targets, xattrs, contents of all below a directory.
WALK = r"""
import hashlib, os, stat, sys
top = os.fsencode(sys.argv[1])
for d, dirs, files in os.walk(top):
    dirs.sort()
    for n in sorted(dirs + files):
        p = os.path.join(d, n); s = os.lstat(p)
        content = b""
        if stat.S_ISREG(s.st_mode): content = hashlib.sha256(open(p, "rb").read()).hexdigest().encode()
        if stat.S_ISLNK(s.st_mode): content = os.readlink(p)
        x = [(a, os.getxattr(p, a, follow_symlinks=False)) for a in sorted(os.listxattr(p, follow_symlinks=False))]
        print(repr((p[len(top):], oct(s.st_mode), s.st_uid, s.st_gid, s.st_mtime_ns, s.st_nlink if not stat.S_ISDIR(s.st_mode) else 0, s.st_size if not stat.S_ISDIR(s.st_mode) else 0, content, x)))
"""


def make_rich_tree(here):
    """All that a root may hold. The socket lives as long as what is returned."""
    odd = os.fsencode(str(here))
    (here / "file").write_bytes(os.urandom(3_000_000))
    os.link(here / "file", here / "hard")
    os.symlink("file", here / "soft")
    os.symlink("loop", here / "loop")
    os.mkfifo(here / "fifo")
    s = socket.socket(socket.AF_UNIX)
    cwd = os.getcwd()
    os.chdir(here)
    s.bind("sock")
    os.chdir(cwd)
    with open(here / "sparse", "wb") as f:
        f.seek(50_000_000)
        f.write(b"end")
    for name in [b"new\nline", b"\xff\xfe invalid utf-8", b"x" * 255, "é✓".encode(), b" -rf *", b"'\""]:
        with open(odd + b"/" + name, "wb") as f:
            f.write(name)
    os.chmod(here / "file", 0o4751)
    os.chown(here / "file", 1000, 4242)
    os.utime(here / "file", ns=(1_600_000_000_123_456_789, 1_500_000_000_987_654_321))
    os.setxattr(here / "file", "user.note", b"a\0b")
    (here / "marked/below").mkdir(parents=True)
    (here / "marked/small").write_text("small, with an attribute")
    os.setxattr(here / "marked/small", "user.note", b"small")
    os.setxattr(here / "marked", "user.note", b"a directory")
    return s


def check_tree(cluster, here, seen_as):
    (cluster.root / "root/walk.py").write_text(WALK)
    local = subprocess.run(["/usr/bin/python3", cluster.root / "root/walk.py", here], capture_output=True, text=True, check=True).stdout
    remote = cluster.vrun("--", "python3", "/root/walk.py", seen_as)
    assert remote.returncode == 0, remote.stderr
    assert remote.stdout == local


def test_the_whole_tree_is_the_same(cluster, here):
    """Types, modes, owners, nanosecond times, links, link targets, xattrs, sparse files, contents."""
    s = make_rich_tree(here)
    check_tree(cluster, here, inside(cluster, here))
    s.close()


def test_large_files_and_files_with_attributes_are_changed_like_any_other(cluster, here):
    """On the node they lie in a mount of their own, above that of the rest."""
    for name in ("chmod", "append", "moved", "removed", "dir/inside", "marked"):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_bytes(b"0123456789abcdef" * 100_000 if name != "marked" else b"small")
    for name in ("marked", "dir"):
        os.setxattr(here / name, "user.note", b"kept")
    r = cluster.sh(f"""set -e; cd {inside(cluster, here)}
        chmod 600 chmod; echo end >> append; mv moved there; rm removed; mv dir other; echo new > other/beside; chmod 600 marked
        stat -c '%a %s %n' *; sha256sum < chmod""")
    assert r.returncode == 0, r.stderr
    wanted = {"append": 1_600_004, "chmod": 1_600_000, "marked": 5, "there": 1_600_000}
    assert {p.name: p.stat().st_size for p in here.iterdir() if p.is_file()} == wanted
    assert sorted(p.name for p in (here / "other").iterdir()) == ["beside", "inside"] and not (here / "dir").exists()
    assert (here / "append").read_bytes() == b"0123456789abcdef" * 100_000 + b"end\n"
    assert (here / "chmod").stat().st_mode & 0o777 == 0o600 and (here / "marked").stat().st_mode & 0o777 == 0o600
    assert os.getxattr(here / "marked", "user.note") == b"kept" and os.getxattr(here / "other", "user.note") == b"kept"
    # And what a first job made of them is what the next one sees.
    again = cluster.sh(f"cd {inside(cluster, here)} && stat -c '%a %s %n' *; sha256sum < chmod")
    assert again.stdout == r.stdout


def test_a_symlink_loop_is_eloop_and_a_fifo_works(cluster, here):
    os.symlink("b", here / "a")
    os.symlink("a", here / "b")
    r = cluster.sh(f"cd {inside(cluster, here)}; cat a; mkfifo p; (echo through > p) & cat p")
    assert "levels of symbolic links" in r.stderr and r.stdout == "through\n"


def served(cluster):
    """Bytes that home has sent once it sends no more: what is fetched ahead comes after the command may have ended."""
    seen = [-2, -1]

    def rests():
        seen.append(int(cluster.json("status")["served_bytes"]))
        time.sleep(0.2)
        return seen[-1] == seen[-2] == seen[-3]
    wait_until("home rests", rests)
    return seen[-1]


def test_only_what_is_touched_moves(cluster, here):
    cluster.sh("cat /dev/null | sha256sum; dd if=/dev/null 2>&1")   # the programs and their libraries
    (here / "big").write_bytes(os.urandom(64 << 20))
    (here / "small").write_text("small")
    before = served(cluster)
    assert cluster.sh(f"cat {inside(cluster, here)}/small").stdout == "small"
    assert served(cluster) - before < 2 << 20
    r = cluster.sh(f"dd if={inside(cluster, here)}/big bs=4k skip=5000 count=1 2>/dev/null | sha256sum")
    assert r.stdout.split()[0] == hashlib.sha256((here / "big").read_bytes()[5000 * 4096:5001 * 4096]).hexdigest()
    assert served(cluster) - before < 8 << 20


def test_status_json_says_how_much_moved(cluster, here, tmp_path):
    size = 3 << 20
    (here / "f").write_bytes(os.urandom(size))
    cluster.vrun("--", "cat", "/dev/null", check=True)
    served(cluster)
    for least, most in ((size, size + (1 << 20)), (0, 1 << 16)):
        cluster.vrun("--status-json", str(tmp_path / "s"), "--", "cat", inside(cluster, here) + "/f", text=False, check=True)
        assert least <= json.loads((tmp_path / "s").read_text())["fetched_bytes"] <= most


def test_a_second_run_moves_nothing(cluster, here):
    (here / "data").write_bytes(os.urandom(8 << 20))
    cluster.sh(f"cat {inside(cluster, here)}/data > /dev/null", check=True)
    before = served(cluster)
    cluster.sh(f"cat {inside(cluster, here)}/data > /dev/null", check=True)
    assert served(cluster) - before < 100_000


def test_private_keys_are_not_served(cluster):
    home = cluster.root / "root"
    for name, text in {".ssh/id_ed25519": "SECRET", ".ssh/config": "fine", ".aws/credentials": "SECRET", ".kube/config": "SECRET",
                       ".docker/config.json": "SECRET", ".config/gcloud/x": "SECRET"}.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    r = cluster.sh("cat /root/.ssh/id_ed25519 /root/.aws/credentials /root/.kube/config /root/.docker/config.json "
                   "/root/.config/gcloud/x /root/.ssh/config 2>/dev/null")
    assert r.stdout == "fine"
    r = cluster.vrun("--expose", "/root/.aws", "--", "cat", "/root/.aws/credentials")
    assert r.stdout == "SECRET"


@pytest.mark.parametrize("view", ["live", "frozen"])
def test_private_files_under_other_names_are_not_served(cluster, here, view):
    home = cluster.root / "root"
    secret = home / ".aws/credentials"
    secret.parent.mkdir(exist_ok=True)
    secret.write_text("SECRET")
    secret.chmod(0o600)
    (cluster.root / "etc/shadow").write_text("SECRET")
    os.link(secret, here / "linked")
    for name, mode in {"deploy": 0o600, "example": 0o644}.items():
        (here / name).write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nKEY\n")
        (here / name).chmod(mode)
    (here / "mounted").mkdir()
    (here / "notes").write_text("fine")
    (here / "notes").chmod(0o600)
    subprocess.run(["mount", "--bind", secret.parent, here / "mounted"], check=True)
    try:
        script = "cat linked mounted/credentials deploy /etc/shadow 2>/dev/null; cat notes; grep -c KEY example"
        r = cluster.vrun(f"--view={view}", "-D", inside(cluster, here), "--", "sh", "-c", script)
        assert r.stdout == "fine2\n", r.stderr
    finally:
        subprocess.run(["umount", "-l", here / "mounted"], check=True)
    r = cluster.vrun("--view=frozen", "--expose", f"{inside(cluster, here)}/deploy", "--", "grep", "-c", "KEY", f"{inside(cluster, here)}/deploy")
    assert r.stdout == "2\n", r.stderr


@pytest.mark.parametrize("view", ["live", "frozen"])
def test_a_credential_that_was_renamed_is_not_served(cluster, here, view):
    secret = cluster.root / "root/.netrc"
    secret.write_text("machine x login y password SECRET\n")
    secret.chmod(0o600)
    cluster.vrun("--", "true", check=True)   # home has seen it there
    secret.rename(here / "x")
    (here / "same").write_text("machine x login y password SECRET\n")
    r = cluster.vrun(f"--view={view}", "-D", inside(cluster, here), "--", "sh", "-c", "cat x; echo; wc -l < same")
    assert "SECRET" not in r.stdout and r.stdout.endswith("1\n"), r
    assert f"withheld from the job: {inside(cluster, here)}/x" in r.stderr and "--expose" in r.stderr, r.stderr
    assert r.stderr.count("withheld from the job") == 1
    r = cluster.vrun("--view=frozen", "--expose", f"{inside(cluster, here)}/x", "--", "cat", f"{inside(cluster, here)}/x")
    assert "SECRET" in r.stdout, r.stderr


@pytest.mark.parametrize("view", ["live", "frozen"])
def test_a_private_file_that_a_program_asks_for_is_named(cluster, view):
    """Not as an argument, which vrun sees at home: as a program does that has its own idea of where a file is."""
    home = cluster.root / "root"
    secret = home / ".netrc"
    secret.unlink(missing_ok=True)

    def run(script):
        r = cluster.vrun(f"--view={view}", "--", "sh", "-c", f"cd /root; {script}; sleep 0.3", check=True)   # the line comes by itself
        assert "SECRET" not in r.stdout
        return [line for line in r.stderr.splitlines() if "withheld from the job" in line]
    asks = "cat .netrc .pgpass 2>/dev/null"
    assert run(asks) == []   # there is none
    secret.write_text("machine x login y password SECRET\n")
    secret.chmod(0o600)
    for _ in range(2):
        told = run(asks)
        assert len(told) == 1 and "withheld from the job: /root/.netrc: " in told[0] and "--expose /root/.netrc" in told[0], told
    assert run("{ ls -lA . .ssh; find . -maxdepth 2; } > /dev/null") == []
    r = cluster.vrun("--view=frozen", "--expose", "/root/.netrc", "--", "sh", "-c", "cd /root; cat .netrc; sleep 0.3")
    assert "SECRET" in r.stdout and "withheld" not in r.stderr
    r = cluster.vrun(f"--view={view}", "--", "sh", "-c", "cat $0; sleep 0.3", "/root/.netrc")   # once
    assert "it is private and not served to jobs" in r.stderr and "withheld" not in r.stderr, r.stderr
    assert run("test -e .ssh/id_rsa") == []
    (home / ".ssh").mkdir(exist_ok=True)
    (home / ".ssh/id_rsa").write_text("SECRET")
    assert len(run("test -e .ssh/id_rsa")) == 1
    (home / ".ssh/id_rsa").unlink()
    secret.unlink()
    assert run(asks) == []


@pytest.mark.parametrize("view", ["live", "frozen"])
def test_a_job_cannot_make_a_key_look_otherwise(cluster, here, view):
    """Home knows keys by their mode, size and beginning, and a job of the same user may write there."""
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\nSECRET\n"
    for name in ("opened", "longer"):
        (here / name).write_text(key)
        (here / name).chmod(0o600)
    d = inside(cluster, here)
    for script in ("chmod 644 opened; sleep 0.5; cat opened", "head -c 70000 /dev/zero >> longer"):
        assert "SECRET" not in cluster.vrun(f"--view={view}", "-D", d, "--", "sh", "-c", script).stdout, script
    r = cluster.vrun(f"--view={view}", "-D", d, "--", "sh", "-c", "cat opened longer 2>/dev/null; chmod 400 opened; echo end")
    assert r.stdout == "end\n", r
    for name in ("opened", "longer"):
        assert (here / name).read_text() == key and (here / name).stat().st_mode & 0o077 == 0, name


# --- what the job writes

def test_results_are_at_home_when_vrun_returns(cluster, here):
    p = inside(cluster, here)
    (here / "old").write_text("old")
    (here / "gone").write_text("gone")
    (here / "dir/sub").mkdir(parents=True)
    (here / "dir/sub/f").write_text("deep")
    r = cluster.sh(f"""set -e; cd {p}
      echo result > new; printf more >> old; rm gone; mkdir -p made/inner; echo x > made/inner/x; ln -s new link; ln new hard
      mv dir moved; chmod 600 new; touch -d 2001-02-03T04:05:06Z made; mkfifo pipe; truncate -s 1M sparse""")
    assert r.returncode == 0, r.stderr
    assert (here / "new").read_text() == "result\n" and stat.S_IMODE((here / "new").stat().st_mode) == 0o600
    assert (here / "old").read_text() == "oldmore"
    assert not (here / "gone").exists()
    assert (here / "made/inner/x").read_text() == "x\n" and int((here / "made").stat().st_mtime) == 981173106
    assert os.readlink(here / "link") == "new"
    assert (here / "hard").stat().st_ino == (here / "new").stat().st_ino
    assert not (here / "dir").exists() and (here / "moved/sub/f").read_text() == "deep"
    assert stat.S_ISFIFO((here / "pipe").stat().st_mode)
    assert (here / "sparse").stat().st_size == 1 << 20 and (here / "sparse").stat().st_blocks == 0


def test_a_directory_of_the_root_can_be_renamed(cluster, here):
    (here / "a").mkdir()
    for i in range(30):
        (here / f"a/{i}").write_text(str(i))
    r = cluster.vrun("--", "python3", "-c", f"import os; os.rename('{inside(cluster, here)}/a', '{inside(cluster, here)}/b')")
    assert r.returncode == 0, r.stderr
    assert sorted(os.listdir(here / "b"), key=int) == [str(i) for i in range(30)] and not (here / "a").exists()


def test_writes_of_a_failed_command_come_home_too(cluster, here):
    assert cluster.sh(f"echo partial > {inside(cluster, here)}/log; exit 9").returncode == 9
    assert (here / "log").read_text() == "partial\n"


def test_the_next_run_sees_what_the_last_one_wrote(cluster, here):
    for i in range(5):
        assert cluster.sh(f"echo {i} >> {inside(cluster, here)}/n; cat {inside(cluster, here)}/n").returncode == 0
    assert (here / "n").read_text() == "0\n1\n2\n3\n4\n"


@pytest.mark.view("frozen")
def test_a_file_that_changed_at_home_meanwhile_is_not_overwritten(cluster, here):
    (here / "f").write_text("before")
    p = cluster.popen("vrun", "-D", "/root", "--", "sh", "-c", f"cat {inside(cluster, here)}/f; echo; echo job > {inside(cluster, here)}/f; read go",
                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "before\n"
    (here / "f").write_text("edited at home")
    out, err = p.communicate("go\n", timeout=30)
    assert p.returncode == 0
    assert (here / "f").read_text() == "edited at home"
    beside = [x for x in os.listdir(here) if x.startswith("f.vrun-")]
    assert len(beside) == 1 and (here / beside[0]).read_text() == "job\n"
    assert beside[0] in err


def test_the_rows_of_all_jobs_of_a_sweep_are_there_and_a_conflict_is_told(cluster, here):
    (here / "results.csv").write_text("lr,acc\n")
    (here / "best").write_text("none\n")
    inode = (here / "results.csv").stat().st_ino
    command = ["sh", "-c", "sleep 1; echo $0,0.5 >> results.csv; echo $0 > best"]
    options = ["vbatch", "-D", inside(cluster, here), "-o", "out.%j"]
    jobs = [int(cluster.run(*options, "--parsable", "--", *command, str(i), check=True).stdout) for i in range(3)]
    followed = cluster.run(*options, "-f", "--", *command, "3", check=True)
    for job in jobs:
        cluster.vctl("wait", job)
    job = max(j["job"] for j in cluster.json("jobs", "--all")["jobs"])
    assert sorted((here / "results.csv").read_text().splitlines()) == ["0,0.5", "1,0.5", "2,0.5", "3,0.5", "lr,acc"]
    assert (here / "results.csv").stat().st_ino == inode and not list(here.glob("results.csv.vrun-*"))
    told = {j: cluster.json("job", j) for j in [*jobs, job]}
    beside = {int(f.name.rpartition("-")[2]) for f in here.glob("best.vrun-*")}
    assert len(beside) == 3
    assert {j for j, info in told.items() if info["conflicts"] == 1} == beside
    accounts = {int(row["job"]): row["conflicts"] for row in csv.DictReader(cluster.vctl("accounting").stdout.splitlines())}
    for j in beside:
        line = f"vrun: {inside(cluster, here)}/best changed at home while job {j} ran: its version is in {inside(cluster, here)}/best.vrun-{j}\n"
        assert told[j]["conflict_paths"] == [f"{inside(cluster, here)}/best"]
        assert line in (here / f"out.{j}").read_text()
        log = cluster.vctl("logs", j)
        assert line in log.stdout + log.stderr
        assert "conflicts:  1, changed at home meanwhile" in cluster.vctl("job", j).stdout
        assert accounts[j] == "1"
        if j == job:
            assert line in followed.stdout + followed.stderr


def test_many_small_files_come_home(cluster, here):
    r = cluster.sh(f"cd {inside(cluster, here)}; for d in 1 2 3 4 5; do mkdir $d; for f in $(seq 200); do echo $f > $d/$f; done; done")
    assert r.returncode == 0, r.stderr
    assert all((here / f"{d}/{f}").read_text() == f"{f}\n" for d in range(1, 6) for f in range(1, 201))


def test_discarded_writes_stay_away(cluster, here):
    assert cluster.vrun("--writes", "discard", "--", "sh", "-c", f"echo x > {inside(cluster, here)}/f").returncode == 0
    assert not (here / "f").exists()


def test_a_read_only_home_is_told_and_nothing_is_lost(cluster, here):
    sub = here / "ro"
    sub.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", sub], check=True)
    try:
        (sub / "f").write_text("as it was")
        subprocess.run(["mount", "-o", "remount,ro", sub], check=True)
        r = cluster.sh(f"echo changed > {inside(cluster, sub)}/f; cat {inside(cluster, sub)}/f")
        assert r.stdout in ("changed\n", "as it was")  # until home has refused it
        assert r.returncode == 125 and "ro/f" in r.stderr
        assert (sub / "f").read_text() == "as it was"
    finally:
        subprocess.run(["umount", "-l", sub], check=True)


@pytest.mark.parametrize("mount", ["tmpfs", "bind"])
def test_on_other_file_systems_of_home_jobs_write_as_on_the_root(cluster, here, mount):
    sub, elsewhere = here / "sub", here / "elsewhere"
    sub.mkdir()
    elsewhere.mkdir()
    subprocess.run(["mount", *(["-t", "tmpfs", "none"] if mount == "tmpfs" else ["--bind", elsewhere]), sub], check=True)
    try:
        for name in ("written", "appended", "removed", "replaced", "moved", "d/in", "gone/in", "touched"):
            (sub / name).parent.mkdir(exist_ok=True)
            (sub / name).write_text("old\n")
        os.link(sub / "written", sub / "other")
        r = cluster.sh(f"""set -e
            cd {inside(cluster, sub)}
            echo new > written; echo more >> appended; rm removed; echo new > new; mv new replaced; mv moved there
            mv d e; rm -r gone; chmod 600 touched""")
        assert (r.returncode, r.stdout, r.stderr) == (0, "", ""), r
        told = {str(f.relative_to(sub)): f.read_text() for f in sub.rglob("*") if f.is_file()}
        assert told == {"written": "new\n", "other": told["other"], "appended": "old\nmore\n", "replaced": "new\n", "there": "old\n",
                        "e/in": "old\n", "touched": "old\n"}
        assert sorted(d.name for d in sub.iterdir() if d.is_dir()) == ["e"] and (sub / "touched").stat().st_mode & 0o777 == 0o600
    finally:
        subprocess.run(["umount", "-l", sub], check=True)


# --- hostile and huge

def test_a_file_that_changes_while_it_is_read_is_never_a_mixture(cluster, here):
    f = here / "f"
    size = 24 << 20
    f.write_bytes(b"A" * size)
    p = cluster.popen("vrun", "-D", "/root", "--", "python3", "-c", f"""
import sys
f = open({inside(cluster, here)!r} + "/f", "rb", buffering=0)
first = f.read(65536)
print("read", flush=True)
sys.stdin.readline()
rest = b""
try:
    while c := f.read(1 << 20): rest += c
    print("whole", set(first + rest) == {{65}})
except OSError as e:
    print("error", e.errno)
""", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "read\n"
    f.write_bytes(b"B" * size)
    out, err = p.communicate("\n", timeout=60)
    if out.startswith("whole"):
        assert out == "whole True\n"
    else:
        assert out.startswith("error") and "f" in err and "changed" in err


@pytest.mark.seconds(400)
@pytest.mark.alone   # every home of the machine hears of each name
def test_a_directory_with_a_million_names(cluster, here):
    n = int(os.environ.get("VRUN_E2E_NAMES", "1000000"))
    d = here / "many"
    d.mkdir()
    try:
        fd = os.open(d, os.O_DIRECTORY)
        for i in range(n):
            os.close(os.open(f"name-{i:07}", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd))
        os.close(fd)
        r = cluster.sh(f"ls -f {inside(cluster, d)} | wc -l; cat {inside(cluster, d)}/name-0000042 && "
                       f"ls {inside(cluster, d)}/no-such", timeout=300)
        assert int(r.stdout) == n + 2 and r.returncode == 2
    finally:
        shutil.rmtree(d)  # tests with a root of their own begin with a copy of this one


def test_a_file_that_the_user_may_not_read_is_eacces(cluster, here):
    (here / "secret").write_text("secret")
    os.chmod(here / "secret", 0o600)
    r = cluster.vrun("--", "python3", "-c", f"""
import os
os.setgid(1000); os.setuid(1000)
try: open({inside(cluster, here)!r} + "/secret")
except PermissionError: print("denied")
""")
    assert "denied" in r.stdout or "Permission" in r.stderr
