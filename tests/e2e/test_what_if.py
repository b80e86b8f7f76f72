# SPDX-License-Identifier: Apache-2.0
"""The cluster's own history under other conditions: by `vctl sim --from-cluster`, and by the API in the background."""
import json
import os
import signal
import time
import urllib.error
import urllib.request

import pytest
from cluster import SLOW, wait_until

CONFIGURATION = """
operators = ["ops"]
admins = ["ME"]
visibility = "team"
[team.vision]
users = ["*"]
leads = ["lea"]
weight = 2.0
"""


def submit(c, *words, gpus=1, script):
    return int(c.run("vbatch", "--parsable", "-D", "/root", "-G", str(gpus), *words, "--", "sh", "-c", script, check=True).stdout)


def replays(pid):
    """Children of a process, by name."""
    out = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/stat") as file:
                name, rest = file.read().split("(", 1)[1].rsplit(")", 1)
        except (OSError, IndexError):
            continue
        if entry.isdigit() and int(rest.split()[1]) == pid and name == "vrun-sim":
            out.append(int(entry))
    return out


class Api:
    def __init__(self, c):
        self.c = c
        self.tokens = {}

    def ask(self, method, path, body=None, user=None):
        if user not in self.tokens:
            options = ("--user", user) if user else ()
            name = "t-" + (user or "own").split("@")[0]
            self.tokens[user] = json.loads(self.c.vctl("token", "create", name, "--scope", "write", *options, "-o", "json").stdout)["token"]
        request = urllib.request.Request(f"http://127.0.0.1:{self.c.http_port}/api/v1{path}", method=method,
                                         data=None if body is None else json.dumps(body).encode(),
                                         headers={"Authorization": f"Bearer {self.tokens[user]}", "Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=20 * SLOW) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as e:
            return e.code, json.loads(e.read())

    def ended(self, run):
        wait_until("the replay ends", lambda: self.ask("GET", f"/what-if/{run}")[1]["state"] in ("done", "failed"), 60)
        return self.ask("GET", f"/what-if/{run}")[1]


@pytest.mark.seconds(180)
def test_the_clusters_own_history(own, tmp_path):
    c = own(http=True, node_options=("--gpus", "4", "--gpu-type", "h100"))
    me = c.json("whoami")["name"].split("@")[0]
    (c.directory / "home/scheduler.toml").write_text(CONFIGURATION.replace("ME", me))
    os.kill(c.pid_of("controller"), signal.SIGHUP)
    wait_until("the configuration is read", lambda: c.json("whoami")["teams"] == ["vision"])
    nothing = c.run("vctl", "sim", "--from-cluster")
    assert nothing.returncode == 1 and "no job of that time used whole GPUs" in nothing.stderr and nothing.stderr.count("\n") == 1, nothing

    # Four GPUs, three jobs of which two fill them: the last one waits for one of the others.
    began = time.time()
    jobs = [submit(c, gpus=2, script="sleep 10"), submit(c, gpus=2, script="sleep 10"), submit(c, gpus=4, script="sleep 2")]
    submit(c, "-H", gpus=1, script="true")
    for job in jobs:
        c.run("vctl", "wait", str(job), timeout=60 * SLOW)
    took = time.time() - began

    saved = tmp_path / "history.csv"
    run = c.run("vctl", "sim", "--from-cluster", "--since", "1h", "--save-trace", str(saved), "-o", "json", check=True)
    report = json.loads(run.stdout)
    assert "3 jobs since" in run.stderr and "1 that wait" in run.stderr, run.stderr
    assert report["arrivals"] == 3 and report["nodes"] == 1 and report["gpus"] == 4, report
    measured, replay = report["measured"], report["policies"][0]
    assert measured["jobs"] == 3 and 6 <= measured["max_wait_s"] <= took, measured
    # A replay knows no overheads, but the same waits.
    assert 3 <= replay["max_wait_s"] <= measured["max_wait_s"] + 2, (replay, measured)
    assert [t["team"] for t in replay["usage"]] == ["vision"] and 47 / 3600 < replay["usage"][0]["gpu_hours"] < 120 * SLOW / 3600

    text = c.run("vctl", "sim", "--from-cluster", "--node-change", "local=+1", "--policy", "vrun,fifo", check=True).stdout
    assert [line.split()[0] for line in text.splitlines()[:5]] == ["POLICY", "measured", "present", "vrun", "fifo"], text
    report = c.json("sim", "--from-cluster", "--node-change", "local=+1", "--team", "vision=4:3")
    assert report["gpus"] == 8 and report["present"]["max_wait_s"] > 3 and report["policies"][0]["max_wait_s"] < 1, report

    # What was kept is a trace as others are, without names of people and jobs.
    again = c.json("sim", str(saved), "--nodes", "1x4")
    assert again["max_wait_s"] == replay["max_wait_s"] and again["measured"]["jobs"] == 3
    assert me not in saved.read_text() and "sleep" not in saved.read_text()

    for words, status, text in ((["--from-cluster", "x.csv"], 2, "name no other"), (["--since", "1d", "x.csv"], 2, "--from-cluster"),
                                (["--from-cluster", "--nodes", "1x4"], 2, "--node-change"), (["--from-cluster", "--since", "soon"], 2, "soon"),
                                (["--from-cluster", "--node-change", "none=+1"], 1, "there is local/h100"), (["--from-cluster", "--team", "vision"], 1, "TEAM=GPUS"),
                                (["--from-cluster", "--team", "nlp=4"], 1, "no such team: there are vision"),
                                (["--from-cluster", "--team", "vision=2:-1"], 1, "TEAM=GPUS"),
                                (["--from-cluster", "--since", "1h", "--until", "2h"], 1, "before it begins")):
        r = c.run("vctl", "sim", *words)
        assert r.returncode == status and text in r.stderr and r.stderr.count("\n") == 1, (words, r.stderr)

    # --- by the API ---
    api = Api(c)
    for user, may_see, may_start in (("eve@h", False, False), ("lea@h", True, False), ("ops@h", True, True)):
        status, listed = api.ask("GET", "/what-if", user=user)
        assert status == (200 if may_see else 403), (user, listed)
        assert not may_see or listed["may_start"] == may_start
        if not may_start:
            assert api.ask("POST", "/what-if", {}, user=user)[0] == 403
            assert api.ask("DELETE", "/what-if/1", user=user)[0] == 403
    for body, text in (({"nodes": "none=+1"}, "none"), ({"teams": "x"}, "TEAM=GPUS"), ({"teams": "nlp=2"}, "there are vision"), ({"teams": "vision=2:-1"}, "TEAM=GPUS"),
                       ({"policy": "./x"}, "policy"), ({"policy": "list"}, "policy"), ({"policy": "--help"}, "policy"), ({"days": 400}, "days")):
        status, problem = api.ask("POST", "/what-if", body)
        assert status == 400 and text in problem["detail"], problem
    status, run = api.ask("POST", "/what-if", {"days": 1, "nodes": "local/h100=+1", "teams": "vision=2"})
    assert status == 200 and run["state"] == "collecting", run
    done = api.ended(run["id"])
    assert done["state"] == "done" and done["problem"] == "", done
    assert [o["name"] for o in done["outcomes"]] == ["measured", "present", "vrun"] and done["done_permille"] == 1000
    assert (done["jobs"], done["gpus"], done["changed_gpus"]) == (3, 4, 8) and "1 that wait" in done["note"]
    assert done["outcomes"][1]["p90_wait_s"] > 3 and done["outcomes"][2]["p90_wait_s"] < 1
    assert [t["team"] for t in done["outcomes"][2]["teams"]] == ["vision"]
    failed = api.ended(api.ask("POST", "/what-if", {"policy": "nonsense"})[1]["id"])
    assert failed["state"] == "failed" and "nonsense" in failed["problem"], failed

    # Kept over a restart; ended replays leave no process and no files.
    c.kill_daemon("controller")
    c.up()
    listed = api.ask("GET", "/what-if")[1]
    assert [r["id"] for r in listed["runs"]] == [failed["id"], done["id"]] and listed["problem"] == ""
    assert api.ask("DELETE", f"/what-if/{failed['id']}")[0] == 200 and api.ask("GET", f"/what-if/{failed['id']}")[0] == 404
    assert replays(c.pid_of("controller")) == []
    said = [a["what"] for a in c.json("admin", "audit")["audit"] if a["what"].startswith("what-if")]
    assert "what-if" in said and "what-if remove" in said, said
