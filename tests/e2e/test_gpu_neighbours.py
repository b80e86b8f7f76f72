# SPDX-License-Identifier: Apache-2.0
"""What a hostile job finds of GPUs that are others', on a node with a fake driver (tests/testlib/fake_gpus.py). The numbers are rows of
the list of attacks: docs/security.md. What only a driver can refuse is tried by tools/gpu-check on a real card."""
import json
import subprocess

import pytest

from test_cache import OtherHome
from test_gpus import ends, pytestmark, starts, with_gpus  # noqa: F401 (a fixture, and the marks of all)

LOOK = """if True:
    import ctypes, errno, json, os, stat, subprocess, sys
    def opened(path):
        try:
            os.close(os.open(path, os.O_RDWR))
            return "open"
        except OSError as e:
            return errno.errorcode[e.errno]
    said = {"opens": {}, "made": {}}
    major = os.stat("/dev/nvidiactl").st_rdev >> 8 & 0xfff if os.path.exists("/dev/nvidiactl") else 195
    for n in range(4):
        said["opens"][n] = opened(f"/dev/nvidia{n}")
        for place in ("/dev", "/tmp", "/run"):
            try:
                os.mknod(f"{place}/gpu{n}", 0o666 | stat.S_IFCHR, os.makedev(major, n))
                said["made"][f"{place}{n}"] = opened(f"{place}/gpu{n}")
            except OSError as e:
                pass
    for cap in range(1, 200):
        said["opens"][f"cap{cap}"] = opened(f"/dev/nvidia-caps/nvidia-cap{cap}")
    for name in ("nvidia-nvswitchctl", "nvidia-modeset"):
        said["opens"][name] = opened("/dev/" + name)
    said["smi"] = subprocess.run("nvidia-smi -L", shell=True, capture_output=True, text=True).stdout.count("UUID")
    said["proc"] = sorted(os.listdir("/proc/driver/nvidia/gpus")) if os.path.isdir("/proc/driver/nvidia/gpus") else []
    os.environ.update(json.loads(sys.argv[1]))
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int()
        said["init"] = cuda.cuInit(0)
        cuda.cuDeviceGetCount(ctypes.byref(count))
        said["cuda"] = count.value
    except OSError:
        said["init"] = said["cuda"] = None
    said["sockets"] = []
    for top in ("/run", "/tmp", "/var/lib", "/dev", "/root"):
        for directory, _, files in os.walk(top):
            said["sockets"] += [os.path.join(directory, f) for f in files if stat.S_ISSOCK(os.lstat(os.path.join(directory, f)).st_mode)]
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps") + "/control"
    said["mps"] = os.stat(pipe).st_ino if os.path.exists(pipe) else None
    print(json.dumps(said))
"""


def look(run, *options, environment={}):  # noqa: B006 (nobody changes it)
    r = run("vrun", "-D", "/root", *options, "--", "python3", "-c", LOOK, json.dumps(environment))
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)


def usable(said):
    """A fake node has no driver behind it: ENXIO is what an open that was allowed gives."""
    return [n for n, result in said["opens"].items() if result in ("open", "ENXIO", "ENODEV")]


def test_1_to_3_a_job_sees_its_own_gpu_and_no_other(with_gpus):  # noqa: F811
    c = with_gpus(count=4)
    others = {"CUDA_VISIBLE_DEVICES": ",".join(c.gpus.values[f"gpu.{n}.uuid"] for n in (1, 2, 3)), "NVIDIA_VISIBLE_DEVICES": "all"}
    whole = look(c.run, "-G", "4")                    # the control: whose they all are
    assert usable(whole) == ["0", "1", "2", "3"] and whole["smi"] == whole["cuda"] == 4 and len(whole["proc"]) in (0, 4)
    neighbour = starts(c, "-G", "1")
    for environment in ({}, others):
        said = look(c.run, "-G", "1", environment=environment)
        [mine] = usable(said)
        assert said["smi"] == said["cuda"] == 1 and said["init"] == 0
        assert len(said["proc"]) == len(whole["proc"]) // 4   # none where this machine has no driver
        assert {said["opens"][str(n)] for n in range(4) if str(n) != mine} <= {"ENOENT", "EPERM"}
        assert not said["made"], said
        assert {said["opens"][f"cap{n}"] for n in range(1, 200)} == {"ENOENT"} and said["opens"]["nvidia-modeset"] == "ENOENT"
    none = look(c.run, environment=others)            # and one without GPUs
    assert not usable(none) and none["smi"] == 0 and not none["proc"] and not none["made"] and not none["cuda"]
    assert ends(neighbour) == 0


def test_4_a_job_reaches_no_mps_daemon_of_another_user(with_gpus, tmp_path):  # noqa: F811
    c = with_gpus(count=2)
    root = tmp_path / "root"
    subprocess.run(["cp", "-a", c.root, root], check=True)
    first = starts(c, "-G", "0.25")
    mine = {p.stat().st_ino for p in c.state.glob("gpus/mps/*/pipe/control")}
    assert len(mine) == 1
    other = OtherHome(c, "mallory@elsewhere", root)
    try:
        theirs = look(other.run, "-G", "0.25")
        assert theirs["init"] == 0 and theirs["mps"] is not None and theirs["mps"] not in mine
        assert {s for s in theirs["sockets"] if "mps" in s} == {"/run/vrun/mps/control"}
        assert usable(theirs) == ["1"]                # people never share one
        control = look(c.run, "-G", "0.25")
        assert control["init"] == 0 and control["mps"] not in (None, theirs["mps"])
        nothing = look(other.run)
        assert nothing["mps"] is None and not [s for s in nothing["sockets"] if "mps" in s]
    finally:
        other.close()
    assert ends(first) == 0


def test_1_a_job_with_an_instance_has_its_two_capabilities_only(with_gpus):  # noqa: F811
    c = with_gpus(count=1, mig=[0])
    neighbour = starts(c, "-G", "1g.10gb")
    said = look(c.run, "-G", "1g.10gb")
    caps = [n for n in usable(said) if n.startswith("cap")]
    assert len(caps) == 2 and not {"cap1", "cap2"} & set(caps), said
    assert ends(neighbour) == 0
