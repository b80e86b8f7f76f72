# SPDX-License-Identifier: Apache-2.0
"""Named snapshots: complete, independent of home, shown, compared, exported, and run in."""
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import time

import pytest

from cluster import empty, wait_until

pytestmark = pytest.mark.seconds(120)


def put(cluster, path, content):
    file = cluster.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def error(cluster, *args):
    r = cluster.vctl(*args, check=False)
    assert r.returncode == 1 and r.stderr.count("\n") == 1 and r.stderr.startswith("vctl: "), r
    return r.stderr


def test_create_list_show_diff_delete(cluster):
    put(cluster, "root/snap/a", "one")
    put(cluster, "root/snap/b", "same")
    made = cluster.json("snapshot", "create", "first")["snapshot"]
    assert made["name"] == "first" and len(made["id"]) == 64 and made["entries"] > 100 and made["sent_bytes"] > 1 << 20
    put(cluster, "root/snap/a", "two!")
    put(cluster, "root/snap/new", "new")
    (cluster.root / "root/snap/b").chmod(0o600)
    again = cluster.json("snapshot", "create", "second")["snapshot"]
    assert again["sent_bytes"] == 4 + 3 + 4   # two new contents, and that of a file whose version is new
    assert again["id"] != made["id"]

    assert [s["name"] for s in cluster.json("snapshot", "list")["snapshots"]] == ["first", "second"]
    assert cluster.json("snapshot", "show", "first")["snapshot"] == made
    assert "first" in cluster.vctl("snapshot", "list").stdout
    assert cluster.vctl("snapshot", "list", "-o", "name").stdout == "first\nsecond\n"

    differences = cluster.json("snapshot", "diff", "first", "second")["differences"]
    ours = {d["path"]: (d["change"], d["kinds"]) for d in differences if d["path"].startswith("/root/snap")}
    assert ours == {"/root/snap/a": ("changed", ["content"]), "/root/snap/b": ("changed", ["mode"]),
                    "/root/snap/new": ("added", [])}
    assert "~ /root/snap/a  (content)\n" in cluster.vctl("snapshot", "diff", "first", "second").stdout

    assert "there is one already" in error(cluster, "snapshot", "create", "first")
    assert "not a name" in error(cluster, "snapshot", "create", "a/b")
    assert "snapshot nobody: no such snapshot" in error(cluster, "snapshot", "show", "nobody")
    assert "not in the root" in error(cluster, "snapshot", "create", "third", "/does/not/exist")
    assert cluster.vctl("snapshot", "diff", "first", check=False).returncode == 2
    r = cluster.run("vctl", "snapshot", "show", "nobody", "-o", "json")
    assert json.loads(r.stdout)["error"]["code"] == "not found" or "nobody" in json.loads(r.stdout)["error"]["message"]

    assert cluster.json("snapshot", "delete", "second")["freed_bytes"] >= 7
    cluster.vctl("snapshot", "delete", "first")
    assert cluster.json("snapshot", "list")["snapshots"] == []


def test_a_run_sees_the_snapshot_when_home_has_nothing_left(sturdy):
    cluster = sturdy()
    put(cluster, "root/program.py", "import sys, json, random\nprint('of the snapshot', open('/root/data').read(), len(open('/root/large', 'rb').read()))\n")
    put(cluster, "root/data", "v1")
    large = os.urandom(5 << 20)
    put(cluster, "root/large", large)
    cluster.vctl("snapshot", "create", "v1")
    empty(cluster.root)
    (cluster.root / "root").mkdir()
    r = cluster.vrun("--snapshot", "v1", "--", "python3", "/root/program.py", check=True)
    assert r.stdout == f"of the snapshot v1 {5 << 20}\n"
    # Exit codes, stdin and pipes are those of any run; every byte is right.
    r = cluster.vrun("--snapshot", "v1", "--", "sh", "-c", "cat; sha256sum < /root/large; exit 3", input="typed\n")
    assert (r.returncode, r.stdout) == (3, "typed\n" + hashlib.sha256(large).hexdigest() + "  -\n")
    # The root as it is has no shell any more.
    assert cluster.vrun("--view=frozen", "--", "sh", "-c", "true").returncode == 127
    r = cluster.vrun("--", "sh", "-c", "true")
    assert r.returncode == 125 and "/dev: the root has none" in r.stderr, r  # a live view does not make one at home


def test_the_store_alone_keeps_a_running_job_reading(sturdy):
    """Home killed, the store killed and started again: what the job has not read yet it still reads."""
    cluster = sturdy()
    files = {f"root/data/{i}": os.urandom(300_000) for i in range(6)}
    for path, content in files.items():
        put(cluster, path, content)
    cluster.vctl("snapshot", "create", "s")
    empty(cluster.root)
    (cluster.root / "root").mkdir()
    job = cluster.run("vbatch", "-D", "/root", "--snapshot", "s", "--parsable", "--", "sh", "-c",
                      "for i in 0 1 2 3 4 5; do sha256sum < data/$i; sleep 1.5; done", check=True).stdout.strip()
    assert cluster.json("job", job)["snapshot"] == "s"
    wait_until("it runs", lambda: "-" in cluster.run("vctl", "logs", job).stdout)
    cluster.kill_daemon("home")
    cluster.kill_daemon("snapshots")
    cluster.vctl("up", "--no-node", "--root", str(cluster.root))
    cluster.vctl("wait", job)
    want = "".join(hashlib.sha256(content).hexdigest() + "  -\n" for content in files.values())
    assert (cluster.root / f"root/vrun-{job}.out").read_text() == want


def test_what_a_run_writes_comes_home_and_conflicts_keep_both(sturdy):
    cluster = sturdy()
    put(cluster, "root/result", "of home, unchanged since\n")
    put(cluster, "root/notes", "of the snapshot\n")
    cluster.vctl("snapshot", "create", "s")
    put(cluster, "root/notes", "edited at home since\n")
    r = cluster.vrun("--snapshot", "s", "--", "sh", "-c", "cat notes; echo computed > result; echo ours > notes; echo new > new")
    assert r.stdout == "of the snapshot\n"
    job = max(j["job"] for j in cluster.json("jobs", "--all")["jobs"])
    assert (cluster.root / "root/result").read_text() == "computed\n"
    assert (cluster.root / "root/new").read_text() == "new\n"
    assert (cluster.root / "root/notes").read_text() == "edited at home since\n"
    assert (cluster.root / f"root/notes.vrun-{job}").read_text() == "ours\n"
    assert "notes" in r.stderr and f"notes.vrun-{job}" in r.stderr
    r = cluster.vrun("--snapshot", "s", "--writes=discard", "--", "sh", "-c", "echo lost > result", check=True)
    assert (cluster.root / "root/result").read_text() == "computed\n"


def test_a_snapshot_in_use_is_not_deleted_and_one_that_is_gone_is_named(sturdy):
    cluster = sturdy()
    cluster.vctl("snapshot", "create", "s")
    job = cluster.popen("vrun", "-D", "/root", "--snapshot", "s", "--", "cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    job.stdin.write(b"x\n")
    job.stdin.flush()
    assert job.stdout.readline() == b"x\n"
    assert "snapshot s: it is in use" in error(cluster, "snapshot", "delete", "s")
    job.stdin.close()
    assert job.wait(20) == 0
    wait_until("it can be deleted", lambda: cluster.vctl("snapshot", "delete", "s", check=False).returncode == 0)
    r = cluster.vrun("--snapshot", "s", "--", "true")
    assert r.returncode == 125 and "snapshot s: no such snapshot" in r.stderr and r.stderr.count("\n") == 1


def test_export_is_a_layout_that_others_read(sturdy, tmp_path):
    cluster = sturdy()
    put(cluster, "root/export/plain", "plain\n")
    put(cluster, "root/export/" + "d" * 120 + "/" + "n" * 200, "a long name\n")
    os.link(cluster.root / "root/export/plain", cluster.root / "root/export/second-name")
    os.symlink("plain", cluster.root / "root/export/link")
    os.mkfifo(cluster.root / "root/export/fifo")
    os.mknod(cluster.root / "root/export/null", 0o666 | 0o020000, os.makedev(1, 3))
    os.chown(cluster.root / "root/export/plain", 1234, 3_000_000)
    (cluster.root / "root/export/plain").chmod(0o4755)
    os.utime(cluster.root / "root/export/plain", ns=(0, 1_234_567_890_123_456_789))
    os.setxattr(cluster.root / "root/export/plain", "user.note", b"a\0b\nc")
    with open(cluster.root / "root/export/sparse", "wb") as f:
        f.truncate(50 << 20)
        f.seek(20 << 20)
        f.write(b"in the middle")
    large = os.urandom(3 << 20)
    put(cluster, "root/export/large", large)
    cluster.vctl("snapshot", "create", "v1")
    layout = tmp_path / "layout"
    assert cluster.json("snapshot", "export", "v1", "--oci", str(layout))["directory"] == str(layout)

    assert json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}

    def blob(descriptor):
        data = (layout / "blobs/sha256" / descriptor["digest"].removeprefix("sha256:")).read_bytes()
        assert "sha256:" + hashlib.sha256(data).hexdigest() == descriptor["digest"] and len(data) == descriptor["size"]
        return data
    index = json.loads((layout / "index.json").read_text())
    assert index["schemaVersion"] == 2
    assert index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"] == "v1"
    manifest = json.loads(blob(index["manifests"][0]))
    assert manifest["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
    config = json.loads(blob(manifest["config"]))
    assert config["os"] == "linux" and config["architecture"] in ("amd64", "arm64")
    assert len(manifest["layers"]) == 1 and manifest["layers"][0]["mediaType"].endswith("tar+zstd")
    blob(manifest["layers"][0])
    assert len(list((layout / "blobs/sha256").iterdir())) == 3 and sorted(p.name for p in layout.iterdir()) == \
        ["blobs", "index.json", "oci-layout"]

    layer = layout / "blobs/sha256" / manifest["layers"][0]["digest"].removeprefix("sha256:")
    tar = tmp_path / "layer.tar"
    subprocess.run(["zstd", "-q", "-d", layer, "-o", tar], check=True)
    assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(tar.read_bytes()).hexdigest()]
    assert tar.stat().st_size < sum(f.stat().st_blocks * 512 for f in cluster.root.rglob("*") if f.is_file()) + (20 << 20)
    with tarfile.open(tar) as archive:
        assert archive.extractfile("root/export/sparse").read()[20 << 20:][:13] == b"in the middle"

    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    subprocess.run(["tar", "--xattrs", "--xattrs-include=*", "-xpf", tar, "-C", unpacked], check=True)
    # Not the home directory: other tests leave keys there, which are in no snapshot.
    listing = "cd {} && find bin etc lib usr root/export " \
              "\\( -type d -printf '%p %y %m %U %G\\n' -o -printf '%p %y %m %U %G %s %T@ %n %l\\n' \\) | sort"
    ours, theirs = (subprocess.run(["sh", "-c", listing.format(d)], capture_output=True, check=True).stdout.decode(errors="surrogateescape")
                    for d in (cluster.root, unpacked))
    assert ours == theirs
    assert os.getxattr(unpacked / "root/export/plain", "user.note") == b"a\0b\nc"
    assert (unpacked / "root/export/large").read_bytes() == large
    assert (unpacked / "root/export/sparse").stat().st_blocks < 1000
    assert subprocess.run(["diff", "-r", "--no-dereference", cluster.root / "usr", unpacked / "usr"]).returncode == 0

    assert "already exists" in error(cluster, "snapshot", "export", "v1", "--oci", str(layout))
    assert "no such snapshot" in error(cluster, "snapshot", "export", "v2", "--oci", str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


def test_a_snapshot_of_directories(sturdy):
    cluster = sturdy()
    put(cluster, "root/project/main.py", "print()")
    put(cluster, "root/elsewhere", "no")
    made = cluster.json("snapshot", "create", "part", str(cluster.root / "root/project"))["snapshot"]
    assert made["paths"] == ["/root/project"] and made["entries"] == 3
    r = cluster.run("vctl", "snapshot", "create", "relative", "project", cwd=str(cluster.root / "root"), check=True)
    assert "3 names" in r.stdout


@pytest.mark.alone
def test_a_file_that_never_stands_still_is_named(sturdy):
    cluster = sturdy()
    busy = put(cluster, "root/busy", "0")
    os.truncate(busy, 128 << 20)   # so large that no moment is enough to read it in
    writer = subprocess.Popen(["python3", "-c", "import os, sys\nf = os.open(sys.argv[1], os.O_WRONLY)\nwhile True: os.pwrite(f, b'x', 0)", busy])
    cluster.started.append(writer)
    wait_until("it is written to", lambda: busy.open("rb").read(1) == b"x")
    text = error(cluster, "snapshot", "create", "s")
    assert "/root/busy" in text and "changes all the time" in text
    writer.kill()
    writer.wait()
    assert cluster.json("snapshot", "list")["snapshots"] == []
    cluster.vctl("snapshot", "create", "s")


def test_private_keys_are_in_no_snapshot(sturdy):
    cluster = sturdy()
    put(cluster, "root/.ssh/id_ed25519", "secret")
    put(cluster, "root/.ssh/id_ed25519.pub", "public")
    cluster.vctl("snapshot", "create", "s")
    names = {d["path"] for d in cluster.json("snapshot", "diff", *after_removing(cluster, "root/.ssh"))["differences"]}
    assert "/root/.ssh/id_ed25519.pub" in names and "/root/.ssh/id_ed25519" not in names


def after_removing(cluster, path):
    shutil.rmtree(cluster.root / path)
    cluster.vctl("snapshot", "create", "without")
    return "s", "without"


def test_snapshots_are_their_owners(sturdy, tmp_path):
    """Another person's certificate of the same cluster reaches none of them; the same person's other home all."""
    cluster = sturdy()
    put(cluster, "root/secret", "of root\n")
    cluster.vctl("snapshot", "create", "mine")
    mine = json.loads(cluster.vctl("snapshot", "list", "-o", "json").stdout)["snapshots"]

    def another_home(directory, user):
        directory.mkdir()
        pki = directory / "pki"
        cluster.run("vrund", "pki", "issue", "--ca", str(cluster.pki()), "--dir", str(pki), "--role", "home", "--name", user,
                    check=True)
        text = (cluster.directory / "home/config.toml").read_text().splitlines(True)
        text = [line for line in text if not line.startswith(("credentials", "root"))]
        (directory / "config.toml").write_text("".join(text) + f'credentials = "{pki}"\ncredentials_name = "{user}"\n'
                                               f'root = "{cluster.root}"\n')
        return dict(cluster.environment, VRUN_DIR=str(directory))
    name = [line.split('"')[1] for line in (cluster.directory / "home/config.toml").read_text().splitlines()
            if line.startswith("credentials_name")][0]
    eve, again = another_home(tmp_path / "eve", "eve@elsewhere"), another_home(tmp_path / "again", name)
    try:
        assert json.loads(cluster.vctl("snapshot", "list", "-o", "json", env=eve).stdout)["snapshots"] == []
        assert "no such snapshot" in cluster.vctl("snapshot", "export", "mine", "--oci", str(tmp_path / "x"), env=eve, check=False).stderr
        assert cluster.vrun("--snapshot", "mine", "--", "cat", "secret", env=eve).returncode == 125
        cluster.vctl("snapshot", "create", "mine", env=eve)   # names are everybody's own

        assert json.loads(cluster.vctl("snapshot", "list", "-o", "json", env=again).stdout)["snapshots"] == mine
        (cluster.root / "root/secret").unlink()
        assert cluster.vrun("--snapshot", "mine", "--", "cat", "secret", env=again, check=True).stdout == "of root\n"
    finally:
        for home in (eve, again):
            cluster.run("vctl", "down", "--all", env=home)


def test_a_store_killed_while_it_takes_a_snapshot_has_all_of_it_or_none(sturdy):
    cluster = sturdy()
    want = {}
    for i in range(400):
        want[f"root/data/{i}"] = os.urandom(20_000)
        put(cluster, f"root/data/{i}", want[f"root/data/{i}"])
    for delay in (0.05, 0.1, 0.2, 0.4):
        create = cluster.popen("vctl", "snapshot", "create", f"s{delay}", stderr=subprocess.PIPE, text=True)
        time.sleep(delay)
        cluster.kill_daemon("snapshots")
        text = create.communicate(timeout=60)[1]
        assert create.returncode == 0 or (create.returncode == 1 and text.count("\n") == 1), text
        cluster.vctl("up", "--no-node", "--root", str(cluster.root))
        there = [s["name"] for s in cluster.json("snapshot", "list")["snapshots"]]
        assert f"s{delay}" in there or create.returncode != 0
    cluster.vctl("snapshot", "create", "last")
    there.append("last")
    shutil.rmtree(cluster.root / "root/data")
    sums = sorted(hashlib.sha256(content).hexdigest() for content in want.values())
    for name in there:
        r = cluster.vrun("--snapshot", name, "--", "sh", "-c", "cd data && sha256sum *", check=True)
        assert sorted(line.split()[0] for line in r.stdout.splitlines()) == sums


def test_two_that_are_made_at_once(sturdy):
    cluster = sturdy()
    for k in range(3):
        makers = [cluster.popen("vctl", "snapshot", "create", f"{name}{k}", stderr=subprocess.PIPE, text=True) for name in "ab"]
        for p in makers:
            assert p.communicate(timeout=20)[1].count("\n") <= 1 and p.returncode == 0
    assert [s["name"] for s in cluster.json("snapshot", "list")["snapshots"]] == ["a0", "a1", "a2", "b0", "b1", "b2"]
