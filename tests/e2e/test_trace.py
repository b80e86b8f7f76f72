# SPDX-License-Identifier: Apache-2.0
"""A node that runs what another one has run fetches by its trace, in one burst, and --explain-io tells the truth."""
import hashlib
import os
import re
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
    return {f.name: f.stat().st_mtime_ns for f in (cluster.directory / "home").rglob("*.trace")}


def run(cluster, *options):
    r = cluster.vrun("--explain-io", *options, "--", "python3", "/root/traced/script.py", check=True)
    assert r.stdout == f"{40 * 70000 + 5 * 1000}\n"
    return (*account(r.stderr), r.stderr)


def test_a_second_node_fetches_by_trace_and_the_account_is_true(own):
    cluster = own()
    here = cluster.root / "root/traced"
    here.mkdir()
    (here / "script.py").write_text(SCRIPT)
    for i in range(40):
        (here / f"small{i}").write_bytes(os.urandom(70000))
    (here / "big").write_bytes(os.urandom(100 << 16))
    rows, waits, text = run(cluster)
    assert rows["trace"] == (0, 0), text
    assert rows["demand"][0] > 0 and waits > 0, text
    slowest, largest = text.split("FILE\n")[1:]
    assert "/root/traced/" in slowest, text                # the slowest waits have names
    # And what was fetched has its times, within those of the run.
    wall = float(re.search(r"link busy \d+ % of ([\d.]+) s", text)[1])
    files = re.findall(r"^\S+ +([\d.]+) s +([\d.]+) s +(/.*)$", largest, re.M)
    assert len(files) == 10 and all((cluster.root / path[1:]).is_file() for _, _, path in files), text
    sources = re.findall(r"^(?:ahead|demand) .* ([\d.]+) s +([\d.]+) s  ", text, re.M)
    assert sources and all(0 <= float(first) <= float(last) <= wall for first, last, *_ in sources + files), text
    assert re.search(r"^trace +0 +0 +0 +- +- ", text, re.M), text
    wait_until("the trace is home", lambda: traces(cluster))

    # The same again there: nothing is fetched, nothing is waited for.
    rows, waits, text = run(cluster)
    assert sum(fetched for fetched, _ in rows.values()) == 0 and waits == 0, text

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
        path = next((cluster.directory / "home").rglob(name))
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    cluster.start_node("n3")
    rows, waits, text = run(cluster)
    assert rows["trace"] == (0, 0) and rows["demand"][0] > 0, text


def test_a_changed_file_costs_the_rest_of_a_trace_nothing(own):
    cluster = own()
    here = cluster.root / "root/traced"
    here.mkdir()
    (here / "script.py").write_text(SCRIPT)
    for i in range(40):
        (here / f"small{i}").write_bytes(os.urandom(70000))
    (here / "big").write_bytes(os.urandom(100 << 16))
    run(cluster)
    wait_until("the trace is home", lambda: traces(cluster))
    (here / "script.py").write_text(SCRIPT + "# edited\n")
    (here / "small7").write_bytes(os.urandom(70000))
    cluster.stop_node("n1")
    cluster.start_node("n2")
    rows, waits, text = run(cluster)
    assert rows["trace"][0] >= 40 * 2 + 5 and rows["demand"][1] <= 5, text


def test_without_explain_io_nothing_is_said(own):
    cluster = own()
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
def test_the_rest_of_a_small_file_is_there_though_home_has_another(own):
    """A trace brings the beginning of it; a live view shows the job the file that it has opened."""
    cluster = own()
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
