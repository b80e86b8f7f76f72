# SPDX-License-Identifier: Apache-2.0
"""Networks of jobs and published ports: --network, -p."""
import contextlib
import hashlib
import os
import socket
import subprocess
import time

import pytest
from cluster import SLOW, free_port, wait_until

NETWORKS = pytest.mark.parametrize("network", ["host", "private"])

# Answers each connection with the length and the digest of what it got, and with its own bytes.
SERVER = """if True:
    import hashlib, socket, sys, threading
    family = socket.AF_INET6 if sys.argv[1] == "6" else socket.AF_INET
    server = socket.socket(family)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("::1" if sys.argv[1] == "6" else "127.0.0.1", int(sys.argv[2])))
    server.listen(64)
    print("ready", flush=True)
    def serve(c):
        digest, n = hashlib.sha256(), 0
        while data := c.recv(1 << 16):
            digest.update(data)
            n += len(data)
        c.sendall(f"{n} {digest.hexdigest()}\\n".encode() + b"y" * n)
        c.close()
    while True:
        threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


def ask(port, data=b"question", address="127.0.0.1"):
    with socket.create_connection((address, port), timeout=20 * SLOW) as c:
        c.sendall(data)
        c.shutdown(socket.SHUT_WR)
        got = b""
        while piece := c.recv(1 << 16):
            got += piece
    head, _, body = got.partition(b"\n")
    assert head.decode() == f"{len(data)} {hashlib.sha256(data).hexdigest()}" and body == b"y" * len(data)


def refused(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


@contextlib.contextmanager
def serving(cluster, *options, family="4", port=8888):
    """A job that serves on its localhost."""
    job = cluster.popen("vrun", "-D", "/root", *options, "--", "python3", "-c", SERVER, family, str(port), stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = job.stdout.readline()
    if line != "ready\n":
        raise AssertionError(line + job.communicate()[1] + cluster.logs())
    yield job
    job.terminate()
    job.communicate(timeout=30)


@NETWORKS
def test_connections_to_a_published_port_go_on_in_the_job(cluster, network):
    port = free_port()
    with serving(cluster, f"--network={network}", "-p", f"{port}:8888") as job:
        ask(port)
        ask(port, b"")
        # More than any window, in both directions, over several connections at once.
        clients = [subprocess.Popen(["python3", "-c", f"""if True:
            import socket
            c = socket.create_connection(("127.0.0.1", {port}))
            c.sendall(b"x" * {3 << 20})
            c.shutdown(socket.SHUT_WR)
            n = 0
            while piece := c.recv(1 << 16):
                n += len(piece)
            print(n)"""], stdout=subprocess.PIPE, text=True) for _ in range(4)]
        assert {int(c.communicate(timeout=40 * SLOW)[0]) > 3 << 20 for c in clients} == {True}
        ask(port, os.urandom(1 << 20))
        assert job.poll() is None
        [one] = cluster.json("jobs")["jobs"]
        shown = cluster.json("job", str(one["job"]))
        assert shown["network"] == network and shown["ports"] == [{"home": f"127.0.0.1:{port}", "job": 8888}]
        assert f"127.0.0.1:{port} -> 8888" in cluster.vctl("job", str(one["job"])).stdout
    wait_until("nobody listens any more", lambda: refused(port))


def test_a_server_that_listens_on_ipv6_only_is_reached(cluster):
    port = free_port()
    with serving(cluster, "--network=private", "-p", f"{port}:8888", family="6"):
        ask(port)


def test_a_batch_job_publishes_too_and_a_new_home_takes_its_ports_up(cluster):
    port = free_port()
    started = cluster.root / "root/serving"
    script = f"import sys; sys.argv[1:] = ['4', '8888']; open('/root/serving', 'w').close()\n{SERVER}"
    job = cluster.run("vbatch", "-D", "/root", "--view=live", "--parsable", "--network=private", "--publish", f"{port}:8888", "-o", "/dev/null",
                      "python3", "-c", script, check=True).stdout.strip()
    try:
        wait_until("it runs", started.exists)

        def answers():
            try:
                ask(port)
            except (OSError, AssertionError):
                return False
            return True
        wait_until("it answers", answers)
        os.kill(cluster.pid_of("home"), 9)
        cluster.vctl("jobs")  # starts the next home
        wait_until("the next home forwards", answers)
    finally:
        cluster.run("vctl", "cancel", job)
        cluster.run("vctl", "wait", job)
        started.unlink(missing_ok=True)
    wait_until("nobody listens any more", lambda: refused(port))


def test_the_last_bytes_of_a_job_that_ends_arrive(cluster):
    port = free_port()
    n = 300_000
    job = cluster.popen("vrun", "-D", "/root", "--network=private", "-p", f"{port}:8888", "--", "python3", "-c", f"""if True:
        import os, socket
        server = socket.create_server(("127.0.0.1", 8888))
        print("ready", flush=True)
        c, _ = server.accept()
        c.sendall(b"z" * {n})
        os._exit(0)""", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert job.stdout.readline() == "ready\n"
    with socket.create_connection(("127.0.0.1", port), timeout=20 * SLOW) as c:
        got = 0
        while piece := c.recv(1 << 16):
            got += len(piece)
    assert got == n
    assert job.wait(timeout=30) == 0


def test_nobody_listens_in_the_job(cluster):
    """The client hears it as a reset, and the job does not notice."""
    port = free_port()
    job = cluster.popen("vrun", "-D", "/root", "--network=private", "-p", str(port), "--", "sh", "-c", "echo ready; cat", stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE, text=True)
    assert job.stdout.readline() == "ready\n"
    with pytest.raises(ConnectionResetError):   # perhaps before the client knows that it is connected
        with socket.create_connection(("127.0.0.1", port), timeout=20 * SLOW) as c:
            c.sendall(b"x")
            c.recv(1)
            c.recv(1)
    out, _ = job.communicate("over\n", timeout=30)
    assert (job.returncode, out) == (0, "over\n")


def test_a_published_port_leads_to_no_other_jobs_port(cluster):
    """In the node's network the connection is held to the rules of the job's own."""
    port = free_port()
    with serving(cluster, "--network=host", port=8899):
        with serving(cluster, "--network=private", "-p", f"{port}:8899", port=8888):
            with socket.create_connection(("127.0.0.1", port), timeout=20 * SLOW) as c, pytest.raises(OSError):
                c.sendall(b"x")
                c.shutdown(socket.SHUT_WR)
                assert not c.recv(1), "the other job has answered"
                raise ConnectionResetError
        with serving(cluster, "--network=host", "-p", f"{port}:8899", port=8888):
            with socket.create_connection(("127.0.0.1", port), timeout=20 * SLOW) as c, pytest.raises(OSError):
                c.sendall(b"x")
                c.shutdown(socket.SHUT_WR)
                assert not c.recv(1), "the other job has answered"
                raise ConnectionResetError


SEEN = """if True:
    import errno, socket, time
    print([name for _, name in socket.if_nameindex()])
    def attempt(address, port):
        s = socket.socket()
        s.settimeout(10)
        try:
            s.connect((address, port))
            return "connected"
        except OSError as e:
            return errno.errorcode.get(e.errno, str(e))
    print(attempt("192.0.2.1", 80), attempt("127.0.0.1", 22222))
    began = time.monotonic()
    try:
        socket.getaddrinfo("example.com", 80)
        print("resolved")
    except socket.gaierror:
        print("no name", time.monotonic() - began < 15)
    # The names that every program expects lead to itself.
    server = socket.create_server((socket.gethostname(), 0))
    socket.create_connection((socket.gethostname(), server.getsockname()[1])).close()
    print(socket.gethostbyname("localhost"), socket.gethostbyname(socket.gethostname()))
"""


def test_a_private_network_is_a_loopback_and_says_so_at_once(cluster):
    r = cluster.vrun("--network=private", "--", "python3", "-c", SEEN, check=True)
    assert r.stdout.splitlines() == ["['lo']", "ENETUNREACH ECONNREFUSED", "no name True", "127.0.0.1 127.0.0.1"]
    r = cluster.vrun("--network=host", "--", "python3", "-c", "import socket; print(len(socket.if_nameindex()))", check=True)
    assert int(r.stdout) > 1


def test_ports_that_cannot_be_had_are_one_line_at_submission(cluster):
    def says(*options):
        r = cluster.vrun(*options, "--", "true")
        assert r.returncode in (2, 125) and r.stderr.count("\n") == 1, r
        return r.stderr
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        assert f"127.0.0.1:{port}: the port is in use on this machine" in says("-p", str(port))
    assert "0 is no port from 1 to 65535" in says("-p", "0")
    assert "70000 is no port from 1 to 65535" in says("-p", "70000")
    assert "127.0.0.1:9 is published twice" in says("-p", "9", "-p", "9:80")
    assert "only tcp is forwarded" in says("--publish", "53/udp")
    assert "no such network: write host or private" in says("--network", "bridge")
    assert "would not reach each other" in says("--network=private", "-N", "2")
    assert "192.0.2.77:8888" in says("--publish", "192.0.2.77:8888")


def test_two_jobs_with_private_networks_listen_on_the_same_port(cluster):
    first, second = free_port(), free_port()
    with serving(cluster, "--network=private", "-p", f"{first}:8888"), serving(cluster, "--network=private", "-p", f"{second}:8888"):
        ask(first, b"a")
        ask(second, b"b")


def test_a_second_job_cannot_take_the_port_of_the_first(cluster):
    port = free_port()
    with serving(cluster, "--network=private", "-p", f"{port}:8888"):
        r = cluster.vrun("-p", str(port), "--", "true")
        assert r.returncode == 125 and "in use" in r.stderr
        ask(port)
    wait_until("the port is free", lambda: refused(port))
    began = time.monotonic()
    with serving(cluster, "--network=private", "-p", f"{port}:8888"):
        ask(port)
    assert time.monotonic() - began < 40 * SLOW


def test_help_and_completion_know_it(cluster):
    for program in ("vrun", "vbatch"):
        text = cluster.run(program, "--help").stdout
        assert "--network" in text and "--publish" in text and "also -p PORT" in " ".join(text.split())
    bash = cluster.vctl("completion", "bash").stdout
    assert "-p) COMPREPLY" in bash and "-p|--)" not in bash and "-P|--pool)" in bash
    for shell in ("bash", "zsh", "fish"):
        assert "host private" in cluster.vctl("completion", shell).stdout
