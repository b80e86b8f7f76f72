# SPDX-License-Identifier: Apache-2.0
"""The content cache of a node: what is damaged is never served, what is full gives way, what is another's stays closed."""
import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

from cluster import wait_until
from test_fs_restart import program_pids

pytestmark = pytest.mark.view("frozen")


def sha(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def stat(cluster, node="n1"):
    return next(n for n in cluster.json("cache", "stat")["nodes"] if n["node"] == node)


def objects(cluster, node="n1"):
    """The content files of the node's store."""
    store = cluster.directory / node / "state/node/store"
    return [f for f in store.glob("*/objects/*/*") if f.is_file() and not f.name.endswith(".map") and not f.name.startswith(".")]


def fs_pid(cluster, node="n1"):
    return program_pids(cluster, "fs", node)[0]


@contextlib.contextmanager
def small_disk(cluster, megabytes, node="n1"):
    """The node's state is on a file system of its own, from before the node starts to its end."""
    state = cluster.directory / node / "state"
    state.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", state], check=True)
    try:
        yield state
    finally:
        if node in cluster.nodes:
            cluster.stop_node(node)
        subprocess.run(["umount", "-l", state])


def fill(file, megabytes=None):
    """Takes all of the disk's space, or so much of it."""
    with open(file, "wb", buffering=0) as f:
        try:
            while megabytes is None or f.tell() < megabytes << 20:
                f.write(bytes(1 << 18))
        except OSError:
            pass


# --- damage ----------------------------------------------------------------------------------------------------------


def flip(files):
    for f in files:
        with open(f, "r+b") as o:
            o.seek(f.stat().st_size // 2)
            byte = o.read(1)
            o.seek(-1, 1)
            o.write(bytes([byte[0] ^ 1]))


def cut(files):
    for f in files:
        os.truncate(f, f.stat().st_size // 2)


def zero(files):
    for f in files:
        size = f.stat().st_size
        with open(f, "r+b") as o:
            o.write(bytes(size))


def swap(files):
    """Each holds the content of the next; the large one has two of its units exchanged."""
    small = [f for f in files if f.stat().st_size < 1 << 20]
    contents = [f.read_bytes() for f in small]
    for f, content in zip(small, contents[1:] + contents[:1]):
        f.write_bytes(content)
    for f in set(files) - set(small):
        with open(f, "r+b") as o:
            first = o.read(65536)
            second = o.read(65536)
            o.seek(0)
            o.write(second + first)


def swap_names(files):
    """Each is given the name of the next of its size, and is not written to."""
    alike = {}
    for f in files:
        alike.setdefault(f.stat().st_size, []).append(f)
    for group in alike.values():
        for f in group:
            f.rename(f.with_name(".swap-" + f.name))
        for f, to in zip(group, group[1:] + group[:1]):
            f.with_name(".swap-" + f.name).rename(to)


def forget_pages():
    """The kernel's copies of what readers had: they have to ask the node again."""
    try:
        # Not by ourselves: the kernel waits for every mount of the machine, and one that hangs would hang us for ever.
        emptied = subprocess.Popen(["sh", "-c", "echo 1 > /proc/sys/vm/drop_caches"]).wait(timeout=15) == 0
    except subprocess.TimeoutExpired:
        emptied = False
    if not emptied:
        pytest.skip("the page cache cannot be emptied here: no right to, or another mount of this machine hangs")


@pytest.mark.parametrize("node", ["stopped", "running", pytest.param("running-live", marks=pytest.mark.view("live"))])
@pytest.mark.parametrize("damage", [flip, cut, zero, swap, swap_names])
def test_damage_between_two_jobs_is_refetched_and_counted(sturdy, damage, node):
    cluster = sturdy(fresh=1)
    here = cluster.root / "root/data"
    here.mkdir()
    names = ["large0", "large1", *(f"small{i}" for i in range(6))]
    for name in names:
        (here / name).write_bytes(os.urandom(5 << 20 if name.startswith("large") else 4000))
    read = "cd /root/data; sha256sum " + " ".join(names)
    want = "".join(f"{sha(here / n)}  {n}\n" for n in names)
    assert cluster.sh(read, check=True).stdout == want

    def stored():
        return [f for f in objects(cluster) if f.stat().st_size in {4000, 5 << 20}]

    wait_until("the store has what the readers had from memory", lambda: len(stored()) == 8)
    if node == "stopped":
        cluster.stop_node("n1")
        damage(stored())
        cluster.start_node("n1")
    else:
        damage(stored())
        forget_pages()
    before = stat(cluster)
    assert before["corrupt_units"] == 0
    assert cluster.sh(read, check=True).stdout == want
    after = stat(cluster)
    assert after["corrupt_units"] >= 8, after
    assert after["fetched_bytes"] - before["fetched_bytes"] > 6 * 4000
    if node != "stopped":
        forget_pages()
    assert cluster.sh(read, check=True).stdout == want
    assert stat(cluster)["corrupt_units"] == after["corrupt_units"], "refetched once, and right since"


def test_what_a_job_has_open_is_mended_for_whoever_opens_it_next(sturdy):
    cluster = sturdy(fresh=1)
    (cluster.root / "root/large").write_bytes(os.urandom(5 << 20))
    want = cluster.sh("sha256sum < /root/large", check=True).stdout
    p = cluster.popen("vrun", "-D", "/root", "--", "bash", "-c", "exec 5< large; echo ready; read line; sha256sum <&5",
                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "ready\n"
    flip([f for f in objects(cluster) if f.stat().st_size == 5 << 20])
    assert cluster.json("cache", "verify")["nodes"][0]["verified"]["corrupt_units"] == 1
    assert cluster.sh("sha256sum < /root/large", check=True).stdout == want
    out, _ = p.communicate("on\n", timeout=30)
    assert out == want
    assert cluster.json("cache", "verify")["nodes"][0]["verified"]["corrupt_units"] == 0


def test_verify_finds_damage_that_nobody_has_read_yet(sturdy):
    cluster = sturdy(fresh=1)
    (cluster.root / "root/large").write_bytes(os.urandom(3 << 20))
    want = cluster.sh("sha256sum < /root/large", check=True).stdout
    clean = cluster.json("cache", "verify")["nodes"][0]
    assert clean["verified"]["corrupt_units"] == 0 and clean["verified"]["bytes"] > 3 << 20
    flip([f for f in objects(cluster) if f.stat().st_size == 3 << 20])
    found = cluster.json("cache", "verify", "--node", "n1")["nodes"][0]
    assert found["verified"]["corrupt_units"] == 1 and found["corrupt_units"] == 1
    assert cluster.json("cache", "verify")["nodes"][0]["verified"]["corrupt_units"] == 0
    assert cluster.sh("sha256sum < /root/large", check=True).stdout == want
    text = cluster.vctl("cache", "verify").stdout.splitlines()
    assert text[0].split() == ["NODE", "OBJECTS", "UNITS", "READ", "DAMAGED"] and text[1].split()[0] == "n1"


# --- size ------------------------------------------------------------------------------------------------------------


def test_stat_and_prune(sturdy):
    cluster = sturdy(fresh=1)
    empty = stat(cluster)
    assert empty["bytes"] == 0 and empty["objects"] == 0, "nothing is started to say so"
    for i in range(4):
        (cluster.root / f"root/f{i}").write_bytes(os.urandom(2 << 20))
    read = "cat /root/f? | sha256sum"
    want = cluster.sh(read, check=True).stdout
    full = stat(cluster)
    assert full["bytes"] > 8 << 20 and full["objects"] > 4 and full["misses"] > 0 and full["corrupt_units"] == 0
    assert 0 < full["bytes"] <= full["limit_bytes"] <= full["node_limit_bytes"] and full["disk_free_bytes"] > 0
    some = cluster.json("cache", "prune", "--to", "5M", "--node", "n1")["nodes"][0]
    assert some["bytes"] <= 5 << 20 and some["freed_bytes"] >= 3 << 20
    none = cluster.json("cache", "prune")["nodes"][0]
    assert none["bytes"] < 1 << 20, "only directories are left"
    assert none["evictions"] > 0
    assert cluster.sh(read, check=True).stdout == want
    table = cluster.vctl("cache", "stat").stdout.splitlines()
    assert table[0].split()[:4] == ["NODE", "SIZE", "LIMIT", "OBJECTS"] and len(table) == 2
    assert len(cluster.vctl("cache", "stat", "-o", "wide", "--no-headers").stdout.splitlines()) == 1
    assert cluster.vctl("cache", "stat", "-o", "name").stdout == "n1\n"


def test_what_a_job_has_open_survives_a_prune(sturdy):
    cluster = sturdy(fresh=1)
    (cluster.root / "root/held").write_bytes(os.urandom(4 << 20))
    (cluster.root / "root/other").write_bytes(os.urandom(4 << 20))
    cluster.sh("cat /root/held /root/other > /dev/null", check=True)
    p = cluster.popen("vrun", "-D", "/root", "--", "bash", "-c", "exec 5< held; echo ready; read line; sha256sum <&5",
                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "ready\n"
    left = cluster.json("cache", "prune")["nodes"][0]
    held = [f for f in objects(cluster) if f.stat().st_size == 4 << 20]
    out, _ = p.communicate("on\n", timeout=60)
    assert out.split()[0] == sha(cluster.root / "root/held")
    assert 4 << 20 <= left["bytes"] < 8 << 20 and len(held) == 1, left


def test_the_cache_keeps_its_bound(sturdy):
    cluster = sturdy(fresh=1, node_options=["--cache-bytes", str(16 << 20)])
    for i in range(12):
        (cluster.root / f"root/f{i}").write_bytes(os.urandom(4 << 20))
    want = "".join(sha(cluster.root / f"root/f{i}") + "\n" for i in range(12))
    r = cluster.sh("for i in $(seq 0 11); do sha256sum < /root/f$i | cut -d' ' -f1; done", check=True)
    assert r.stdout == want
    now = stat(cluster)
    assert now["limit_bytes"] == now["node_limit_bytes"] == 16 << 20
    assert now["bytes"] <= 16 << 20 and now["evictions"] > 0


# --- a full disk -----------------------------------------------------------------------------------------------------


def test_the_disk_fills_in_the_middle_of_a_job(sturdy):
    """Somebody else takes all that is left while a job fetches: the cache gives way, or does without; the job sees nothing."""
    cluster = sturdy(fresh=0)
    with small_disk(cluster, 96) as state:
        cluster.start_node("n1")
        for i in range(30):
            (cluster.root / f"root/f{i}").write_bytes(os.urandom(2 << 20))
        script = ("for i in $(seq 0 9); do sha256sum < f$i | cut -d' ' -f1; done; echo half; read line;"
                  "for i in $(seq 10 29); do sha256sum < f$i | cut -d' ' -f1; done")
        p = cluster.popen("vrun", "-D", "/root", "--", "bash", "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
        lines = []
        for line in p.stdout:
            if line == "half\n":
                break
            lines.append(line)
        before = stat(cluster)
        fill(state / "filler")
        out, err = p.communicate("on\n", timeout=50)
        assert p.returncode == 0, err
        assert "".join(lines) + out == "".join(sha(cluster.root / f"root/f{i}") + "\n" for i in range(30))
        after = stat(cluster)
        assert after["evictions"] > before["evictions"] or after["failed_writes"] > 0, after
        os.unlink(state / "filler")
        assert cluster.sh("sha256sum < f0 | cut -d' ' -f1", check=True).stdout == lines[0]


@pytest.mark.parametrize("view", ["live", "frozen"])
def test_a_full_disk_at_the_start_is_one_line_that_names_the_node(sturdy, view):
    cluster = sturdy(fresh=0, view=view)
    with small_disk(cluster, 40) as state:
        cluster.start_node("n1")
        fill(state / "filler")
        with open(state / "rest", "wb", buffering=0) as f, contextlib.suppress(OSError):
            while f.write(b"x"):
                pass
        r = cluster.vrun("--", "true", timeout=50)
        assert r.returncode == 125 and r.stderr.count("\n") == 1, r.stderr
        assert r.stderr.startswith("vrun: node n1: cannot ") and "No space left on device" in r.stderr, r.stderr


def test_something_else_in_the_place_of_the_stores_own_files(sturdy):
    cluster = sturdy(fresh=1)
    (cluster.root / "root/data").write_bytes(os.urandom(5 << 20))
    assert cluster.sh("sha256sum < data").stdout.split()[0] == sha(cluster.root / "root/data")
    cluster.stop_node("n1")
    for store in (cluster.directory / "n1/state/node/store").iterdir():
        shutil.rmtree(store / "objects")
        (store / "objects").write_text("a file")
        (store / "lock").unlink()
        (store / "lock").mkdir()
    cluster.start_node("n1")
    assert cluster.sh("sha256sum < data").stdout.split()[0] == sha(cluster.root / "root/data")
    assert stat(cluster)["bytes"] >= 5 << 20


def test_what_a_trace_names_gives_way_to_what_its_job_writes(sturdy):
    """A job of which there is a trace fills the disk that it shares with the cache: the cache can be fetched again."""
    cluster = sturdy(fresh=0, node_options=("--cache-bytes", str(200 << 20)))
    with small_disk(cluster, 120) as state:
        cluster.start_node("n1")
        for i in range(60):
            (cluster.root / f"root/f{i}").write_bytes(os.urandom(1 << 20))
        script = ("cd /root; cat f? f?? | sha256sum; sleep 1.5; for i in $(seq 15); do head -c 4194304 /dev/zero >> out || exit 3; "
                  "sleep 0.3; done; stat -c %s out; rm out")
        for run in range(3):
            p = cluster.sh(script, check=False)
            assert (p.returncode, p.stdout.split()[2:]) == (0, [str(60 << 20)]), (run, p.stdout, p.stderr, stat(cluster))
        # And to whoever asks for room while one runs.
        p = cluster.popen("vrun", "-D", "/root", "--", "sh", "-c", "cd /root; cat f? f?? | sha256sum; read line", stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True)
        p.stdout.readline()
        wait_until("what was read is let go", lambda: cluster.vctl("cache", "prune", "--to", "0") and stat(cluster)["bytes"] < 4 << 20)
        p.communicate("\n", timeout=30)


def test_the_watermark_holds_whoever_fills_the_disk(sturdy):
    """No job runs and nothing is written to the cache: it shrinks all the same."""
    cluster = sturdy(fresh=0, node_options=["--cache-min-free-percent", "30"])
    with small_disk(cluster, 96) as state:
        cluster.start_node("n1")
        (cluster.root / "root/data").write_bytes(os.urandom(40 << 20))
        cluster.sh("cat data > /dev/null", check=True)
        for i in range(20):
            (cluster.root / f"root/s{i}").write_bytes(os.urandom(500_000))
        cluster.sh("cat s* > /dev/null", check=True)
        before = stat(cluster)
        assert before["min_free_bytes"] == pytest.approx(0.3 * (96 << 20), rel=0.01) and before["bytes"] > 30 << 20
        fill(state / "filler", 30)
        wait_until("there is room again", lambda: stat(cluster)["disk_free_bytes"] >= before["min_free_bytes"])
        after = stat(cluster)
        assert after["bytes"] < before["bytes"] and after["evictions"] > before["evictions"]
        assert cluster.sh("sha256sum < data", check=True).stdout.split()[0] == sha(cluster.root / "root/data")


# --- few descriptors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spare", [4, 24])
def test_few_descriptors_for_the_file_system_server(sturdy, spare):
    cluster = sturdy(fresh=1)
    for i in range(200):
        (cluster.root / f"root/f{i}").write_bytes(os.urandom(200_000 if i % 2 else 3000))
    names = [f"f{i}" for i in range(200)]
    p = cluster.popen("vrun", "-D", "/root", "--", "bash", "-c", "echo ready; read line; sha256sum " + " ".join(names),
                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "ready\n"
    pid = fs_pid(cluster)
    highest = max(int(fd) for fd in os.listdir(f"/proc/{pid}/fd")) + 1 + spare
    subprocess.run(["prlimit", "--pid", str(pid), f"--nofile={highest}:{highest}"], check=True)
    out, err = p.communicate("on\n", timeout=50)
    assert p.returncode == 0, err
    assert out == "".join(f"{sha(cluster.root / 'root' / n)}  {n}\n" for n in names)
    assert cluster.sh("sha256sum f0", check=True).stdout.split()[0] == sha(cluster.root / "root/f0")
    assert stat(cluster)["corrupt_units"] == 0


# --- two tenants -----------------------------------------------------------------------------------------------------


class OtherHome:
    """A home of another user of the same cluster, on this machine too."""
    def __init__(self, cluster, user, root):
        self.cluster, self.user, self.root = cluster, user, pathlib.Path(root)
        self.directory = cluster.directory / f"home-of-{user.partition('@')[0]}"
        pki = self.directory / "pki"
        pki.mkdir(parents=True, mode=0o700)
        cluster.run("vrund", "pki", "issue", "--ca", cluster.pki(), "--dir", pki, "--role", "home", "--name", user, check=True)
        (self.directory / "config.toml").write_text(f'controller = "127.0.0.1:{cluster.port}"\ncredentials = "{pki}"\n'
                                                    f'credentials_name = "{user}"\nroot = "{self.root}"\n')
        self.environment = dict(cluster.environment, VRUN_DIR=str(self.directory))

    def run(self, *args, **kw):
        return self.cluster.run(*args, env=self.environment, **kw)

    def stat(self):
        return json.loads(self.run("vctl", "cache", "stat", "-o", "json", check=True).stdout)["nodes"][0]

    def close(self):
        """Ends its daemon, and nothing of it is left."""
        for p in pathlib.Path("/proc").iterdir():
            try:
                if p.name.isdigit() and f"VRUN_DIR={self.directory}\0".encode() in (p / "environ").read_bytes() and \
                        (p / "cmdline").read_bytes().split(b"\0")[1:2] == [b"home"]:
                    os.kill(int(p.name), signal.SIGKILL)
            except OSError:
                continue
        shutil.rmtree(self.directory, ignore_errors=True)


def test_what_one_tenant_fetched_is_closed_to_the_other(sturdy, tmp_path):
    cluster = sturdy(fresh=1)
    secret = os.urandom(3 << 20)
    (cluster.root / "root/secret").write_bytes(secret)
    small = b"the small secret" * 100
    (cluster.root / "root/small").write_bytes(small)
    cluster.sh("cat secret small | sha256sum", check=True)
    small_name, = wait_until("it is in the store", lambda: [f.name for f in objects(cluster) if f.read_bytes() == small])
    mine = stat(cluster)
    assert mine["bytes"] > 3 << 20
    tenants = {f.parents[2].name for f in objects(cluster)}
    assert len(tenants) == 1

    root = tmp_path / "root"
    subprocess.run(["cp", "-a", cluster.root, root], check=True)
    for name in ("secret", "small"):
        (root / "root" / name).unlink()
    other = OtherHome(cluster, "mallory@elsewhere", root)
    try:
        # As if it were the same home: the id that a home gives itself opens nothing.
        seed = cluster.home_state / "home_id"
        stolen = other.directory / seed.relative_to(cluster.directory / "home")
        stolen.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(seed, stolen)
        assert other.stat()["bytes"] == 0 and other.stat()["objects"] == 0, "another's figures are not shown"
        r = other.run("vrun", "-D", "/root", "--", "sh", "-c", "cat secret small; ls /var/lib/vrun")
        assert r.returncode != 0 and "No such file" in r.stderr and r.stdout == ""

        # It has a file with the very bytes (it guessed them): they come from its own home, not from what is there.
        fetched = other.stat()["fetched_bytes"]
        (root / "root/guess").write_bytes(secret)
        r = other.run("vrun", "-D", "/root", "--", "sha256sum", "guess", check=True)
        assert r.stdout.split()[0] == hashlib.sha256(secret).hexdigest()
        assert other.stat()["fetched_bytes"] - fetched >= 3 << 20
        theirs = {f.parents[2].name for f in objects(cluster)} - tenants
        assert len(theirs) == 1
        names = [f.name for f in objects(cluster) if f.parents[2].name in theirs]
        assert names and small_name not in names, "which would be its name for this one too"

        # And it empties its own cache only.
        other.run("vctl", "cache", "prune", check=True)
        assert stat(cluster)["bytes"] == pytest.approx(mine["bytes"], rel=0.01)
        assert cluster.json("cache", "verify")["nodes"][0]["verified"]["corrupt_units"] == 0
    finally:
        other.close()


def test_tenants_share_the_nodes_bound(sturdy, tmp_path):
    """The first one filled it; it gives way to the second until each has a fair share."""
    cluster = sturdy(fresh=1, node_options=["--cache-bytes", str(32 << 20)])
    (cluster.root / "root/mine").write_bytes(os.urandom(30 << 20))
    for i in range(30):
        (cluster.root / f"root/m{i}").write_bytes(os.urandom(1 << 20))
    cluster.sh("cat m* > /dev/null", check=True)
    assert stat(cluster)["bytes"] > 20 << 20
    root = tmp_path / "root"
    subprocess.run(["cp", "-a", cluster.root, root], check=True)
    other = OtherHome(cluster, "second@elsewhere", root)
    try:
        other.run("vrun", "-D", "/root", "--", "sh", "-c", "cat m? m1? m2? > /dev/null", check=True)
        wait_until("both fit", lambda: stat(cluster)["bytes"] + other.stat()["bytes"] <= 33 << 20)
        assert other.stat()["bytes"] > 8 << 20
        assert stat(cluster)["node_bytes"] <= 33 << 20
    finally:
        other.close()


# --- questions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words, what", [((), "stat, verify or prune"), (("look",), "not one of"), (("stat", "n1"), "--node"),
                                         (("prune", "--node", ""), "an empty name"), (("stat", "--to", "5G"), "only prune"), (("prune", "--to", "much"), "--to: much")])
def test_wrong_questions_are_usage_errors(cluster, words, what):
    r = cluster.run("vctl", "cache", *words)
    assert r.returncode == 2 and what in r.stderr and len(r.stderr.splitlines()) == 1


def test_a_node_that_is_not_there_or_away_is_one_clear_line(sturdy):
    cluster = sturdy(fresh=1)
    r = cluster.run("vctl", "cache", "stat", "--node", "n7")
    assert r.returncode == 1 and r.stderr == "vctl: node n7: there is no such node: `vctl nodes` lists them\n"
    cluster.sh("true", check=True)
    cluster.stop_node("n1", signal.SIGKILL)
    wait_until("the controller has noticed", lambda: cluster.node_state("n1") != "ready")
    began = time.monotonic()
    for words in (("stat", "--node", "n1"), ("prune",)):
        r = cluster.run("vctl", "cache", *words)
        assert r.returncode == 1 and "vctl: node n1: it is " in r.stderr and len(r.stderr.splitlines()) == 1
    assert time.monotonic() - began < 20
    r = cluster.run("vctl", "cache", "stat", "-o", "json")
    assert r.returncode == 1 and json.loads(r.stdout)["nodes"][0]["error"]["code"] == "unavailable"


def test_help_and_completion_know_it(cluster):
    text = cluster.vctl("help", "cache").stdout
    assert "stat|verify|prune" in text and "--node" in text and "--to" in text
    for shell in ("bash", "zsh", "fish"):
        assert "stat verify prune" in cluster.vctl("completion", shell).stdout


def test_home_outlives_a_question_that_was_given_up(sturdy):
    cluster = sturdy(fresh=1)
    cluster.sh("true", check=True)
    home, fs = cluster.pid_of("home"), fs_pid(cluster)
    os.kill(fs, signal.SIGSTOP)
    try:
        p = cluster.popen("vctl", "cache", "stat")
        time.sleep(1)
        p.send_signal(signal.SIGINT)
        p.wait(5)
    finally:
        os.kill(fs, signal.SIGCONT)
    time.sleep(16)   # home would have waited 15 s for the node
    assert cluster.vctl("status").returncode == 0 and cluster.pid_of("home") == home
