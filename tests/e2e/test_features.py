# SPDX-License-Identifier: Apache-2.0
"""What views use of the kernel, each turned off in the node's configuration: the trees are the same."""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time

import pytest

from cluster import wait_until
from test_files import check_tree, make_rich_tree
from test_fs_restart import node_log, program_pids
from test_live import SHELL, ask, started

pytestmark = pytest.mark.view("frozen")

ALL_OFF = ["passthrough=off", "push=off", "readdirplus=off", "no_open=off", "cpu_latency=off"]
CPU_LATENCY = pathlib.Path("/dev/cpu_dma_latency")
needs_cpu_latency = pytest.mark.skipif(not CPU_LATENCY.exists(), reason=f"SKIP: needs {CPU_LATENCY}")


def options(settings):
    return [word for setting in settings for word in ("--fuse", setting)]


def descriptors(cluster, name, node="n1"):
    """How many of its file system server's descriptors are of this name."""
    server, = program_pids(cluster, "fs", node)
    found = 0
    for fd in pathlib.Path(f"/proc/{server}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):   # closed meanwhile
            found += os.readlink(fd) == name
    return found


@pytest.mark.parametrize("settings", [[s] for s in ALL_OFF] + [ALL_OFF],
                         ids=lambda settings: settings[0] if len(settings) == 1 else "all-off")
def test_the_trees_are_the_same_without(sturdy, settings):
    cluster = sturdy(fresh=1, node_options=options(settings))
    here = cluster.root / "root/rich"
    here.mkdir()
    s = make_rich_tree(here)
    for _ in range(2):   # fetched; then from the caches
        check_tree(cluster, here, "/root/rich")
    check_tree(cluster, cluster.root / "usr", "/usr")
    s.close()
    server, = program_pids(cluster, "fs")
    argv = pathlib.Path(f"/proc/{server}/cmdline").read_text().split("\0")
    assert [argv[i + 1] for i, word in enumerate(argv) if word == "--fuse"] == settings


# In a live view passthrough and cpu_latency change nothing that can be seen: together they are one run.
LIVE = [["push=off"], ["readdirplus=off"], ["no_open=off"], ["passthrough=off", "cpu_latency=off"], ALL_OFF]
WORK = ("mkdir made; echo ours > made/f; mv old made/moved; rm gone; printf X | dd of=part bs=1 seek=1000000 conv=notrunc status=none; "
        "echo more >> log; ln -s made/f soft; head -c 300000 part > made/copy; ls made")
MORE = ("for i in {1..300}; do echo $i > made/n$i; done; for i in {1..20}; do mv made/n$i made/m$i; rm made/n$((i + 100)); done; cat made/m?; "
        "echo last >> log; cat part log | sha256sum")
SUMS = "export LC_ALL=C; find . -type f | sort | xargs sha256sum; find . -type l | sort | xargs readlink"


@pytest.mark.parametrize("settings", LIVE, ids=lambda settings: "all-off" if settings == ALL_OFF else "+".join(settings))
def test_a_live_view_is_the_same_without(sturdy, settings, tmp_path):
    """What the job sees, what comes home of what it writes, an edit at home meanwhile, and a server that is killed under it."""
    cluster = sturdy(fresh=1, view="live", node_options=options(settings))
    here = cluster.root / "root/rich"
    here.mkdir()
    make_rich_tree(here).close()
    check_tree(cluster, here, "/root/rich")
    work, copy = cluster.root / "root/work", tmp_path / "copy"
    work.mkdir()
    for name, content in {"old": b"old", "gone": b"x", "log": b"first\n", "edited": b"one\n", "part": os.urandom(2_000_000)}.items():
        (work / name).write_bytes(content)
    shutil.copytree(work, copy)
    p = started(cluster, SHELL, directory="/root/work")
    server, = program_pids(cluster, "fs")

    def same(script):
        assert ask(p, script) == subprocess.run(["bash", "-c", script], cwd=copy, capture_output=True, text=True, check=True).stdout
    same(WORK)
    for there in (work, copy):
        (there / ".edited").write_text("two, and longer\n")
        os.rename(there / ".edited", there / "edited")
    wait_until("the edit is seen", lambda: ask(p, "cat edited") == "two, and longer\n", 10)
    end = threading.Timer(0.1, os.kill, (server, signal.SIGKILL))   # at an arbitrary moment
    end.start()
    same(MORE)
    end.join()
    same(SUMS)
    wait_until("another one serves", lambda: (pids := program_pids(cluster, "fs")) and pids != [server])
    out, err = p.communicate(timeout=40)
    assert (p.returncode, out) == (3, ""), (err, node_log(cluster)[-3000:])
    told = [subprocess.run(["bash", "-c", SUMS], cwd=top, capture_output=True, text=True, check=True).stdout for top in (work, copy)]
    assert told[0] == told[1]


def latency_requests(cluster, node="n1"):
    return descriptors(cluster, str(CPU_LATENCY), node)


def wanted_latency():
    """us that a processor may take to wake up, of all that say anything."""
    return int.from_bytes(CPU_LATENCY.read_bytes(), "little", signed=True)


@needs_cpu_latency
def test_processors_stay_awake_while_requests_come_fast(sturdy):
    """decisions/0027. isatty(3) of a file in a live view is a request each time, as Python makes one of each module."""
    cluster = sturdy(fresh=1, view="live")
    asks = "exec 8</etc/passwd; echo ready; while [ ! -e /root/stop ]; do [ -t 8 ] || :; done"
    p = cluster.popen("vrun", "-D", "/root", "--", "bash", "-c", asks, stdout=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "ready\n"
    assert latency_requests(cluster) == 1
    wait_until("processors are kept awake", lambda: wanted_latency() <= 10)
    (cluster.root / "root/stop").touch()
    assert p.wait(30) == 0
    # The next test's jobs may have it kept awake: what is certain is that it is off where it is turned off.
    cluster.stop_node("n1")
    cluster.next_nodes(options(["cpu_latency=off"]))
    cluster.start_node("n2")
    cluster.sh("true", check=True)
    assert latency_requests(cluster, "n2") == 0


def test_a_setting_that_is_not_known_is_said(cluster):
    r = cluster.run("vrund", "node", "--controller", "127.0.0.1:1", "--name", "n", "--state-dir", "/nowhere", "--pki", "/nowhere",
                    "--fuse", "pusch=off")
    assert r.returncode == 2 and "no such feature: known are passthrough" in r.stderr
