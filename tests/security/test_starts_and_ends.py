# SPDX-License-Identifier: Apache-2.0
"""Where a command starts and what it starts with: working directories that lead out of the root, descriptors, the end."""
import os
import pathlib
import subprocess
import sys
import time

import pytest

ROOT = pytest.mark.parametrize("options", [[], ["--uid", "1000"]], ids=["root", "user"])


# --- CVE-2024-21626: a working directory through a descriptor of the one who starts the command

@ROOT
def test_a_working_directory_is_never_a_descriptor_of_the_starter(box, options):
    assert box.run("pwd", options=["--directory", "/usr", *options]).stdout == "/usr\n"
    # Outside it works: that is the attack.
    held = os.open("/etc", os.O_RDONLY | os.O_DIRECTORY)
    os.set_inheritable(held, True)
    try:
        r = subprocess.run(["sh", "-c", f"cd /proc/self/fd/{held} && ls passwd"], capture_output=True, text=True, pass_fds=[held])
        assert r.stdout == "passwd\n"
        for path in [f"/proc/self/fd/{n}" for n in range(40)] + ["/proc/self/cwd", "/proc/self/root", "/proc/1/root", "/proc/1/cwd",
                                                               "/proc/thread-self/fd/8", f"/proc/self/fd/{held}/..", "/dev/fd/7"]:
            r = box.run("sh", "-c", "pwd; ls", options=["--directory", path, *options], pass_fds=[held])
            assert r.returncode == 125 and r.stdout == "" and path in r.stderr, (path, r)
    finally:
        os.close(held)


def test_a_link_in_the_root_to_such_a_directory_is_none_either(box):
    (box.directory / "here").symlink_to("/proc/self/fd/7")
    (box.directory / "fine").symlink_to("/usr")
    assert box.run("pwd", options=["--directory", str(box.directory / "fine")]).stdout == "/usr\n"
    r = box.run("pwd", options=["--directory", str(box.directory / "here")])
    assert r.returncode == 125 and r.stdout == ""


@ROOT
def test_a_program_is_never_looked_up_through_a_descriptor_of_the_starter(box, options):
    """As a working directory, but the name of the program."""
    held = os.open("/usr/bin", os.O_RDONLY | os.O_DIRECTORY)
    os.set_inheritable(held, True)
    try:
        assert subprocess.run([f"/proc/self/fd/{held}/id", "-u"], capture_output=True, text=True, pass_fds=[held]).returncode == 0
        for n in [*range(3, 40), held]:
            r = box.run(f"/proc/self/fd/{n}/id", "-u", options=options, pass_fds=[held])
            assert r.returncode == 125 and r.stdout == "", (n, r)   # sandbox_run's status for every command that does not start
    finally:
        os.close(held)


def test_nobody_inside_has_a_descriptor_or_directory_of_the_node(box):
    """Of all processes inside, as far as they can be looked at; a directory outside would begin with "(unreachable)"."""
    said = box.python("""if True:
        import os, subprocess
        child = subprocess.Popen(["sleep", "60"])
        for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
            for name in ("cwd", "root"):
                try:
                    link = os.readlink(f"/proc/{pid}/{name}")
                    if not link.startswith("/"):
                        print(pid, name, link)
                except OSError:
                    pass
            try:
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    link = os.readlink(f"/proc/{pid}/fd/{fd}")
                    if link.startswith("/") and not link.startswith(("/dev/", "/proc/")):
                        print(pid, fd, link)
            except OSError:
                pass
        child.kill()
        print(os.getcwd())""")
    assert said == "/\n"


# --- 26: processes that survive the end

def test_26_what_tries_to_survive_the_end_of_its_job_does_not(box):
    mark = f"{os.getpid()}5317"
    code = f"""if True:
        import os, signal, subprocess, sys
        # A daemon of the old kind: two forks, a session of its own, all signals ignored, no descriptor of ours.
        if os.fork() == 0:
            os.setsid()
            for s in range(1, 32):
                try:
                    signal.signal(s, signal.SIG_IGN)
                except (OSError, ValueError):
                    pass
            if os.fork() == 0:
                null = os.open("/dev/null", os.O_RDWR)
                for n in range(3):
                    os.dup2(null, n)
                os.execvp("sleep", ["sleep", "{mark}"])
            os._exit(0)
        # In namespaces of its own.
        subprocess.Popen(["unshare", "-Urpf", "sleep", "{mark}"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                         start_new_session=True)
        import time
        time.sleep(0.3)
        print("left")"""

    def sleeping():
        found = 0
        for p in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                found += p.read_bytes() == f"sleep\0{mark}\0".encode()
            except OSError:
                pass
        return found
    # Outside such a daemon lives on.
    box.outside(code)
    assert sleeping() >= 1
    for p in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if p.read_bytes() == f"sleep\0{mark}\0".encode():
                os.kill(int(p.parent.name), 9)
        except OSError:
            pass
    end = time.monotonic() + 30
    while sleeping() and time.monotonic() < end:
        time.sleep(0.1)
    assert box.python(code) == "left\n"
    assert sleeping() == 0


# --- 29: exhaustion

def test_29_a_hundred_thousand_descriptors_hurt_only_the_job(box):
    r = box.run(sys.executable, "-c", """if True:
        import os, resource
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        n = 0
        try:
            while n < 100_000:
                os.open("/dev/null", os.O_RDONLY)
                n += 1
        except OSError:
            pass
        print(n > 0)""", options=["--memory", str(512 << 20)])
    assert "True" in r.stdout or r.returncode != 0
    with open("/dev/null"):
        pass


def test_29_a_flood_of_output_is_held_back_by_its_reader(box):
    """The pipe is the bound: nothing is collected for a reader that does not read."""
    job = box.popen(sys.executable, "-c", """if True:
        import os
        while True:
            os.write(1, b"x" * 65536)""")
    try:
        assert job.stdout.read(1 << 20) == "x" * (1 << 20)
        time.sleep(1)
        pages = int(pathlib.Path(f"/proc/{job.pid}/statm").read_text().split()[1])
        assert pages * os.sysconf("SC_PAGE_SIZE") < 64 << 20
    finally:
        job.kill()
        job.communicate()
