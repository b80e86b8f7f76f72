# SPDX-License-Identifier: Apache-2.0
"""What separates a job from its node and from home's devices, on a cluster. The sandbox alone: tests/security."""
import os
import re
import shutil
import stat
import subprocess

import pytest

import miniroot

VIEWS = pytest.mark.parametrize("view", ["live", "frozen"])

DEVICE = """if True:
    import ctypes, errno, os, stat
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mount(None, b"/", None, 32 | 4096, None)   # without nodev, if that were possible
    for name in ("null", "zero", "loop"):
        s = os.stat(f"/root/devices/{name}")
        try:
            os.open(f"/root/devices/{name}", os.O_RDWR)
            print("opened", name)
        except OSError as e:
            print(stat.filemode(s.st_mode)[0], s.st_rdev, e.errno in (errno.EACCES, errno.EPERM, errno.ENXIO, errno.ENODEV))"""


@VIEWS
def test_a_device_of_home_has_no_number_and_cannot_be_opened(cluster, view):
    directory = cluster.root / "root/devices"
    directory.mkdir()
    try:
        for name, kind, number in (("null", stat.S_IFCHR, (1, 3)), ("zero", stat.S_IFCHR, (1, 5)), ("loop", stat.S_IFBLK, (7, 0))):
            os.mknod(directory / name, kind | 0o666, os.makedev(*number))
            os.chmod(directory / name, 0o666)
        os.close(os.open(directory / "null", os.O_RDWR))   # at home it works
        said = cluster.vrun(f"--view={view}", "--", "python3", "-c", DEVICE, check=True).stdout
        assert said == "c 1 True\nc 1 True\nb 1 True\n"
    finally:
        subprocess.run(["rm", "-r", directory], check=True)


def test_the_nodes_own_ports_are_out_of_reach(cluster):
    ports = re.findall(r"node n1 listens on ([0-9.]+):([0-9]+)", (cluster.directory / "n1/node.log").read_text())
    assert ports
    attempt = """if True:
        import socket, sys
        for host in (sys.argv[1], "127.0.0.1"):
            try:
                socket.create_connection((host, int(sys.argv[2])), 3)
                print("connected")
            except PermissionError:
                print("refused")
            except OSError as e:
                print(e)"""
    assert cluster.vrun("--", "python3", "-c", attempt, *ports[-1], check=True).stdout == "refused\nrefused\n"


def test_a_job_without_limits_of_its_own_has_those_of_its_part(cluster):
    said = cluster.vrun("-c", "0.001", "--", "sh", "-c", "grep -h . /proc/self/cgroup; grep NoNewPrivs /proc/self/status", check=True)
    assert "NoNewPrivs:\t1" in said.stdout
    assert "not enforced" not in said.stderr


def test_a_killed_worker_is_said_even_if_the_command_ends_well(cluster):
    r = cluster.vrun("--mem", "64M", "--", "sh", "-c", "python3 -c 'x = bytearray(200 << 20)'; exit 0")
    if "not enforced" in r.stderr:
        pytest.skip("needs the memory controller")
    assert r.returncode == 0 and "killed: out of memory" in r.stderr, r


SUDO = "import os, sys; os.setgroups([]); os.setgid(1000); os.setuid(1000); os.execvp('sudo', ['sudo', '-n', *sys.argv[1:]])"


@pytest.mark.skipif(not shutil.which("sudo"), reason="needs sudo")
@pytest.mark.parametrize("allowed", [True, False])
def test_sudo_gives_root_in_the_job_where_the_administrator_allows_it(sturdy, allowed):
    c = sturdy(node_options=["--allow-setuid"] if allowed else [])
    miniroot.place_packages(c.root, "sudo", "libpam-modules")
    for path, text, mode in (("etc/sudoers", "user ALL=(ALL) NOPASSWD: ALL\n", 0o440),
                             ("etc/pam.d/sudo", "".join(f"{kind} sufficient pam_permit.so\n" for kind in ("auth", "account", "session")), 0o644)):
        (c.root / path).parent.mkdir(exist_ok=True)
        (c.root / path).unlink(missing_ok=True)
        (c.root / path).write_text(text)
        (c.root / path).chmod(mode)
    r = c.vrun("--", "python3", "-c", SUDO, "sh", "-c", "id -u; cat /proc/self/uid_map")
    if not allowed:
        assert r.returncode != 0 and "no new privileges" in r.stderr, r
        return
    assert r.returncode == 0 and r.stdout.startswith("0\n"), r
    assert "4294967295" not in r.stdout   # root of the job's ids, not of the machine's
