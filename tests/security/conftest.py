# SPDX-License-Identifier: Apache-2.0
"""What a hostile job tries. Each test makes an attempt in a real sandbox, beside the same attempt outside that succeeds. The root is
this machine's own, so no cluster is needed (src/sandbox/testing/sandbox_run.cc)."""
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
RUN = pathlib.Path(os.environ.get("VRUN_SANDBOX_RUN", TOP / "build/bin/sandbox_run"))
SECONDS = 60


def pytest_collection_modifyitems(items):
    missing = None if os.geteuid() == 0 else "needs root: namespaces, mounts and control groups"
    if missing is None and not RUN.exists():
        missing = f"needs {RUN}: ninja -C build sandbox_run"
    for item in items:
        if missing:
            item.add_marker(pytest.mark.skip(reason=missing))


class Box:
    """Commands in a sandbox, and the same outside."""
    program = RUN

    def __init__(self, directory):
        self.directory = directory

    def run(self, *command, options=(), timeout=SECONDS, **kw):
        return subprocess.run([RUN, *options, "--", *command], capture_output=True, text=True, timeout=timeout, cwd="/", **kw)

    def popen(self, *command, options=()):
        return subprocess.Popen([RUN, *options, "--", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/")

    def python(self, code, *args, options=(), **kw):
        """Standard output of a program inside. It must end with 0."""
        r = self.run(sys.executable, "-c", textwrap.dedent(code), *map(str, args), options=options, **kw)
        assert r.returncode == 0, r.stderr
        return r.stdout

    def outside(self, code, *args):
        return subprocess.run([sys.executable, "-c", textwrap.dedent(code), *map(str, args)], capture_output=True, text=True,
                              timeout=SECONDS, check=True).stdout


@pytest.fixture
def box():
    # Not /tmp: a sandbox has its own.
    directory = pathlib.Path(subprocess.run(["mktemp", "-d", "/var/tmp/vrun-security-XXXXXX"], capture_output=True, text=True,
                                            check=True).stdout.strip())
    directory.chmod(0o755)
    yield Box(directory)
    shutil.rmtree(directory)
