# SPDX-License-Identifier: Apache-2.0
"""`vrun X` feels like `X`: exit codes, streams, signals, terminals, identity, environment."""
import hashlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time

import pytest

from cluster import wait_until
from test_fs_restart import program_pids


# --- exit codes

@pytest.mark.parametrize("code", [0, 1, 2, 42, 125, 126, 127, 255])
def test_the_commands_exit_code_is_ours(cluster, code):
    assert cluster.sh(f"exit {code}").returncode == code


@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV", "ABRT", "USR1"])
def test_a_signal_is_128_plus_its_number(cluster, name):
    assert cluster.sh(f"kill -{name} $$").returncode == 128 + getattr(signal, f"SIG{name}")


def test_a_command_that_is_not_there_is_127_and_one_line(cluster):
    r = cluster.vrun("--", "no-such-command")
    assert r.returncode == 127
    assert r.stderr.startswith("vrun: no-such-command: ") and r.stderr.count("\n") == 1
    assert cluster.vrun("--", "/no/such/file").returncode == 127


def test_a_command_that_may_not_be_executed_is_126(cluster):
    assert cluster.vrun("--", "/etc/passwd").returncode == 126
    assert cluster.vrun("--", "/etc").returncode == 126


def test_a_working_directory_that_is_not_in_the_root_is_125_and_says_so(cluster):
    r = cluster.run("vrun", "-D", "/not/there", "--", "true")
    assert r.returncode == 125
    assert "/not/there" in r.stderr and r.stderr.count("\n") == 1


def test_an_unknown_pool_is_125_and_names_the_pools(cluster):
    r = cluster.vrun("-P", "nonsense", "--", "true")
    assert r.returncode == 125
    assert "nonsense" in r.stderr and "local" in r.stderr and r.stderr.count("\n") == 1


def test_an_unknown_option_is_2(cluster):
    r = cluster.vrun("--no-such-option", "true")
    assert r.returncode == 2
    assert "--no-such-option" in r.stderr


def test_more_than_any_node_has_is_refused_at_once(cluster):
    r = cluster.vrun("-G", "999", "--", "true")
    assert r.returncode == 125 and "gpu" in r.stderr.lower()


def test_the_time_limit_is_124(cluster):
    r = cluster.vrun("-t", "0:01", "--", "sleep", "60")
    assert r.returncode == 124 and "time limit" in r.stderr.lower()


def test_the_time_limit_holds_whatever_the_command_does(cluster):
    began = time.monotonic()
    r = cluster.vrun("-t", "0:01", "--", "sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
    assert r.returncode == 124 and time.monotonic() - began < 20, "not 30 s over the limit"


def test_a_command_is_told_of_its_time_limit_by_its_signal(cluster):
    r = cluster.vrun("-t", "0:20", "--signal", "USR1@19", "--", "sh", "-c",
                     "trap 'echo saved; exit 85' USR1; while :; do sleep 0.1; done")
    assert (r.returncode, r.stdout) == (85, "saved\n"), r.stderr


def test_out_of_memory_is_137_and_the_reason_says_so(cluster):
    r = cluster.vrun("--mem", "64M", "--", "python3", "-c", "x = bytearray(400 << 20)\nprint(len(x))")
    assert r.returncode == 137, r.stderr
    assert "memory" in r.stderr.lower()


def test_options_stop_at_the_first_word_that_is_none(cluster):
    r = cluster.vrun("printf", "%s|", "-P", "x", "--", "--help")
    assert r.stdout == "-P|x|--|--help|"


def test_arguments_are_never_requoted(cluster):
    words = ["", " ", "a b", "'", '"', "$HOME", "*", "\n", "\\", "é"]
    assert cluster.vrun("--", "printf", "[%s]", *words).stdout == "".join(f"[{w}]" for w in words)


# --- streams

def test_stdout_and_stderr_are_separate(cluster):
    r = cluster.vrun("-q", "--", "sh", "-c", "echo out; echo err >&2")
    assert (r.stdout, r.stderr) == ("out\n", "err\n")


def test_stdin_eof_is_eof(cluster):
    assert cluster.vrun("--", "wc", "-c", input="12345").stdout.strip() == "5"
    assert cluster.vrun("--", "cat").stdout == ""


def test_a_gigabyte_through_stdin_and_out_again_is_identical(cluster):
    size = int(os.environ.get("VRUN_E2E_STREAM_MB", "256")) << 20
    block = os.urandom(1 << 20)
    p = cluster.popen("vrun", "-D", "/root", "--", "cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    sent, got, received = hashlib.sha256(), hashlib.sha256(), 0
    if os.fork() == 0:
        p.stdout.close()
        for i in range(size >> 20):
            p.stdin.write(block[i % 997:] + block[:i % 997])
        p.stdin.close()
        os._exit(0)
    p.stdin.close()
    for i in range(size >> 20):
        sent.update(block[i % 997:] + block[:i % 997])
    while chunk := p.stdout.read(1 << 20):
        got.update(chunk)
        received += len(chunk)
    assert p.wait() == 0
    os.wait()
    assert received == size and got.digest() == sent.digest()


def test_a_slow_reader_holds_the_command_back_and_loses_nothing(cluster):
    p = cluster.popen("vrun", "-D", "/root", "--", "seq", "2000000", stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    head = p.stdout.read(100)
    time.sleep(1)
    rest = p.stdout.read()
    assert p.wait() == 0
    assert (head + rest).split() == [str(i).encode() for i in range(1, 2000001)]


def test_a_closed_stdout_is_sigpipe_for_the_command(cluster):
    p = cluster.popen("vrun", "-D", "/root", "--", "yes", stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    p.stdout.read(10)
    p.stdout.close()
    assert p.wait(20) == 141


def test_the_shells_descriptors_keep_their_flags(cluster):
    r, w = os.pipe()
    before = os.get_blocking(w)
    p = cluster.popen("vrun", "-D", "/root", "--", "echo", "x", stdout=w, stdin=subprocess.DEVNULL)
    assert p.wait(20) == 0
    assert os.get_blocking(w) == before
    os.close(w)
    assert os.read(r, 10) == b"x\n"
    os.close(r)


def test_output_to_a_file_is_appended_where_the_shell_left_off(cluster, tmp_path):
    out = tmp_path / "out"
    with open(out, "wb") as f:
        f.write(b"before\n")
        f.flush()
        assert cluster.popen("vrun", "-D", "/root", "--", "echo", "job", stdout=f, stdin=subprocess.DEVNULL).wait(20) == 0
        os.write(f.fileno(), b"after\n")
    assert out.read_bytes() == b"before\njob\nafter\n"


# --- signals

@pytest.mark.parametrize("name", ["TERM", "HUP", "USR1", "USR2", "QUIT"])
def test_signals_are_forwarded_as_they_are(cluster, name):
    p = cluster.popen("vrun", "-D", "/root", "--", "bash", "-c", f"trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.1; done",
                      stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    assert p.stdout.readline() == "ready\n"
    p.send_signal(getattr(signal, f"SIG{name}"))
    assert p.stdout.readline() == f"got {name}\n"
    assert p.wait(20) == 9


def test_ctrl_c_without_a_terminal_is_sigint_for_the_group(cluster):
    p = cluster.popen("vrun", "-D", "/root", "--", "bash", "-c", "echo ready; sleep 60", stdout=subprocess.PIPE,
                      stdin=subprocess.DEVNULL, text=True)
    assert p.stdout.readline() == "ready\n"
    p.send_signal(signal.SIGINT)
    assert p.wait(20) == 130


def test_the_second_ctrl_c_is_term(cluster):
    p = cluster.popen("vrun", "-D", "/root", "--", "bash", "-c",
                      "trap 'echo int' INT; trap 'echo term; exit 3' TERM; echo ready; while :; do sleep 0.1; done",
                      stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    assert p.stdout.readline() == "ready\n"
    p.send_signal(signal.SIGINT)
    assert p.stdout.readline() == "int\n"
    p.send_signal(signal.SIGINT)
    assert p.stdout.readline() == "term\n"
    assert p.wait(20) == 3


def test_ctrl_c_while_waiting_cancels_and_is_130(cluster):
    total = cluster.json("nodes")["nodes"][0]["total"]["milli_cpus"] // 1000
    hog = cluster.popen("vrun", "-D", "/root", "-c", str(total), "--", "sleep", "60", stdin=subprocess.DEVNULL)
    wait_until("the first job runs", lambda: any(j["state"] == "RUNNING" for j in cluster.json("jobs")["jobs"]))
    p = cluster.popen("vrun", "-D", "/root", "-c", str(total), "--", "true", stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_until("the second job waits", lambda: any(j["state"] == "PENDING" for j in cluster.json("jobs")["jobs"]))
    p.send_signal(signal.SIGINT)
    assert p.wait(20) == 130
    hog.send_signal(signal.SIGTERM)
    assert hog.wait(20) == 143
    wait_until("neither job is left", lambda: not cluster.json("jobs")["jobs"])


# --- terminals

class Terminal:
    """A person's terminal around a vrun."""

    def __init__(self, cluster, *args, size=(24, 80)):
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, size)
        self.slave = slave
        self.before = termios.tcgetattr(slave)
        self.text = b""

        def controlling():
            os.setsid()
            import fcntl
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        self.process = cluster.popen("vrun", "-D", "/root", *args, stdin=slave, stdout=slave, stderr=slave, preexec_fn=controlling)

    def expect(self, pattern, seconds=20):
        end = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.master], [], [], left)[0]:
                raise AssertionError(f"{pattern!r} never came: {self.text!r}")
            self.text += os.read(self.master, 65536)
        match = re.search(pattern, self.text)
        self.text = self.text[match.end():]
        return match

    def type(self, data):
        os.write(self.master, data)

    def wait(self):
        end = time.monotonic() + 20
        while self.process.poll() is None and time.monotonic() < end:
            if select.select([self.master], [], [], 0.05)[0]:
                self.text += os.read(self.master, 65536)
        return self.process.wait(1)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(cluster):
    made = []

    def start(*args, **kw):
        made.append(Terminal(cluster, *args, **kw))
        return made[-1]
    yield start
    for t in made:
        t.close()


def test_a_terminal_at_both_ends_is_a_terminal_inside(terminal):
    t = terminal("--", "bash", "-c", "tty; stty size; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all; exit 5", size=(33, 101))
    t.expect(rb"/dev/pts/\d+")
    t.expect(rb"33 101")
    t.expect(rb"all")
    assert t.wait() == 5
    assert termios.tcgetattr(t.slave) == t.before


def test_pipes_are_pipes_inside(cluster):
    assert cluster.sh("[ -t 0 ] || [ -t 1 ] || echo none").stdout == "none\n"


def test_resizing_arrives(terminal):
    t = terminal("--", "bash", "-c", "trap 'stty size' WINCH; echo ready; while :; do read -t 0.1; done")   # no child that ^C could miss
    t.expect(rb"ready")
    termios.tcsetwinsize(t.slave, (50, 132))
    os.kill(t.process.pid, signal.SIGWINCH)
    t.expect(rb"50 132")
    time.sleep(0.3)   # stty may be a child yet, and bash lets its child take the ^C
    t.type(b"\x03")
    assert t.wait() == 130


def test_ctrl_c_and_ctrl_d_are_keys_for_the_remote_terminal(terminal):
    t = terminal("--", "bash", "-c", "trap 'echo interrupted; hit=1' INT; echo ready; while [ -z \"$hit\" ]; do sleep 0.1; done; cat; echo end")
    t.expect(rb"ready")
    t.type(b"\x03")
    t.expect(rb"interrupted")
    t.type(b"hello\r")
    t.expect(rb"hello\r\nhello\r\n")
    t.type(b"\x04")
    t.expect(rb"end")
    assert t.wait() == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_the_terminal_is_restored_after_any_death(terminal, how):
    t = terminal("--", "bash", "-c", "echo ready; sleep 60")
    t.expect(rb"ready")
    wait_until("the terminal is raw", lambda: termios.tcgetattr(t.slave) != t.before)
    t.process.send_signal(how)
    t.process.wait(20)
    wait_until("the terminal is as it was", lambda: termios.tcgetattr(t.slave) == t.before)


# --- identity and environment

def test_the_environment_is_ours_but_for_what_belongs_to_this_machine(cluster):
    env = dict(cluster.environment, MY_OWN="a b\nc", SSH_AUTH_SOCK="/x", DISPLAY=":0", DBUS_SESSION_BUS_ADDRESS="x",
               XDG_RUNTIME_DIR="/run/user/0", SLURM_JOB_ID="7", CUDA_VISIBLE_DEVICES="3")
    out = cluster.vrun("--", "env", "-0", env=env).stdout.split("\0")
    inside = dict(e.split("=", 1) for e in out if e)
    assert inside["MY_OWN"] == "a b\nc"
    for name in ("SSH_AUTH_SOCK", "DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "SLURM_JOB_ID"):
        assert name not in inside
    assert inside.get("XDG_RUNTIME_DIR") != "/run/user/0"
    assert inside.get("CUDA_VISIBLE_DEVICES") != "3"
    assert int(inside["VRUN_JOB_ID"]) > 0 and inside["VRUN_POOL"] == "local"


def test_umask_limits_and_niceness_come_along(cluster):
    p = cluster.popen("vrun", "-D", "/root", "--", "bash", "-c", "umask; ulimit -S -n; nice", stdout=subprocess.PIPE,
                      stdin=subprocess.DEVNULL, text=True,
                      preexec_fn=lambda: (os.umask(0o027), __import__("resource").setrlimit(7, (777, 5000)), os.nice(3)))
    assert p.communicate(timeout=20)[0].split() == ["0027", "777", str(min(os.nice(0) + 3, 19))]
    r = cluster.vrun("--nice", "19", "--", "nice", check=True)
    assert r.stdout.split() == ["19"]


def test_the_user_is_the_user(cluster):
    r = cluster.sh("id -u; id -g; id -G; whoami 2>/dev/null || id -un; stat -c '%u %g' /etc/passwd /home/user")
    lines = r.stdout.split("\n")
    assert lines[0] == str(os.getuid()) and lines[1] == str(os.getgid())
    assert sorted(map(int, lines[2].split())) == sorted(set(os.getgroups()) | {os.getgid()})
    assert lines[4:6] == ["0 0", "1000 1000"]


def test_the_job_sees_its_own_processes_only(cluster):
    r = cluster.sh("echo $$; ls -d /proc/[0-9]* | wc -l; hostname")
    lines = r.stdout.split()
    assert int(lines[0]) < 10 and int(lines[1]) < 10
    assert lines[2] != os.uname().nodename


def test_dev_tmp_shm_and_run_are_the_jobs_own(cluster):
    script = """echo x > /tmp/mine && echo y > /dev/shm/mine && echo z > /run/mine && cat /tmp/mine /dev/shm/mine
    ls /dev | tr '\\n' ' '; head -c 4 /dev/urandom | wc -c; echo gone > /dev/null; stat -c %a /tmp /dev/shm"""
    r = cluster.sh(script)
    assert r.returncode == 0, r.stderr
    assert r.stdout.startswith("x\ny\n") and "null" in r.stdout and "vda" not in r.stdout
    assert r.stdout.split()[-3:] == ["4", "1777", "1777"]
    assert cluster.sh("ls /tmp /dev/shm | grep mine").returncode == 1


def test_nothing_is_left_running(cluster):
    mark = f"31{os.getpid()}.5"
    assert cluster.sh(f"setsid sleep {mark} & sleep {mark} & exit 3").returncode == 3
    assert mark not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def test_the_node_reaps_its_supervisors(cluster):
    cluster.sh("true")
    agent, = program_pids(cluster, "node")

    def zombies():
        found = []
        for p in filter(str.isdigit, os.listdir("/proc")):
            try:
                state, parent = open(f"/proc/{p}/stat").read().rpartition(") ")[2].split()[:2]
            except OSError:
                continue
            if state == "Z" and int(parent) == agent:
                found.append(p)
        return found
    wait_until("every supervisor is reaped", lambda: not zombies())


# --- saying what happened

def test_status_json_tells_all(cluster, tmp_path):
    out = tmp_path / "status"
    assert cluster.vrun("--status-json", str(out), "--", "sh", "-c", "exit 7").returncode == 7
    status = json.loads(out.read_text())
    assert status["exit"] == 7 and status["state"] == "FAILED" and status["node"] == "n1" and status["job"] > 0
    assert status["attempt"] == 1 and status["ran_s"] >= 0 and status["queued_s"] >= 0
    assert cluster.vrun("--status-json", str(out), "--", "no-such").returncode == 127
    assert json.loads(out.read_text())["state"] == "FAILED"


def test_help_and_version_need_no_daemon(cluster):
    for command in ("vrun", "vbatch", "vctl"):
        assert "usage" in cluster.run(command, "--help", env={"PATH": "/usr/bin"}).stdout.lower()
        assert re.search(r"\d+\.\d+", cluster.run(command, "--version", env={"PATH": "/usr/bin"}).stdout)
