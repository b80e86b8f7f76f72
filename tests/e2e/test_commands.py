# SPDX-License-Identifier: Apache-2.0
"""vbatch and vctl."""
import glob
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import pytest

from cluster import BIN, wait_until


def test_vbatch_prints_the_id_and_the_job_runs_alone(cluster):
    r = cluster.run("vbatch", "-D", "/root", "--", "sh", "-c", "echo out; echo err >&2; echo done > /root/batch", check=True)
    job = int(re.search(r"\d+", r.stdout)[0])
    cluster.vctl("wait", job)
    info = cluster.json("job", job)
    assert info["state"] == "COMPLETED" and info["exit"] == 0 and info["argv"][0] == "sh"
    assert (cluster.root / "root/batch").read_text() == "done\n"
    assert (cluster.root / f"root/vrun-{job}.out").read_text() == "out\nerr\n"


def test_a_batch_script_is_told_of_its_time_limit_as_slurm_does_it(cluster):
    """B: the shell; otherwise its programs, and not the shell."""
    script = cluster.root / "root/told.sh"
    for shell, said in (("B:", "shell\n"), ("", "program\nscript goes on\n")):
        script.write_text(f"""#!/bin/sh
#SBATCH --time=0:20 --signal={shell}USR1@19 -o told.out
[ -z "{shell}" ] || trap 'echo shell; exit 0' USR1
sh -c 'trap "echo program; exit 0" USR1; while :; do sleep 0.1; done' 2>/dev/null &
wait
echo script goes on
""")
        r = cluster.run("vbatch", "-f", "-q", "-D", "/root", str(script), check=True)
        assert (cluster.root / "root/told.out").read_text() == said, r.stdout + r.stderr



def test_a_batch_script_may_carry_its_options(cluster):
    script = cluster.root / "root/job.sh"
    script.write_text("#!/bin/sh\n#SBATCH -J named\n#VRUN -c 1\n#SBATCH -o /root/named-%j.txt\n\necho from a script $1\n")
    script.chmod(0o755)
    r = cluster.run("vbatch", "-D", "/root", str(script), "argument", check=True)
    job = int(re.search(r"\d+", r.stdout)[0])
    cluster.vctl("wait", job)
    assert cluster.json("job", job)["name"] == "named"
    assert (cluster.root / f"root/named-{job}.txt").read_text() == "from a script argument\n"


def test_logs_show_the_output_again(cluster):
    cluster.sh("echo first; echo second >&2", check=True)
    job = max(j["job"] for j in cluster.json("jobs", "--all")["jobs"])
    r = cluster.vctl("logs", job)
    assert "first" in r.stdout and "second" in r.stdout + r.stderr


def test_jobs_nodes_and_status_are_json_with_plain_types(cluster):
    cluster.sh("true", check=True)
    jobs = cluster.json("jobs", "--all")["jobs"]
    job = jobs[0]
    assert isinstance(job["job"], int) and re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$", job["submitted"])
    node = cluster.json("nodes")["nodes"][0]
    assert node["name"] == "n1" and node["state"] == "ready" and node["total"]["memory_bytes"] > 1 << 20
    assert cluster.json("status")["controller_connected"] is True


def test_tables_are_for_people(cluster):
    assert re.search(r"n1 +local +ready", cluster.vctl("nodes").stdout)
    assert "n1" not in cluster.vctl("nodes", "--no-headers").stdout.splitlines()[0].split()[1:2]


def test_a_job_that_is_not_there(cluster):
    r = cluster.vctl("job", "99999999", check=False)
    assert r.returncode != 0 and "99999999" in r.stderr and r.stderr.count("\n") == 1
    r = cluster.vctl("job", "abc", check=False)
    assert r.returncode == 2


def test_control_characters_of_a_job_are_escaped(cluster):
    cluster.vrun("-J", "bad\x1b[2Jname", "--", "true", check=True)
    out = cluster.vctl("jobs", "--all").stdout
    assert "\x1b" not in out


def test_doctor_finds_this_machine_fit(cluster):
    r = cluster.vctl("doctor", "-o", "json", check=False)
    checks = json.loads(r.stdout)["checks"]
    assert {c["name"] for c in checks} >= {"fuse", "user-namespaces", "root", "kernel"}
    assert r.returncode == 0, r.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_there(cluster, shell):
    assert "vrun" in cluster.vctl("completion", shell).stdout


# What is missing on a host, how it is taken away from vctl, and what its advice must name.
HOSTS = {
    "fuse": (["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /dev && exec "$0" "$@"'], "modprobe fuse"),
    "kernel": (["setarch", "--uname-2.6"], "5.11"),
    "root": (["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"], "sudo"),
    "user-namespaces": (["unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$0" "$@"'], "sysctl"),
}


@pytest.mark.parametrize("missing", HOSTS)
def test_doctor_says_what_a_host_lacks_and_what_to_do(missing):
    prefix, advice = HOSTS[missing]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        os.chmod(place, 0o755)
        vctl = os.path.join(place, "vctl")
        shutil.copy(BIN / "vrun", vctl)
        r = subprocess.run([*prefix, vctl, "doctor", "-o", "json"], capture_output=True, text=True, timeout=30, cwd="/",
                           env=dict(os.environ, VRUN_DIR=os.path.join(place, "v")))
    assert r.returncode == 1, r.stderr
    check = next(c for c in json.loads(r.stdout)["checks"] if c["name"] == missing)
    assert check["level"] == "fail" and advice in check["what_to_do"], check


def test_a_node_on_a_host_without_fuse_says_so_in_one_line(tmp_path):
    r = subprocess.run(["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /dev && exec "$0" "$@"', str(BIN / "vrund"), "node",
                        "--controller", "127.0.0.1:9", "--name", "n", "--pool", "p", "--state-dir", str(tmp_path / "s"), "--pki",
                        str(tmp_path)], capture_output=True, text=True, timeout=30)
    assert r.returncode != 0 and "/dev/fuse" in r.stderr, r.stderr


@pytest.mark.skipif(bool(glob.glob("/dev/nvidia[0-9]*")), reason="this machine has a GPU: tools/gpu-check would look at it")
def test_gpu_check_says_in_one_line_that_a_machine_has_no_gpu(tmp_path):
    tool = pathlib.Path(__file__).resolve().parents[2] / "tools/gpu-check"
    r = subprocess.run([sys.executable, tool, "--out", tmp_path / "out"], capture_output=True, text=True)
    assert r.returncode == 2
    assert re.fullmatch(r"gpu-check: this machine has no NVIDIA GPU: .+\n", r.stdout + r.stderr)
    assert not (tmp_path / "out").exists()
