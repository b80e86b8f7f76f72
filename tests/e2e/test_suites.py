# SPDX-License-Identifier: Apache-2.0
"""What people and their tools do with files, once at home and once in a job, in a live and in a frozen view: it says the same and
leaves the same. ./test suites does it for longer."""
import hashlib
import os
import pathlib
import shutil
import sqlite3
import subprocess
import tempfile
import zipfile

import pytest

import suites
from cluster import FULL, Cluster
from suites import Side, described, differences

pytestmark = pytest.mark.seconds(240)
VIEWS = ["live", "frozen"]
SUITES = pathlib.Path(suites.BIN) / "fs_suites"


@pytest.fixture(scope="module")
def tools(template_root):
    directory = tempfile.mkdtemp(prefix="vrun-suites-", dir="/var/tmp")
    root = pathlib.Path(directory) / "root"
    try:
        subprocess.run(["cp", "-a", template_root, root], check=True)
        suites.add_tools(root)
        (root / "suites").mkdir()
        c = Cluster(root)
        try:
            yield c
        finally:
            c.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def place(tools, request):
    """An empty directory of the test's own in the root, which others may pass through."""
    name = request.node.name.translate(str.maketrans("[]", "--")).strip("-")
    path = pathlib.Path(tools.root) / "suites" / name
    path.mkdir()
    request.node.own_clusters = [tools]
    yield path
    tools.settle()
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def sides(tools, place, request):
    """Where it runs natively, and where as a job."""
    outside = pathlib.Path(tools.root).parent / "native" / place.name
    yield Side(tools, outside), Side(tools, place, request.getfixturevalue("view"))
    shutil.rmtree(outside, ignore_errors=True)


# Known differences, by the beginnings of lines. A live view shows the times of home's directories, which are those at which home did
# the same (docs/decisions/0013).
KNOWN = {"live": ("times-of-directory:",), "frozen": ()}


def same(sides, *argv, native=None, skip=(), **kw):
    """Runs it on both sides; what it says is the same, and so is what is left."""
    said = [side.run(*((native or argv) if side is sides[0] else argv), **kw) for side in sides]
    said = ["".join(line for line in text.splitlines(True) if not line.startswith(KNOWN[sides[1].view])) for text in said]
    wrong = "\n".join(f"native {a}\njob    {b}" for a, b in zip(said[0].splitlines(), said[1].splitlines()) if a != b)
    assert not wrong and said[0] == said[1], wrong or said
    assert not (wrong := differences(described(sides[0].place, skip), described(sides[1].place, skip))), wrong
    return said[0]


def same_script(sides, script, **kw):
    return same(sides, "bash", "-ec", "exec 2>&1\n" + script, **kw)


@pytest.mark.parametrize("view", VIEWS)
def test_posix(sides, view):
    assert len(same(sides, "fs_suites", "posix", ".", native=[SUITES, "posix", "."]).splitlines()) > 200


@pytest.mark.parametrize("seed", [1, 2] if FULL else [1])
@pytest.mark.parametrize("view", VIEWS)
def test_random_work_on_a_file(sides, view, seed):
    same(sides, "fs_suites", "fsx", ".", seed, 700, native=[SUITES, "fsx", ".", seed, 700])


@pytest.mark.parametrize("seed", [1, 2] if FULL else [1])
@pytest.mark.parametrize("view", VIEWS)
def test_random_work_on_a_tree(sides, view, seed):
    same(sides, "fs_suites", "churn", ".", seed, 800, 3, native=[SUITES, "churn", ".", seed, 800, 3])


GIT = """
git init -q --bare origin.git
git clone -q origin.git first 2>/dev/null; cd first
for i in $(seq 150); do mkdir -p d$((i % 7)); seq $i > d$((i % 7))/f$i; done
git add . && git commit -qm one && git push -q origin HEAD:main
for i in 1 2 3; do echo $i >> d1/f1; git mv d2/f2 d2/moved$i 2>/dev/null || git mv d2/moved$((i - 1)) d2/moved$i; git commit -qam "n$i"; done
git checkout -q -b side HEAD~2 && git rm -q d3/f3 && git commit -qm side && git merge -q -m merged @{-1} && git push -q origin HEAD:main
git stash list; git gc -q --prune=now; cd ..
git clone -q -b main origin.git second; cd second; git fsck --strict 2>&1; git log --format='%H %s'; git status --porcelain; git worktree add -q ../third HEAD~1
cd ../third && git diff --stat HEAD && git fsck 2>&1 && git rev-parse HEAD
"""


@pytest.mark.parametrize("view", VIEWS)
def test_git(sides, view):
    said = [side.sh(GIT) for side in sides]
    assert said[0] == said[1] and "merged" in said[0]
    for name in ("first", "second", "third"):
        assert not (wrong := differences(*(described(s.place / name, skip=[".git"]) for s in sides))), wrong
    # What came home is a repository, to home's git too.
    out = subprocess.run(["git", "-C", sides[1].place / "second", "fsck", "--strict"], env=suites.ENVIRONMENT, capture_output=True, text=True)
    assert (out.returncode, out.stdout) == (0, ""), out.stderr
    for name in ("first", "second"):
        out = subprocess.run(["git", "-C", sides[1].place / name, "status", "--porcelain"], env=suites.ENVIRONMENT, capture_output=True, text=True)
        assert (out.returncode, out.stdout) == (0, ""), out.stderr


SQLITE = r"""
import os, signal, sqlite3, sys
mode = sys.argv[1]

def writer(said):
    db = sqlite3.connect("db", timeout=60, isolation_level=None)
    db.execute("pragma journal_mode=" + mode)
    db.execute("pragma synchronous=full")
    db.execute("create table if not exists t (round int, i int, filler text)")
    for i in range(10_000):
        db.execute("begin immediate")
        db.execute("insert into t values (?, ?, ?)", (int(sys.argv[2]), i, "x" * (i * 37 % 2000)))
        if i % 5 == 0: db.execute("update t set filler = filler || 'y' where i = ?", (i // 2,))
        db.execute("commit")
        os.write(said, i.to_bytes(4, "big"))

ends = os.pipe()
child = os.fork()
if child == 0: writer(ends[1])
os.close(ends[1])
for _ in range(int(sys.argv[3])): last = os.read(ends[0], 4)
os.kill(child, signal.SIGKILL)   # in the middle of the next one
os.waitpid(child, 0)
while more := os.read(ends[0], 4): last = more
print(int.from_bytes(last, "big") + 1)
db = sqlite3.connect("db", timeout=60)
assert db.execute("pragma integrity_check").fetchone() == ("ok",)
"""


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_sqlite_is_killed(tools, place, view, mode):
    """What it has said is committed is there, after each kill, for the next process and in the end for home."""
    side = Side(tools, place, view)
    (side.place / "s.py").write_text(SQLITE)
    said = side.sh(f"for round in 1 2 3 4 5 6; do python3 s.py {mode} $round $((round * 3)); done")
    committed = list(map(int, said.split()))
    db = sqlite3.connect(side.place / "db")
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    for number, at_least in enumerate(committed, 1):
        rows = [i for i, in db.execute("select i from t where round = ? order by i", (number,))]
        assert rows == list(range(len(rows))) and at_least <= len(rows) <= at_least + 1, (number, at_least, rows)
    db.close()


def write_project(top, libraries=4, files=6):
    """A small C project of some libraries and a program that says a number of each of their functions."""
    (top / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.20)\nproject(small C)\nenable_testing()\n" + "".join(
        f"add_library(l{n} {'SHARED' if n % 2 else 'STATIC'} " + " ".join(f"l{n}/f{i}.c" for i in range(files)) + ")\n" for n in range(libraries)) +
        "configure_file(config.h.in config.h)\ninclude_directories(${CMAKE_BINARY_DIR})\nadd_executable(program main.c)\ntarget_link_libraries(program " +
        " ".join(f"l{n}" for n in range(libraries)) + ")\nadd_test(NAME works COMMAND program)\ninstall(TARGETS program DESTINATION bin)\n")
    (top / "config.h.in").write_text('#define NAME "@PROJECT_NAME@"\n')
    calls = [(n, i) for n in range(libraries) for i in range(files)]
    for n, i in calls:
        (top / f"l{n}").mkdir(exist_ok=True)
        (top / f"l{n}/f{i}.c").write_text(f"#include <stdio.h>\n#include <string.h>\nint f{n}_{i}(int x) {{ return x * {n + 2} + {i}; }}\n")
    (top / "main.c").write_text('#include <stdio.h>\n#include "config.h"\n' + "".join(f"int f{n}_{i}(int);\n" for n, i in calls) +
                                'int main(void) {\n  puts(NAME);\n' + "".join(f'  printf("%d ", f{n}_{i}(3));\n' for n, i in calls) + "  return 0;\n}\n")


@pytest.mark.parametrize("view", VIEWS)
def test_a_build(sides, view):
    """cmake, ninja, gcc, ar, ld; then one file is changed and only what needs it is built."""
    for side in sides:
        write_project(side.place)
    script = """cmake -G Ninja -S . -B build -DCMAKE_BUILD_TYPE=Release >configured && cd build && ninja -j2 >built && ./program && ctest >tested
        sleep 0.1; ninja; echo '/* changed */' >> ../l1/f1.c; ninja >again; ./program; DESTDIR=../installed ninja install >/dev/null
        sha256sum CMakeFiles/l?.dir/l?/*.o ../main.c; grep -c . again"""
    said = [side.sh(script) for side in sides]
    assert said[0] == said[1] and "no work to do" in said[0] and said[0].count("small\n") == 2
    trees = [set(described(side.place)) for side in sides]
    assert trees[0] == trees[1], trees[0] ^ trees[1]
    assert subprocess.run([sides[1].place / "build/program"], env={"LD_LIBRARY_PATH": str(sides[1].place / "build")}, capture_output=True,
                          text=True, check=True).stdout == subprocess.run([sides[0].place / "build/program"], capture_output=True, text=True,
                                                                          check=True).stdout


COPIES = """
mkdir tree && cd tree && mkdir -p a/b/c empty && seq 5000 > a/f && ln a/f a/b/hard && cp a/f a/as-owner && chmod 4711 a/as-owner && ln -s ../f a/b/soft && ln -s nowhere a/dangling && mkfifo a/p
chmod 711 a/f && chown 1000:1001 a/b a/b/soft -h && setfacl -m u:1000:rwx a/b/c
setfattr -n user.note -v text a/f && truncate -s 3M sparse && printf x | dd of=sparse bs=1 seek=1000000 conv=notrunc status=none
printf name > "$(printf 'odd\\n\\377name')" && chmod 2775 a/b/c && touch -d 1999-01-02T03:04:05.123456789 a/f sparse a/b/c && touch -hd 1998-01-01 a/b/soft; cd ..
tar --xattrs --acls -cSf t.tar tree && mkdir untarred && tar --xattrs --acls --numeric-owner -xpf t.tar -C untarred && tar -df t.tar && rm t.tar
cp -a tree copied && cp -a --sparse=always copied again && cp -al tree linked
rsync -aHAXS --numeric-ids tree/ synced/ && echo more >> tree/a/f && rm tree/a/dangling && rsync -aHAXS --delete --checksum tree/ synced/ && rsync -aHAXn --delete -i tree/ synced/
seq 3000 > old && sed 's/^1\\(.*\\)7$/changed \\1/' old > new && (diff -u --label old --label new old new > p || true) && patch -s old < p && cmp old new && patch -s -R old < p
sed -i 's/^2/two/' old && sort -r old > sorted && split -n 7 sorted part- && cat part-* | cmp - sorted && xargs -n 100 < old | head -3
diff -r --no-dereference tree/a/b copied/a/b || true; mv tree moved && install -D -m 750 new in/stalled && rm -rf untarred && ls
"""


@pytest.mark.parametrize("view", VIEWS)
def test_copies(sides, view):
    """tar, cp, rsync, patch, sed, mv, rm of all that a tree can have."""
    same_script(sides, COPIES)


def write_wheel(path, files):
    with zipfile.ZipFile(path, "w") as wheel:
        names = [f"many/p{i % 40}/m{i}.py" for i in range(files)] + ["many/__init__.py"] + [f"many/p{i}/__init__.py" for i in range(40)]
        for i, name in enumerate(names):
            wheel.writestr(zipfile.ZipInfo(name), f"VALUE = {i}\n" * (i % 50))
        info = "many-1.0.dist-info/"
        wheel.writestr(zipfile.ZipInfo(info + "METADATA"), "Metadata-Version: 2.1\nName: many\nVersion: 1.0\n")
        wheel.writestr(zipfile.ZipInfo(info + "WHEEL"), "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(zipfile.ZipInfo(info + "entry_points.txt"), "[console_scripts]\nmany=many:main\n")
        wheel.writestr(zipfile.ZipInfo(info + "RECORD"), "".join(f"{n},,\n" for n in [*names, info + "METADATA", info + "WHEEL", info + "entry_points.txt", info + "RECORD"]))


@pytest.mark.parametrize("view", VIEWS)
def test_pip_install(sides, view):
    for side in sides:
        write_wheel(side.place / "many-1.0-py3-none-any.whl", 600)
    pip = "PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore python3 -m pip --no-cache-dir -q"
    same_script(sides, f"""
        {pip} install --no-index --no-compile --target site many-1.0-py3-none-any.whl; find site -type f | wc -l
        PYTHONPATH=site python3 -c 'import many.p7.m47; print(many.p7.m47.VALUE)'
        rm -r site/many/p3; find site | wc -l""",
                skip=["RECORD", "direct_url.json"])  # which have the path


FIO = """
fio --name=random --filename=f --size=12m --rw=randrw --bs=4k --ioengine=psync --fsync=200 --verify=crc32c --verify_fatal=1 --randseed=7 --minimal >/dev/null
fio --name=map --filename=g --size=6m --rw=randwrite --bs=4k --ioengine=mmap --verify=crc32c --verify_fatal=1 --randseed=8 --minimal >/dev/null
fio --name=direct --filename=h --size=6m --rw=randwrite --bs=8k --ioengine=libaio --iodepth=8 --direct=1 --verify=crc32c --verify_fatal=1 --randseed=9 --minimal >/dev/null
"""
FIO_AGAIN = {"f": "--rw=randrw --bs=4k --randseed=7", "g": "--rw=randwrite --bs=4k --randseed=8", "h": "--rw=randwrite --bs=8k --randseed=9"}


@pytest.mark.parametrize("view", VIEWS)
def test_fio(tools, place, view):
    side = Side(tools, place, view)
    side.sh(FIO)
    for name, how in FIO_AGAIN.items():
        subprocess.run(["fio", f"--name={name}", f"--filename={side.place / name}", f"--size={'12m' if name == 'f' else '6m'}", *how.split(),
                        "--ioengine=psync", "--verify=crc32c", "--verify_only", "--verify_fatal=1", "--minimal"], check=True, cwd=place,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=60)


def write_repository(top, package):
    """A repository of one Debian package with some files, links and scripts; returns what apt is to be told."""
    tree = top / "made"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / f"opt/{package}/deep").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(f"Package: {package}\nVersion: 1.0\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n")
    (tree / "DEBIAN/conffiles").write_text(f"/opt/{package}/configuration\n")
    (tree / "DEBIAN/postinst").write_text(f"#!/bin/sh\nset -e\necho \"$1\" > /opt/{package}/made-by-script\nchown 1000:1000 /opt/{package}/made-by-script\n")
    (tree / "DEBIAN/postrm").write_text(f"#!/bin/sh\nrm -rf /opt/{package}\n")
    for script in ("postinst", "postrm"):
        os.chmod(tree / "DEBIAN" / script, 0o755)
    (tree / f"opt/{package}/configuration").write_text("text\n")
    for i in range(300):
        (tree / f"opt/{package}/deep/{i}").write_text(f"{i}\n" * i)
    os.chmod(tree / f"opt/{package}/deep/7", 0o4755)
    os.symlink("deep/9", tree / f"opt/{package}/link")
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", tree, top / "p.deb"], check=True, capture_output=True)
    shutil.rmtree(tree)
    data = (top / "p.deb").read_bytes()
    control = subprocess.run(["dpkg-deb", "-f", top / "p.deb"], check=True, capture_output=True, text=True).stdout
    (top / "Packages").write_text(f"{control}Filename: ./p.deb\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n\n")


@pytest.mark.parametrize("view", VIEWS)
def test_apt_install_and_purge(tools, place, view):
    """As the job's root, in the whole root, which is home's afterwards."""
    side = Side(tools, place, view)
    root, package = pathlib.Path(tools.root), f"of-{view}"
    write_repository(side.place, package)
    (root / "var/lib/dpkg/updates").mkdir(parents=True, exist_ok=True)
    (root / "var/lib/dpkg/status").touch()
    (root / f"etc/apt/sources.list").write_text(f"deb [trusted=yes] file:{side.inside} ./\n")
    apt = "DEBIAN_FRONTEND=noninteractive apt-get -q -o APT::Sandbox::User=root"
    side.sh(f"{apt} update && {apt} install -y {package} && test -u /opt/{package}/deep/7 && cat /opt/{package}/made-by-script")
    installed = root / "opt" / package
    assert (installed / "deep/299").read_text() == "299\n" * 299 and os.readlink(installed / "link") == "deep/9"
    assert installed.joinpath("deep/7").stat().st_mode & 0o7777 == 0o4755 and installed.joinpath("made-by-script").stat().st_uid == 1000
    assert "install ok installed" in subprocess.run(["dpkg-query", f"--admindir={root}/var/lib/dpkg", "-s", package], capture_output=True, text=True).stdout
    assert subprocess.run(["dpkg", f"--root={root}", "--verify", package], capture_output=True, text=True).stdout == ""
    side.sh(f"{apt} purge -y {package} && ! test -e /opt/{package} && dpkg --audit")
    assert not installed.exists()
    assert package not in (root / "var/lib/dpkg/status").read_text()
    assert not list((root / "var/lib/dpkg/info").glob(f"{package}.*"))
