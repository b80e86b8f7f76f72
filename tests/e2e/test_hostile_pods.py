# SPDX-License-Identifier: Apache-2.0
"""A hostile job on a cluster: what its root, its files and its processes do to the node, to home and to other jobs. The numbers are rows
of the list of attacks (docs/security.md says which test has which). The sandbox alone: tests/security."""
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import textwrap
import time

import pytest

from cluster import wait_until

pytestmark = pytest.mark.seconds(180)
VIEWS = pytest.mark.parametrize("view", ["live", "frozen"])
RACE_SECONDS = float(os.environ.get("VRUN_RACE_SECONDS", "4"))


@pytest.fixture
def outside(cluster):
    """A directory of this machine beside the cluster's root, which no job may reach."""
    place = pathlib.Path(cluster.root).parent / "outside"
    place.mkdir(mode=0o777)
    (place / "f").write_text("outside\n")
    before = seen(place)
    yield place
    assert seen(place) == before
    shutil.rmtree(place)


def seen(place):
    return {str(p): (p.lstat().st_mode, p.lstat().st_ino, p.read_text() if p.is_file() else "") for p in [place, *place.rglob("*")]}


# --- 7: what a root makes its programs load

LOADED = r"""
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) {
  char space[64] = "", program[256] = "";
  if (readlink("/proc/self/ns/user", space, sizeof space - 1) < 0 || readlink("/proc/self/exe", program, sizeof program - 1) < 0) return;
  const char* places[] = {"/root/loaded", "/var/lib/vrun/loaded", "/var/tmp/vrun-loaded"};
  for (int i = 0; i < 3; ++i) {
    const int file = open(places[i], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file >= 0) dprintf(file, "%s %s\n", space, program), close(file);
  }
}
unsigned la_version(unsigned v) { return v; }
int _nss_evil_getpwnam_r(void) { return 0; }
int gconv(void) { return 0; }
int gconv_init(void) { return 0; }
"""


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
@pytest.mark.parametrize("view", [pytest.param(v, marks=pytest.mark.view(v)) for v in ("live", "frozen")])
def test_7_what_a_root_preloads_runs_in_its_jobs_alone(sturdy, view, tmp_path):
    """Loader, name service, character sets, ldconfig and sh of the root: no process of the node loads or runs any of them."""
    c = sturdy()
    (tmp_path / "loaded.c").write_text(LOADED)
    library = c.root / "root/loaded.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "loaded.c"], check=True)
    (c.root / "etc/ld.so.preload").write_text("/root/loaded.so\n")
    (c.root / "etc/nsswitch.conf").write_text("passwd: evil files\ngroup: evil files\nhosts: evil files dns\n")
    libraries = next(p.parent for p in (c.root / "usr/lib").rglob("libc.so.6"))
    shutil.copy(library, libraries / "libnss_evil.so.2")
    (c.root / "usr/lib/gconv").mkdir(exist_ok=True)
    shutil.copy(library, c.root / "usr/lib/gconv/EVIL.so")
    (c.root / "usr/lib/gconv/gconv-modules").write_text("module EVIL// INTERNAL EVIL 1\nmodule INTERNAL EVIL// EVIL 1\n")
    for name in ("usr/sbin/ldconfig", "usr/sbin/ldconfig.real", "usr/bin/nvidia-smi"):
        (c.root / name).write_text("#!/bin/sh\nreadlink /proc/self/ns/user >> /root/loaded\n")
        (c.root / name).chmod(0o755)
    record = c.root / "root/loaded"
    job = c.popen("vrun", "-D", "/root", "--export", "ALL,LD_PRELOAD=/root/loaded.so,LD_AUDIT=/root/loaded.so,GCONV_PATH=/usr/lib/gconv,"
                  "GLIBC_TUNABLES=glibc.malloc.check=3,LD_LIBRARY_PATH=/root,BASH_ENV=/root/loaded,PYTHONPATH=/root", "--", "sh", "-c",
                  "id nobody; echo ready; read line", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said = ""
    while "ready" not in said:
        line = job.stdout.readline()
        assert line, job.communicate()[1] + c.logs()
        said += line
    mapped = {}
    for p in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if "loaded.so" in (p / "maps").read_text():
                mapped[p.name] = os.readlink(p / "ns/user")
        except OSError:
            pass
    job.communicate("\n", timeout=30)
    mine = os.readlink("/proc/self/ns/user")
    assert mapped and mine not in mapped.values()   # the job's own processes are the control
    wait_until("the job's writes are home", record.exists)
    spaces = {line.split()[0] for line in record.read_text().splitlines()}
    assert spaces and mine not in spaces
    assert not (c.nodes["n1"]["directory"] / "state/loaded").exists() and not os.path.exists("/var/tmp/vrun-loaded")
    for name in ("/root/loaded", "/var/lib/vrun/loaded"):
        assert not os.path.exists(name)


# --- 10: programs of the node that are inside

def test_10_the_nodes_program_in_a_job_cannot_be_changed(cluster):
    """/run/vrun/notify is a file of the node. CVE-2019-5736 changed such a file through /proc/self/exe."""
    said = cluster.vrun("--", "python3", "-c", """if True:
        import ctypes, os, subprocess, time
        libc = ctypes.CDLL(None, use_errno=True)
        path = "/run/vrun/notify"
        libc.mount(None, path.encode(), None, 32 | 4096, None)
        child = subprocess.Popen(["/run/vrun/rsh", "0", "sleep 2"])
        def attempts():
            yield lambda: open(path, "r+b")
            yield lambda: os.chmod(path, 0o777)
            yield lambda: os.truncate(path, 0)
            yield lambda: os.setxattr(path, "user.x", b"y")
            yield lambda: os.unlink(path)
            yield lambda: os.rename(path, "/run/vrun/gone")
            yield lambda: os.link(path, "/tmp/linked")
            for _ in range(200):
                yield lambda: open(f"/proc/{child.pid}/exe", "r+b")
                time.sleep(0.005)
        for attempt in attempts():
            try:
                attempt()
                print("did")
            except OSError:
                pass
        child.wait()
        print(os.stat(path).st_size > 1000)""", check=True).stdout
    assert said == "True\n"


def test_10_a_process_that_is_put_into_a_job_cannot_be_taken_over(cluster):
    """Processes that another pod's launcher begins come from init. They are raced for from the moment they are there."""
    said = cluster.vrun("--", "python3", "-c", """if True:
        import os, subprocess, sys, threading
        stop, bad = threading.Event(), set()
        mine = os.path.realpath("/proc/self/exe")
        def race():
            while not stop.is_set():
                for pid in os.listdir("/proc"):
                    if not pid.isdigit():
                        continue
                    try:
                        exe = os.readlink(f"/proc/{pid}/exe")
                    except OSError:
                        continue
                    if exe.startswith(("/usr/", "/bin/", "/run/vrun/")) or exe == mine:
                        continue
                    bad.add(exe)
                    for name in (f"/proc/{pid}/exe", f"/proc/{pid}/mem"):
                        try:
                            os.close(os.open(name, os.O_RDWR))
                            bad.add("opened " + name)
                        except OSError:
                            pass
        threads = [threading.Thread(target=race) for _ in range(2)]
        [t.start() for t in threads]
        ran = sum(subprocess.run(["/run/vrun/rsh", "0", "true"], stderr=subprocess.DEVNULL).returncode == 0 for _ in range(100))
        stop.set()
        [t.join() for t in threads]
        print(ran > 50, sorted(bad))""", check=True, timeout=120).stdout
    assert said == "True []\n"


# --- 17: links that change under whoever walks

SWAPS = """if True:
    import ctypes, os, sys
    libc = ctypes.CDLL(None, use_errno=True)
    os.chdir(sys.argv[1])
    print("ready", flush=True)
    while True:
        libc.renameat2(-100, b"d", -100, b"link", 2)"""


@VIEWS
def test_17_a_directory_of_home_that_becomes_a_link_shows_no_file_outside(cluster, outside, view):
    """Home itself exchanges them while jobs read through it: what they get is of the directory, or an error."""
    place = cluster.root / "root/links"
    (place / "d").mkdir(parents=True)
    (place / "d/f").write_text("inside\n")
    for name in ("link", "upwards"):
        (place / name).symlink_to(outside if name == "link" else "../" * 20 + str(outside)[1:])
    assert (place / "link/f").read_text() == (place / "upwards/f").read_text() == "outside\n"   # for this machine they lead there
    swaps = subprocess.Popen([sys.executable, "-c", SWAPS, place], stdout=subprocess.PIPE, text=True)
    try:
        assert swaps.stdout.readline() == "ready\n"
        end, rounds = time.monotonic() + RACE_SECONDS, 0
        while time.monotonic() < end:
            r = cluster.vrun(f"--view={view}", "--", "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do cat links/d/f links/link/f links/upwards/f 2>/dev/null; done; true",
                             timeout=60)
            assert "outside" not in r.stdout, r
            rounds += 1
        assert rounds > 2
    finally:
        swaps.kill()
        swaps.wait()
        shutil.rmtree(place)


@VIEWS
def test_17_writes_through_a_directory_that_becomes_a_link_stay_in_the_root(cluster, outside, view):
    place = cluster.root / "root/links"
    (place / "d").mkdir(parents=True)
    (place / "link").symlink_to(outside)
    swaps = subprocess.Popen([sys.executable, "-c", SWAPS, place], stdout=subprocess.PIPE, text=True)
    try:
        assert swaps.stdout.readline() == "ready\n"
        cluster.vrun(f"--view={view}", "--", "python3", "-c", f"""if True:
            import os, time
            end = time.monotonic() + {RACE_SECONDS}
            n = 0
            while time.monotonic() < end:
                n += 1
                for attempt in (lambda: open(f"links/d/f{{n % 50}}", "w").write("x"), lambda: os.mkdir(f"links/d/made{{n % 50}}"),
                                lambda: os.symlink("x", f"links/d/s{{n % 50}}"), lambda: os.unlink("links/d/f"), lambda: os.rmdir(f"links/d/made{{n % 50}}"),
                                lambda: os.chmod("links/d", 0o700), lambda: os.rename("links/d/f", "links/d/g")):
                    try:
                        attempt()
                    except OSError:
                        pass""", timeout=120)
    finally:
        swaps.kill()
        swaps.wait()
        shutil.rmtree(place, ignore_errors=True)


def test_17_two_jobs_race_each_others_writes_out_of_the_root(live):
    """One on each node: one writes below a directory, the other puts a link there. Home applies both at once."""
    outside = pathlib.Path(live.root).parent / "outside-of-two"
    outside.mkdir(mode=0o777)
    (outside / "f").write_text("outside\n")
    before = seen(outside)
    (live.place / "d").mkdir()
    inside = "/" + str(live.place.relative_to(live.root))
    swap = f"""if True:
        import os, time
        end = time.monotonic() + {RACE_SECONDS}
        while time.monotonic() < end:
            try:
                os.rename("d", "e")
                os.symlink({str(outside)!r}, "d")
                time.sleep(0.002)
                os.unlink("d")
                os.rename("e", "d")
            except OSError:
                pass"""
    write = f"""if True:
        import os, time
        end = time.monotonic() + {RACE_SECONDS}
        n = 0
        while time.monotonic() < end:
            n += 1
            for attempt in (lambda: open(f"d/new{{n % 20}}", "w").write("x"), lambda: open("d/f", "w").write("x"), lambda: os.unlink("d/f"),
                            lambda: os.mkdir(f"d/m{{n % 20}}"), lambda: os.chmod("d/f", 0o777)):
                try:
                    attempt()
                except OSError:
                    pass"""
    try:
        jobs = [live.popen("vrun", "-D", inside, "-w", node, "--view=live", "--", "python3", "-c", code, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                for node, code in (("n1", swap), ("n2", write))]
        for job in jobs:
            job.communicate(timeout=90)
        assert seen(outside) == before
    finally:
        shutil.rmtree(outside)


# --- 18: whose file it is

@VIEWS
def test_18_root_of_a_namespace_of_ones_own_is_nobody_at_home(cluster, view):
    secret = cluster.root / "root/only-root"
    secret.write_text("of root\n")
    secret.chmod(0o600)
    (cluster.root / "root").chmod(0o755)
    try:
        said = cluster.vrun(f"--view={view}", "--", "python3", "-c", """if True:
            import ctypes, os
            libc = ctypes.CDLL(None, use_errno=True)
            print(open("/root/only-root").read(), end="", flush=True)   # the control: root of the job
            if os.fork() == 0:
                os.setgroups([])
                os.setgid(1000)
                os.setuid(1000)
                libc.prctl(4, 1, 0, 0, 0)
                assert libc.unshare(0x10000000 | 0x20000) == 0
                open("/proc/self/setgroups", "w").write("deny")
                open("/proc/self/gid_map", "w").write("0 1000 1")
                open("/proc/self/uid_map", "w").write("0 1000 1")
                os.setuid(0)
                for attempt in (lambda: open("/root/only-root").read(), lambda: os.chmod("/root/only-root", 0o644), lambda: os.unlink("/root/only-root"),
                                lambda: os.rename("/root/only-root", "/root/x"), lambda: os.chown("/root/only-root", 0, 0), lambda: os.mkdir("/root/made")):
                    try:
                        attempt()
                        print("did it")
                    except OSError:
                        pass
                os._exit(0)
            os.wait()""", check=True).stdout
        assert said == "of root\n"
        assert secret.read_text() == "of root\n" and stat.S_IMODE(secret.stat().st_mode) == 0o600
    finally:
        (cluster.root / "root").chmod(0o700)
        secret.unlink()


# --- 21: the node's cache

def test_21_a_job_reaches_no_file_of_the_nodes_cache(cluster):
    """All paths that lead to the node's state where one can be outside, and what is mounted."""
    state = cluster.nodes["n1"]["directory"] / "state"
    wait_until("the node has a store", lambda: list(state.glob("node/store/*")))
    said = cluster.vrun("--", "python3", "-c", """if True:
        import os, sys
        for path in ("/var/lib/vrun", "/proc/1/root/var/lib/vrun", "/proc/1/cwd", "/proc/self/fd/3", "/dev/fd/4", sys.argv[1]):
            try:
                print(path, os.listdir(path))
            except OSError:
                pass
        print([line for line in open("/proc/self/mountinfo") if "store" in line])""", str(state), check=True).stdout
    assert said == "[]\n"


# --- 29: exhaustion

def test_29_a_flood_on_the_jobs_socket_hurts_only_the_job(cluster):
    flood = cluster.popen("vrun", "-D", "/root", "--", "python3", "-c", """if True:
        import os, resource, socket, time
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        held = []
        print("begun", flush=True)
        end = time.monotonic() + 6
        while time.monotonic() < end:
            try:
                s = socket.socket(socket.AF_UNIX)
                s.settimeout(0.2)
                s.connect("/run/vrun/job.sock")
                s.sendall(os.urandom(2000) + b"\\nEXEC=0\\nARG=" + b"x" * 20000)
                held.append(s)
            except OSError:
                held = held[len(held) // 2:]
        print("over", flush=True)""", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert flood.stdout.readline() == "begun\n"
    for _ in range(5):
        assert cluster.vrun("--", "echo", "fine", timeout=30).stdout == "fine\n"
    out, err = flood.communicate(timeout=60)
    assert (flood.returncode, out) == (0, "over\n"), err


def test_29_a_batch_job_that_prints_without_end_leaves_home_some_of_its_disk(cluster):
    """On a small file system: the output ends before it is full, and its last line says why."""
    place = cluster.root / "root/small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", place], check=True)
    try:
        job = cluster.run("vbatch", "-D", "/root", "--parsable", "-o", "/root/small/out", "--wrap", "yes 0123456789abcdef", check=True).stdout.strip()
        assert cluster.run("vctl", "wait", job, timeout=90).returncode != 0
        free = os.statvfs(place)
        assert free.f_bavail * free.f_frsize > 2 << 20
        with open(place / "out", "rb") as f:
            f.seek(-600, os.SEEK_END)
            assert b"the disk is nearly full: " in f.read()
        (place / "other").write_bytes(b"x" * (1 << 20))   # there is room for others
    finally:
        subprocess.run(["umount", "-l", place], check=True)
        place.rmdir()


# --- 30: who else may read what the daemons keep

def test_30_files_of_the_daemons_are_their_users_alone(cluster):
    """Every file and socket below their directories, as another user of this machine sees it."""
    cluster.vrun("--", "true", check=True)
    look = textwrap.dedent("""
        import os, stat, sys
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        for top in sys.argv[1:]:
            for directory, names, files in os.walk(top):
                for name in files:
                    path = os.path.join(directory, name)
                    if os.access(path, os.R_OK) and not os.path.islink(path) or os.access(path, os.W_OK) and not os.path.islink(path):
                        print(path)
                for name in names:
                    if os.access(os.path.join(directory, name), os.W_OK):
                        print(os.path.join(directory, name))""")
    tops = [cluster.directory / "home", *(node["directory"] / "state" for node in cluster.nodes.values())]
    # The test's own directory is open to all on this machine, so that only modes of vrun's count.
    modes = [(p, p.stat().st_mode) for p in (cluster.directory, *(node["directory"] for node in cluster.nodes.values()))]
    try:
        for p, mode in modes:
            p.chmod(stat.S_IMODE(mode) | 0o055)
        shown = subprocess.run([sys.executable, "-c", look, *tops], capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    finally:
        for p, mode in modes:
            p.chmod(stat.S_IMODE(mode))
    secret = [p for p in shown if not p.endswith(("ca.pem", ".log", "config.toml"))]
    assert not secret, secret
    keys = [p for top in tops for p in pathlib.Path(top).rglob("*.key")]
    assert keys and all(stat.S_IMODE(p.stat().st_mode) & 0o077 == 0 for p in keys)
