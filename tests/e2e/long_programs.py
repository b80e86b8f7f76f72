# SPDX-License-Identifier: Apache-2.0
"""Programs that many people run in jobs and that are too large for CI: a Java machine, a browser with its own sandbox, notebooks and
TensorBoard behind a published port, a profiler. ./test suites runs this; nothing else does.

Debian's packages are installed on this machine and Python's below the test's root, by their ordinary clients, so it needs a network."""
import atexit
import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import urllib.request

import pytest

import miniroot
from cluster import SLOW, free_port, wait_until
from test_gangs import installed, needs

pytestmark = pytest.mark.seconds(900)
MODULES = "/opt/modules"   # in the root


def packages(c, *names):
    """In this machine and in the root, with what they depend on."""
    missing = installed(*names)
    if missing:
        r = subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], capture_output=True, text=True,
                           env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, timeout=600)
        assert r.returncode == 0, r.stdout[-2000:] + r.stderr[-2000:]
    needs(c, *names)


@functools.lru_cache
def downloaded(*names):
    place = tempfile.mkdtemp(prefix="vrun-modules-", dir="/var/tmp")
    atexit.register(shutil.rmtree, place)
    r = subprocess.run(["/usr/bin/python3", "-m", "pip", "install", "-q", "--no-input", "--disable-pip-version-check", "--no-compile", "--target", place, *names],
                       capture_output=True, text=True, timeout=600)
    assert r.returncode == 0, r.stdout[-2000:] + r.stderr[-2000:]
    os.chmod(place, 0o755)
    return place


def modules(c, *names):
    """Of PyPI, in the root. Returns where, for programs of this machine."""
    place = pathlib.Path(f"{c.root}{MODULES}")
    place.parent.mkdir(exist_ok=True)
    subprocess.run(["cp", "-a", downloaded(*names), place], check=True)
    for extension in place.rglob("*.so*"):
        for library in miniroot.libraries(str(extension)):
            if not library.startswith("/var/tmp/"):   # beside it
                miniroot.place(c.root, library)
    return place


def job(c, *options, code, **kw):
    return c.popen("vrun", "-D", "/root", "--mem", "3G", "-c", "2", *options, "--", "env", f"PYTHONPATH={MODULES}", "HOME=/root", "sh", "-c", code,
                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kw)


def fetched(url, data=None):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=20 * SLOW) as answer:
            return answer.read()
    except OSError:
        return None


# With a place for settings of its own: jobs may not write to a browser's profile at home.
AS_USER = ["python3", "-c", """import os, sys
os.setgroups([])
os.setgid(1000)
os.setuid(1000)
os.environ.update(HOME='/home/user', XDG_CONFIG_HOME='/tmp/config')
os.execvp(sys.argv[1], sys.argv[1:])"""]


# --- a Java machine

JAVA = """
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;

public class Work {
  public static void main(String[] arguments) throws Exception {
    ExecutorService pool = Executors.newFixedThreadPool(64);
    List<Future<Long>> parts = new ArrayList<>();
    for (int i = 0; i < 1000; ++i) {
      final int n = i;
      parts.add(pool.submit(() -> LongStream.range(0, 1000).map(x -> x * n).sum()));
    }
    long sum = 0;
    for (Future<Long> part : parts) sum += part.get();
    pool.shutdown();
    List<byte[]> kept = new ArrayList<>();
    for (int i = 0; i < 4000; ++i) {
      kept.add(new byte[1 << 18]);
      if (kept.size() > 100) kept.clear();
    }
    Files.writeString(Path.of("written"), Long.toString(sum));
    Process child = new ProcessBuilder("echo", "child").inheritIO().start();
    System.out.println(Files.readString(Path.of("written")) + " " + Runtime.getRuntime().availableProcessors() + " " + child.waitFor());
  }
}
"""


def test_a_java_machine_with_threads_collections_and_children(own):
    c = own()
    packages(c, "openjdk-17-jdk-headless")
    (c.root / "root/Work.java").write_text(JAVA)
    subprocess.run(["javac", "-d", c.root / "root", c.root / "root/Work.java"], check=True)
    java = os.path.realpath("/usr/bin/java")   # the root has no alternatives
    for view in ("live", "frozen"):
        r = c.vrun(f"--view={view}", "-c", "2", "--mem", "1G", "--", java, "-Xmx256m", "-cp", "/root", "Work", timeout=300)
        assert (r.returncode, r.stdout.split()) == (0, ["child", "249500250000", "2", "0"]), r


# --- a browser

# What the browser's process for a page has that we have not.
RENDERER = """if True:
    import pathlib, re, subprocess, sys, time
    def facts(process):
        status = (process / "status").read_text()
        return len(re.search("NSpid:(.*)", status)[1].split()), int(re.search("Seccomp_filters:(.*)", status)[1])
    browser = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    own, found = facts(pathlib.Path("/proc/self")), (0, 0)
    end = time.monotonic() + 60   # it shuts itself in after it has started
    while not (found[0] > own[0] and found[1] > own[1]) and browser.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                line = (process / "cmdline").read_bytes()
                if line.startswith(sys.argv[1].encode()) and b"--type=renderer" in line:
                    found = facts(process)
            except OSError:
                pass
    browser.kill()
    print("namespace" if found[0] > own[0] else "", "filter" if found[1] > own[1] else "", found, own)"""


def test_a_browser_uses_its_own_sandbox_or_says_that_it_may_not(own):
    c = own()
    packages(c, "chromium")
    (c.root / "home/user/page.html").write_text("<p id=x>no</p><script>document.getElementById('x').textContent = 6 * 7</script>")
    browser = [*AS_USER, "/usr/lib/chromium/chromium", "--headless", "--disable-gpu", "--dump-dom", "--user-data-dir=/tmp/profile"]
    options = ["--mem", "3G", "-c", "2"]
    r = c.vrun(*options, "--", *browser, "file:///home/user/page.html", timeout=300)
    assert r.returncode == 0 and '<p id="x">42</p>' in r.stdout, r
    looks = [*AS_USER, "python3", "-c", RENDERER, *browser[3:-2], "--remote-debugging-port=0", "--user-data-dir=/tmp/profile"]
    r = c.vrun(*options, "--", *looks, "file:///home/user/page.html", timeout=300)
    assert r.stdout.split()[:2] == ["namespace", "filter"], r
    # Root is told to think again by the browser itself.
    r = c.vrun(*options, "--", *browser[3:], "file:///home/user/page.html", timeout=300)
    assert r.returncode != 0 and "--no-sandbox" in r.stderr, r


def test_a_browser_on_a_node_without_namespaces_says_so(own):
    c = own(node_options=["--refuse-namespaces"])
    packages(c, "chromium")
    browser = [*AS_USER, "/usr/lib/chromium/chromium", "--headless", "--disable-gpu", "--dump-dom", "--user-data-dir=/tmp/profile"]
    r = c.vrun("--mem", "3G", "--", *browser, "about:blank", timeout=300)
    assert r.returncode != 0 and "sandbox" in r.stderr, r


# --- notebooks and boards behind -p

@pytest.mark.parametrize("network", ["host", "private"])
def test_jupyter_behind_a_published_port(own, network):
    c = own()
    place = modules(c, "jupyter-server", "ipykernel")
    port = free_port()
    server = job(c, f"--network={network}", "-p", f"{port}:8888", code="exec python3 -m jupyter_server --allow-root --no-browser --ServerApp.ip=127.0.0.1 "
                 "--ServerApp.port=8888 --ServerApp.token=secret --ServerApp.root_dir=/root")
    try:
        address = f"http://127.0.0.1:{port}/api"
        wait_until("Jupyter answers", lambda: fetched(f"{address}/status?token=secret") or server.poll() is not None, 120)
        assert server.poll() is None, server.communicate()[0]
        assert fetched(f"{address}/contents") is None   # without the token
        kernel = json.loads(fetched(f"{address}/kernels?token=secret", data=b'{"name": "python3"}'))["id"]
        asked = subprocess.run([sys.executable if sys.version_info[:2] == (3, 11) else "/usr/bin/python3", "-c", """if True:
            import json, sys, uuid, websocket
            ws = websocket.create_connection(sys.argv[1], timeout=60)
            ws.send(json.dumps({"header": {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "username": "", "session": "s", "version": "5.3", "date": ""},
                                "parent_header": {}, "metadata": {}, "channel": "shell", "content": {"code": "print(6 * 7)", "silent": False, "store_history": False,
                                "user_expressions": {}, "allow_stdin": False}}))
            while True:
                message = json.loads(ws.recv())
                if message["msg_type"] == "stream":
                    print(message["content"]["text"].strip())
                    break""", f"ws://127.0.0.1:{port}/api/kernels/{kernel}/channels?token=secret"], env={**os.environ, "PYTHONPATH": str(place)}, capture_output=True,
            text=True, timeout=120)
        assert asked.stdout == "42\n", asked.stderr
    finally:
        server.terminate()
        server.communicate(timeout=60)


def test_tensorboard_behind_a_published_port(own):
    c = own()
    modules(c, "tensorboard", "setuptools<81")
    port = free_port()
    code = f"""cat > write.py <<'END'
import time
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter
w = EventFileWriter("board")
for step in range(20):
    value = summary_pb2.Summary.Value(tag="loss", simple_value=1.0 / (1 + step))
    w.add_event(event_pb2.Event(wall_time=time.time(), step=step, summary=summary_pb2.Summary(value=[value])))
w.close()
END
python3 write.py && exec python3 -m tensorboard.main --logdir board --port 6006 --load_fast=false"""
    server = job(c, "-p", f"{port}:6006", code=code)
    try:
        address = f"http://127.0.0.1:{port}/data/plugin/scalars/scalars?tag=loss&run=."
        values = wait_until("TensorBoard has the values", lambda: fetched(address) or (server.poll() is not None and b"over"), 180)
        assert server.poll() is None, server.communicate()[0]
        values = wait_until("all of them", lambda: (got := json.loads(fetched(address) or b"[]")) and len(got) == 20 and got, 60)
        assert values[0][1:] == [0, 1.0] and values[-1][1] == 19
        assert b"<title>TensorBoard</title>" in fetched(f"http://127.0.0.1:{port}/")
    finally:
        server.terminate()
        server.communicate(timeout=60)


# --- a profiler

def test_py_spy_on_ones_own_programs(own):
    c = own()
    modules(c, "py-spy")
    code = """if True:
        import subprocess, sys, time
        child = subprocess.Popen(["python3", "-c", "import time\\ndef waits_here():\\n    time.sleep(60)\\nwaits_here()"])
        time.sleep(1)
        r = subprocess.run([sys.argv[1] + "/bin/py-spy", "dump", "--pid", str(child.pid)], capture_output=True, text=True)
        print("waits_here" in r.stdout or r.stdout + r.stderr)
        child.kill()"""
    for before in ([], AS_USER):
        r = c.vrun("--", *before, "python3", "-c", code, MODULES, timeout=120)
        assert r.stdout == "True\n", r
