# SPDX-License-Identifier: Apache-2.0
"""Programs that many people run in jobs and that are too large for CI. ./test suites runs this; nothing else does.

Python's packages are installed below the test's root by pip, so it needs a network."""
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

pytestmark = pytest.mark.seconds(900)
MODULES = "/opt/modules"   # in the root


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


# --- notebooks behind -p

def test_jupyter_behind_a_published_port(own):
    c = own()
    place = modules(c, "jupyter-server", "ipykernel")
    port = free_port()
    server = job(c, "--network=private", "-p", f"{port}:8888", code="exec python3 -m jupyter_server --allow-root --no-browser --ServerApp.ip=127.0.0.1 "
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
