# SPDX-License-Identifier: Apache-2.0
"""Runs in a live view (--view=live): what changes at home is seen by the job while it runs, what the job writes is at home while
it runs, and when the run is over all of it is."""
import contextlib
import hashlib
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import time

import pytest

import miniroot
from cluster import FULL, wait_until
from test_cache import fill, small_disk
from test_fs_restart import program_pids

pytestmark = pytest.mark.seconds(120)
GIT = shutil.which("git")


def inside(cluster, path=""):
    return str(pathlib.Path("/root") / cluster.place.name / path)


def sh(cluster, script, *options, **kw):
    return cluster.run("vrun", "--view=live", *options, "-D", inside(cluster), "--", "bash", "-c", script, **kw)


def said(r):
    """What a run ended with and said, but for how far it is, which is told where that takes long."""
    progress = r"vrun: starting on .*\n|vrun: job \d+: the command is over, what it wrote is on its way home\n"
    return r.returncode, r.stdout, re.sub(progress, "", r.stderr)


def started(cluster, script, *options, directory=None):
    """A live run whose command has said "ready"."""
    p = cluster.popen("vrun", "--view=live", *options, "-D", directory or inside(cluster), "--", "bash", "-c", script,
                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = p.stdout.readline()
    assert line == "ready\n", (line, p.stderr.read(), cluster.logs())
    return p


def ask(p, line):
    """What SHELL says to that."""
    p.stdin.write(line + "; echo; echo --over--\n")
    p.stdin.flush()
    said = []
    while (out := p.stdout.readline()) not in ("--over--\n", ""):
        said.append(out)
    return "".join(said)[:-1]


SHELL = 'exec 2>&1; echo ready; while read -r c; do eval "$c"; done; exit 3'


def finish(p, code=3):
    out, err = p.communicate(timeout=60)
    assert (p.returncode, out, err) == (code, "", ""), (p.returncode, out, err)


# --- home's changes ---

def test_an_edit_at_home_is_seen_by_the_job_that_runs(live):
    place = live.place
    (place / "sub").mkdir()
    (place / "sub/inner").write_text("inner")
    (place / "file").write_text("one\n")
    (place / "gone").write_text("x")
    p = started(live, SHELL)
    assert ask(p, "cat file gone sub/inner") == "one\nxinner"

    def soon(command, expected):
        began = time.monotonic()
        wait_until(f"{command!r} says {expected!r}", lambda: ask(p, command) == expected, 10)
        return time.monotonic() - began
    # An editor's save: a new file under the name.
    (place / ".file.swp").write_text("two\n")
    os.rename(place / ".file.swp", place / "file")
    soon("cat file", "two\n")
    (place / "file").write_text("three, in place\n")
    soon("cat file", "three, in place\n")
    (place / "gone").unlink()
    soon("ls", "file\nsub\n")
    os.rename(place / "sub", place / "moved")
    soon("ls; cat moved/inner", "file\nmoved\ninner")
    (place / "new").mkdir()
    (place / "new/f").write_text("f")
    soon("cat new/f", "f")
    finish(p)


def test_what_was_there_before_vrun_was_typed_is_seen_always(live):
    for i in range(20):
        (live.place / "f").write_text(str(i))
        r = sh(live, "cat f")
        assert said(r) == (0, str(i), "")


def test_a_file_that_had_another_name_for_a_moment(live):
    """Of which no event tells under the name that stays, though it has another ctime, which is another version."""
    for i in range(10):
        (live.place / f"f{i}").write_text(f"{i}\n")
    p = started(live, SHELL)
    for i in range(10):
        os.link(live.place / f"f{i}", live.place / "other")
        (live.place / "other").unlink()
        assert ask(p, f"cat f{i}") == f"{i}\n"
    finish(p)


def test_a_program_that_is_replaced_at_home_runs_on(live):
    tool = live.place / "tool"
    shutil.copy2(shutil.which("sleep"), tool)
    p = started(live, "./tool 1000 & until grep -q ^./tool /proc/$!/cmdline; do sleep 0.1; done; echo ready; read x; kill -0 $! && echo alive; kill $!; wait $!; echo $?; exit 5")
    shutil.copy2(shutil.which("true"), live.place / "tool.new")
    os.rename(live.place / "tool.new", tool)
    time.sleep(1)    # nothing may happen
    out, err = p.communicate("go\n", timeout=30)
    assert (p.returncode, out) == (5, "alive\n143\n"), err


# --- the job's writes ---

def test_a_file_is_at_home_while_the_job_still_runs(live):
    p = started(live, SHELL)
    assert ask(p, "echo hello > made") == ""
    wait_until("it is at home", lambda: (live.place / "made").exists() and (live.place / "made").read_text() == "hello\n")
    # Data before its name: whoever sees the new name sees the whole file.
    p.stdin.write("for i in $(seq 50); do seq 20000 > .tmp; mv .tmp out.$i; done; echo done\n")
    p.stdin.flush()
    whole = "".join(f"{i}\n" for i in range(1, 20001))
    seen = set()
    while len(seen) < 50:
        for f in live.place.glob("out.*"):
            if f.name not in seen:
                assert f.read_text() == whole, f
                seen.add(f.name)
    assert p.stdout.readline() == "done\n"
    assert ask(p, "rm out.*; mkdir d; mv made d/; ln d/made link; ln -s made d/sym; chmod 700 d") == ""
    wait_until("that too", lambda: not list(live.place.glob("out.*")) and (live.place / "link").exists() and
               (live.place / "d/sym").is_symlink() and (live.place / "d").stat().st_mode & 0o777 == 0o700)
    assert os.stat(live.place / "link").st_ino == os.stat(live.place / "d/made").st_ino
    finish(p)


def test_fsync_returns_when_home_has_it(live):
    script = """
import os, sys
print("ready", flush=True)
for i in range(30):
    fd = os.open(f"f{i}", os.O_CREAT | os.O_WRONLY)
    os.write(fd, b"x" * 10000)
    os.fsync(fd)
    print(i, flush=True)
    os.close(fd)
"""
    (live.place / "s.py").write_text(script)
    p = started(live, "exec python3 s.py")
    for i in range(30):
        assert p.stdout.readline() == f"{i}\n"
        assert (live.place / f"f{i}").stat().st_size == 10000
    finish(p, 0)


def test_when_the_run_is_over_everything_is_home(live):
    script = """
import os
os.makedirs("deep/er")
for i in range(5000):
    with open(f"deep/er/f{i}", "wb") as f:
        f.write(i.to_bytes(4, "big") * 64)
with open("big", "wb") as f:
    for i in range(64):
        f.write(bytes([i]) * (1 << 20))
open("left-open", "w").write("flushed")
f = open("unflushed", "w"); f.write("at the end"); f.flush()
os._exit(7)
"""
    (live.place / "s.py").write_text(script)
    r = sh(live, "python3 s.py")
    assert said(r) == (7, "", "")
    assert len(os.listdir(live.place / "deep/er")) == 5000
    for i in range(0, 5000, 97):
        assert (live.place / f"deep/er/f{i}").read_bytes() == i.to_bytes(4, "big") * 64
    big = (live.place / "big").read_bytes()
    assert len(big) == 64 << 20 and all(big[i << 20] == i for i in range(64))
    assert (live.place / "unflushed").read_text() == "at the end"
    assert not [f for f in live.place.iterdir() if f.name.startswith(".vrun-")]


def test_exit_codes_and_streams_are_as_always(live):
    r = sh(live, "cat; echo err >&2; exit 42", input="in\n")
    assert said(r) == (42, "in\n", "err\n")
    assert sh(live, "kill -9 $$").returncode == 137
    r = live.run("vrun", "--view=live", "-D", "/root", "--", "no-such-command")
    assert r.returncode == 127
    assert live.json("job", str(live.json("jobs", "--all")["jobs"][0]["job"]))["view"] == "live"


def test_what_a_live_view_cannot_be(live):
    for other in (["--snapshot", "x"], ["--expose", "/root/.ssh"], ["--discard-writes"]):
        r = live.run("vrun", "--view=live", *other, "--", "true")
        assert r.returncode == 2 and "--view=live with" in r.stderr, r.stderr
    r = live.run("vrun", "--view=neither", "--", "true")
    assert r.returncode == 2 and "write live or frozen" in r.stderr


def test_special_files(live):
    script = """
import os, socket
s = socket.socket(socket.AF_UNIX); s.bind("sock"); s.listen()
c = socket.socket(socket.AF_UNIX); c.connect("sock")
os.mkfifo("fifo")
fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
os.write(fd, b"from nowhere")
os.link(f"/proc/self/fd/{fd}", "named", src_dir_fd=os.open("/", os.O_RDONLY), follow_symlinks=True)
os.setxattr("named", "user.color", b"blue")
assert os.getxattr("named", "user.color") == b"blue"
open("sparse", "wb").truncate(1 << 30)
os.utime("named", ns=(1, 1_000_000_007))
"""
    (live.place / "s.py").write_text(script)
    r = sh(live, "python3 s.py")
    assert said(r)[::2] == (0, "")
    assert (live.place / "sock").is_socket() and (live.place / "fifo").is_fifo()
    assert (live.place / "named").read_text() == "from nowhere"
    assert os.getxattr(live.place / "named", "user.color") == b"blue"
    assert (live.place / "named").stat().st_mtime_ns == 1_000_000_007
    sparse = (live.place / "sparse").stat()
    assert sparse.st_size == 1 << 30 and sparse.st_blocks < 1000


def test_sqlite(live):
    script = """
import sqlite3
for mode in ("delete", "wal"):
    db = sqlite3.connect(mode + ".db")
    db.execute(f"pragma journal_mode={mode}")
    db.execute("create table t (a)")
    for i in range(20):
        with db: db.executemany("insert into t values (?)", [(j,) for j in range(50)])
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    db.close()
"""
    (live.place / "s.py").write_text(script)
    r = sh(live, "python3 s.py")
    assert said(r)[::2] == (0, "")
    import sqlite3
    for mode in ("delete", "wal"):
        db = sqlite3.connect(live.place / f"{mode}.db")
        assert db.execute("select count(*) from t").fetchone() == (1000,)
        assert db.execute("pragma integrity_check").fetchone() == ("ok",)


@pytest.mark.skipif(GIT is None, reason="git is not installed")
def test_git(live):
    exec_path = subprocess.run([GIT, "--exec-path"], capture_output=True, text=True, check=True).stdout.strip()
    for program in [GIT, *(f"{exec_path}/{name}" for name in ("git", "git-upload-pack", "git-index-pack"))]:
        if os.path.isfile(program):
            miniroot.place(live.root, program)
            for library in miniroot.libraries(program):
                miniroot.place(live.root, library)
    origin = live.place / "origin"
    run = lambda *a: subprocess.run([GIT, "-C", origin, *a], check=True, capture_output=True)  # noqa: E731
    origin.mkdir()
    run("init", "-q")
    for i in range(200):
        (origin / f"f{i}").write_text(str(i) * 100)
    run("add", ".")
    run("-c", "user.name=x", "-c", "user.email=x@y", "commit", "-qm", "one")
    r = sh(live, "export HOME=/root; git config --global safe.directory '*'; git clone -q origin clone && git -C clone fsck && "
                 "git -C clone status --porcelain")
    assert (r.returncode, r.stdout) == (0, ""), r.stderr
    subprocess.run([GIT, "-c", "safe.directory=*", "-C", live.place / "clone", "fsck"], check=True, capture_output=True)
    out = subprocess.run([GIT, "-c", "safe.directory=*", "-C", live.place / "clone", "status", "--porcelain"], check=True,
                         capture_output=True, text=True).stdout
    assert out == ""


# --- several jobs ---

def nodes_of(cluster):
    return {j["job"]: j["node"] for j in cluster.json("jobs")["jobs"] if j["state"] == "RUNNING"}


def test_two_jobs_on_one_node_see_each_others_writes_at_once(live):
    a = started(live, SHELL, "-c", "1")
    b = started(live, SHELL, "-c", "1")
    if len(set(nodes_of(live).values())) == 1:
        for i in range(20):
            ask(a, f"echo {i} > f")
            assert ask(b, "cat f") == f"{i}\n"
    finish(a)
    finish(b)


def test_jobs_on_two_nodes_see_each_others_writes(live):
    a = started(live, SHELL, "-c", "2")
    b = started(live, SHELL, "-c", "2")
    assert len(set(nodes_of(live).values())) == 2
    for i in range(5):
        ask(a, f"echo {i} > f")
        wait_until("the other one sees it", lambda: ask(b, "cat f 2>&1") == f"{i}\n", 10)
        ask(b, f"echo {i} back > g.tmp; mv g.tmp g")
        wait_until("and back", lambda: ask(a, "cat g 2>&1") == f"{i} back\n", 10)
    finish(a)
    finish(b)


# --- what dies ---

WRITER = """
import os, sys, time
print("ready", flush=True)
go = sys.stdin.readline()
for i in range(1000):
    name = f"f{i}"
    with open(".new", "w") as f:
        f.write(f"{i}\\n" * 100)
    os.rename(".new", name)
    if i % 3 == 0:
        os.rename(name, f"r{i}")
    if i % 7 == 0:
        os.unlink(f"r{i}" if i % 3 == 0 else name)
    with open("log", "a") as f:
        f.write(f"{i}\\n")
    time.sleep(0.003)    # so that it is still at it when they die
sys.exit(9)
"""


def written(directory):
    return {f.name: f.read_text() for f in directory.iterdir() if f.name not in ("s.py",)}


def expected():
    files = {}
    for i in range(1000):
        if i % 7:
            files[f"r{i}" if i % 3 == 0 else f"f{i}"] = f"{i}\n" * 100
    files["log"] = "".join(f"{i}\n" for i in range(1000))
    return files


def test_a_view_rests_and_is_woken(sturdy):
    """It stays mounted after its last job, and the next one has home as it is then."""
    cluster = sturdy(fresh=1)
    cluster.place = pathlib.Path(cluster.root) / "root/w"
    cluster.place.mkdir()
    (cluster.place / "f").write_text("one")
    r = sh(cluster, "cat f; echo made > g; mkdir d; echo of ours > d/h")
    assert said(r) == (0, "one", "")
    wait_until("it rests", lambda: re.search(r"live view \d+: rests", cluster.logs()), 60)
    time.sleep(6)   # home tells the node nothing any more
    (cluster.place / "f").write_text("two, and longer")
    (cluster.place / "d/h").unlink()
    (cluster.place / "new").mkdir()
    r = sh(cluster, "cat f g; ls . d; echo more >> g")
    assert said(r) == (0, "two, and longermade\n.:\nd\nf\ng\nnew\n\nd:\n", "")
    assert (cluster.place / "g").read_text() == "made\nmore\n"
    served = re.findall(r"live view (\d+): serves", cluster.logs())
    assert len(served) == 2 and len(set(served)) == 1, cluster.logs()


def test_a_view_that_rests_leaves_its_room_to_the_cache(sturdy):
    cluster = sturdy(fresh=1, node_options=["--cache-bytes", str(64 << 20)])
    cluster.place = pathlib.Path(cluster.root) / "root/w"
    cluster.place.mkdir()
    data = cluster.place / "data"
    data.write_bytes(os.urandom(56 << 20))
    assert sh(cluster, "head -c 24M /dev/urandom > made; cat made > /dev/null").returncode == 0
    place, = (cluster.directory / "n1/state/node/views").glob("*/live/*/written")

    def written():
        total = 0
        for f in place.iterdir():
            with contextlib.suppress(FileNotFoundError):  # it is given up in this moment
                total += f.stat().st_blocks * 512
        return total
    wait_until("it rests", lambda: re.search(r"live view \d+: rests", cluster.logs()), 60)
    time.sleep(2)
    assert written() >= 24 << 20, "there is room for both"
    assert cluster.run("vrun", "--view=frozen", "-D", inside(cluster), "--", "sh", "-c", "cat data > /dev/null").returncode == 0
    wait_until("it has given it up", lambda: written() < 12 << 20, 30)
    r = sh(cluster, "sha256sum < made")
    assert r.stdout.split()[0] == hashlib.sha256((cluster.place / "made").read_bytes()).hexdigest()


def test_the_nodes_disk_is_full_for_a_while(sturdy):
    """Who reads goes on, who writes is told, and when there is room again all is as before."""
    cluster = sturdy(fresh=0)
    cluster.place = pathlib.Path(cluster.root) / "root/w"
    (cluster.place / "many").mkdir(parents=True)
    for i in range(2000):
        (cluster.place / "many" / f"{i:05}{'n' * 60}").write_text(f"{i}\n")
    want = hashlib.sha256("".join(f"{i}\n" for i in range(2000)).encode()).hexdigest()
    with small_disk(cluster, 48) as state:
        cluster.start_node("n1")
        p = started(cluster, SHELL)
        assert int(ask(p, "find / -xdev 2> /dev/null | wc -l")) > 2000
        fill(state / "filler")
        assert ask(p, "cat many/* | sha256sum").split()[0] == want
        assert "No space left on device" in ask(p, "head -c 64M /dev/zero > full; rm -f full")
        fill(state / "filler")
        # More names than the node's journal has room for.
        absent = "x=$(printf %0200d 0); for i in {1..12000}; do test -e $x$i; done"
        assert ask(p, f"{absent}; cat many/* | sha256sum").split()[0] == want
        os.unlink(state / "filler")
        assert ask(p, "echo x > out; mkdir made; cat out") == "x\n"
        finish(p)
        assert (cluster.place / "out").read_text() == "x\n" and (cluster.place / "made").is_dir()
        assert not (cluster.place / "full").exists()
        r = sh(cluster, "echo y > second; cat out second")
        assert said(r) == (0, "x\ny\n", "")
        assert (cluster.place / "second").read_text() == "y\n"


@pytest.mark.parametrize("spare", [4, 24])
def test_few_descriptors_for_the_server_of_a_job_that_writes(sturdy, spare):
    cluster = sturdy(fresh=1)
    cluster.place = pathlib.Path(cluster.root) / "root/w"
    cluster.place.mkdir()
    names = [f"f{i}" for i in range(200)]
    for i, name in enumerate(names):
        (cluster.place / name).write_bytes(os.urandom(200_000 if i % 2 else 3000))
    p = started(cluster, SHELL)
    pid = program_pids(cluster, "fs")[0]
    highest = max(int(fd) for fd in os.listdir(f"/proc/{pid}/fd")) + 1 + spare
    subprocess.run(["prlimit", "--pid", str(pid), f"--nofile={highest}:{highest}"], check=True)
    digests = "".join(f"{hashlib.sha256((cluster.place / n).read_bytes()).hexdigest()}  {n}\n" for n in names)
    assert ask(p, "sha256sum " + " ".join(names)) == digests
    assert ask(p, "touch e{1..200}") == ""
    assert ask(p, 'for i in {1..40}; do exec {fd}> w$i; fds[i]=$fd; done; for r in 1 2 3; do for i in {1..40}; do '
                  'echo $r of $i >&${fds[i]}; done; done; for fd in ${fds[@]}; do exec {fd}>&-; done') == ""
    finish(p)
    assert [i for i in range(1, 201) if not (cluster.place / f"e{i}").is_file()] == []
    for i in range(1, 41):
        assert (cluster.place / f"w{i}").read_text() == f"1 of {i}\n2 of {i}\n3 of {i}\n"
    for name in names:
        assert f"{hashlib.sha256((cluster.place / name).read_bytes()).hexdigest()}  {name}\n" in digests


def sturdy_writer(sturdy):
    cluster = sturdy()
    cluster.place = pathlib.Path(cluster.root) / "root/w"
    cluster.place.mkdir()
    (cluster.place / "s.py").write_text(WRITER)
    return cluster, started(cluster, "exec python3 s.py")


def test_home_is_killed_under_a_job_that_writes(sturdy):
    cluster, p = sturdy_writer(sturdy)
    p.stdin.write("go\n")
    p.stdin.flush()
    arbitrary = random.Random(3)
    killed = 0
    for _ in range(3):
        time.sleep(arbitrary.uniform(0.1, 0.8))
        pid = cluster.pid_of("home")
        if pid and p.poll() is None:
            os.kill(pid, signal.SIGKILL)
            killed += 1
    assert killed >= 2
    out, err = p.communicate(timeout=100)
    assert (p.returncode, out) == (9, ""), (err, cluster.logs())
    assert written(cluster.place) == expected()


def test_the_file_system_server_is_killed_under_a_job_that_writes(sturdy):
    cluster, p = sturdy_writer(sturdy)
    p.stdin.write("go\n")
    p.stdin.flush()
    arbitrary = random.Random(4)
    killed = 0
    for _ in range(4):
        time.sleep(arbitrary.uniform(0.1, 0.8))
        pids = program_pids(cluster, "fs")
        if pids and p.poll() is None:
            os.kill(pids[0], signal.SIGKILL)
            killed += 1
    assert killed >= 2
    out, err = p.communicate(timeout=100)
    assert (p.returncode, out, err) == (9, "", ""), cluster.logs()
    assert written(cluster.place) == expected()


def test_the_node_is_lost_and_it_is_said(sturdy):
    cluster, p = sturdy_writer(sturdy)
    cluster.stop_node("n1", signal.SIGKILL)
    out, err = p.communicate(timeout=100)
    assert p.returncode == 255 and "vrun: " in err, (p.returncode, err)


RANDOM = """
import hashlib, os, random, shutil, sys, time
source = random.Random(int(sys.argv[1]))
here, model = os.getcwd() + "/w", "/tmp/model"
os.mkdir(here); os.mkdir(model)

def tree(top):
    seen = {}
    for directory, names, files in os.walk(top):
        for name in names + files:
            path = os.path.join(directory, name)
            st = os.lstat(path)
            kind = st.st_mode
            what = os.readlink(path) if os.path.islink(path) else "" if os.path.isdir(path) else \
                hashlib.sha256(open(path, "rb").read()).hexdigest()
            seen[path[len(top):]] = (oct(kind), 0 if os.path.isdir(path) else st.st_nlink, what)
    return seen

def pick(kinds):
    all = [(d[len(model):] + "/" + n, k) for d, ns, fs in os.walk(model) for k, l in (("d", ns), ("f", fs)) for n in l]
    all = [p for p, k in all if k in kinds] + ([""] if "d" in kinds else [])
    return source.choice(all) if all else None

def both(act):
    errors = []
    for top in (model, here):
        try: act(top); errors.append(None)
        except OSError as e: errors.append(e.errno)
    assert errors[0] == errors[1], errors

def step():
    name = pick("d") + "/n%d" % source.randrange(12)
    old, other = pick("f"), pick("df")
    data = source.randbytes(source.choice([0, 10, 5000, 100000]))
    def rewrite(top):
        with open(top + old, "r+b") as f: f.write(data)
    def append(top):
        with open(top + old, "ab") as f: f.write(data[:100])
    def make(top):
        with open(top + name, "wb") as f: f.write(data)
    acts = [make, make, lambda t: os.mkdir(t + name), lambda t: os.symlink("to", t + name)]
    if old: acts += [rewrite, append, lambda t: os.link(t + old, t + name), lambda t: os.unlink(t + old),
                     lambda t: os.chmod(t + old, 0o600 + len(data) % 64), lambda t: os.truncate(t + old, 7)]
    if other: acts += [lambda t: os.rename(t + other, t + name)] * 2
    if other and source.random() < 0.1: acts = [lambda t: shutil.rmtree(t + other)]
    if old and os.path.islink(model + old): acts = [lambda t: os.unlink(t + old), lambda t: os.rename(t + old, t + name)]
    both(source.choice(acts))

for i in range(int(sys.argv[2])):
    step()
    if i % 20 == 19:
        a, b = tree(model), tree(here)
        assert a == b, (i, sorted(set(a.items()) ^ set(b.items())))
        if source.random() < 0.5: time.sleep(source.random() / 20)
a, b = tree(model), tree(here)
assert a == b, ("end", sorted(set(a.items()) ^ set(b.items())))
time.sleep(1.5)    # home's trees have all of it by now
a, b = tree(model), tree(here)
assert a == b, ("after", sorted(set(a.items()) ^ set(b.items())))
print(repr(a))
"""


def tree(top):
    seen = {}
    for directory, names, files in os.walk(top):
        for name in names + files:
            path = os.path.join(directory, name)
            st = os.lstat(path)
            what = os.readlink(path) if os.path.islink(path) else "" if os.path.isdir(path) else \
                hashlib.sha256(open(path, "rb").read()).hexdigest()
            seen[path[len(str(top)):]] = (oct(st.st_mode), 0 if os.path.isdir(path) else st.st_nlink, what)
    return seen


@pytest.mark.parametrize("seed", [int(s) for s in os.environ.get("VRUN_LIVE_SEED", "1 2 3" if FULL else "1").split()])
def test_random_work_is_the_same_here_and_there(live, seed):
    """While home's trees come back with it."""
    (live.place / "s.py").write_text(RANDOM)
    r = sh(live, f"python3 s.py {seed} 800", timeout=100)
    assert said(r)[::2] == (0, ""), r.stderr[-3000:]
    assert tree(live.place / "w") == eval(r.stdout)


def test_a_checksum_of_random_work(live):
    script = """
import hashlib, os, random
source = random.Random(5)
sums = []
for i in range(300):
    data = source.randbytes(source.randrange(200_000))
    with open(f"f{i}", "wb") as f: f.write(data)
    if source.random() < 0.3:
        with open(f"f{i}", "r+b") as f:
            f.seek(source.randrange(len(data) + 1)); f.write(b"patched")
    sums.append(hashlib.sha256(open(f"f{i}", "rb").read()).hexdigest() + f"  f{i}")
open("SUMS", "w").write("\\n".join(sums) + "\\n")
"""
    (live.place / "s.py").write_text(script)
    r = sh(live, "python3 s.py")
    assert said(r)[::2] == (0, "")
    for line in (live.place / "SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((live.place / name).read_bytes()).hexdigest() == digest, name
