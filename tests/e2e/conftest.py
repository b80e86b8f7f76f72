# SPDX-License-Identifier: Apache-2.0
"""Fixtures: one small root and one cluster for most tests; tests that break things get their own."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testlib"))
import miniroot  # noqa: E402
from cluster import Cluster  # noqa: E402

TEST_SECONDS = int(os.environ.get("VRUN_E2E_SECONDS", "60"))

# Whoever runs the tests in the background or under nohup has some signals ignored, and commands inherit that. (Not SIGPIPE:
# Python itself ignores it, and a pipe to a command that has ended must not end us.)
for _signal in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_signal) == signal.SIG_IGN:
        signal.signal(_signal, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    config.addinivalue_line("markers", "seconds(n): the test may take that long")
    config.addinivalue_line("markers", "view(name): of each vrun that names none; without the mark it is vrun's own default")


def pytest_collection_modifyitems(items):
    missing = None
    if os.geteuid() != 0:
        missing = "needs root: namespaces, mounts and cgroups of an emulated host"
    elif not os.path.exists("/dev/fuse"):
        missing = "needs /dev/fuse"
    if missing:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=missing))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """A hung test ends with a traceback, and the fixtures still clean up."""
    marker = item.get_closest_marker("seconds")
    limit = max(TEST_SECONDS, marker.args[0]) if marker else TEST_SECONDS

    def expired(*_):
        raise TimeoutError(f"{item.name}: not over after {limit} s")
    old = signal.signal(signal.SIGALRM, expired)
    signal.alarm(limit)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old)


@pytest.fixture(scope="session")
def template_root():
    directory = tempfile.mkdtemp(prefix="vrun-root-", dir="/var/tmp")
    yield miniroot.make(os.path.join(directory, "root"))
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def shared(template_root):
    """The cluster of the tests that leave it as it was."""
    c = Cluster(template_root)
    yield c
    c.close()


def view_of(request):
    marker = request.node.get_closest_marker("view")
    return marker.args[0] if marker else None


@pytest.fixture
def cluster(shared, request):
    shared.view = view_of(request)
    yield shared
    shared.settle()


@pytest.fixture
def own(template_root, request):
    """A cluster of the test's own, on a root of its own, for tests that break something."""
    directory = tempfile.mkdtemp(prefix="vrun-own-", dir="/var/tmp")
    root = os.path.join(directory, "root")
    subprocess.run(["cp", "-a", template_root, root], check=True)  # also the FIFOs that other tests left there
    made = request.node.own_clusters = []

    def make(**options):
        made.append(Cluster(root, **{"view": view_of(request), **options}))
        return made[-1]

    yield make
    for c in made:
        c.close()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A failed test shows what the daemons said."""
    outcome = yield
    report = outcome.get_result()
    if report.when == "call" and report.failed:
        for c in [*getattr(item, "own_clusters", []), *filter(None, [item.funcargs.get("shared")])]:
            report.sections.append(("daemons", c.logs()))
