# SPDX-License-Identifier: Apache-2.0
"""What has to work in a job all the same: debuggers, tracers, runtimes, sandboxes of programs, servers."""
import shutil
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
