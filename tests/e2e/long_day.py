# SPDX-License-Identifier: Apache-2.0
"""A developer's day: cargo, go, npm, maven, pip, uv, Jupyter, torch and datasets, natively and in jobs, in live and in frozen views. Each
says the same and leaves the same files. ./test suites runs this; nothing else does.

    ./test suites -k 'day[cargo]'         one of them
    VRUN_DAY_ROOT=/var/tmp/vrun-day-root  where the root is made and kept (8 GB with torch)
    VRUN_DAY_ROUNDS=2                     how often each side runs. The first job of a project on a node fetches what it needs.

Natively means in the same root by chroot, with a directory of its own at /day and everything else read-only. A table of times is
printed and kept in build/day.json; docs/performance.md has one."""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
import time

import pytest

import roots
from cluster import TOP, Cluster
from projects import PROJECTS
from suites import described, differences

pytestmark = pytest.mark.seconds(3600)
ROOT = pathlib.Path(os.environ.get("VRUN_DAY_ROOT", "/var/tmp/vrun-day-root"))
ROUNDS = int(os.environ.get("VRUN_DAY_ROUNDS", "2"))
LOCK = ROOT.parent / f".{ROOT.name}.lock"   # as roots.kept has it
KEPT = TOP / "build/day.json"
SIDES = ["native", "live", "frozen"]
ENVIRONMENT = {"HOME": "/day/home", "LANG": "C.UTF-8", "TZ": "UTC", "USER": "root",
               "OMP_NUM_THREADS": "2", "TMPDIR": "/tmp", "TOKENIZERS_PARALLELISM": "false"}


def prepare(name):
    """Installs what a project needs into the root and fetches what it depends on; nothing if that was done."""
    project, place = PROJECTS[name], ROOT / "srv/day" / name
    done = ROOT / "srv/day" / f"{name}.complete"
    roots.kept(ROOT, "1", lambda new: roots.debootstrap(new, ["ca-certificates", "python3", "python3-venv", "python3-pip"]))
    with roots.locked(LOCK):
        if done.exists() and done.read_text() == project.version():
            return
        for old in (place, ROOT / "day"):
            shutil.rmtree(old, ignore_errors=True)
        roots.inside(ROOT, f"apt-get update -qq; apt-get install -y -qq --no-install-recommends {project.debian}; apt-get clean",
                     what="Debian's packages cannot be installed")
        if project.python:
            if shutil.disk_usage(ROOT).free < 10 << 30:
                raise roots.Unreachable("less than 10 GB are free for Python's packages")
            roots.virtual_environment(ROOT, "/opt/python", project.python.split())
        (ROOT / "day/home").mkdir(parents=True)
        for path, text in project.files.items():
            (ROOT / "day" / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / "day" / path).write_text(text)
        roots.inside(ROOT, f"cd /day; {project.fetch}", registries=True, what="what it depends on cannot be fetched")
        place.parent.mkdir(parents=True, exist_ok=True)
        (ROOT / "day").rename(place)
        (ROOT / "day").mkdir()
        done.write_text(project.version())


class Times:
    """{project: {side: [seconds]}} of this run, and of earlier ones where this had none."""

    def __init__(self):
        self.all = json.loads(KEPT.read_text()) if KEPT.exists() else {}

    def note(self, project, side, seconds):
        self.all.setdefault(project, {})[side] = [round(s, 2) for s in seconds]
        self.save()

    def table(self):
        def cell(of, side, at):
            if side not in of or "native" not in of:
                return "not run"
            if at and len(of[side]) == 1:
                return ""
            mine, native = of[side][at], of["native"][-1]
            return f"{mine:.1f} s, {mine / native:.2f} x"
        rows = ["| project | native | live, first | live, again | frozen, first | frozen, again |", "|---|---|---|---|---|---|"]
        for name in [n for n in PROJECTS if n in self.all]:
            of = self.all[name]
            native = f"{of['native'][-1]:.1f} s" if "native" in of else "not run"
            rows.append(f"| {name} | {native} | " + " | ".join(cell(of, s, at) for s in SIDES[1:] for at in (0, -1)) + " |")
        return "\n".join(rows)

    def save(self):
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(self.all, indent=1) + "\n")


@pytest.fixture(scope="module")
def times(request):
    t = Times()
    yield t
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n\nload {os.getloadavg()[1]:.1f}, {os.cpu_count()} cores; ratios are to the last native run\n{t.table()}")


@pytest.fixture(scope="module")
def missing(request):
    """{project: why it cannot run here}. All roots are complete before home looks at them."""
    wanted = {item.callspec.params["project"] for item in request.session.items if item.path == request.path}
    reasons = {}
    for name in sorted(wanted):
        try:
            prepare(name)
        except roots.Unreachable as e:
            reasons[name] = str(e)
    return reasons


@pytest.fixture(scope="module")
def day(missing):
    with roots.locked(LOCK):   # /day is one directory
        (ROOT / "day").mkdir(exist_ok=True)
        c = Cluster(ROOT)
        try:
            yield c
        finally:
            c.close()
            shutil.rmtree(ROOT / "day", ignore_errors=True)


def command(cluster, side, native_place, project):
    path = "/opt/python/bin:" * bool(project.python) + "/usr/local/bin:/usr/bin:/bin"
    words = ["bash", "-ec", f"exec 2>&1\nPATH={path}\nset -o pipefail\n{project.script}"]
    if side != "native":
        return cluster.command("vrun", f"--view={side}", "-q", "-c", 2, "-D", "/day", "--", *words)
    environment = [f"{k}={v}" for k, v in ENVIRONMENT.items()]
    inner = " ".join(shlex.quote(w) for w in ["/usr/sbin/chroot", str(ROOT), "/usr/bin/env", "-i", "-C", "/day", "PATH=/usr/bin:/bin", *environment, *words])
    return ["unshare", "-m", "--propagation", "private", "sh", "-ec",
            f"mount --bind {ROOT} {ROOT}; mount -o remount,bind,ro {ROOT}; {roots.mounts(ROOT)} mount --bind {native_place} {ROOT}/day; exec {inner}"]


def run(cluster, side, name, native_place):
    """Seconds, what it says, and the tree that is left."""
    project = PROJECTS[name]
    place = native_place if side == "native" else ROOT / "day"
    for old in place.iterdir():
        shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    subprocess.run(["cp", "-a", f"{ROOT}/srv/day/{name}/.", place], check=True)
    environment = {**{k: v for k, v in cluster.environment.items() if k.startswith("VRUN_")}, **ENVIRONMENT, "PATH": "/usr/bin:/bin"}
    began = time.monotonic()
    r = subprocess.run(command(cluster, side, native_place, project), cwd="/", env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                       text=True, timeout=project.seconds)
    seconds = time.monotonic() - began
    assert (r.returncode, r.stderr) == (0, ""), (side, r.returncode, r.stdout[-3000:], r.stderr[-3000:])
    return seconds, r.stdout, what_is_left(project, place)


def what_is_left(project, place):
    def named(path, patterns):
        return any(re.fullmatch(p, path) for p in patterns)
    tree = {}
    for path, entry in described(place).items():
        text = os.fsdecode(path)
        if named(text, project.skip):
            continue
        mode, uid, gid, size, content, _, xattrs = entry[:7]   # not its time: a developer's tools do not set any
        links = entry[7:] if project.links else []
        if named(text, project.loose):
            size = content = None
        elif size:
            size = size[1]
        tree[path] = [mode, uid, gid, size, content, xattrs, links]
    return tree


@pytest.mark.parametrize("project", PROJECTS)
def test_day(project, missing, day, times, request):
    if project in missing:
        pytest.skip(missing[project])
    request.node.own_clusters = [day]
    native_place = pathlib.Path(tempfile.mkdtemp(prefix="vrun-day-", dir="/var/tmp"))
    try:
        wanted = None
        for side in SIDES:
            seconds = []
            for _ in range(ROUNDS):
                took, said, tree = run(day, side, project, native_place)
                seconds.append(took)
                wanted = wanted or (said, tree)
                assert said == wanted[0], f"{side} says:\n{said}\nnatively:\n{wanted[0]}"
                assert not (wrong := differences(wanted[1], tree)), f"{side}: {wrong}"
            times.note(project, side, seconds)
    finally:
        day.settle()
        shutil.rmtree(native_place, ignore_errors=True)
