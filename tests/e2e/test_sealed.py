# SPDX-License-Identifier: Apache-2.0
"""The environment and the script of a job are readable nowhere on disk but at home, neither while it runs nor after its end."""
import signal
import stat
import subprocess

from cluster import wait_until

VALUE = "zq9-sealed-value-7f3e"
HERE = f"{len(VALUE)}\n"   # what a job writes that has it
SCRIPT = "zq9-script-text-41ab"


def holders(c):
    """Files of the controller and of the nodes that have one of the values."""
    found = subprocess.run(["grep", "-rlaE", f"{VALUE}|{SCRIPT}", c.home_state / "controller", *[c.nodes[n]["directory"] / "state" for n in c.nodes]],
                           capture_output=True, text=True).stdout
    return found.split()


def state_of(c, job):
    return next((j["state"] for j in c.json("jobs", "--all")["jobs"] if j["job"] == int(job)), None)


def submit(c, directory, *words):
    script = directory / "job.sh"
    script.write_text(f"#!/bin/sh\n# {SCRIPT}\necho ${{#SEALED}} > /root/out-$VRUN_JOB_ID\nwhile [ ! -e /root/go ]; do sleep 0.1; done\n"
                      "echo ${#SEALED} >> /root/out-$VRUN_JOB_ID\n")
    said = c.run("vbatch", "--view=live", "--parsable", *words, str(script), env={**c.environment, "SEALED": VALUE}, check=True, cwd=c.root / "root")
    return said.stdout.strip().split(";")[0]


def test_an_environment_is_sealed_and_gone_with_its_job(own, tmp_path):
    c = own()
    (c.root / "root").mkdir(exist_ok=True)
    waiting = submit(c, tmp_path, "--hold")
    running = submit(c, tmp_path)
    out = c.root / "root" / f"out-{running}"
    wait_until("the job runs and has its environment", lambda: out.exists() and out.read_text() == HERE)
    assert holders(c) == []
    # Controller and node start again: what waits still has its environment, and what runs goes on.
    c.kill_daemon("controller")
    c.up()
    c.stop_node("n1", signal.SIGKILL)
    c.launch_node("n1")
    c.await_node("n1")
    assert holders(c) == []
    c.vctl("release", waiting)
    held = c.root / "root" / f"out-{waiting}"
    wait_until("the held job runs", lambda: held.exists() and held.read_text() == HERE, 60)
    (c.root / "root/go").write_text("")
    wait_until("both have ended", lambda: [state_of(c, j) for j in (running, waiting)] == ["COMPLETED"] * 2, 60)
    assert out.read_text() == held.read_text() == HERE * 2
    assert holders(c) == []
    c.kill_daemon("controller", signal.SIGTERM)
    assert holders(c) == []
    key = c.home_state / "controller/vrun.db.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    # The key alone tells what was in the environment, and it is not there any more: ended jobs are listed with their commands.
    c.up()
    listed = {j["job"]: j for j in c.json("jobs", "--all")["jobs"]}
    assert listed[int(running)]["argv"]


def test_a_lost_key_is_an_error_and_no_empty_queue(own, tmp_path):
    c = own()
    (c.root / "root").mkdir(exist_ok=True)
    submit(c, tmp_path, "--hold")
    c.kill_daemon("controller", signal.SIGTERM)
    key = c.home_state / "controller/vrun.db.key"
    kept = key.read_bytes()
    key.unlink()
    said = c.run("vctl", "up", "--no-node", "--listen", f"0.0.0.0:{c.port}", "--root", str(c.root))
    assert said.returncode != 0 and "sealed with a key that is lost" in said.stderr, said.stderr
    key.write_bytes(kept)
    key.chmod(0o644)
    said = c.run("vctl", "up", "--no-node", "--listen", f"0.0.0.0:{c.port}", "--root", str(c.root))
    assert said.returncode != 0 and "make its mode 0600" in said.stderr, said.stderr
    key.chmod(0o600)
    c.up()
    assert [j["state"] for j in c.json("jobs")["jobs"]] == ["PENDING"]
