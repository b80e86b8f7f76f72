# SPDX-License-Identifier: Apache-2.0
"""Streams that are shared with a shell, stopping with Ctrl-Z, descriptors that a command names."""

import os
import pty
import re
import select
import signal
import subprocess
import time

import pytest

from cluster import BIN


def bash(cluster, script, **kw):
    """A script of the user's, with vrun in its PATH."""
    path = str(BIN) + ":" + cluster.environment.get("PATH", os.environ["PATH"])
    return subprocess.run(["bash", "-c", script], env=dict(cluster.environment, PATH=path), cwd="/", timeout=60,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kw)


# --- a stdin that others read as well

def test_a_loop_over_lines_runs_once_a_line(cluster):
    r = bash(cluster, r"printf 'a\nb\nc\n' | while read x; do vrun -q -D /root echo $x; done", stdin=subprocess.DEVNULL)
    assert (r.stdout, r.stderr) == ("a\nb\nc\n", "")


def test_each_command_of_a_script_reads_on_where_the_last_one_stopped(cluster, tmp_path):
    script = r"vrun -q -D /root sh -c 'read x; echo 1:$x'; vrun -q -D /root true; vrun -q -D /root sh -c 'read x; echo 2:$x'; cat"
    r = bash(cluster, script, input="a\nb\nc\n")
    assert (r.stdout, r.stderr) == ("1:a\n2:b\nc\n", "")
    lines = tmp_path / "lines"
    lines.write_text("a\nb\nc\n")
    with open(lines) as f:
        r = bash(cluster, script, stdin=f)
    assert (r.stdout, r.stderr) == ("1:a\n2:b\nc\n", "")


def test_what_was_read_ahead_of_a_shared_pipe_is_told(cluster):
    script = "vrun -q -D /root head -c 100000 >/dev/null; cat >/dev/null"
    r = bash(cluster, f"seq 200000 | ({script})", stdin=subprocess.DEVNULL)
    assert re.search(r"vrun: stdin: the command did not read the last \d+ bytes .*`vrun -n`", r.stderr), r.stderr
    r = bash(cluster, "seq 200000 | vrun -q -D /root head -c 10 >/dev/null", stdin=subprocess.DEVNULL)
    assert r.stderr == "", "nobody misses it"


def test_without_stdin_it_is_left_alone(cluster):
    r = bash(cluster, "vrun -q -n -D /root cat; cat", input="mine\n")
    assert (r.stdout, r.stderr) == ("mine\n", "")


# --- descriptors that the command names

def test_process_substitutions_are_files_of_the_command(cluster):
    r = bash(cluster, "vrun -q -D /root cat <(echo hi) <(seq 100000) | md5sum; (echo hi; seq 100000) | md5sum", stdin=subprocess.DEVNULL)
    assert r.stderr == "" and len(set(r.stdout.split("\n")[:2])) == 1
    r = bash(cluster, "vrun -q -D /root cmp <(seq 50000) <(seq 49999; echo x)", stdin=subprocess.DEVNULL)
    assert r.returncode == 1 and "/dev/fd/63 /dev/fd/62 differ" in r.stdout and r.stderr == ""
    r = bash(cluster, "echo hello | vrun -q -D /root tee >(tr a-z A-Z) >/dev/null; sleep 0.2", stdin=subprocess.DEVNULL)
    assert (r.stdout, r.stderr) == ("HELLO\n", "")
    r = bash(cluster, "vrun -q -D /root cat /dev/fd/7 7</etc/hostname; cat /etc/hostname", stdin=subprocess.DEVNULL)
    assert r.stderr == "" and len(set(r.stdout.split())) == 1


def test_a_descriptor_that_cannot_be_handed_on_is_refused_by_name(cluster):
    r = bash(cluster, "vrun -q -D /root cat /dev/fd/7 7<>/dev/null", stdin=subprocess.DEVNULL)
    assert r.returncode == 125 and "/dev/fd/7: cannot be passed to the command: it is a device" in r.stderr


# --- a person's terminal, with a shell in it

class Shell:
    def __init__(self, cluster):
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            path = str(BIN) + ":" + os.environ["PATH"]
            os.chdir("/")
            os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "-i"],
                      dict(cluster.environment, PATH=path, PS1="READY> ", HISTFILE="/dev/null", TERM="dumb"))
        self.text = b""
        self.expect(rb"READY> ")

    def read(self, seconds):
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        self.text += os.read(self.master, 65536)
        return True

    def expect(self, pattern, seconds=30):
        end = time.monotonic() + seconds
        while not (match := re.search(pattern, self.text)):
            if not self.read(max(0, end - time.monotonic())):
                raise AssertionError(f"{pattern!r} never came: {self.text[-2000:]!r}")
        self.text = self.text[match.end():]
        return match

    def type(self, data):
        os.write(self.master, data)

    def close(self):
        os.kill(self.pid, signal.SIGHUP)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.master)


@pytest.fixture
def shell(cluster):
    s = Shell(cluster)
    yield s
    s.close()


def test_ctrl_z_gives_the_shell_back_and_fg_goes_on(shell):
    for command in (b"vrun -q -D /root bash -c", b"bash -c 'vrun -q -D /root bash -c \"$1\"; exit $?' x"):
        shell.type(command + b" 'trap \"echo drawn again\" WINCH; echo rea\"\"dy; until read -t 0.1 x; do :; done; echo got $x; exit 3'\r")
        shell.expect(rb"ready\r\n")
        shell.type(b"\x1a")
        shell.expect(rb"Stopped")
        shell.expect(rb"READY> ")
        shell.type(b"echo he''re\r")
        shell.expect(rb"here\r\n")
        shell.type(b"fg\r")
        shell.expect(rb"drawn again\r\n")
        shell.type(b"on\r")
        shell.expect(rb"got on\r\n")
        shell.expect(rb"READY> ")
        shell.type(b"echo =$?=\r")
        shell.expect(rb"=3=\r\n")


def test_output_ends_each_line_once_on_a_slow_terminal(shell):
    shell.type(b"vrun -q -D /root seq 60000; stty -a | grep -o '[-]*opost'; stty -a | grep -o ' [-]*icanon'\r")
    shell.expect(rb"\r\n")
    text, shell.text = shell.text, b""
    while b"READY> " not in text:
        time.sleep(0.001)
        text += os.read(shell.master, 4096)
    lines = text.split(b"\r\n")
    assert lines[:60000] == [b"%d" % i for i in range(1, 60001)]
    assert lines[60000:60002] == [b"opost", b" icanon"]
