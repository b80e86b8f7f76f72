# SPDX-License-Identifier: Apache-2.0
"""Fixtures: one small root, one cluster for most tests, one for each set of options for those that end what runs in it or start another
node, and own ones for the rest. With pytest-xdist each worker has its own of all."""
import collections
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testlib"))
import miniroot  # noqa: E402
import s3  # noqa: E402
from cluster import SLOW, Bridge, Cluster, discard  # noqa: E402

# The files that take longest come first, so that the workers are done at about the same time.
LONGEST = """suites gang_failures checkpoints defrag_deadlines fs_restart cache trace s3 snapshot_s3 scheduler snapshot live frozen features bursts bad_days live_away peers run
live_in_place files""".split()
TEST_SECONDS = int(os.environ.get("VRUN_E2E_SECONDS", "60"))
HUNG_SECONDS = int(os.environ.get("VRUN_E2E_HUNG", "90"))   # beyond a test's limit, for its fixtures to clean up

# Whoever runs the tests in the background or under nohup has some signals ignored, and commands inherit that. (Not SIGPIPE:
# Python itself ignores it, and a pipe to a command that has ended must not end us.)
for _signal in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_signal) == signal.SIG_IGN:
        signal.signal(_signal, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    config.addinivalue_line("markers", "seconds(n): the test may take that long")
    config.addinivalue_line("markers", "view(name): of each vrun that names none; without the mark it is vrun's own default")
    config.addinivalue_line("markers", "alone: asserts how long something takes, or changes something of the whole machine; ./test runs it after all others")


@pytest.hookimpl(tryfirst=True)   # before xdist looks at the groups
def pytest_collection_modifyitems(items):
    missing = None
    if os.geteuid() != 0:
        missing = "needs root: namespaces, mounts and cgroups of an emulated host"
    elif not os.path.exists("/dev/fuse"):
        missing = "needs /dev/fuse"
    if missing:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=missing))
    # For xdist: tests of one file that share something run in one worker, one after another; the others where there is room.
    shares = [item for item in items if "own" not in item.fixturenames]
    for item in shares:
        item.add_marker(pytest.mark.xdist_group(item.path.name))
    place = {f"test_{name}.py": i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)) if "own" not in item.fixturenames else len(place))


def waiting():
    """The threads of this machine that wait for a file system, and for what: also those of other tests."""
    lines = []
    for task in pathlib.Path("/proc").glob("[0-9]*/task/[0-9]*"):
        try:
            stack = [line.split()[-1].split("+")[0] for line in (task / "stack").read_text().splitlines()]
            if any(re.search("fuse|lookup|rwsem", frame) for frame in stack) and stack[0] != "fuse_dev_do_read":
                command = (task / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                lines.append(f"{task.name} {command[:80]}: {' '.join(stack[:8])}")
        except (OSError, IndexError):
            pass
    return "\n".join(lines[:40])


def end_clusters(item):
    print(f"{item.name} hangs: its clusters are killed\n{waiting()}", file=sys.__stderr__, flush=True)
    for c in [*getattr(item, "own_clusters", []), *(item.funcargs.get(name) for name in ("shared", "two_nodes"))]:
        if c is not None:
            c.kill()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """A hung test ends with a traceback, and the fixtures still clean up."""
    marker = item.get_closest_marker("seconds")
    limit = int((max(TEST_SECONDS, marker.args[0]) if marker else TEST_SECONDS) * SLOW)

    def expired(*_):
        raise TimeoutError(f"{item.name}: not over after {limit} s\n{waiting()}")
    old = signal.signal(signal.SIGALRM, expired)
    signal.alarm(limit)
    # A test that waits in the kernel for a file system gets no signal: its daemons are killed.
    hung = threading.Timer(limit + HUNG_SECONDS, end_clusters, [item])
    hung.daemon = True
    hung.start()
    yield
    hung.cancel()
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old)


@pytest.fixture(scope="session")
def template_root():
    """What every root is a copy of; nothing writes to it."""
    directory = tempfile.mkdtemp(prefix="vrun-root-", dir="/var/tmp")
    yield miniroot.make(os.path.join(directory, "root"))
    shutil.rmtree(directory, ignore_errors=True)


class Copy:
    """A root for one cluster, below a directory of its own."""
    def __init__(self, template):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="vrun-own-", dir="/var/tmp"))
        self.root = self.directory / "root"
        subprocess.run(["cp", "-a", template, self.root], check=True)

    def remove(self):
        discard(self.directory)


@pytest.fixture(scope="session")
def shared(template_root):
    """The cluster of the tests that leave it as it was."""
    copy = Copy(template_root)
    c = Cluster(copy.root)
    yield c
    c.close()
    copy.remove()


def view_of(request):
    marker = request.node.get_closest_marker("view")
    return marker.args[0] if marker else None


@pytest.fixture
def cluster(shared, request):
    shared.view = view_of(request)
    yield shared
    shared.settle()


@pytest.fixture(scope="session")
def two_nodes(template_root):
    """Of the tests of live views."""
    copy = Copy(template_root)
    c = Cluster(copy.root, nodes=2, node_options=["--milli-cpus", "2000"])
    yield c
    c.close()
    copy.remove()


@pytest.fixture
def live(two_nodes, request):
    """Two nodes, and a directory of the test's own in the root."""
    two_nodes.place = pathlib.Path(two_nodes.root) / "root" / request.node.name
    two_nodes.place.mkdir()
    request.node.own_clusters = [two_nodes]
    yield two_nodes
    two_nodes.settle()


class Pool:
    """Clusters by their options, as many as there is room for; those that were not asked for for longest go."""
    MOST = 3

    def __init__(self, template):
        self.template, self.there = template, collections.OrderedDict()

    def take(self, place, fresh=None, node_options=(), link=(), nodes=1, uplink_mbit=None, store=None, configuration=""):
        """Tests of one place only share it."""
        key = (place, "fresh") if fresh is not None else (place, nodes, tuple(node_options), tuple(link), uplink_mbit)
        key = (*key, store and store.number, configuration)
        if key not in self.there:
            while len(self.there) >= self.MOST:
                self.drop(next(iter(self.there)))
            options = {} if fresh is not None else {"node_options": node_options, "link": link}
            bridge = Bridge(uplink_mbit) if uplink_mbit is not None else None
            if store:
                options["directory"] = tempfile.mkdtemp(prefix="vrun-e2e-", dir="/var/tmp")
                store.configure(options["directory"], more=configuration)
            copy = Copy(self.template)
            self.there[key] = Cluster(copy.root, nodes=0 if fresh is not None else nodes, bridge=bridge, **options), copy
        self.there.move_to_end(key)
        c = self.there[key][0]
        c.begin()
        if fresh is not None:
            c.next_nodes(node_options, link)
            for i in range(fresh):
                c.start_node(f"n{i + 1}")
        return key, c

    def drop(self, key):
        c, copy = self.there.pop(key)
        c.close()
        copy.remove()

    def give_back(self, key):
        c, _ = self.there[key]
        try:
            c.restore(self.template)
        except Exception as e:   # the next test gets a new one
            print(f"a cluster is replaced: {e}")
            self.drop(key)


@pytest.fixture(scope="session")
def pool(template_root):
    pool = Pool(template_root)
    yield pool
    while pool.there:
        pool.drop(next(iter(pool.there)))


@pytest.fixture
def sturdy(pool, request):
    """sturdy(**options) is a cluster with these options that the tests of a file share though they end its daemons, stop its nodes and
    start others: after the test all that it began with runs again, and its root is as it was. What the controller, home and its nodes
    have seen before (jobs and their numbers, cached content) stays. With fresh=N there are N nodes that are new, with the options given.
    With `store`, an S3 server, its pool has that, and `configuration` is in the settings. A failed test's is not used again."""
    taken = request.node.own_clusters = []
    keys = []

    def take(view=None, **options):
        key, c = pool.take(request.node.path.name, **options)
        assert key not in keys, "a test has it once"
        keys.append(key)
        taken.append(c)
        c.view = view or view_of(request)
        return c

    yield take
    for key in keys:
        (pool.drop if getattr(request.node, "failed", False) else pool.give_back)(key)


@pytest.fixture(scope="session")
def s3_server():
    yield from s3.running()


@pytest.fixture
def server(s3_server):
    """An S3 server, which the test may stop."""
    yield s3_server
    if s3_server.process.poll() is None:
        s3_server.resume()
    else:
        s3_server.start()


@pytest.fixture
def own(template_root, request):
    """A cluster of the test's own, on a root of its own, for tests that break something for good or look at what a new one does."""
    copy = Copy(template_root)
    made = request.node.own_clusters = []

    def make(**options):
        made.append(Cluster(copy.root, **{"view": view_of(request), **options}))
        return made[-1]

    yield make
    for c in made:
        c.close()
    copy.remove()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A failed test shows what the daemons said."""
    outcome = yield
    report = outcome.get_result()
    if report.when == "call" and report.failed:
        item.failed = True
        for c in [*getattr(item, "own_clusters", []), *filter(None, [item.funcargs.get("shared")])]:
            report.sections.append(("daemons", c.logs()))
