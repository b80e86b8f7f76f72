# SPDX-License-Identifier: Apache-2.0
"""Where at home a job may write and with what privileges, with the default of job_writes. What a hostile node sends:
src/home/scope/write_scope_test.cc."""
import io
import os
import shutil
import stat
import subprocess
import tarfile

import pytest

import miniroot


@pytest.mark.parametrize("view", ["live", "frozen"])
def test_a_job_leaves_no_setuid_file_at_home(own, view):
    c = own(job_writes="plain")
    place = c.root / "root"
    place.mkdir(exist_ok=True)
    (place / "su").write_text("home's\n")
    (place / "su").chmod(0o4755)
    said = c.run("vrun", f"--view={view}", "-D", "/root", "--", "sh", "-c", "cp su mine && chmod 6755 mine && chmod 4711 su && echo done", check=True)
    assert said.stdout == "done\n"
    assert stat.S_IMODE((place / "mine").stat().st_mode) == 0o755
    assert (place / "mine").read_text() == "home's\n"
    assert stat.S_IMODE((place / "su").stat().st_mode) == 0o4711   # what home has given itself
    assert "was written without the attribute setuid" in said.stderr and "job_writes" in said.stderr, said.stderr
    # Replaced by a job, it is not home's any more.
    c.run("vrun", f"--view={view}", "-D", "/root", "--", "sh", "-c", "echo evil > new && chmod 4755 new && mv new su", check=True)
    assert (place / "su").read_text() == "evil\n" and stat.S_IMODE((place / "su").stat().st_mode) == 0o755


def owner(path):
    st = path.lstat()
    return st.st_uid, st.st_gid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("view", ["live", "frozen"])
def test_root_gives_files_to_nobody_outside_of_his_directories(own, view):
    """With tar, cp -a, chown -R and sed -i as they are."""
    c = own(job_writes="plain")
    for program in ("/usr/bin/tar", "/usr/bin/cp", "/usr/bin/chown", "/usr/bin/sed"):
        miniroot.place(c.root, program)
        for library in miniroot.libraries(program):
            miniroot.place(c.root, library)
    root, user = c.root / "root", c.root / "home/user"
    made = tarfile.open(root / "a.tar", "w")
    for name, uid in {"mine": 0, "systems": 42, "persons": 1000, "somebodys": 1001}.items():
        entry = tarfile.TarInfo(name)
        entry.uid = entry.gid = uid
        entry.size = 2
        made.addfile(entry, io.BytesIO(b"x\n"))
    made.close()
    (c.root / "srv").mkdir(exist_ok=True)
    (c.root / "srv/persons").write_text("old\n")
    os.chown(c.root / "srv/persons", 1000, 1000)
    (user / "tree").mkdir()
    (user / "tree/f").write_text("x\n")
    for path in (user / "tree", user / "tree/f"):
        os.chown(path, 1000, 1000)
    said = c.run("vrun", f"--view={view}", "-D", "/root", "--", "sh", "-ec", """
        mkdir unpacked /home/user/unpacked
        tar xpf a.tar -C unpacked && tar xpf a.tar -C /home/user/unpacked
        cp -a /home/user/tree /home/user/copy && cp -a /home/user/tree copy
        mkdir -p /home/user/made/deep && echo x > /home/user/made/deep/f && chown -R 1000:1000 /home/user/made
        sed -i s/old/new/ /srv/persons
        ln /home/user/tree/f linked
        echo done""", check=True)
    assert said.stdout == "done\n"
    assert {name: owner(root / "unpacked" / name) for name in ("mine", "systems", "persons", "somebodys")} == {
        "mine": (0, 0), "systems": (42, 42), "persons": (0, 0), "somebodys": (0, 0)}
    assert owner(user / "unpacked/persons") == (1000, 1000) and owner(user / "unpacked/somebodys") == (0, 0)
    for name in ("copy", "copy/f", "made", "made/deep", "made/deep/f", "tree/f"):
        assert owner(user / name) == (1000, 1000), name
    for name in ("copy", "copy/f", "linked"):
        assert owner(root / name) == (0, 0), name
    assert (root / "linked").stat().st_ino != (user / "tree/f").stat().st_ino
    assert (c.root / "srv/persons").read_text() == "new\n" and owner(c.root / "srv/persons") == (1000, 1000)
    told = [line for line in said.stderr.splitlines() if "owner" in line]
    assert 1 <= len(told) <= 3 and "job_writes" in told[0], said.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_configuration_lets_root_give_files_away(own):
    c = own(job_writes="any")
    c.run("vrun", "-D", "/root", "--", "sh", "-c", "echo x > given && chown 1000:1000 given", check=True)
    assert owner(c.root / "root/given") == (1000, 1000)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("apt-get"), reason="needs root and apt")
@pytest.mark.parametrize("view", ["live", "frozen"])
def test_apt_installs_a_package_as_root(own, view):
    """With a file of a system user in it, as packages of daemons have, and a setuid program, which home takes without that bit."""
    c = own(job_writes="plain")
    miniroot.place_packages(c.root, "apt", "dpkg", "tar")
    for name in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial",
                 "var/log/apt", "etc/apt/apt.conf.d", "etc/dpkg", "usr/sbin"):
        (c.root / name).mkdir(parents=True, exist_ok=True)
    (c.root / "var/lib/dpkg/status").touch()
    (c.root / "etc/apt/sources.list").touch()
    for program in ("ldconfig", "start-stop-daemon", "diff"):
        if path := shutil.which(program, path="/usr/sbin:/sbin:/usr/bin"):
            miniroot.place(c.root, path)
    with open(c.root / "etc/passwd", "a") as passwd:
        passwd.write("_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\ndaemon:x:120:120::/:/bin/false\n")
    with open(c.root / "etc/group", "a") as group:
        group.write("daemon:x:120:\n")
    package = c.directory / "package"
    for name, mode, owner_id in (("usr/bin/small", 0o755, 0), ("usr/bin/setuid-small", 0o4755, 0), ("var/lib/small/state", 0o640, 120)):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("#!/bin/sh\necho small\n")
        os.chown(package / name, owner_id, owner_id)
        (package / name).chmod(mode)
    os.chown(package / "var/lib/small", 120, 120)
    (package / "DEBIAN").mkdir()
    (package / "DEBIAN/control").write_text("Package: small\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: small\n")
    (package / "DEBIAN/postinst").write_text("#!/bin/sh\nchown 120:120 /var/lib/small/state\n")
    (package / "DEBIAN/postinst").chmod(0o755)
    subprocess.run(["dpkg-deb", "-Zgzip", "--build", str(package), str(c.root / "root/small.deb")], check=True, capture_output=True)
    said = c.run("vrun", f"--view={view}", "-D", "/root", "--", "sh", "-c", "PATH=/usr/sbin:/usr/bin apt-get install -y -q ./small.deb && small && dpkg -V small", timeout=120)
    assert said.returncode == 0 and said.stdout.endswith("small\n"), said.stdout[-1500:] + said.stderr
    assert owner(c.root / "usr/bin/small") == (0, 0)
    for name in ("var/lib/small", "var/lib/small/state"):
        assert owner(c.root / name) == (120, 120), name
    assert stat.S_IMODE((c.root / "usr/bin/setuid-small").stat().st_mode) == 0o755
    assert "setuid" in said.stderr and "job_writes" in said.stderr, said.stderr
    assert "Package: small" in (c.root / "var/lib/dpkg/status").read_text()
