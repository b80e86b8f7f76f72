# SPDX-License-Identifier: Apache-2.0
"""What has to work in a job all the same: debuggers, tracers, runtimes, sandboxes of programs, servers."""
import shutil
import subprocess
import sys

import pytest


def needs(program):
    return pytest.mark.skipif(not shutil.which(program), reason=f"needs {program}")


BOTH = pytest.mark.parametrize("options", [[], ["--uid", "1000"]], ids=["root", "user"])


@needs("gdb")
@BOTH
def test_gdb(box, options):
    r = box.run("gdb", "-q", "-batch", "-ex", "break exit", "-ex", "run", "-ex", "info program", "--args", "/bin/true", options=options)
    assert "Breakpoint 1" in r.stdout, r


@needs("strace")
@BOTH
def test_strace(box, options):
    r = box.run("strace", "-f", "-e", "trace=execve", "sh", "-c", "true; /bin/true", options=options)
    assert r.returncode == 0 and "execve(\"/bin/true\"" in r.stderr, r


@needs("perf")
@BOTH
def test_perf_on_ones_own(box, options):
    """Works as it does for a user of this machine, or says that the node's administrator does not allow it."""
    measure = ["perf", "stat", "-e", "task-clock:u", "true"]
    user = subprocess.run(["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", *measure], capture_output=True, text=True, cwd="/")
    r = box.run(*measure, options=options)
    if user.returncode == 0:
        assert r.returncode == 0 and "task-clock" in r.stderr, r
    else:
        assert r.returncode != 0 and ("perf_event_paranoid" in r.stderr or "ermission" in r.stderr), r
    # Not of all who run on a processor.
    assert box.run("perf", "stat", "-a", "-e", "task-clock", "true", options=options).returncode != 0


@needs("java")
def test_a_java_machine(box):
    r = box.run("java", "-version", options=["--uid", "1000"])
    assert r.returncode == 0 and "version" in r.stderr, r


@needs("node")
def test_node(box):
    r = box.run("node", "-e", "require('fs').writeFileSync('/tmp/x', 'y'); console.log(require('fs').readFileSync('/tmp/x', 'utf8'))")
    assert (r.returncode, r.stdout) == (0, "y\n"), r


@needs("bwrap")
@BOTH
def test_bubblewrap(box, options):
    # Its own /proc would be a mount that the kernel refuses over one with masked files, as in any container.
    r = box.run("bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev", "--tmpfs", "/tmp", "id", "-u",
                options=options)
    assert r.returncode == 0, r


@BOTH
def test_unshare(box, options):
    r = box.run("unshare", "-Urmpf", "sh", "-c", "mount -t tmpfs none /mnt && touch /mnt/x && id -u", options=options)
    assert (r.returncode, r.stdout) == (0, "0\n"), r


def test_a_server_on_localhost_and_names(box):
    said = box.python("""if True:
        import http.server, socket, threading, urllib.request
        s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
        threading.Thread(target=s.serve_forever, daemon=True).start()
        print(urllib.request.urlopen(f"http://localhost:{s.server_port}/etc/hostname").status)
        print(socket.gethostbyname("localhost"))""", options=["--owner", "5"])
    assert said.splitlines() == ["200", "127.0.0.1"]


NAME_SERVER = """if True:
    import socket, sys
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((sys.argv[1], 53))
    print("ready", flush=True)
    while True:
        question, who = s.recvfrom(512)
        end = question.index(b"\\0", 12) + 5
        four = question[end - 3] == 1
        answer = b"\\xc0\\x0c\\0\\x01\\0\\x01\\0\\0\\0\\x3c\\0\\x04" + bytes((192, 0, 2, 53)) if four else b""
        s.sendto(question[:2] + b"\\x81\\x80\\0\\x01\\0" + bytes((len(answer) > 0,)) + b"\\0\\0\\0\\0" + question[12:end] + answer, who)"""


@BOTH
def test_names_are_resolved_by_the_nodes_name_server(box, options):
    address = "127.0.0.153"
    server = subprocess.Popen([sys.executable, "-c", NAME_SERVER, address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        if server.stdout.readline() != "ready\n":
            pytest.skip(f"needs port 53 of {address}")
        (box.directory / "resolv.conf").write_text(f"nameserver {address}\n")
        # The node's own file, for this start alone.
        started = f"mount --bind {box.directory}/resolv.conf $(readlink -f /etc/resolv.conf) && exec \"$@\""
        look = "import socket; print(socket.gethostbyname('vrun-name-test.example'))"
        r = subprocess.run(["unshare", "-m", "sh", "-c", started, "sh", box.program, *options, "--", sys.executable, "-c", look], capture_output=True,
                           text=True, timeout=60, cwd="/")
        assert r.stdout == "192.0.2.53\n", r
    finally:
        server.kill()
        server.communicate()


def test_what_a_root_does_with_files(box):
    said = box.python("""if True:
        import os, subprocess
        os.makedirs("/tmp/d")
        open("/tmp/d/f", "w").close()
        os.chown("/tmp/d/f", 1000, 1000)
        os.chmod("/tmp/d/f", 0o4755)
        os.link("/tmp/d/f", "/tmp/d/g")
        subprocess.run(["chroot", "/", "true"], check=True)
        pid = os.fork()
        if pid == 0:
            os.setgid(1000)
            os.setuid(1000)
            os._exit(os.getuid() != 1000)
        print(os.waitpid(pid, 0)[1], os.stat("/tmp/d/f").st_uid)""")
    assert said == "0 1000\n"


def test_processes_and_threads(box):
    said = box.python("""if True:
        import concurrent.futures, multiprocessing
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            print(sum(pool.map(abs, range(10))))
        with multiprocessing.Pool(4) as pool:
            print(sum(pool.map(abs, range(10))))
        q = multiprocessing.Queue()
        q.put(1)
        print(q.get())""", options=["--uid", "1000"])
    assert said == "45\n45\n1\n"
    assert sys.version_info >= (3, 8)
