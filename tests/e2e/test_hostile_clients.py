# SPDX-License-Identifier: Apache-2.0
"""What certificates and tokens open and what they do not: calls that no program of ours makes. The numbers are rows of
the list of attacks: docs/security.md."""
import ast
import contextlib
import hashlib
import os
import pathlib
import re
import resource
import select
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.parse

import pytest

from cluster import SLOW, TOP, wait_until
from test_cache import fs_pid

h2 = pytest.importorskip("h2.connection", reason="needs python3-h2") and __import__("h2")
pytestmark = [pytest.mark.seconds(180), pytest.mark.skipif(not shutil.which("openssl") or not shutil.which("protoc"), reason="needs openssl and protoc")]
DENIED, NOT_FOUND, UNIMPLEMENTED, UNAUTHENTICATED = 7, 5, 12, 16


def coded(direction, kind, data):
    """Text to the bytes of a message, or back."""
    files = ("control.proto", "task.proto", "kept.proto", "people.proto", "content.proto")
    r = subprocess.run(["protoc", f"--{direction}=vrun.v1.{kind}", "-I", TOP / "proto", *files], input=data, capture_output=True)
    assert r.returncode == 0, r.stderr.decode()
    return r.stdout


class Answer:
    """What came back: the status of gRPC (None: there was none), and messages."""
    def __init__(self):
        self.status, self.message, self.body, self.open = None, "", b"", False

    @property
    def frames(self):
        frames, body = [], self.body
        while len(body) >= 5:
            size = int.from_bytes(body[1:5], "big")
            frames.append(body[5:5 + size])
            body = body[5 + size:]
        return frames

    def text(self, kind):
        return "".join(coded("decode", kind, f).decode() for f in self.frames)

    def take(self, headers):
        found = {(k if isinstance(k, str) else k.decode()): (v if isinstance(v, str) else v.decode()) for k, v in headers}
        if "grpc-status" in found:
            self.status = int(found["grpc-status"])
            self.message = urllib.parse.unquote(found.get("grpc-message", ""))

    def __repr__(self):
        return f"status {self.status}: {self.message}, {len(self.frames)} messages{', open' if self.open else ''}"


def refused(answer):
    """Nothing came back, and it ended without success."""
    return answer.status != 0 and not answer.frames and not answer.open


class Caller:
    """Whoever has this certificate; none without a role."""
    def __init__(self, cluster, role=None, name=None, pki=None):
        self.cluster = cluster
        self.files = None
        if role and not pki:
            pki = pathlib.Path(tempfile.mkdtemp(prefix="certificate-", dir=cluster.directory))
            cluster.run("vrund", "pki", "issue", "--ca", cluster.pki(), "--dir", pki, "--role", role, "--name", name, check=True)
        if pki:
            self.files = pki / f"{name}.pem", pki / f"{name}.key"

    def connect(self, at, port, context=None):
        context = context or ssl.create_default_context(cafile=self.cluster.pki() / "ca.pem")
        context.set_alpn_protocols(["h2"])
        if self.files:
            context.load_cert_chain(*self.files)
        plain = socket.create_connection((at or "127.0.0.1", port or self.cluster.port), timeout=10)
        return context.wrap_socket(plain, server_hostname="node.vrun" if at else "controller.vrun")

    def call(self, method, kind=None, text="", at=None, port=None, seconds=15, half_close=True):
        """`at`: the address of a node; else the controller is called. Ends with the first message of a stream that stays open."""
        body = coded("encode", kind, text.encode()) if kind else b""
        answer = Answer()
        end = time.monotonic() + seconds
        try:
            with self.connect(at, port) as link:
                http = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
                http.initiate_connection()
                stream = http.get_next_available_stream_id()
                http.send_headers(stream, [(":method", "POST"), (":scheme", "https"), (":path", method), (":authority", "x.vrun"),
                                           ("content-type", "application/grpc"), ("te", "trailers")])
                http.send_data(stream, b"\0" + len(body).to_bytes(4, "big") + body, end_stream=half_close)
                link.sendall(http.data_to_send())
                link.settimeout(0.2)
                answer.open = True
                while answer.open and time.monotonic() < end and (half_close or not answer.frames):
                    try:
                        data = link.recv(65536)
                    except TimeoutError:
                        continue
                    if not data:
                        answer.open = False
                    for event in http.receive_data(data):
                        if isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
                            answer.take(event.headers)
                        elif isinstance(event, h2.events.DataReceived):
                            answer.body += event.data
                            http.acknowledge_received_data(event.flow_controlled_length, stream)
                        elif isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset, h2.events.ConnectionTerminated)):
                            answer.open = False
                    link.sendall(http.data_to_send())
        except OSError as e:   # also of TLS
            answer.open, answer.message = False, str(e)
        return answer

    def stream(self, method, kind=None, text="", at=None, port=None, seconds=4):
        return self.call(method, kind, text, at, port, seconds, half_close=False)


@pytest.fixture
def anna(cluster):
    """The user of the cluster, by the certificate that her home has."""
    settings = (cluster.directory / "home/config.toml").read_text()
    name = re.search(r'credentials_name = "(.*)"', settings).group(1)
    pki = pathlib.Path(re.search(r'credentials = "(.*)"', settings).group(1))
    caller = Caller(cluster, "home", name, pki)
    caller.name = name
    return caller


@pytest.fixture
def eve(cluster):
    return Caller(cluster, "home", "eve@elsewhere")


@pytest.fixture
def running(cluster):
    """A job of anna's that runs until the test is over; its id."""
    mark = cluster.root / "root/runs"
    mark.unlink(missing_ok=True)
    job = cluster.run("vbatch", "-D", "/root", "--view=live", "--parsable", "-o", "/dev/null", "--export", "ALL,HIDDEN=of-anna", "--wrap",
                      "touch runs; sleep 300 # a-command-of-annas", check=True).stdout.strip()
    wait_until("it runs", mark.exists)
    yield int(job)
    cluster.run("vctl", "cancel", job)
    cluster.run("vctl", "wait", job)
    mark.unlink()


def placement(anna, job):
    """Of a GetReply: the node's address and port, the token as protoc writes it, and the attempt."""
    said = anna.call("/vrun.v1.Control/Get", "GetRequest", f"job: {job}").text("GetReply")
    host, port = re.search(r'addresses: "(.*):(\d+)"', said).groups()
    return host, int(port), re.search(r"token: (\".*\")", said).group(1), int(re.search(r"attempt: (\d+)", said).group(1))


def home_id(cluster):
    """As home makes it (src/home/links/home_id.cc)."""
    machine = pathlib.Path("/etc/machine-id")
    seed = (cluster.home_state / "home_id").read_text()
    return hashlib.sha256(((machine.read_text() if machine.exists() else "") + "\n" + seed).encode()).hexdigest()[:32]


def listens(pid):
    """The TCP port on which the process listens, in its network."""
    inodes = set()
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(link))
        except OSError:
            pass
    for name in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                return int(fields[1].rsplit(":", 1)[1], 16)
    raise AssertionError(f"process {pid} listens nowhere")


# --- 25: who may connect at all

UNARY = {"Submit": "SubmitRequest", "Cancel": "CancelRequest", "Get": "GetRequest", "List": "ListRequest", "Nodes": "NodesRequest", "Why": "WhyRequest",
         "Teams": "TeamsRequest", "Accounts": "AccountsRequest", "Usage": "UsageRequest", "Prices": "PricesRequest", "Budgets": "BudgetsRequest", "Change": "ChangeJobs", "Drain": "DrainNodes", "Maintain": "SetMaintenance"}


def test_25_without_a_certificate_of_the_cluster_nothing_but_join_is_answered(cluster, anna, tmp_path):
    assert anna.call("/vrun.v1.Control/Nodes", "NodesRequest").status == 0
    stranger = Caller(cluster)
    # One of an authority of its own, with the names of ours; one that it has signed itself.
    cluster.run("vrund", "pki", "ca", "--dir", tmp_path / "ca", check=True)
    cluster.run("vrund", "pki", "issue", "--ca", tmp_path / "ca", "--dir", tmp_path / "other", "--role", "home", "--name", anna.name, check=True)
    callers = [stranger, Caller(cluster, "home", anna.name, tmp_path / "other")]
    own = tmp_path / "own"
    own.mkdir()
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "3", "-keyout", own / f"{anna.name}.key",
                    "-out", own / f"{anna.name}.pem", "-subj", f"/CN=vrun:\\/\\/home\\/{anna.name}", "-addext", f"subjectAltName=URI:vrun://home/{anna.name},DNS:home.vrun"],
                   check=True, capture_output=True)
    callers.append(Caller(cluster, "home", anna.name, own))
    for caller in callers:
        for name, kind in UNARY.items():
            assert refused(caller.call(f"/vrun.v1.Control/{name}", kind)), (caller.files, name)
        for name in ("Agent", "Watch"):
            assert refused(caller.stream(f"/vrun.v1.Control/{name}", seconds=5)), (caller.files, name)
    joined = stranger.call("/vrun.v1.People/Join", "JoinRequest", 'secret: "x" request: "y"')
    assert joined.status not in (None, 0)   # it is answered, with a refusal
    assert not refused(Caller(cluster, "home", "control@here").call("/vrun.v1.Control/Nodes", "NodesRequest"))


def test_25_old_versions_of_tls_and_no_tls_are_refused(cluster):
    def handshake(*options):
        certificate, key = Caller(cluster, "home", "tls@here").files
        r = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{cluster.port}", "-servername", "controller.vrun", "-CAfile", cluster.pki() / "ca.pem",
                            "-cert", certificate, "-key", key, "-alpn", "h2", *options], input="", capture_output=True, text=True, errors="replace", timeout=20)
        return "Cipher is (NONE)" not in r.stdout and r.stdout.count("Cipher is ") == 1
    assert handshake("-tls1_2") or handshake("-tls1_3")
    for options in (("-tls1_1", "-cipher", "ALL:@SECLEVEL=0"), ("-tls1", "-cipher", "ALL:@SECLEVEL=0"), ("-tls1_2", "-cipher", "eNULL:aNULL:@SECLEVEL=0")):
        assert not handshake(*options), options
    with socket.create_connection(("127.0.0.1", cluster.port), timeout=10) as plain:
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        plain.settimeout(10)
        try:
            answer = plain.recv(100)
        except OSError:
            answer = b""
    assert not answer or answer[3:4] != b"\x04", "plain HTTP/2 gets settings"


def test_25_a_certificate_that_has_ended_is_refused(cluster, anna, tmp_path):
    """Signed by the cluster's own authority. The control is the same one with time left."""
    (tmp_path / "index.txt").touch()
    (tmp_path / "serial").write_text("77\n")
    for name, end in (("good", "20351231000000Z"), ("ended", "20210101000000Z")):
        pki = tmp_path / name
        pki.mkdir()
        key, request, certificate = (pki / f"{anna.name}.{ext}" for ext in ("key", "csr", "pem"))
        (tmp_path / "openssl.cnf").write_text(f"""[ca]
default_ca = own
[own]
database = {tmp_path}/index.txt
serial = {tmp_path}/serial
new_certs_dir = {tmp_path}
default_md = sha256
unique_subject = no
policy = any
[any]
commonName = supplied
[extensions]
subjectAltName = URI:vrun://home/{anna.name},DNS:home.vrun
extendedKeyUsage = clientAuth,serverAuth
""")
        subprocess.run(["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", request, "-subj",
                        f"/CN=vrun:\\/\\/home\\/{anna.name}"], check=True, capture_output=True)
        signed = subprocess.run(["openssl", "ca", "-batch", "-notext", "-config", tmp_path / "openssl.cnf", "-extensions", "extensions", "-in", request, "-out", certificate,
                                 "-startdate", "20200101000000Z", "-enddate", end, "-cert", cluster.pki() / "ca.pem", "-keyfile", cluster.pki() / "ca.key"],
                                capture_output=True, text=True)
        assert signed.returncode == 0, signed.stderr
        answer = Caller(cluster, "home", anna.name, pki).call("/vrun.v1.Control/Nodes", "NodesRequest")
        assert (answer.status == 0) == (name == "good"), (name, answer)


# --- 27: what each role and each user may do

def test_27_each_method_is_for_its_roles_alone(cluster, anna):
    """A table: who is answered. The names of nodes and stores are those of nobody else."""
    roles = {"home": anna, "node": Caller(cluster, "node", "stolen"), "snapshots": Caller(cluster, "snapshots", "store"), "controller": Caller(cluster, "controller", "other")}
    may = {name: {"home"} for name in UNARY} | {"Get": {"home", "snapshots"}, "List": {"home", "snapshots"}}
    for method, kind in UNARY.items():
        for role, caller in roles.items():
            answer = caller.call(f"/vrun.v1.Control/{method}", kind)
            assert (answer.status != DENIED) == (role in may[method]) or (role == "home" and method in ("Drain", "Maintain")), (method, role, answer)
    for method, allowed in (("Agent", "node"), ("Watch", "home")):
        for role, caller in roles.items():
            assert role == "snapshots" or caller.call("/vrun.v1.Control/PresignVault").status == DENIED
            if role != allowed:
                assert refused(caller.stream(f"/vrun.v1.Control/{method}", seconds=5)), (method, role)


def test_25_a_node_registers_under_no_other_name(cluster):
    stolen = Caller(cluster, "node", "stolen")
    answer = stolen.stream("/vrun.v1.Control/Agent", "AgentMessage", 'register { node: "n1" pool: "local" total { milli_cpus: 1000000 gpus: 64 } addresses: "127.0.0.1:1" boot_id: 1 }')
    assert refused(answer), answer
    assert [n["name"] for n in cluster.json("nodes")["nodes"]] == ["n1"]


def test_27_another_user_learns_and_changes_nothing_of_a_job(cluster, anna, eve, running):
    get = f"job: {running}"
    mine = anna.call("/vrun.v1.Control/Get", "GetRequest", get).text("GetReply")
    assert "a-command-of-annas" in mine and "token:" in mine   # the control
    theirs = eve.call("/vrun.v1.Control/Get", "GetRequest", get)
    assert theirs.status == 0
    listed = [eve.call(f"/vrun.v1.Control/{method}", UNARY[method], text)
              for method, text in (("List", "all: true"), ("List", f'home_id: "{home_id(cluster)}"'), ("Accounts", ""), ("Why", get))]
    for answer, kind in zip([theirs, *listed], ("GetReply", "ListReply", "ListReply", "AccountList", "WhyAnswer")):
        text = answer.text(kind)
        for hidden in ("a-command-of-annas", "of-anna", "token:", 'directory: "', "addresses:", "snapshot {"):
            assert hidden not in text, (kind, hidden, text)
    event = eve.stream("/vrun.v1.Control/Watch", "WatchRequest", get)
    assert "token" not in event.text("JobEvent")
    assert eve.call("/vrun.v1.Control/Cancel", "CancelRequest", get).status == DENIED
    assert eve.call("/vrun.v1.Control/Cancel", "CancelRequest", f"{get} signal: 9").status == DENIED
    # Without a list of administrators everybody is one.
    config = cluster.directory / "home/scheduler.toml"
    config.write_text(f'admins = ["{anna.name}"]\n')
    os.kill(cluster.pid_of("controller"), signal.SIGHUP)
    try:
        wait_until("the list is read", lambda: eve.call("/vrun.v1.Control/Drain", "DrainNodes", 'nodes: "n1" resume: true').status == DENIED)
        for what in ("HOLD", "RELEASE", "REQUEUE"):
            said = eve.call("/vrun.v1.Control/Change", "ChangeJobs", f"what: {what} jobs {{ job: {running} }}").text("ChangeReply")
            assert "it is not yours" in said, said
        assert eve.call("/vrun.v1.Control/Maintain", "SetMaintenance", f'name: "x" nodes: "n1" from_us: 1 until_us: {1 << 60}').status == DENIED
        assert anna.call("/vrun.v1.Control/Drain", "DrainNodes", 'nodes: "n1" resume: true').status == 0   # the control
    finally:
        config.unlink()
        os.kill(cluster.pid_of("controller"), signal.SIGHUP)
    again = eve.call("/vrun.v1.Control/Submit", "SubmitRequest", f"""request_id: "{re.search('request_id', mine) and 'x' or 'y'}" home_id: "{home_id(cluster)}"
        spec {{ pool: "local" command {{ argv: "true" directory: "/" }} scheduling {{ team: "nobodys" class: INFERENCE }} }}""")
    if again.status == 0:   # it is a job of eve's own, whatever it says
        number = int(re.search(r"job: (\d+)", again.text("SubmitReply")).group(1))
        assert number != running and 'user: "eve@elsewhere"' in anna.call("/vrun.v1.Control/Get", "GetRequest", f"job: {number}").text("GetReply")
        assert anna.call("/vrun.v1.Control/Cancel", "CancelRequest", f"job: {number}").status == DENIED
        assert eve.call("/vrun.v1.Control/Cancel", "CancelRequest", f"job: {number}").status == 0
    assert cluster.json("job", str(running))["state"] == "RUNNING"


def test_29_strangers_who_flood_stop_nobody(cluster):
    """Callers without a certificate, who begin requests and never end them, and others who only connect."""
    stranger = Caller(cluster)

    def rss():
        status = pathlib.Path(f"/proc/{cluster.pid_of('controller')}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024
    before = rss()
    links = []
    try:
        for _ in range(300):   # no TLS, or nothing after it; before the others, because the oldest give way
            links.append(socket.create_connection(("127.0.0.1", cluster.port), timeout=10))
        for i in range(40):
            link = stranger.connect(None, None)
            http = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
            http.initiate_connection()
            for _ in range(10):
                stream = http.get_next_available_stream_id()
                http.send_headers(stream, [(":method", "POST"), (":scheme", "https"), (":path", "/vrun.v1.People/Join"), (":authority", "x.vrun"),
                                           ("content-type", "application/grpc"), ("te", "trailers")])
                http.send_data(stream, b"\0" + (60 << 20).to_bytes(4, "big") + b"x" * 4000)   # of 60 MiB that never come
            link.sendall(http.data_to_send())
            links.append(link)
        refused = wait_for_refusal(stranger)
        assert "too many callers without a certificate" in refused.message, refused
        began = time.monotonic()
        assert cluster.vrun("--", "echo", "served").stdout == "served\n"
        assert time.monotonic() - began < 20
        assert rss() - before < 200, (before, rss())
    finally:
        for link in links:
            link.close()
    wait_until("a token is looked at again", lambda: "unknown, or was used before" in stranger.call(
        "/vrun.v1.People/Join", "JoinRequest", f'secret: "{"0" * 32}" name: "x"').message)


def test_29_a_stranger_who_only_stays_connected_is_shown_out(cluster):
    """With all of TLS and HTTP/2, and answers to pings, but no call."""
    stranger = Caller(cluster)
    links = []
    for _ in range(50):
        link = stranger.connect(None, None)
        http = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        http.initiate_connection()
        link.sendall(http.data_to_send())
        link.settimeout(0.02)
        links.append((link, http))

    def open_ones():
        for link, http in list(links):
            try:
                data = link.recv(65536)
                ended = not data or any(isinstance(e, h2.events.ConnectionTerminated) for e in http.receive_data(data))
                link.sendall(http.data_to_send())
            except TimeoutError:
                continue
            except OSError:
                ended = True
            if ended:
                link.close()
                links.remove((link, http))
        return links
    try:
        assert cluster.vrun("--", "echo", "served").stdout == "served\n"
        assert len(open_ones()) == 50
        wait_until("nobody is left", lambda: not open_ones(), seconds=120)
        assert cluster.vrun("--", "echo", "served").stdout == "served\n"   # whose connections were never idle
    finally:
        for link, _ in links:
            link.close()


def test_29_connections_without_a_certificate_are_bounded(cluster, anna, running):
    """The controller, a node's agent and its file system server, each with more connections from one address than it may keep."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    host, agent, _, _ = placement(anna, running)
    content = listens(fs_pid(cluster))
    hello = b"\x16\x03\x01\x02\0"   # and never the rest
    links = []

    def still_open():
        """Those that the other side has not closed."""
        poll = select.poll()
        for link in links:
            poll.register(link, select.POLLIN)
        return len(links) - len(poll.poll(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        for at, port in ((None, cluster.port), (host, agent), (host, content)):
            def known():
                """A new connection with a certificate. A stranger would be denied, whatever he asks for."""
                return anna.call("/vrun.v1.Nothing/Nothing", "GetRequest", "", at=at, port=port).status == UNIMPLEMENTED
            assert known(), port
            links = []
            for i in range(700):
                links.append(socket.create_connection((at or "127.0.0.1", port), timeout=10))
                if i % 2:
                    with contextlib.suppress(OSError):   # it gave way
                        links[-1].sendall(hello)
            # Well before a handshake's end. Of the 700, less than half are left.
            wait_until("most are shown out", lambda: still_open() <= 256, seconds=5 * SLOW)
            assert still_open() > 0
            # From the same address; and a job with all that it needs.
            assert known(), port
            assert cluster.vrun("--", "echo", "served").stdout == "served\n"
            assert cluster.json("job", str(running))["state"] == "RUNNING"
            for link in links:
                link.close()
    finally:
        for link in links:
            link.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert cluster.vrun("--", "echo", "served").stdout == "served\n"


def wait_for_refusal(stranger):
    for _ in range(50):
        answer = stranger.call("/vrun.v1.People/Join", "JoinRequest", f'secret: "{"0" * 32}" name: "x"')
        if "too many" in answer.message:
            return answer
    return answer


# --- 24: the token of a job

def test_24_a_jobs_token_opens_one_job_for_one_user_while_it_runs(cluster, anna, eve, running):
    host, port, token, attempt = placement(anna, running)
    home = home_id(cluster)

    def attach(caller, token=token, job=running, attempt=attempt, home=home, pod=0):
        return caller.stream("/vrun.v1.Node/Task", "TaskUp", f'attach {{ job: {job} attempt: {attempt} token: {token} home_id: "{home}" pod: {pod} detached: true }}',
                           at=host, port=port)

    def attached(answer):
        text = answer.text("TaskDown")
        return text != "" and "error {" not in text
    raw = ast.literal_eval("b" + token)
    changed = '"' + "".join(f"\\{b:03o}" for b in bytes([raw[0] ^ 1]) + raw[1:]) + '"'
    wrong = {"changed": dict(token=changed), "none": dict(token='""'), "shorter": dict(token='"' + "".join(f"\\{b:03o}" for b in raw[:-1]) + '"'),
             "longer": dict(token=token[:-1] + 'x"'), "another home": dict(home="somebody-else")}
    for what, options in wrong.items():
        answer = attach(anna, **options)
        assert not attached(answer) and "the token is not this attempt" in answer.text("TaskDown"), (what, answer, answer.text("TaskDown"))
    for who in (eve, Caller(cluster, "node", "n2"), Caller(cluster, "controller", "other"), Caller(cluster, "snapshots", "store"), Caller(cluster)):
        assert not attached(attach(who)), who.files
    # Of another attempt or pod of the job.
    assert not attached(attach(anna, attempt=attempt + 1)) and not attached(attach(anna, pod=1))
    # The control: its own home has had it all the time, by the same message.
    assert cluster.json("job", str(running))["state"] == "RUNNING"
    cluster.vctl("cancel", str(running))
    cluster.run("vctl", "wait", str(running))
    assert cluster.json("job", str(running))["state"] == "CANCELLED"
    assert not attached(attach(anna))


def test_24_a_jobs_token_lets_no_other_home_serve_content(cluster, anna, eve, running):
    host, port, token, attempt = placement(anna, running)
    home = home_id(cluster)
    content = listens(fs_pid(cluster))

    def serve(caller, seconds=4):
        return caller.stream("/vrun.v1.Content/Serve", "ContentReply", f'hello {{ home_id: "{home}" token: {token} job: {running} attempt: {attempt} }}',
                             at=host, port=content, seconds=seconds)
    for who in (eve, Caller(cluster, "node", "n2"), Caller(cluster, "controller", "other"), Caller(cluster)):
        answer = serve(who, seconds=10 * SLOW)
        assert refused(answer) and answer.status in (None, DENIED, UNAUTHENTICATED), (who.files, answer)
    # The control: the certificate of the job's user opens it.
    opened = serve(anna)
    # Her own home, which this takes the place of, may have taken it back by now.
    assert not refused(opened) or "home opened another content stream" in opened.message, opened
    assert cluster.json("job", str(running))["state"] == "RUNNING"


def test_24_a_job_knows_no_token(cluster, anna):
    """Not in its environment, its files or its descriptors: a program of the job cannot pass for home."""
    mark = cluster.root / "root/looked"
    mark.unlink(missing_ok=True)
    job = cluster.run("vbatch", "-D", "/root", "--view=live", "--parsable", "-o", "/dev/null", "python3", "-c", """if True:
        import os, time
        def read(path):
            try:
                with open(path, "rb") as f:
                    return f.read(1 << 20)
            except OSError:
                return b""
        found = [read(f"/proc/{p}/{n}") for p in os.listdir("/proc") if p.isdigit() for n in ("environ", "cmdline")]
        for top in ("/run", "/tmp", "/dev/shm"):
            for directory, _, files in os.walk(top):
                found += [read(os.path.join(directory, f)) for f in files if os.path.isfile(os.path.join(directory, f))]
        open("/root/looked.new", "wb").write(b"\\n".join(found))
        os.rename("/root/looked.new", "/root/looked")
        time.sleep(300)""", check=True).stdout.strip()
    try:
        wait_until("it has looked", mark.exists)
        token = ast.literal_eval("b" + placement(anna, job)[2])
        seen = mark.read_bytes()
        assert len(token) >= 16 and len(seen) > 100
        assert token not in seen and token.hex().encode() not in seen
    finally:
        cluster.run("vctl", "cancel", job)
        cluster.run("vctl", "wait", job)
        mark.unlink(missing_ok=True)


# --- 21, 18: what a node keeps for one user

def test_18_nobody_else_pulls_or_drops_the_writes_that_a_node_keeps(cluster, anna, eve):
    job = cluster.run("vbatch", "-D", "/root", "--parsable", "--writes=keep", "-o", "/dev/null", "--wrap", "echo kept > kept-file", check=True).stdout.strip()
    assert cluster.run("vctl", "wait", job).returncode == 0
    node = cluster.nodes["n1"]
    log = (node["directory"] / "node.log").read_text()
    port = int(re.findall(r"node n1 listens on [0-9.]+:([0-9]+)", log)[-1])

    def ask(caller, text):
        return caller.stream("/vrun.v1.Node/Kept", "KeptRequest", f'{text} home_id: "{home_id(cluster)}"', at=node["theirs"], port=port).text("KeptEvent")
    assert f"job: {job}" in ask(anna, f"describe {{ job: {job} }}")   # the control
    for who in (eve, Caller(cluster, "node", "n2"), Caller(cluster)):
        for text in (f"describe {{ job: {job} }}", f"pull {{ job: {job} attempt: 1 }}", f"drop {{ job: {job} attempt: 1 state: KEPT_DROPPED }}"):
            said = ask(who, text)
            assert "kept-file" not in said and "files:" not in said, (who.files, said)
    cluster.run("vctl", "job", job, "pull", check=True)
    assert (cluster.root / "root/kept-file").read_text() == "kept\n"
    os.unlink(cluster.root / "root/kept-file")
