# SPDX-License-Identifier: Apache-2.0
"""Named snapshots whose home is the pool's S3 store: the snapshot store's disk may be lost, and be small."""
import contextlib
import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

import pytest

import s3
from cluster import empty, wait_until

pytestmark = [pytest.mark.skipif(s3.MISSING is not None, reason=s3.MISSING or ""), pytest.mark.seconds(120)]


@pytest.fixture
def kept(sturdy, server):
    """A cluster whose snapshots are in the store, and whose one node reaches it."""
    def make(more="", nodes=1):
        cluster = sturdy(fresh=0, store=server, configuration='s3_snapshots = "on"\n' + more)
        if nodes:
            cluster.start_node("n1")
            server.route(cluster, "n1")
        return cluster
    return make


def state(cluster):
    return next(pathlib.Path(cluster.directory).glob("home/**/snapshots/owners")).parent


def stop_store(cluster):
    cluster.kill_daemon("snapshots")


def up(cluster):
    cluster.vctl("up", "--no-node", "--root", str(cluster.root))


def lose_disk(cluster):
    stop_store(cluster)
    # All but the store's id: as another store it could read at once, and write in a while (docs/decisions/0030).
    shutil.rmtree(state(cluster) / "owners")
    up(cluster)


def test_a_snapshot_outlives_its_home_and_the_snapshot_stores_disk(kept, server):
    cluster = kept()
    large = os.urandom(5 << 20)
    (cluster.root / "root/large").write_bytes(large)
    (cluster.root / "root/program.py").write_text("print('of the snapshot', len(open('/root/large', 'rb').read()))\n")
    made = cluster.json("snapshot", "create", "v1")["snapshot"]
    assert made["bucket"] == server.BUCKET and server.snapshot_objects()
    assert f"in the S3 bucket {server.BUCKET}" in cluster.vctl("snapshot", "show", "v1").stdout
    empty(cluster.root)
    (cluster.root / "root").mkdir()
    lose_disk(cluster)
    assert cluster.json("snapshot", "show", "v1")["snapshot"] == made
    r = cluster.vrun("--snapshot", "v1", "--", "sh", "-c", "python3 /root/program.py; sha256sum < /root/large", check=True)
    assert r.stdout == f"of the snapshot {5 << 20}\n{hashlib.sha256(large).hexdigest()}  -\n"
    # Another one, beside it: what the store has is not asked of home again, nor sent to it.
    (cluster.root / "root/note").write_text("new")
    before = len(server.snapshot_objects())
    again = cluster.json("snapshot", "create", "v2")["snapshot"]
    assert again["sent_bytes"] == 3
    assert len(server.snapshot_objects()) - before <= 3  # directories, content, an index
    cluster.vctl("snapshot", "delete", "v1")
    assert cluster.vrun("--snapshot", "v2", "--", "true").returncode in (126, 127)  # it has no shell, nor true
    cluster.vctl("snapshot", "delete", "v2")
    assert len(server.snapshot_objects()) == 1   # the catalog


def test_keys_stay_with_the_controller(kept, server):
    cluster = kept()
    (cluster.root / "root/secret-name").write_text("the words of the file")
    cluster.vctl("snapshot", "create", "v1")
    pid = cluster.pid_of("snapshots")
    keys = str(pathlib.Path(cluster.directory) / "home/s3-credentials")
    for file in ("cmdline", "environ"):
        text = pathlib.Path(f"/proc/{pid}/{file}").read_bytes()
        assert server.SECRET.encode() not in text and keys.encode() not in text
    memory = b""
    for line in open(f"/proc/{pid}/maps"):
        span, rights = line.split()[:2]
        if not rights.startswith("rw"):
            continue
        begin, end = (int(x, 16) for x in span.split("-"))
        with open(f"/proc/{pid}/mem", "rb", 0) as mem:
            mem.seek(begin)
            try:
                memory = mem.read(end - begin)
            except OSError:
                continue
        assert server.SECRET.encode() not in memory
    for file in state(cluster).rglob("*"):
        assert not file.is_file() or server.SECRET.encode() not in file.read_bytes()
    for file in server.snapshot_objects():
        assert b"secret-name" not in file.read_bytes() and b"the words" not in file.read_bytes()


def test_a_store_that_is_away_is_said_and_nothing_is_lost(kept, server):
    cluster = kept(nodes=0)
    (cluster.root / "root/a").write_text("a")
    cluster.vctl("snapshot", "create", "v1")
    server.stop()
    (cluster.root / "root/b").write_text("b")
    r = cluster.vctl("snapshot", "create", "v2", check=False)
    assert r.returncode == 1 and r.stderr.count("\n") == 1 and "S3" in r.stderr, r
    assert [s["name"] for s in cluster.json("snapshot", "list")["snapshots"]] == ["v1"]
    # So does one whose disk was not lost, while it is away.
    stop_store(cluster)
    up(cluster)
    assert [s["name"] for s in cluster.json("snapshot", "list")["snapshots"]] == ["v1"]
    server.start()
    wait_until("it is made", lambda: cluster.vctl("snapshot", "create", "v2", check=False).returncode == 0, 60)
    lose_disk(cluster)
    assert [s["name"] for s in cluster.json("snapshot", "list")["snapshots"]] == ["v1", "v2"]


def test_killed_in_the_middle_it_is_there_whole_or_not_at_all(kept, server):
    cluster = kept(nodes=0)
    (cluster.root / "root/data").write_bytes(os.urandom(48 << 20))
    create = cluster.popen("vctl", "snapshot", "create", "v1")
    wait_until("some of it is there", lambda: len(server.snapshot_objects()) >= 2)
    stop_store(cluster)
    assert create.wait(60) == 1
    up(cluster)
    names = [s["name"] for s in cluster.json("snapshot", "list")["snapshots"]]
    assert names in ([], ["v1"])
    if not names:
        cluster.vctl("snapshot", "create", "v1")
    left = len(server.snapshot_objects())
    cluster.vctl("snapshot", "delete", "v1")
    assert left > 12 and len(server.snapshot_objects()) == 1


def test_interrupted_it_is_made_again_at_once(kept, server):
    cluster = kept(nodes=0)
    (cluster.root / "root/data").write_bytes(os.urandom(48 << 20))
    create = cluster.popen("vctl", "snapshot", "create", "v1")
    wait_until("some of it is there", lambda: len(server.snapshot_objects()) >= 2)
    create.send_signal(signal.SIGINT)
    assert create.wait(10) in (130, -signal.SIGINT)
    # Its end may have been on its way already.
    r = cluster.vctl("snapshot", "create", "v1", check=False)
    assert r.returncode == 0 or "there is one already" in r.stderr, r
    assert [s["name"] for s in cluster.json("snapshot", "list")["snapshots"]] == ["v1"]


def bytes_on_disk(cluster):
    total = 0
    for f in state(cluster).rglob("objects/*/*"):
        # What is too much goes while this looks.
        with contextlib.suppress(FileNotFoundError):
            total += f.stat().st_blocks * 512 if f.is_file() else 0
    return total


def test_of_a_large_file_comes_what_is_read(kept, server):
    cluster = kept()
    large = os.urandom(100 << 20)
    (cluster.root / "root/large").write_bytes(large)
    cluster.vctl("snapshot", "create", "v1")
    (cluster.root / "root/large").unlink()
    lose_disk(cluster)
    want = large[70 << 20:(70 << 20) + 4096]
    r = cluster.vrun("--snapshot", "v1", "--", "sh", "-c", "dd if=/root/large bs=4096 skip=17920 count=1 status=none | sha256sum", check=True)
    assert r.stdout.split()[0] == hashlib.sha256(want).hexdigest()
    # Whoever looks for holes is told that there are none.
    holes = "import os; f = os.open('/root/large', 0); print(os.lseek(f, 1, os.SEEK_HOLE), os.lseek(f, 5 << 20, os.SEEK_DATA))"
    assert cluster.vrun("--snapshot", "v1", "--", "python3", "-c", holes, check=True).stdout == f"{100 << 20} {5 << 20}\n"
    here = [f.stat() for f in state(cluster).rglob("objects/*/*") if f.stat().st_size == len(large)]
    assert len(here) == 1 and 0 < here[0].st_blocks * 512 < 20 << 20
    r = cluster.vrun("--snapshot", "v1", "--", "sha256sum", "/root/large", check=True)
    assert r.stdout.split()[0] == hashlib.sha256(large).hexdigest()


def test_the_disk_is_bounded(kept, server):
    cluster = kept('snapshots_size = "20M"\n')
    for i in range(10):
        (cluster.root / f"root/{i}").write_bytes(os.urandom(6 << 20))
    cluster.vctl("snapshot", "create", "v1")
    assert bytes_on_disk(cluster) > 60 << 20
    wait_until("what is too much has gone", lambda: bytes_on_disk(cluster) < 21 << 20, 40)
    want = "".join(hashlib.sha256((cluster.root / f"root/{i}").read_bytes()).hexdigest() + "\n" for i in range(10))
    r = cluster.vrun("--snapshot", "v1", "--", "sh", "-c", "cd /root; for i in 0 1 2 3 4 5 6 7 8 9; do sha256sum < $i | cut -c1-64; done", check=True)
    assert r.stdout == want


def test_a_full_disk_gives_way_to_what_is_read(kept):
    cluster = kept()
    contents = {f"b{i}": os.urandom(25 << 20) for i in range(3)} | {"larger-than-the-disk": os.urandom(70 << 20)}
    for name, content in contents.items():
        (cluster.root / "root" / name).write_bytes(content)
    cluster.vctl("snapshot", "create", "v1")
    for name in contents:
        (cluster.root / "root" / name).unlink()
    owners = state(cluster) / "owners"
    stop_store(cluster)
    shutil.rmtree(owners)
    owners.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "none", owners], check=True)
    try:
        up(cluster)
        for name, content in contents.items():
            r = cluster.vrun("--snapshot", "v1", "--", "sha256sum", name, check=True)
            assert r.stdout.split()[0] == hashlib.sha256(content).hexdigest()
        cluster.vctl("snapshot", "delete", "v1")
    finally:
        stop_store(cluster)
        subprocess.run(["umount", "-l", owners], check=True)


def test_settings_that_make_no_sense_are_said(own):
    directory = pathlib.Path(tempfile.mkdtemp(prefix="vrun-e2e-", dir="/var/tmp"))
    cluster = own(nodes=0, directory=str(directory))
    config = directory / "home/config.toml"
    before = config.read_text()
    for text, word in (('s3_snapshots = "on"\n', "s3_bucket"), ('snapshots_size = "1G"\n', "s3_snapshots"),
                       ('s3_snapshots = "yes"\n', "on")):
        config.write_text(before + text)
        r = cluster.run("vctl", "up", "--no-node", "--root", str(cluster.root))
        assert r.returncode != 0 and word in r.stderr and r.stderr.count("\n") == 1, r
    config.write_text(before)
