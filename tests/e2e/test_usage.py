# SPDX-License-Identifier: Apache-2.0
"""What jobs are accounted for, against the times that they print themselves; prices, budgets, and the report of a month."""
import csv
import json
import os
import re
import signal
import time

import pytest
from cluster import SLOW, wait_until

CONFIGURATION = """
[money]
currency = "EUR"
[[money.price]]
gpu_hour = { "" = 3600 }
cpu_hour = 36
[team.lab]
users = ["*"]
"""


def submit(c, *words, gpus=1, script):
    return int(c.run("vbatch", "--parsable", "-D", "/root", "-G", str(gpus), *words, "--", "sh", "-c", script, check=True).stdout)


def configure(c, text):
    (c.directory / "home/scheduler.toml").write_text(text)
    os.kill(c.pid_of("controller"), signal.SIGHUP)


def printed(c, number):
    """The times between which the attempts ran, as they said."""
    times = [float(word) for word in c.vctl("logs", str(number)).stdout.split()]
    return times


@pytest.mark.seconds(150)
def test_jobs_are_accounted_as_long_as_they_say_that_they_ran(own):
    c = own(node_options=("--gpus", "4", "--gpu-type", "h100"))
    configure(c, CONFIGURATION)
    wait_until("the configuration is read", lambda: c.json("whoami")["teams"] == ["lab"])
    began = time.time()
    clock = "date +%s.%N; sleep {}; date +%s.%N"
    fine = submit(c, "--project", "vision", gpus=2, script=clock.format(4))
    failed = submit(c, script=clock.format(3) + "; exit 3")
    again = submit(c, "--requeue", script="date +%s.%N; trap 'date +%s.%N; exit 1' TERM; sleep $((60 - 58 * VRUN_RESTART_COUNT)) & wait $!; "
                   "date +%s.%N")
    wait_until("the third runs", lambda: printed(c, again))
    time.sleep(2 * SLOW)
    c.vctl("requeue", str(again))
    # The controller dies meanwhile, and what ends in that time is told later.
    c.kill_daemon("controller")
    time.sleep(3 * SLOW)
    c.up()
    for number in (fine, failed, again):
        c.run("vctl", "wait", str(number), timeout=60)
    wait_until("the third has run twice", lambda: len(printed(c, again)) == 4)

    def ran(number):
        times = printed(c, number)
        return sum(end - start for start, end in zip(times[::2], times[1::2]))
    rows = {row["job"]: row for row in c.json("usage", "--by", "job", "--from", "-1h")["rows"]}
    assert set(rows) == {fine, failed, again}, rows
    for number, gpus in ((fine, 2), (failed, 1), (again, 1)):
        row = rows[number]
        # The room is theirs from the placement until the command has ended: some time is spent on the start.
        assert gpus * ran(number) <= row["gpu_s"] <= gpus * (ran(number) + 10 * SLOW * row["attempts"]), (number, ran(number), row)
        assert abs(row["cost"] - (row["gpu_s"] + row["cpu_s"] / 100)) < 0.01, row
        shown = c.vctl("job", str(number)).stdout
        assert f"{row['cost']:.2f} EUR" in shown, shown
    assert rows[fine]["lost_gpu_s"] == 0 and rows[failed]["failed_gpu_s"] == rows[failed]["gpu_s"] > 0, rows
    assert rows[again]["attempts"] == 2 and rows[again]["gpu_s"] > rows[again]["preempted_gpu_s"] >= 2 * SLOW, rows[again]

    whole = c.json("usage", "--from", "-1h")
    assert [row["team"] for row in whole["rows"]] == ["lab"]
    assert abs(whole["total"]["gpu_s"] - sum(row["gpu_s"] for row in rows.values())) < 0.01
    assert whole["total"]["gpu_s"] <= 4 * (time.time() - began) and whole["total"]["jobs"] == 3
    projects = {row["project"]: row["gpu_s"] for row in c.json("usage", "--by", "project", "--from", "-1h")["rows"]}
    assert projects.keys() == {"vision", ""} and projects["vision"] == rows[fine]["gpu_s"]
    # In any cut the same.
    middle = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(began + 5))
    halves = [c.json("usage", "--from", "-1h", "--to", middle)["total"], c.json("usage", "--from", middle)["total"]]
    assert abs(sum(half["gpu_s"] for half in halves) - whole["total"]["gpu_s"]) < 0.01, halves
    table = list(csv.DictReader(c.vctl("usage", "--by", "job", "--from", "-1h", "-o", "csv").stdout.splitlines()))
    assert table[-1]["job"] == "(total)" and abs(float(table[-1]["gpu_s"]) - whole["total"]["gpu_s"]) < 0.01

    report = c.directory / "month.html"
    c.vctl("usage", "--report", str(report))
    html = report.read_text()
    assert "<svg" in html and "lab" in html and "<script" not in html and not re.search(r"(src|href)=", html)
    for wrong in (("--by", "planet"), ("--from", "tomorrow"), ("--report", "x", "--by", "team"), ("--month", "13"), ("more",)):
        said = c.run("vctl", "usage", *wrong)
        assert said.returncode in (1, 2) and said.stderr.startswith("vctl: ") and said.stderr.count("\n") == 1, said.stderr


@pytest.mark.seconds(120)
def test_a_budget_that_is_used_up_keeps_jobs_waiting_and_says_so(own):
    c = own(node_options=("--gpus", "2"))
    budget = CONFIGURATION + "month = { money = %s, warn_percent = 10, stop_percent = 100 }\n"
    configure(c, budget % "1")
    wait_until("the configuration is read", lambda: c.json("whoami")["teams"] == ["lab"])
    first = submit(c, script="sleep 2")
    c.run("vctl", "wait", str(first))
    wait_until("the budget is used up", lambda: c.json("usage")["budgets"][0]["state"] == "stop")
    waits = submit(c, script="true")
    time.sleep(2)
    why = c.json("why", str(waits))
    assert why["state"] == "PENDING" and why["blockers"][0]["kind"] == "budget", why
    assert "team lab has used" in c.vctl("why", str(waits)).stdout
    warned = c.run("vctl", "usage")
    assert "of 1.00 EUR" in warned.stderr, warned
    configure(c, budget % "100000")
    c.run("vctl", "wait", str(waits), check=True)
    assert json.loads(c.vctl("job", str(waits), "-o", "json").stdout)["state"] == "COMPLETED"
