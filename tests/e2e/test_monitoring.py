# SPDX-License-Identifier: Apache-2.0
"""deploy/prometheus and deploy/grafana against a real Prometheus and a cluster at work: every query of every panel and alert is evaluated."""
import json
import pathlib
import re
import signal
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request

import fake_gpus
import pytest
from cluster import SLOW, TOP, Cluster, free_port, wait_until
from conftest import Copy
from fake_gpus import FakeGpus

pytestmark = [pytest.mark.seconds(180), pytest.mark.skipif(not fake_gpus.built(), reason="the fake driver is not built: ninja fake_gpu")]
DEPLOY = TOP / "deploy"
NODE_PORT = 7422
TEAMS = '[team.vision]\nusers = ["*"]\nguarantee = { "" = 1 }\n[team.speech]\nguarantee = { "" = 1 }\n'
# Panels that say nothing in an hour in which nothing of the kind has happened.
MAY_BE_EMPTY = ("Wait until", "Found in caches", "Power of", "Jobs that wait", "A pass of")


class Prometheus:
    def __init__(self, directory, targets, token, rules):
        """`targets`: by job, in place of those of deploy/prometheus/prometheus.yml."""
        self.address = f"127.0.0.1:{free_port('127.0.0.1')}"
        text = (DEPLOY / "prometheus/prometheus.yml").read_text()
        text = text.replace("/etc/prometheus/vrun-token", str(token)).replace(": 15s", ": 300ms\n  scrape_timeout: 250ms", 1).replace(": 15s", ": 300ms")
        for job, address in targets.items():
            text, changed = re.subn(rf'(job_name: {job}\b.*?targets: )\[[^]]*\]', rf'\1["{address}"]', text, flags=re.S)
            assert changed == 1, job
        (directory / "prometheus.yml").write_text(text)
        (directory / "alerts.yml").write_text(rules)
        with open(directory / "log", "wb") as log:
            self.process = subprocess.Popen(["prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data",
                                             f"--web.listen-address={self.address}"], stdout=log, stderr=log)

    def ask(self, path, **parameters):
        try:
            with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=10 * SLOW) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as e:
            if e.code == 503:   # it is starting
                raise OSError(e.reason) from None
            raise AssertionError(f"{parameters}: {json.load(e)['error']}") from None

    def query(self, expression):
        return self.ask("query", query=expression)["result"]

    def value(self, expression):
        try:
            found = self.query(expression)
        except OSError:   # it is starting
            return None
        return float(found[0]["value"][1]) if len(found) == 1 else None

    def firing(self):
        return {a["labels"]["alertname"] for a in self.ask("alerts")["alerts"] if a["state"] == "firing"}

    def close(self):
        self.process.terminate()
        self.process.wait()


@pytest.fixture(scope="module")
def watched(template_root):
    """A node with two GPUs, of which a job uses one; a Prometheus as deploy/ has it, but faster, and with alerts that do not wait."""
    copy = Copy(template_root)
    directory = pathlib.Path(tempfile.mkdtemp(prefix="vrun-e2e-", dir="/var/tmp"))
    home = f"127.0.0.1:{free_port('127.0.0.1')}"
    (directory / "home").mkdir()
    (directory / "home/config.toml").write_text(f'home_metrics = "{home}"\n')
    (directory / "home/scheduler.toml").write_text(TEAMS)
    c = Cluster(copy.root, nodes=0, http=True, directory=directory)
    prometheus = None
    try:
        c.next_nodes(("--milli-cpus", "8000", "--gpu-interval-ms", "300", "--metrics", f"0.0.0.0:{NODE_PORT}", *FakeGpus.NODE_OPTIONS))
        c.reserve("n1")
        c.make_host("n1")
        c.gpus = FakeGpus.for_node(c, "n1", count=2)
        c.launch_node("n1")
        c.await_node("n1")
        token = directory / "token"
        token.write_text(json.loads(c.vctl("token", "create", "prometheus", "--scope", "read", "-o", "json").stdout)["token"])
        rules = re.sub(r"\n +for: \w+", "", (DEPLOY / "prometheus/alerts.yml").read_text())
        place = directory / "prometheus"
        place.mkdir()
        prometheus = Prometheus(place, {"vrun-controller": f"127.0.0.1:{c.http_port}", "vrun-node": f"{c.nodes['n1']['theirs']}:{NODE_PORT}",
                                        "vrun-home": home}, token, rules)
        wait_until("all three are scraped", lambda: prometheus.value("sum(up)") == 3)
        yield c, prometheus
    finally:
        if prometheus:
            prometheus.close()
        c.close()
        copy.remove()


def panels():
    for file in sorted((DEPLOY / "grafana/dashboards").glob("*.json")):
        board = json.loads(file.read_text())
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                yield board["uid"], panel["title"], re.sub(r"\$(pool|team|node)", ".*", target["expr"])


def test_what_is_said_is_true(watched):
    c, prometheus = watched
    said = {}
    assert c.vrun("-G", "1", "--", "true").returncode == 0
    c.popen("vbatch", "-D", "/root", "-A", "vision", "-G", "1", "-c", "3", "--mem", "1G", "--", "env", "FAKE_GPU_USE=0:1073741824:80", "sleep", "300").wait()
    for name, wanted in {
            'vrun_gpus_allocated{type="h100"}': 1, 'vrun_gpus_free{type="h100"}': 1, "vrun_node_gpus": 2, "sum(vrun_node_gpu_healthy)": 2,
            'vrun_node_pods{state="running"}': 1, "vrun_node_cpus_allocated": 3, "vrun_node_memory_allocated_bytes": 1 << 30,
            "vrun_node_controller_connected": 1, "vrun_pod_gpu_utilization_ratio": 0.8, "vrun_pod_gpu_memory_bytes": 1 << 30,
            "vrun_home_controller_connected": 1, "vrun_home_runs": 1, "vrun_home_root_scanned": 1, "vrun_node_file_system_servers": 1,
            'vrun_quota_gpu_used{team="vision",type=""}': 1, "vrun_node_cache_bytes > bool 0": 1, "vrun_node_fetched_bytes_total > bool 0": 1,
            "vrun_home_served_bytes_total > bool 0": 1, "vrun_node_cache_misses_total > bool 0": 1}.items():
        wait_until(f"{name} is {wanted}", lambda name=name, wanted=wanted: said.update({name: prometheus.value(name)}) or said[name] == wanted, 15)


@pytest.mark.parametrize("target", ["node", "home"])
def test_the_pages_are_as_prometheus_wants_them(watched, target):
    c, prometheus = watched
    [address] = {t["scrapeUrl"] for t in prometheus.ask("targets")["activeTargets"] if t["labels"]["job"] == f"vrun-{target}"}
    with urllib.request.urlopen(address, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert str(c.root) not in text and "user" not in text
    for path, method in (("/", "GET"), ("/metrics", "POST")):
        request = urllib.request.Request(address.replace("/metrics", path), method=method, data=b"" if method == "POST" else None)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)
        assert refused.value.code in (404, 405)


def test_every_panel_has_an_answer(watched):
    _, prometheus = watched
    empty = []
    for board, title, expression in panels():
        if not prometheus.query(expression) and not title.startswith(MAY_BE_EMPTY):
            empty.append(f"{board}: {title}: {expression}")
    assert not empty, "\n".join(empty)
    assert len({board for board, _, _ in panels()}) == 4


def test_every_figure_of_a_query_exists(watched):
    """A name that nobody serves is an empty panel for ever, and an alert that never comes."""
    _, prometheus = watched
    served = set(prometheus.ask("label/__name__/values"))
    rules = [rule["query"] for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == len(re.findall("- alert:", (DEPLOY / "prometheus/alerts.yml").read_text()))
    for query in [expression for _, _, expression in panels()] + rules:
        unknown = set(re.findall(r"\bvrun_\w+", query)) - served
        assert not unknown, (query, unknown)


def test_grafana_takes_the_boards():
    """What Grafana needs of a board and of its provisioning (it is not in Debian)."""
    uids = []
    for file in sorted((DEPLOY / "grafana/dashboards").glob("*.json")):
        board = json.loads(file.read_text())
        uids.append(board["uid"])
        assert board["title"] and board["schemaVersion"] >= 36 and file.stem == board["uid"]
        assert [v["name"] for v in board["templating"]["list"]][0] == "DS_PROMETHEUS"
        ids = [panel["id"] for panel in board["panels"]]
        assert len(set(ids)) == len(ids)
        taken = set()
        for panel in board["panels"]:
            at = panel["gridPos"]
            assert at["x"] + at["w"] <= 24, panel["title"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert not cells & taken, f"{file.stem}: {panel['title']} lies on another panel"
            taken |= cells
            assert all(t["datasource"]["uid"] == "${DS_PROMETHEUS}" for t in panel.get("targets", []))
    assert len(set(uids)) == len(uids)


def test_the_alerts_are_well_formed():
    for command in (["check", "rules", DEPLOY / "prometheus/alerts.yml"], ["test", "rules", TOP / "tests/e2e/alerts_test.yml"]):
        checked = subprocess.run(["promtool", *command], capture_output=True, text=True, cwd=TOP / "tests/e2e")
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_alerts_come_and_go(watched):
    """Last, because the node is gone for a while."""
    c, prometheus = watched
    quiet = {"VrunCacheDamaged", "VrunControllerDown", "VrunNodeLost", "VrunNodeDisconnected", "VrunGpuUnhealthy", "VrunSchedulerSlow"}
    assert not prometheus.firing() & quiet, prometheus.firing()
    c.gpus.lose(1)
    wait_until("the GPU that is lost is told", lambda: "VrunGpuUnhealthy" in prometheus.firing())
    c.stop_node("n1", signal.SIGKILL)
    for pid in c.node_pids("n1", "/opt/vrun/vrund"):
        subprocess.run(["kill", "-9", str(pid)])
    wait_until("the node that is lost is told", lambda: "VrunNodeLost" in prometheus.firing(), 60)
    c.start_node("n1")
    wait_until("it is well again", lambda: "VrunNodeLost" not in prometheus.firing())
