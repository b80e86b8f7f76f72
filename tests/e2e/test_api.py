# SPDX-License-Identifier: Apache-2.0
"""The HTTP API of a controller with jobs: what it says, who may, what its document promises, and what Prometheus reads."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request

import pytest
from cluster import SLOW, TOP, free_port, wait_until

TOOLS = TOP / "tests/testlib/apitools/venv/bin"
needs_tools = pytest.mark.skipif(not (TOOLS / "schemathesis").exists(), reason="needs tools/install-deps --test: schemathesis")


class Api:
    """One user's token, and what the controller answers to it."""
    def __init__(self, port, token):
        self.port, self.token = port, token

    def ask(self, method, path, body=None, token=None, raw=False):
        headers = {} if token == "" else {"Authorization": f"Bearer {token or self.token}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method, headers=headers,
                                         data=None if body is None else json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=20 * SLOW) as answer:
                text = answer.read().decode()
                return answer.status, text if raw else json.loads(text)
        except urllib.error.HTTPError as e:
            problem = json.loads(e.read())
            assert e.headers["Content-Type"] == "application/problem+json", e.headers
            assert problem["status"] == e.code and problem["detail"], problem
            return e.code, problem

    def get(self, path):
        status, answer = self.ask("GET", "/api/v1" + path)
        assert status == 200, (path, answer)
        return answer

    def post(self, path, body=None):
        return self.ask("POST", "/api/v1" + path, body)

    @contextlib.contextmanager
    def events(self, path):
        """A function that returns the next event: its name and its data."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20 * SLOW)
        connection.request("GET", "/api/v1" + path, headers={"Authorization": f"Bearer {self.token}"})
        answer = connection.getresponse()
        assert answer.status == 200 and answer.headers["Content-Type"] == "text/event-stream", answer.headers

        def next_event():
            name = None
            while line := answer.readline().decode():
                if line.startswith("event: "):
                    name = line[7:-1]
                elif line.startswith("data: "):
                    return name, json.loads(line[6:])
            return None
        yield next_event
        connection.close()


def token(c, name, *options):
    return json.loads(c.vctl("token", "create", name, *options, "-o", "json").stdout)["token"]


@pytest.fixture(scope="module")
def serving(template_root):
    from cluster import Cluster
    from conftest import Copy
    copy = Copy(template_root)
    c = Cluster(copy.root, http=True)
    yield c
    c.close()
    copy.remove()


@pytest.fixture
def api(serving, request):
    name = re.sub(r"\W", "-", request.node.name)[:50]
    yield Api(serving.http_port, token(serving, name, "--scope", "write"))
    serving.settle()


def submit(c, *command, options=()):
    return int(re.search(r"\d+", c.run("vbatch", "-D", "/root", *options, "--", *command, check=True).stdout)[0])


def test_a_job_from_its_queue_to_its_end(serving, api):
    c = serving
    held = submit(c, "sleep", "300", options=["-H"])
    runs = submit(c, "sleep", "300", options=["-J", "sleeper"])
    wait_until("the job runs", lambda: api.get(f"/jobs/{runs}")["state"] == "RUNNING")
    jobs = api.get("/jobs")["jobs"]
    assert [j["job"] for j in jobs] == [runs, held]
    assert jobs[0]["name"] == "sleeper" and jobs[0]["argv"][:1] == ["sleep"] and jobs[0]["node"] == "n1", jobs[0]
    assert [j["job"] for j in api.get("/jobs?state=PENDING")["jobs"]] == [held]
    page = api.get("/jobs?limit=1&fields=job,state")
    assert page == {"jobs": [{"job": runs, "state": "RUNNING"}], "next": runs}
    assert api.get(f"/jobs?limit=1&fields=job&before={page['next']}") == {"jobs": [{"job": held}]}
    assert "held" in json.dumps(api.get(f"/jobs/{held}/why")).lower()

    assert api.post(f"/jobs/{held}/release")[0] == 200
    wait_until("the job that was held runs", lambda: api.get(f"/jobs/{held}")["state"] == "RUNNING")
    assert api.post(f"/jobs/{held}/hold") [0] == 409   # it runs
    for job in (held, runs):
        assert api.post(f"/jobs/{job}/cancel")[0] == 200
        wait_until("the job is cancelled", lambda: api.get(f"/jobs/{job}")["state"] == "CANCELLED")
    assert {j["job"] for j in api.get("/jobs?state=CANCELLED")["jobs"]} >= {held, runs}
    assert {a["job"]["job"] for a in api.get("/accounts")["accounts"]} >= {runs}
    assert api.ask("GET", "/api/v1/jobs/999999")[0] == 404
    # The same as gRPC says it.
    assert [j["job"] for j in c.json("jobs", "-a")["jobs"]] == [j["job"] for j in api.get("/jobs?all=true")["jobs"]]


def test_nodes_and_quotas(serving, api):
    [node] = api.get("/nodes")["nodes"]
    assert node["name"] == "n1" and node["state"] == "ready" and node["total"]["milli_cpus"] == 64000
    status, drained = api.post("/nodes/n1/drain", {"reason": "new fan"})
    assert status == 200 and drained["state"] == "drained" and "new fan" in drained["reason"], drained
    assert serving.node_state("n1") == "drained"
    assert api.post("/nodes/n1/resume")[1]["state"] == "ready"
    assert api.post("/nodes/nothing/drain")[0] == 404
    assert api.ask("GET", "/api/v1/nodes/nothing")[0] == 404
    assert api.get("/nodes/n1")["name"] == "n1"
    assert api.get("/gpus") == {"gpus": []}
    assert isinstance(api.get("/quota")["teams"], list)
    assert api.get("/maintenance") == {"windows": []}
    usage = api.get("/usage?by=team,day&from=1")
    assert usage["by"] == "team,day" and usage["total"]["cpu_ms"] >= sum(row["cpu_ms"] for row in usage["rows"][:1]), usage
    assert api.get("/usage?from=0")["from_us"] == 1 and api.get("/usage")["from_us"] > 1, "from the beginning, not of this month"
    assert api.get("/prices") == {"currency": "", "prices": []} and api.get("/budgets") == {"budgets": []}
    assert api.ask("GET", "/api/v1/usage?by=planet")[0] == 400
    assert api.get("/version")["api"] == "v1"


def test_who_may(serving, api):
    c = serving
    mine = submit(c, "sleep", "300", options=["-H"])
    reader = token(c, "reader")
    stranger = token(c, "stranger", "--user", "eve@elsewhere", "--scope", "write")
    for wrong in ("", "x", api.token[:-1] + "g"):
        status, problem = api.ask("GET", "/api/v1/jobs", token=wrong)
        assert status == 401, problem
    assert api.ask("GET", "/healthz", token="") == (200, {"status": "ok"})
    assert api.ask("GET", "/readyz", token="") == (200, {"status": "ready"})
    assert api.ask("GET", f"/api/v1/jobs/{mine}", token=reader)[0] == 200
    status, problem = api.ask("POST", f"/api/v1/jobs/{mine}/release", token=reader)
    assert status == 403 and "--scope write" in problem["detail"]
    # Another user sees that the job is there, not what it is, and changes nothing: as with gRPC.
    status, seen = api.ask("GET", f"/api/v1/jobs/{mine}", token=stranger)
    assert status == 200 and seen["argv"] == [] and seen["directory"] == "", seen
    status, problem = api.ask("POST", f"/api/v1/jobs/{mine}/cancel", token=stranger)
    assert status == 403 and "only its owner" in problem["detail"], problem
    assert api.get(f"/jobs/{mine}")["state"] == "PENDING"

    tokens = {t["name"]: t for t in c.json("token", "list")["tokens"]}
    assert tokens["reader"]["scope"] == "read" and tokens["stranger"]["user"] == "eve@elsewhere"
    stored = subprocess.run(["grep", "-rl", reader[5:], str(c.directory / "home")], capture_output=True, text=True).stdout
    assert stored == "", "the token itself is stored"
    c.vctl("token", "revoke", "reader")
    assert api.ask("GET", "/api/v1/jobs", token=reader)[0] == 401
    c.vctl("user", "revoke", "eve")
    assert api.ask("GET", "/api/v1/jobs", token=stranger)[0] == 403
    short = token(c, "short", "--for", "0:01")
    wait_until("the token has ended", lambda: api.ask("GET", "/api/v1/jobs", token=short)[0] == 401)

    api.post(f"/jobs/{mine}/cancel")
    said = [a for a in c.json("admin", "audit")["audit"] if a["of"] == f"job {mine}" and a["what"] == "cancel"]
    assert [a["result"].split(":")[0] for a in said] == ["refused", "ok"] and "token" in said[1]["from"], said


def test_no_page_of_another_site_reads_it(serving, api):
    request = urllib.request.Request(f"http://127.0.0.1:{serving.http_port}/api/v1/jobs",
                                     headers={"Authorization": f"Bearer {api.token}", "Origin": "https://evil.example"})
    with urllib.request.urlopen(request) as answer:
        assert not [h for h in answer.headers if h.lower().startswith("access-control")]
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["Cache-Control"] == "no-store"
    assert api.ask("OPTIONS", "/api/v1/jobs")[0] == 405


def test_changes_arrive_by_themselves(serving, api):
    with api.events("/jobs/watch") as changes, api.events("/jobs/watch?user=nobody@nowhere") as none:
        assert changes() == ("ready", {}) and none() == ("ready", {})
        job = submit(serving, "true")
        seen = []
        while not seen or seen[-1]["state"] != "COMPLETED":
            name, event = changes()
            assert name == "job"
            if event["job"] == job:
                seen.append(event)
        assert seen[-1]["argv"] == ["true"]
        assert seen[-1] == next(j for j in api.get("/jobs?all=true")["jobs"] if j["job"] == job)
    with api.events(f"/jobs/watch?job={job + 1}") as changes:
        assert changes() == ("ready", {})
        next_job = submit(serving, "true")
        assert changes()[1]["job"] == next_job == job + 1


def test_a_watch_ends_with_its_token(serving, api):
    seconds = Api(serving.http_port, token(serving, "seconds", "--for", "0:02"))
    with seconds.events("/jobs/watch") as changes:
        assert changes() == ("ready", {})
        while changes():   # of what other tests have left
            pass


def test_beyond_the_loopback_it_speaks_tls(own):
    c = own(nodes=0)
    port = free_port()
    c.vctl("down")
    c.vctl("up", "--no-node", "--listen", f"0.0.0.0:{c.port}", "--root", c.root, "--http", f"0.0.0.0:{port}")
    mine = token(c, "laptop")
    trust = ssl.create_default_context(cafile=c.pki() / "ca.pem")
    with socket.create_connection(("127.0.0.1", port), timeout=20) as plain, \
            trust.wrap_socket(plain, server_hostname="controller.vrun") as safe:
        safe.sendall(f"GET /api/v1/version HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {mine}\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: safe.recv(65536), b"")).decode()
    assert answer.startswith("HTTP/1.1 200 OK") and answer.endswith('"api":"v1"}'), answer
    with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not plain.recv(100).startswith(b"HTTP")
    assert c.json_any("status")["http"] == f"0.0.0.0:{port}"
    assert c.run("vctl", "up", "--no-node", "--http", f"127.0.0.1:{free_port()}").returncode == 1   # it runs elsewhere


def sample(text, name, **labels):
    for line in text.splitlines():
        match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
        if match and match[1] == name and all(f'{k}="{v}"' in (match[2] or "") for k, v in labels.items()):
            return float(match[3])
    return None


def test_prometheus_reads_the_metrics(serving, api, tmp_path):
    c = serving
    before = api.ask("GET", "/metrics", raw=True)[1]
    job = submit(c, "sleep", "300")
    wait_until("the job runs", lambda: api.get(f"/jobs/{job}")["state"] == "RUNNING")
    held = submit(c, "true", options=["-H"])
    text = api.ask("GET", "/metrics", raw=True)[1]
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert sample(text, "vrun_jobs", state="running") == 1 and sample(text, "vrun_queue_jobs", pool="local") == 1
    assert sample(text, "vrun_jobs_submitted_total") == sample(before, "vrun_jobs_submitted_total") + 2
    assert sample(text, "vrun_job_wait_seconds_count") == sample(before, "vrun_job_wait_seconds_count") + 1
    assert sample(text, "vrun_node_state", node="n1", state="ready") == 1
    assert api.ask("GET", "/metrics", token="")[0] == 401

    listen = f"127.0.0.1:{free_port('127.0.0.1')}"
    (tmp_path / "token").write_text(api.token)
    (tmp_path / "prometheus.yml").write_text(f"""
scrape_configs:
  - job_name: vrun
    scrape_interval: 200ms
    scrape_timeout: 200ms
    authorization: {{credentials_file: {tmp_path}/token}}
    static_configs: [{{targets: ["127.0.0.1:{c.http_port}"]}}]
""")
    with open(tmp_path / "log", "wb") as log:
        prometheus = subprocess.Popen(["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
                                       f"--web.listen-address={listen}"], stdout=log, stderr=log)
    try:
        def query(expression):
            url = f"http://{listen}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
            try:
                with urllib.request.urlopen(url, timeout=10) as answer:
                    return [float(r["value"][1]) for r in json.load(answer)["data"]["result"]]
            except (OSError, urllib.error.HTTPError):
                return None
        wait_until("Prometheus has scraped", lambda: query("up") == [1.0])
        wait_until("Prometheus knows the jobs", lambda: query('sum(vrun_jobs{state="running"})') == [1.0])
        assert query("histogram_quantile(0.9, vrun_job_wait_seconds_bucket) >= 0") != []
        for one in (job, held):
            api.post(f"/jobs/{one}/cancel")
        wait_until("Prometheus sees their end", lambda: query('vrun_jobs_ended_total{state="cancelled"}') not in (None, [], [0.0]))
    finally:
        prometheus.terminate()
        prometheus.wait()


@needs_tools
def test_the_document_is_one_of_openapi(serving, api, tmp_path):
    document = api.ask("GET", "/api/v1/openapi.json", token="")[1]
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    checked = subprocess.run([TOOLS / "openapi-spec-validator", tmp_path / "openapi.json"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert document["openapi"].startswith("3.1")
    undescribed = [p["name"] for path in document["paths"].values() for o in path.values() for p in o.get("parameters", []) if not p["description"]]
    assert not undescribed


@needs_tools
@pytest.mark.seconds(120)
def test_the_document_keeps_its_promises(serving, api, tmp_path):
    """Requests that the document allows and such that it does not, made by schemathesis from the document alone."""
    job = submit(serving, "sleep", "300", options=["-H"])
    # Left out: streams, which do not end, and a new token, whose name must be there and fit. Of usage the document cannot say that `to`
    # is after `from`, so a request that it allows may be refused.
    # Nor can it say which teams and nodes of a what-if there are.
    for options in (["--exclude-path-regex", "/(watch|log|tokens|usage|what-if)$"],
                    ["--include-path-regex", "/(usage|what-if)$", "--exclude-checks", "positive_data_acceptance"]):
        run = subprocess.run([TOOLS / "schemathesis", "run", f"http://127.0.0.1:{serving.http_port}/api/v1/openapi.json", *options,
                              "-H", f"Authorization: Bearer {api.token}", "--max-examples", "15", "--seed", "7", "--rate-limit", "90/s",
                              "--phases", "examples,coverage,fuzzing", "--continue-on-failure", "--no-shrink"],
                             capture_output=True, text=True, cwd=tmp_path, timeout=110 * SLOW)
        assert run.returncode == 0, run.stdout[-12000:] + run.stderr
    assert api.get(f"/jobs/{job}")["job"] == job


# Calls each operation that needs nothing but a token, and those of a job, with what a generator has made of the document.
CLIENT = """
import importlib, inspect, json, pkgutil, sys
import made
from made import api as operations

address, token, job = sys.argv[1], sys.argv[2], int(sys.argv[3])
client = made.AuthenticatedClient(base_url=address, token=token, timeout=60)
called = {}
for found in pkgutil.walk_packages(operations.__path__, "made.api."):
    module = importlib.import_module(found.name)
    if found.ispkg or not hasattr(module, "sync_detailed"):
        continue
    needs = {p.name for p in inspect.signature(module.sync_detailed).parameters.values() if p.default is p.empty} - {"client"}
    if "_get_kwargs" not in vars(module) or needs - {"job"}:
        continue
    values = {n: job for n in needs}
    request = module._get_kwargs(**values)
    if request["url"].endswith(("/watch", "/log")) or request["method"] != "get" and not request["url"].endswith("/release"):
        continue
    answer = module.sync_detailed(client=client, **values)
    called[request["url"]] = [int(answer.status_code), type(answer.parsed).__name__]
    if request["url"].endswith(f"/jobs/{job}"):
        print(json.dumps({"state": answer.parsed.state, "argv": answer.parsed.argv}))
print(json.dumps(called))
"""


@needs_tools
def test_a_generated_python_client_works(serving, api, tmp_path):
    (tmp_path / "openapi.json").write_text(json.dumps(api.ask("GET", "/api/v1/openapi.json", token="")[1]))
    (tmp_path / "config.yml").write_text("package_name_override: made\npost_hooks: []\n")
    made = subprocess.run([TOOLS / "openapi-python-client", "generate", "--path", "openapi.json", "--config", "config.yml", "--meta", "none",
                           "--output-path", "made", "--fail-on-warning"], cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    job = submit(serving, "sleep", "300", options=["-H"])
    ran = subprocess.run([TOOLS / "python3", "-c", CLIENT, f"http://127.0.0.1:{serving.http_port}", api.token, str(job)], cwd=tmp_path,
                         capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    seen, called = map(json.loads, ran.stdout.splitlines())
    assert seen == {"state": "PENDING", "argv": ["sleep", "300"]}
    assert len(called) >= 12 and all(status == 200 and parsed != "NoneType" for status, parsed in called.values()), called
    assert f"/api/v1/jobs/{job}/release" in called
    wait_until("the job that the client released runs", lambda: api.get(f"/jobs/{job}")["state"] == "RUNNING")


def test_the_guide(serving, api):
    """Its commands, in order, in one shell."""
    blocks = re.findall(r"```sh\n(.*?)```", (TOP / "docs/guide/api.md").read_text(), re.S)
    assert len(blocks) >= 3
    job = submit(serving, "sleep", "300")
    script = "\n".join(block for block in blocks if "vctl up" not in block)
    script = script.replace("127.0.0.1:7421", f"127.0.0.1:{serving.http_port}").replace("JOB", str(job))
    path = f"{serving.command('vctl')[0].rsplit('/', 1)[0]}:{os.environ['PATH']}"
    run = subprocess.run(["timeout", "40", "bash", "-euc", script], capture_output=True, text=True, cwd="/",
                         env={**serving.environment, "PATH": path}, stdin=subprocess.DEVNULL)
    assert run.returncode == 0, run.stdout + run.stderr
    wait_until("the job that the guide cancels is cancelled", lambda: api.get(f"/jobs/{job}")["state"] == "CANCELLED")
