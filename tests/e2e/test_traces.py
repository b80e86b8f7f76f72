# SPDX-License-Identifier: Apache-2.0
"""Traces of jobs, as a collector gets them from controller, node and home: one job is one trace, with right parents and times."""
import json
import os
import pathlib
import re
import tempfile
import time
import urllib.request

import otlp
import pytest
from cluster import SLOW, Cluster, free_port, wait_until
from conftest import Copy

pytestmark = [pytest.mark.seconds(120), pytest.mark.skipif(not otlp.installed(), reason="needs tools/install-deps --test: opentelemetry-proto")]
NODE_PORT = 7422
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
# Who tells what, below what.
TREE = {"job": ("vrun-controller", None), "submit": ("vrun-controller", "job"), "queue": ("vrun-controller", "job"),
        "attempt": ("vrun-controller", "job"), "place": ("vrun-controller", "attempt"), "start": ("vrun-controller", "attempt"),
        "prepare": ("vrun-node", "attempt"), "attach": ("vrun-node", "prepare"), "mount": ("vrun-node", "prepare"),
        "sandbox": ("vrun-node", "prepare"), "run": ("vrun-node", "attempt"),
        "first output": ("vrun-home", "job"), "send home": ("vrun-home", "attempt")}


@pytest.fixture(scope="module")
def traced(template_root):
    """A cluster of one node, all of whose daemons send spans to a collector; the settings are in config.toml and on the node's command line."""
    copy = Copy(template_root)
    directory = pathlib.Path(tempfile.mkdtemp(prefix="vrun-e2e-", dir="/var/tmp"))
    (directory / "home").mkdir()
    collector = otlp.Collector(free_port())
    headers = directory / "headers"
    headers.write_text("X-Tenant: seven\n")
    headers.chmod(0o600)
    home = f"127.0.0.1:{free_port('127.0.0.1')}"
    (directory / "home/config.toml").write_text(f'traces_endpoint = "http://127.0.0.1:{collector.port}"\ntraces_headers = "{headers}"\n'
                                                f'home_metrics = "{home}"\n')
    before = os.environ.get("OTEL_BSP_SCHEDULE_DELAY")
    os.environ["OTEL_BSP_SCHEDULE_DELAY"] = "200"
    c = None
    try:
        c = Cluster(copy.root, nodes=0, directory=directory, http=True)
        c.reserve("n1")
        node = c.nodes["n1"]
        node["options"] = ["--milli-cpus", "8000", "--gpus", "2", "--gpu-type", "h100",
                           "--traces-endpoint", f"http://{node['ours']}:{collector.port}", "--metrics", f"0.0.0.0:{NODE_PORT}"]
        c.pages = {"controller": f"127.0.0.1:{c.http_port}", "node": f"{node['theirs']}:{NODE_PORT}", "home": home}
        c.make_host("n1")
        c.launch_node("n1")
        c.await_node("n1")
        yield c, collector
    finally:
        os.environ.pop("OTEL_BSP_SCHEDULE_DELAY") if before is None else os.environ.update(OTEL_BSP_SCHEDULE_DELAY=before)
        if c:
            c.close()
        collector.close()
        copy.remove()


@pytest.fixture
def cluster_and_collector(traced):
    yield traced
    traced[0].settle()


def whole(collector, job, wanted=TREE):
    """The job's spans, by name, once all are here."""
    names = lambda: {s["name"] for s in collector.spans(job)}   # noqa: E731
    wait_until(f"all spans of job {job} are here", lambda: set(wanted) <= names(), 20)
    return collector.spans(job)


def the(spans, name, attempt=None):
    [span] = [s for s in spans if s["name"] == name and (attempt is None or s["attributes"].get("vrun.attempt") == attempt)]
    return span


def job_of(c, *words, script, **kw):
    r = c.vrun(*words, "--", "sh", "-c", "echo $VRUN_JOB_ID $TRACEPARENT; " + script, **kw)
    number, *traceparent = r.stdout.split()
    return int(number), traceparent[0] if traceparent else "", r


def test_one_job_is_one_trace(cluster_and_collector):
    c, collector = cluster_and_collector
    began = time.time()
    job, told, r = job_of(c, "-J", "named", script="echo more > /root/traced; sleep 1")
    took = time.time() - began
    assert r.returncode == 0, r.stderr
    spans = whole(collector, job)
    assert sorted(s["name"] for s in spans) == sorted(TREE), spans
    assert len({s["trace"] for s in spans}) == 1
    assert len({s["id"] for s in spans}) == len(TREE)
    root = the(spans, "job")
    for name, (who, above) in TREE.items():
        span = the(spans, name)
        assert span["who"]["service.name"] == who and span["who"]["service.namespace"] == "vrun", span
        assert span["parent"] == (the(spans, above)["id"] if above else ""), span
        assert span["start"] <= span["end"] and not span["failed"], span
        # All on this machine's clock. Homes and nodes tell of what they do a moment before or after the controller hears of it.
        assert began - 0.1 <= span["start"] and span["end"] <= root["end"] + 1 * SLOW, span
        if above in ("job", "prepare"):
            assert the(spans, above)["start"] - 0.1 <= span["start"], span
    order = ["submit", "queue", "attempt", "prepare", "mount", "sandbox", "run", "send home"]
    starts = [the(spans, name)["start"] for name in order]
    assert starts == sorted(starts), dict(zip(order, starts))
    for first, then in (("queue", "attempt"), ("attach", "mount"), ("mount", "sandbox"), ("sandbox", "run")):
        assert the(spans, first)["end"] <= the(spans, then)["start"] + 0.1, (first, then)
    run = the(spans, "run")
    assert 1 <= run["end"] - run["start"] <= took and run["attributes"]["process.exit.code"] == 0, run
    assert the(spans, "first output")["end"] <= run["end"], "it came while the command ran"
    assert root["attributes"]["vrun.job.name"] == "named" and root["attributes"]["vrun.state"] == "completed", root
    assert the(spans, "attempt")["attributes"]["vrun.nodes"] == ["n1"]
    # The program's own spans would be below its run.
    assert told == f"00-{root['trace']}-{run['id']}-01"
    # Paths and arguments are nobody's business.
    assert "sleep" not in str(spans) and str(c.root) not in str(spans)


def test_the_trace_of_the_caller_goes_on(cluster_and_collector):
    c, collector = cluster_and_collector
    job, told, _ = job_of(c, script="true", env={**c.environment, "TRACEPARENT": CALLER})
    spans = whole(collector, job)
    assert {s["trace"] for s in spans} == {CALLER.split("-")[1]}
    assert the(spans, "job")["parent"] == CALLER.split("-")[2]
    assert told == f"00-{CALLER.split('-')[1]}-{the(spans, 'run')['id']}-01"
    # What its caller does not record is not recorded, but the program knows its place.
    silent, told, _ = job_of(c, script="true", env={**c.environment, "TRACEPARENT": CALLER[:-2] + "00"})
    assert re.fullmatch(f"00-{CALLER.split('-')[1]}-[0-9a-f]{{16}}-00", told) and told.split("-")[2] != CALLER.split("-")[2], told
    # Nonsense is none.
    odd, told, _ = job_of(c, script="true", env={**c.environment, "TRACEPARENT": "00-" + "g" * 32 + "-b7ad6b7169203331-01"})
    spans = whole(collector, odd)
    assert not the(spans, "job")["parent"] and told.split("-")[1] == the(spans, "job")["trace"]
    assert not collector.spans(silent)


def test_a_job_that_is_started_again_has_two_attempts(cluster_and_collector):
    c, collector = cluster_and_collector
    job = int(c.run("vbatch", "--parsable", "-D", "/root", "--requeue", "--", "sh", "-c",
                    "echo here; [ $VRUN_RESTART_COUNT = 1 ] || exec sleep 300", check=True).stdout)
    out = c.root / f"root/vrun-{job}.out"
    wait_until("it runs", lambda: out.exists() and out.read_text())
    c.vctl("requeue", str(job))
    c.run("vctl", "wait", str(job), check=True)
    spans = whole(collector, job, {"job", "attempt", "run"})
    wait_until("both attempts are here", lambda: len([s for s in collector.spans(job) if s["name"] in ("attempt", "run", "send home")]) == 6)
    spans = collector.spans(job)
    first, second = (the(spans, "attempt", n) for n in (1, 2))
    assert first["attributes"]["vrun.state"] == "preempted" and not first["failed"]
    [event] = first["events"]
    assert event["name"] == "preempted" and "requeued" in event["attributes"]["vrun.reason"]
    assert first["start"] <= event["at"] <= first["end"]
    assert first["end"] <= the(spans, "queue", 2)["end"] <= second["start"]
    assert not second["events"] and second["attributes"]["vrun.state"] == "completed"
    for n, attempt in ((1, first), (2, second)):
        for name in ("run", "prepare", "send home", "start", "place"):
            assert the(spans, name, n)["parent"] == attempt["id"], name
    assert the(spans, "run", 1)["attributes"]["vrun.exit.kind"] == "preempted"
    assert the(spans, "job")["attributes"]["vrun.attempts"] == 2


def test_a_failed_command_is_an_error(cluster_and_collector):
    c, collector = cluster_and_collector
    job, _, r = job_of(c, script="exit 3")
    assert r.returncode == 3
    spans = whole(collector, job)
    for name in ("job", "attempt", "run"):
        assert the(spans, name)["failed"], name
    assert not the(spans, "prepare")["failed"]
    assert the(spans, "job")["attributes"]["process.exit.code"] == 3


def test_pods_of_a_gang_have_spans_of_their_own(cluster_and_collector):
    c, collector = cluster_and_collector
    c.start_node("n2")   # it sends nothing
    try:
        r = c.vrun("-N", "2", "-c", "1", "--ntasks-per-node", "1", "--", "sh", "-c", "echo $VRUN_JOB_ID")
        assert r.returncode == 0, r.stderr
        job = int(r.stdout.split()[0])
        spans = whole(collector, job, {"job", "attempt", "run", "wait for gang", "send home"})
        assert the(spans, "attempt")["attributes"]["vrun.pods"] == 2
        assert sorted(the(spans, "attempt")["attributes"]["vrun.nodes"]) == ["n1", "n2"]
        assert [s["who"]["service.instance.id"] for s in spans if s["name"] == "run"] == ["n1"]
        assert the(spans, "wait for gang")["parent"] == the(spans, "prepare")["id"]
    finally:
        c.stop_node("n2")


def test_requests_have_the_headers_of_the_file(cluster_and_collector):
    c, collector = cluster_and_collector
    job_of(c, script="true")
    wait_until("something came", collector.requests)
    tenants = {request["headers"].get("X-Tenant") for request in collector.requests()}
    assert tenants == {"seven", None}, "the node was not told of them"


def test_jobs_do_not_notice_that_the_collector_is_away(cluster_and_collector):
    c, collector = cluster_and_collector
    job_of(c, script="true")
    collector.stop()
    began = time.time()
    jobs = [job_of(c, script="true") for _ in range(3)]
    assert all(r.returncode == 0 and not r.stderr for _, _, r in jobs)
    assert time.time() - began < 15 * SLOW
    collector.start()
    after, _, _ = job_of(c, script="true")
    wait_until("spans come again", lambda: the_or_none(collector, after) is not None, 60)


def test_spans_that_are_lost_show_on_the_pages_of_all_three(cluster_and_collector):
    c, collector = cluster_and_collector
    token = json.loads(c.vctl("token", "create", "pages", "--scope", "read", "-o", "json").stdout)["token"]

    def figures(name):
        found = {}
        for who, address in c.pages.items():
            request = urllib.request.Request(f"http://{address}/metrics", headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(request, timeout=10 * SLOW) as answer:
                found[who] = float(re.search(rf"^vrun_trace_spans_{name}_total (\S+)$", answer.read().decode(), re.M)[1])
        return found

    def grows(name, before):
        now = figures(name)
        return all(now[who] > before[who] for who in before)

    before = figures("dropped")
    collector.stop()
    collector.start(400)
    try:
        job_of(c, script="true")
        wait_until("all three have dropped spans", lambda: grows("dropped", before))
    finally:
        collector.stop()
        collector.start()
    before = figures("sent")
    job_of(c, script="true")
    wait_until("all three have sent spans", lambda: grows("sent", before))


def the_or_none(collector, job):
    return next((s for s in collector.spans(job) if s["name"] == "job"), None)


def test_without_a_collector_a_job_has_no_trace(cluster):
    _, told, r = job_of(cluster, script="true")
    assert r.returncode == 0 and told == ""
    assert job_of(cluster, script="true", env={**cluster.environment, "TRACEPARENT": CALLER})[1] == CALLER
