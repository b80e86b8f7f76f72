# SPDX-License-Identifier: Apache-2.0
"""A node that runs what another one has run fetches by its trace, in one burst, and --explain-io tells the truth."""
import hashlib
import os
import re
import signal
import subprocess
import time

import pytest

from cluster import wait_until

pytestmark = pytest.mark.view("frozen")

SCRIPT = """
import os
here = os.path.dirname(os.path.abspath(__file__))
total = 0
for i in range(40):
    total += len(open(f"{here}/small{i}", "rb").read())
with open(f"{here}/big", "rb", buffering=0) as big:
    for unit in (90, 3, 57, 58, 20):
        big.seek(unit << 16)
        total += len(big.read(1000))
print(total)
"""


def account(stderr):
    """What the table of --explain-io says, by source: fetched units, units read."""
    rows = {m[1]: (m[2], int(m[3])) for m in re.finditer(r"^(cache|trace|ahead|demand) +\S+ +(\S+) +(\d+) ", stderr, re.M)}
    assert set(rows) == {"cache", "trace", "ahead", "demand"}, stderr
    waits = int(re.search(r"^(\d+) waits for content, [\d.]+ s in all$", stderr, re.M)[1])
    return {name: (0 if units == "-" else int(units), used) for name, (units, used) in rows.items()}, waits


def traces(cluster):
    return {f.name: f.stat().st_mtime_ns for f in cluster.home_state.glob("traces/*.trace")}


def run(cluster, *options):
    r = cluster.vrun("--explain-io", *options, "--", "python3", "/root/traced/script.py", check=True)
    assert r.stdout == f"{40 * 70000 + 5 * 1000}\n"
    return (*account(r.stderr), r.stderr)


def make_traced(cluster):
    here = cluster.root / "root/traced"
    here.mkdir()
    (here / "script.py").write_text(SCRIPT)
    for i in range(40):
        (here / f"small{i}").write_bytes(os.urandom(70000))
    (here / "big").write_bytes(os.urandom(100 << 16))
    return here


@pytest.mark.parametrize("view", ["frozen", pytest.param("live", marks=pytest.mark.view("live"))])
def test_a_second_node_fetches_by_trace_and_the_account_is_true(sturdy, view):
    cluster = sturdy(fresh=1)
    make_traced(cluster)
    rows, waits, text = run(cluster)
    assert rows["trace"] == (0, 0), text
    assert rows["demand"][0] > 0 and waits > 0, text
    slowest, largest = text.split("FILE\n")[1:]
    assert "/root/traced/" in slowest, text                # the slowest waits have names
    # And what was fetched has its times, within those of the run.
    wall = float(re.search(r"link busy \d+ % of ([\d.]+) s", text)[1])
    files = re.findall(r"^\S+ +\S+ +(?:ahead|demand) +([\d.]+) s +([\d.]+) s +(/.*)$", largest, re.M)
    assert len(files) == 10 and all((cluster.root / path[1:]).is_file() for _, _, path in files), text
    assert 0 <= int(re.search(r"link busy (\d+) %", text)[1]) <= 100 and "page cache is not counted" not in text, text
    sources = re.findall(r"^(?:ahead|demand) .* ([\d.]+) s +([\d.]+) s  ", text, re.M)
    assert sources and all(0 <= float(first) <= float(last) <= wall for first, last, *_ in sources + files), text
    assert re.search(r"^trace +0 +0 +0 +0 +- +- ", text, re.M), text
    wait_until("the trace is home", lambda: traces(cluster))

    # The same again there: nothing is fetched, nothing is waited for.
    rows, waits, text = run(cluster)
    assert sum(fetched for fetched, _ in rows.values()) == 0 and waits == 0, text
    assert "nothing was fetched: all that was read was here already" in text

    # A node that has seen nothing.
    cluster.stop_node("n1")
    cluster.start_node("n2")
    rows, waits, text = run(cluster)
    assert rows["trace"][0] >= 40 * 2 + 5, text
    assert rows["trace"][1] >= 40 * 2 + 5, text
    assert rows["demand"][0] + rows["ahead"][0] <= rows["trace"][0] // 10, text
    assert rows["demand"][1] <= 5, text

    # Traces that are damaged were never there.
    cluster.stop_node("n2")
    for name in traces(cluster):
        path = cluster.home_state / "traces" / name
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    cluster.start_node("n3")
    rows, waits, text = run(cluster)
    assert rows["trace"] == (0, 0) and rows["demand"][0] > 0, text


def test_runs_in_a_snapshot_have_the_traces_of_the_root_and_the_other_way_round(sturdy):
    cluster = sturdy(fresh=1)
    make_traced(cluster)
    cluster.vctl("snapshot", "create", "v1")
    rows, waits, text = run(cluster, "--snapshot", "v1")
    assert rows["trace"] == (0, 0) and rows["demand"][0] > 0 and waits > 0, text
    wait_until("the trace is home", lambda: traces(cluster))

    def by_trace(*options):
        rows, _, text = run(cluster, *options)
        assert rows["trace"][0] >= 40 * 2 + 5 and rows["trace"][1] >= 40 * 2 + 5, text
        assert rows["demand"][0] + rows["ahead"][0] <= rows["trace"][0] // 10, text
    cluster.stop_node("n1")
    cluster.start_node("n2")
    by_trace("--snapshot", "v1")
    by_trace()   # nothing of the snapshot's content counts as the root's
    # Nobody asks for the account: it is told all the same, and the snapshot is in use no longer than the job is there.
    cluster.stop_node("n2")
    cluster.start_node("n3")
    before = traces(cluster)
    for name in before:
        (cluster.home_state / "traces" / name).unlink()
    cluster.vrun("--snapshot", "v1", "--", "python3", "/root/traced/script.py", check=True)
    wait_until("the trace is home", lambda: set(traces(cluster)) == set(before))
    cluster.vctl("snapshot", "delete", "v1")


def test_what_a_warm_node_did_not_see_comes_all_the_same(sturdy):
    """The first node had the interpreter in its page cache: its record, and the trace, lacks that."""
    cluster = sturdy(fresh=1)
    make_traced(cluster)
    cluster.vrun("--", "python3", "-c", "pass", check=True)
    rows, waits, text = run(cluster)
    assert "some of it was here before" in text
    # On a cold node it comes as it would without a trace, and what the trace has by that.
    cluster.stop_node("n1")
    cluster.start_node("n2")
    rows, waits, text = run(cluster)
    assert rows["trace"][0] >= 40 * 2 + 5 and rows["ahead"][0] > 0, text
    assert rows["demand"][0] < rows["trace"][0] + rows["ahead"][0], text
    # That run has told all.
    cluster.stop_node("n2")
    cluster.start_node("n3")
    rows, waits, text = run(cluster)
    assert rows["demand"][0] + rows["ahead"][0] <= rows["trace"][0] // 10 and rows["demand"][1] <= 5, text


def test_a_changed_file_costs_the_rest_of_a_trace_nothing(sturdy):
    cluster = sturdy(fresh=1)
    here = make_traced(cluster)
    run(cluster)
    wait_until("the trace is home", lambda: traces(cluster))
    (here / "script.py").write_text(SCRIPT + "# edited\n")
    (here / "small7").write_bytes(os.urandom(70000))
    cluster.stop_node("n1")
    cluster.start_node("n2")
    rows, waits, text = run(cluster)
    assert rows["trace"][0] >= 40 * 2 + 5 and rows["demand"][1] <= 5, text


def test_without_explain_io_nothing_is_said(sturdy):
    cluster = sturdy(fresh=1)
    r = cluster.vrun("--", "true", check=True)
    assert "waits for content" not in r.stderr
    began = time.monotonic()
    r = cluster.vrun("--explain-io", "--", "true", check=True)
    assert "waits for content" in r.stderr and time.monotonic() - began < 10


PART = """
import sys
with open("/root/part", "rb", buffering=0) as part:
    print(len(part.read(1000)), flush=True)
    if sys.stdin.readline():
        part.seek(0)
        print(__import__("hashlib").sha256(part.read()).hexdigest())
"""


@pytest.mark.view("live")
def test_the_rest_of_a_small_file_is_there_though_home_has_another(sturdy):
    """A trace brings the beginning of it; a live view shows the job the file that it has opened."""
    cluster = sturdy(fresh=1)
    content = os.urandom(600 << 10)
    (cluster.root / "root/part").write_bytes(content)
    (cluster.root / "root/part.py").write_text(PART)
    command = ["--view=live", "-D", "/root", "--", "python3", "/root/part.py"]
    assert cluster.vrun(*command, check=True, input="").stdout == "1000\n"
    wait_until("the trace is home", lambda: traces(cluster))
    cluster.stop_node("n1")
    cluster.start_node("n2")
    job = subprocess.Popen(cluster.command("vrun", "-q", *command), env=cluster.environment, stdin=subprocess.PIPE,
                           stdout=subprocess.PIPE, text=True)
    try:
        assert job.stdout.readline() == "1000\n"
        new = cluster.root / "root/part.new"
        new.write_bytes(os.urandom(600 << 10))
        os.rename(new, cluster.root / "root/part")
        time.sleep(0.5)
        said = job.communicate("go\n", timeout=60)[0]
    finally:
        job.kill()
    assert said == hashlib.sha256(content).hexdigest() + "\n"


SLOW = """
import sys
print("ready", flush=True)
sys.stdin.readline()
print(len(open("/root/late", "rb").read()))
"""


def test_a_run_that_outlives_home_is_traced_and_accounted_for(sturdy):
    cluster = sturdy(fresh=1)
    (cluster.root / "root/late").write_bytes(os.urandom(200_000))
    (cluster.root / "root/slow.py").write_text(SLOW)
    job = cluster.popen("vrun", "--explain-io", "-D", "/root", "--", "python3", "/root/slow.py", stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert job.stdout.readline() == "ready\n"
    assert not traces(cluster)
    os.kill(cluster.pid_of("home"), signal.SIGKILL)
    out, err = job.communicate("go\n", timeout=60)
    assert (job.returncode, out) == (0, "200000\n"), err
    assert "no node has reported" not in err and account(err)[0]["demand"][0] > 0, err
    wait_until("the trace is home", lambda: traces(cluster))


def test_a_job_that_is_placed_after_home_was_started_again_is_traced(sturdy):
    cluster = sturdy(fresh=1)
    cluster.stop_node("n1")
    (cluster.root / "root/batch.py").write_text("print(len(open('/root/batch.py').read()))\n")
    job = cluster.run("vbatch", "-D", "/root", "--", "python3", "/root/batch.py", check=True).stdout.split()[-1]
    cluster.await_root(job)
    cluster.kill_daemon("home")
    assert cluster.json("job", job)["state"] == "PENDING"   # home is there again
    cluster.start_node("n1")
    wait_until("it has run", lambda: cluster.json("job", job)["state"] == "COMPLETED")
    wait_until("the trace is home", lambda: traces(cluster))


# --- names and attributes

def sent(cluster):
    """Bytes that home has sent, once it sends no more but what a live view hears every second."""
    seen = [-1 << 40] * 2

    def rests():
        seen.append(int(cluster.json("status")["served_bytes"]))
        time.sleep(0.2)
        return seen[-1] - seen[-3] < 2000
    wait_until("home rests", rests)
    return seen[-1]


def touch(file):
    os.utime(file, ns=(time.time_ns(), time.time_ns()))


@pytest.mark.seconds(120)
def test_of_a_tree_only_the_directories_that_changed_travel(sturdy):
    """However long a node was away, and whether home remembers what it had."""
    cluster = sturdy(fresh=1)
    many = cluster.root / "root/many"
    for i in range(500):
        (many / f"d{i}").mkdir(parents=True)
        for j in range(40):
            (many / f"d{i}/f{j}").touch()

    def run():
        before = sent(cluster)
        cluster.vrun("--", "true", check=True)
        return sent(cluster) - before

    def move(stop, start):
        cluster.stop_node(stop)
        cluster.start_node(start)
    run()
    move("n1", "n2")
    run()
    move("n2", "n1")
    for i in range(18):     # more than home remembers
        touch(many / f"d{i}/f0")
        cluster.vrun("--", "true", check=True)
    move("n1", "n2")
    touch(many / "d100/f0")
    assert run() < 100_000
    cluster.kill_daemon("home")
    touch(many / "d200/f0")
    cluster.json("jobs")    # home is there again
    wait_until("home has scanned the root", lambda: cluster.json("status")["scanned"])
    assert run() < 100_000


@pytest.mark.view("live")
def test_what_a_live_view_was_told_of_travels_once(sturdy):
    cluster = sturdy(fresh=1)
    large = cluster.root / "root/large"
    large.mkdir()
    for i in range(20_000):
        (large / f"f{i}").touch()
    for _ in range(2):
        assert cluster.sh("ls /root/large | wc -l").stdout == "20000\n"
    before = sent(cluster)
    touch(large / "f7")
    want = int((large / "f7").stat().st_mtime)
    assert cluster.sh("stat -c %Y /root/large/f7").stdout == f"{want}\n"
    assert sent(cluster) - before < 100_000
