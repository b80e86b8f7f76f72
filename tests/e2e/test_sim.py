# SPDX-License-Identifier: Apache-2.0
"""vctl sim: asks no cluster, whatever runs here."""
import html.parser
import json
import os
import shutil
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


class Cells(html.parser.HTMLParser):
    """{(row's name, metric): value} of all cells that carry one, and whether every tag is closed."""

    VOID = {"meta"}

    def __init__(self, page):
        super().__init__()
        self.values, self.row, self.open, self.texts = {}, None, [], []
        self.feed(page)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        a = dict(attributes)
        if tag == "tr":
            self.row = a.get("data-policy", a.get("data-team"))
        if "data-value" in a:
            self.values[self.row, a.get("data-metric", a.get("data-gpus"))] = float(a["data-value"])
        assert tag != "script" and not any(k in ("src", "href") for k in a), "self-contained"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_the_page_says_what_the_json_says(sim, tmp_path):
    random = "".join(f"2026-01-{1 + i // 24:02} {i % 24:02}:00:00,{1 + i * 7919 % 40000},{(1, 1, 2, 4, 8, 16, 32)[i % 7]},"
                     f"team{i % 3},{('H100', 'T4', '')[i % 3]}\n" for i in range(300))
    (tmp_path / "account.csv").write_text("timestamp,duration,num_gpus,cluster,gpu_type\n" + random)
    (tmp_path / "prices.csv").write_text("gpu_type,price\nH100,2.5\n*,0.5\n")
    words = ["account.csv", "--nodes", "4x8", "--policy", "vrun,fifo,easy,slurm,mlfq", "--shift", "3", "--preempt-cost", "60",
             "--price", "prices.csv", "--node-mtbf", "200", "--checkpoint", "600", "--slow-nodes", "25:1.2"]
    report = json.loads(sim(*words, "-o", "json").stdout)
    page = sim(*words, "-o", "html").stdout
    cells = Cells(page)
    seen = 0
    for policy in report["policies"]:
        assert policy["restarts"] > 0
        for metric in ("avg_completion_s", "avg_wait_s", "p99_wait_s", "wait_large_gangs_s", "utilization", "preemptions", "restarts",
                       "lost_work_percent", "cost_of_work", "cost_of_lost_work", "cost_of_idle"):
            assert cells.values[policy["policy"], metric] == policy[metric], metric
            seen += 1
        for size in policy["sizes"]:
            assert cells.values[policy["policy"], size["gpus"]] == size["wait_s"]["mean"]
        parts = policy["cost_of_work"] + policy["cost_of_lost_work"] + policy["cost_of_idle"]
        assert parts > 0 and policy["half_width_95"]["avg_wait_s"] > 0
    assert seen == 55
    for usage in report["policies"][0]["usage"]:
        assert cells.values[usage["team"], "gpu_hours"] == usage["gpu_hours"]
        assert cells.values[usage["team"], "cost"] == usage["cost"]
    for title in ("Wait by size", "Completion by size", "GPUs held by jobs", "Idle GPUs on nodes that are partly taken", "Money",
                  "Teams", "3 replays with shifted arrivals"):
        assert title in " ".join(cells.texts), title
    assert "nan" not in page and "inf" not in page.replace("info", "")


def test_its_help_names_what_it_can(sim):
    text = sim("--help").stdout
    for word in ("html", "--node-mtbf", "--checkpoint", "--slow-nodes", "--price", "--slurm", "--by-size"):
        assert word in text, word
    names = sim("--policy", "list").stdout
    for policy in ("vrun", "fifo", "greedy", "easy", "easy-padded", "slurm", "sjf", "ssf", "srtf", "srsf", "las", "mlfq", "timeslice",
                   "edf", "static", "kai", "random", "bestfit", "dotprod", "gpupacking", "gpuclustering", "fgd", "spread"):
        assert f"\n{policy} " in names, policy


def test_waits_by_size(sim, tmp_path):
    (tmp_path / "t.csv").write_text("job_id,submission_time,duration,num_gpu\na,0,100,16\nb,0,50,3\nc,10,50,16\nd,200,50,1\n")
    words = ("t.csv", "--nodes", "2x8", "--policy", "fifo,greedy", "--by-size")
    lines = [line.split() for line in sim(*words).stdout.splitlines()]
    # b waits for a, and c for b.
    assert lines == [["GPUS", "JOBS", "FIFO-WAIT", "GREEDY-WAIT"], ["1", "1", "0", "0"], ["3-4", "1", "100", "100"],
                     ["9-16", "2", "70", "70"]]
    assert sim(*words, "-o", "wide").stdout.split()[:6] == ["GPUS", "JOBS", "FIFO-WAIT", "FIFO-P95", "GREEDY-WAIT", "GREEDY-P95"]


def test_without_its_program_it_says_what_is_missing(tmp_path):
    shutil.copy(BIN / "vrun", tmp_path / "vctl")
    r = subprocess.run([tmp_path / "vctl", "sim", "jobs.csv"], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert r.returncode == 1 and r.stderr.startswith("vctl: vrun-sim: neither beside") and r.stderr.count("\n") == 1, r.stderr


def test_faults_repeat_and_their_seed_matters(sim):
    words = ["jobs.csv", "--nodes", "2x8", "--node-mtbf", "0.02", "--node-repair", "0.01", "--checkpoint", "10", "-o", "json"]
    one, again, other = (json.loads(sim(*words, "--seed", seed).stdout) for seed in ("1", "1", "2"))
    assert one == again != other


@pytest.mark.parametrize("words, status, text", [
    (["jobs.csv", "--nodes", "0x8"], 2, "64x8"),
    (["jobs.csv", "--nodes", "64x8x2"], 2, "64x8"),
    (["jobs.csv", "--nodes", "-1x8"], 2, "64x8"),
    (["jobs.csv", "--nodes", "99999999999x8"], 2, "64x8"),
    (["jobs.csv", "--slurm", "bf_interval=0"], 2, "bf_interval"),
    (["jobs.csv", "--slow-nodes", "5"], 2, "5:1.5"),
    (["jobs.csv", "--slow-nodes", "5:nan"], 2, "5:1.5"),
    (["jobs.csv", "--node-mtbf", "nan"], 2, "hours"),
    (["jobs.csv", "--node-mtbf", "0"], 2, "hours"),
    (["jobs.csv", "--price", "free"], 1, "not a price"),
    (["jobs.csv", "--price", "none.csv"], 1, "none.csv"),
    (["jobs.csv", "--fill", "0x2"], 2, "ratio"),
    (["jobs.csv", "--shift", "0"], 1, "shift"),
    (["jobs.csv", "--from", "yesterday"], 1, "YYYY-MM-DD"),
    (["pods.csv", "--nodes-file", "jobs.csv"], 1, "jobs.csv:1"),
    (["jobs.csv", "--nodes", "8"], 2, "64x8"),
    (["jobs.csv", "--team", "a=1"], 2, "--team needs --from-cluster"),
    (["jobs.csv", "--cluster", "nodes.csv"], 1, "pool"),
    (["jobs.csv", "--cluster", "nodes.csv", "--nodes", "1x8"], 2, "--nodes"),
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


HEADER = "job_id,submission_time,duration,num_gpu\n"


@pytest.mark.parametrize("content, text", [
    (b"", "empty"), (b"\n\n", "empty"), (HEADER.encode(), "without jobs"), (b"\x1f\x8b\x08\x00rest", "unpack"),
    (b"\xff\xfe" + HEADER.encode("utf-16-le"), "t.csv:1"), (b"a,b\n1,2\n", "not a trace"),
    ((HEADER + "a,0,100\n").encode(), "t.csv:2: 3 fields"), ((HEADER + "a,0,100,8,9\n").encode(), "t.csv:2: 5 fields"),
    ((HEADER + "a,-1,100,8\n").encode(), "t.csv:2"), ((HEADER + "a,0,-100,8\n").encode(), "t.csv:2"),
    ((HEADER + "a,0,nan,8\n").encode(), "t.csv:2"), ((HEADER + "a,0,inf,8\n").encode(), "t.csv:2"),
    ((HEADER + "a,0,1e9,8\n").encode(), "t.csv:2"), ((HEADER + "a,0,9" + 30 * "9" + ",8\n").encode(), "t.csv:2"),
    ((HEADER + "a,0,100,0\n").encode(), "t.csv:2"), ((HEADER + "a,0,100,99999999999999999999\n").encode(), "t.csv:2"),
    ((HEADER + "a,0,100,1.5\n").encode(), "t.csv:2"), ((HEADER + "a,0,,8\n").encode(), "t.csv:2"),
    ((HEADER + 'a,0,"100",8\n').encode(), "t.csv:2"), ((HEADER + "a,0,100,8\n\nb,1,1,1\n").encode(), "t.csv:3"),
    ((HEADER + "a,0,1\x0000,8\n").encode(), "t.csv:2"), ((HEADER + "a,0,100,8\x1b[31m\n").encode(), "t.csv:2"),
    (b"job_id,job_id,submission_time,duration,num_gpu\n", "twice"), (b"job_id,submission_time,duration\na,0,1\n", "not a trace"),
    ((HEADER + "a,0,3000000000,1000000\n").encode(), "seconds?"),
    (b"timestamp,duration,num_gpus,cluster\n2026-13-01 00:00:00,1,1,a\n", "t.csv:2"),
])
def test_what_is_no_trace_is_refused_in_one_line(sim, tmp_path, content, text):
    (tmp_path / "t.csv").write_bytes(content)
    r = sim("t.csv", "--nodes", "2x8")
    assert r.returncode == 1 and text in r.stderr and r.stderr.count("\n") == 1 and r.stdout == "", r.stderr
    assert r.stderr.isprintable() or r.stderr[:-1].isprintable(), "nothing of the file reaches the terminal as it is"


def test_windows_line_ends_and_a_byte_order_mark(sim, tmp_path):
    (tmp_path / "t.csv").write_bytes(b"\xef\xbb\xbf" + JOBS.replace("\n", "\r\n").encode())
    assert json.loads(sim("t.csv", "--nodes", "2x8", "-o", "json").stdout)["arrivals"] == 3
