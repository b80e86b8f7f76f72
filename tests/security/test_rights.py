# SPDX-License-Identifier: Apache-2.0
"""Rights that a job makes up: setuid bits, file capabilities, ids of a namespace of its own, open files of others."""
import os
import shutil
import subprocess
import sys
import textwrap

import pytest

import test_from_inside

ROOT = pytest.mark.parametrize("options", [[], ["--uid", "1000"]], ids=["root", "user"])


def outside_as_user(*command):
    r = subprocess.run(["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", *map(str, command)], capture_output=True, text=True, timeout=60)
    return r.stdout


# --- 22

@pytest.mark.skipif(not shutil.which("setcap"), reason="needs setcap")
def test_22_capabilities_of_a_file_give_nothing(box):
    program = box.directory / "grep"
    shutil.copy("/bin/grep", program)
    subprocess.run(["setcap", "cap_net_admin,cap_dac_override+ep", program], check=True)
    none = "CapEff:\t0000000000000000\n"
    for options in ([], ["--allow-setuid"]):
        r = box.run(str(program), "CapEff", "/proc/self/status", options=["--uid", "1000", *options])
        assert r.stdout == none or (r.returncode == 125 and "not permitted" in r.stderr), r   # the kernel may rather not start it
    assert outside_as_user(program, "CapEff", "/proc/self/status") != none


MAKES_SETUID = """if True:
    import os, shutil, subprocess, sys
    # One of its own, and one of the root that the overlay copies up.
    shutil.copy("/usr/bin/id", "/tmp/own")
    os.chmod("/tmp/own", 0o4755)
    for path in ("/tmp/own", sys.argv[1]):
        pid = os.fork()
        if pid == 0:
            os.setgroups([])
            os.setgid(1000)
            os.setuid(1000)
            os.execv(path, ["id", "-u"])
        os.waitpid(pid, 0)
    for path in ("/etc/shadow", sys.argv[2]):   # what only this machine's root reads
        try:
            open(path).read()
            print("read", path)
        except OSError:
            pass
"""


def test_22_a_program_that_the_jobs_root_makes_setuid_gives_nothing_on_the_node(box):
    program, secret = box.directory / "id", box.directory / "secret"
    shutil.copy("/usr/bin/id", program)
    program.chmod(0o4755)
    secret.write_text("secret")
    secret.chmod(0o600)
    assert box.python(MAKES_SETUID, program, secret) == "1000\n1000\n"
    # Where the administrator allows setuid programs, root is the job's own and nobody else: the control.
    said = box.python(MAKES_SETUID, program, secret, options=["--allow-setuid"])
    assert said.startswith("0\n") and "read" not in said
    assert open(secret).read() == "secret"


# --- 18: ids of one's own namespace

FORGES = """if True:
    import ctypes, os, sys
    libc = ctypes.CDLL(None, use_errno=True)
    open("/tmp/roots", "w").write("of root")
    os.chmod("/tmp/roots", 0o600)
    print(open("/tmp/roots").read())
    if os.fork() == 0:
        os.setgroups([])
        os.setgid(1000)
        os.setuid(1000)
        libc.prctl(4, 1, 0, 0, 0)   # dumpable again, or its maps were root's
        if libc.unshare(0x10000000 | 0x20000) != 0:
            print("no namespace")
            os._exit(0)
        open("/proc/self/setgroups", "w").write("deny")
        open("/proc/self/gid_map", "w").write("0 1000 1")
        open("/proc/self/uid_map", "w").write("0 1000 1")
        os.setuid(0)
        print(os.getuid())
        for attempt in ("open('/tmp/roots').read()", "os.chmod('/tmp/roots', 0o666)", "os.chown('/tmp/roots', 0, 0)", "os.setuid(1)",
                        "open('/proc/1/uid_map', 'w').write('0 0 1')", "os.mknod('/tmp/n', 0o60666, os.makedev(7, 0))", "os.open('/proc/1/root', 0)"):
            try:
                eval(attempt)
                print("did", attempt)
            except OSError:
                pass
        os._exit(0)
    os.wait()
"""


def test_18_root_of_a_namespace_of_ones_own_is_nobody_for_the_files_of_others(box):
    assert box.python(FORGES) == "of root\n0\n"


# --- 11, once more from a namespace in which one is root

@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86-64")
@ROOT
def test_11_a_namespace_of_ones_own_opens_no_system_call(box, options):
    code = textwrap.dedent(test_from_inside.CALLS)
    r = box.run("unshare", "-Urm", sys.executable, "-c", code, options=options)
    said = dict(line.split() for line in r.stdout.splitlines())
    assert len(said) > 15 and "ok" not in said.values(), (said, r.stderr)


# --- 14: what two jobs of one node could meet in

def test_14_names_that_need_no_file_are_the_jobs_own(box):
    """Shared memory, semaphores and queues of both kinds, while another job holds them. The control is a second process of the same job."""
    holds = """if True:
        import ctypes, os, sys, time
        libc, rt = ctypes.CDLL(None, use_errno=True), ctypes.CDLL("librt.so.1", use_errno=True)
        def held(create):
            flags = (0o1000 if create else 0) | 0o666
            return [libc.shmget(0x5317, 4096, flags) >= 0, libc.semget(0x5317, 1, flags) >= 0, libc.msgget(0x5317, flags) >= 0,
                    rt.mq_open(b"/vrun-5317", (os.O_CREAT if create else 0) | os.O_RDWR, 0o666, None) >= 0,
                    rt.shm_open(b"/vrun-5317", (os.O_CREAT if create else 0) | os.O_RDWR, 0o666) >= 0]
        held(True)
        if os.fork() == 0:
            print(held(False), flush=True)
            os._exit(0)
        os.wait()
        time.sleep(float(sys.argv[1]))"""
    looks = holds.replace("        held(True)\n", "").replace("if os.fork() == 0:", "if True:")
    neighbour = box.popen(sys.executable, "-c", textwrap.dedent(holds), "60")
    try:
        assert neighbour.stdout.readline() == "[True, True, True, True, True]\n"
        assert box.python(looks, 0) == "[False, False, False, False, False]\n"
    finally:
        neighbour.terminate()
        neighbour.communicate()
