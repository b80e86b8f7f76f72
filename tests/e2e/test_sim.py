# SPDX-License-Identifier: Apache-2.0
"""vctl sim: asks no cluster, whatever runs here."""
import json
import os
import subprocess

import pytest
from cluster import BIN

JOBS = "job_id,submission_time,duration,num_gpu\na,0,100,8\nb,10,20,8\nc,1000,50,16\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1000,1,1,1000\nq,1000,1,1,500\n"
NODES = "sn,cpu_milli,memory_mib,gpu,model\nn,96000,1000,8,T4\n"


@pytest.fixture
def sim(tmp_path):
    for name, text in (("jobs.csv", JOBS), ("pods.csv", PODS), ("nodes.csv", NODES), ("w.conf", "beta = 700\n")):
        (tmp_path / name).write_text(text)

    def run(*words):
        return subprocess.run([BIN / "vctl", "sim", *words], cwd=tmp_path, capture_output=True, text=True, timeout=30,
                              env=dict(os.environ, VRUN_DIR=str(tmp_path / "none")))
    return run


def test_jobs_as_json(sim):
    r = sim("jobs.csv", "--nodes", "2x8", "--preempt-cost", "300", "--policy", "fifo,vrun,./w.conf", "-o", "json")
    assert r.returncode == 0, r.stderr
    report = json.loads(r.stdout)
    assert report["avg_completion_s"] == 56.7 and report["avg_wait_s"] == 0 and report["p99_wait_s"] == 0
    assert {"wait_large_gangs_s", "utilization", "preemptions"} <= report.keys()
    assert [p["policy"] for p in report["policies"]] == ["fifo", "vrun", "./w.conf"]


def test_teams_with_parts_of_their_own(sim, tmp_path):
    (tmp_path / "vc.csv").write_text("timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-01 00:00:00,100,8,800,a\n"
                                     "2017-10-01 00:00:01,100,8,800,b\n")
    (tmp_path / "teams.csv").write_text("team,gpus\na,8\nb,8\n")
    r = sim("vc.csv", "--nodes", "2x8", "--teams", "teams.csv", "--policy", "vrun,static,kai", "-o", "json")
    assert r.returncode == 0, r.stderr
    for policy in json.loads(r.stdout)["policies"]:
        assert [(t["team"], t["jobs"], t["avg_wait_s"]) for t in policy["teams"]] == [("a", 1, 0), ("b", 1, 0)]
    assert "--teams" in sim("vc.csv", "--policy", "kai").stderr


def test_pods_as_json_and_both_as_a_page(sim):
    pods = ("pods.csv", "--nodes-file", "nodes.csv", "--fill", "1.3")
    report = json.loads(sim(*pods, "-o", "json").stdout)
    assert report["allocation_percent"] > 90 and report["fragmentation_percent"] < 10
    for words in (pods, ("jobs.csv", "--nodes", "2x8")):
        assert sim(*words, "-o", "html").stdout.startswith("<!DOCTYPE html>")
        assert sim(*words).stdout.startswith("POLICY")


@pytest.mark.parametrize("words, status, text", [
    (["jobs.csv", "--nodes", "8"], 2, "64x8"),
    ([], 2, "name one trace"),
    (["none.csv"], 1, "none.csv"),
    (["nodes.csv"], 1, "nodes.csv:1: not a trace of jobs"),
    (["jobs.csv", "--nodes", "1x8"], 1, "more nodes"),
    (["jobs.csv", "--policy", "best"], 1, "--policy list"),
    (["pods.csv"], 1, "--nodes-file"),
])
def test_errors_are_one_line(sim, words, status, text):
    r = sim(*words)
    assert r.returncode == status and text in r.stderr and r.stderr.count("\n") == 1, r.stderr
