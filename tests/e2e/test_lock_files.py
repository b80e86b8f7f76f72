# SPDX-License-Identifier: Apache-2.0
"""Lock files between home's programs and live jobs of two nodes: names that only one may make (decisions/0047)."""
import os
import signal
import statistics
import subprocess
import sys
import time

import pytest

from cluster import wait_until
from test_fs_restart import program_pids
from test_live import SHELL, ask, nodes_of, started

pytestmark = pytest.mark.seconds(240)

KINDS = ["excl", "mkdir", "symlink", "link", "soft"]

# A counter that is read, and replaced a moment later, under a lock.
LOCKER = """
import os, random, sys, time
kind, who, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])

def make():
    if kind == "excl":
        os.close(os.open("the.lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    elif kind == "mkdir":
        os.mkdir("the.lock")
    elif kind == "symlink":
        os.symlink(who, "the.lock")
    elif kind == "soft":   # as filelock.SoftFileLock does it
        fd = os.open("the.lock", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_TRUNC, 0o644)
        os.write(fd, f"{os.getpid()}\\n{who}\\n".encode())
        os.close(fd)
    else:
        open("mine." + who, "w").close()
        os.link("mine." + who, "the.lock")

def take():
    while True:
        began = time.monotonic()
        try:
            make()
            times.append(time.monotonic() - began)
            return
        except FileExistsError:
            time.sleep(0.002 + random.random() * 0.01)

times, odd = [], 0
print("ready", flush=True)
sys.stdin.readline()
for i in range(rounds):
    take()
    value = int(open("count").read())
    time.sleep(0.002)
    with open("count." + who, "w") as f:
        f.write(f"{value + 1}\\n")
    os.replace("count." + who, "count")
    try:
        os.rmdir("the.lock") if kind == "mkdir" else os.unlink("the.lock")
    except FileNotFoundError:
        odd += 1
    time.sleep(random.random() * 0.004)
print(odd, *[round(t * 1e6) for t in times])
"""


@pytest.fixture
def place(live):
    (live.place / "lock.py").write_text(LOCKER)
    (live.place / "count").write_text("0\n")
    return live.place


def at_home(place, kind, who, rounds):
    p = subprocess.Popen([sys.executable, "lock.py", kind, who, str(rounds)], cwd=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         text=True)
    assert p.stdout.readline() == "ready\n"
    return p


def in_a_job(live, kind, who, rounds, *options):
    return started(live, f"exec python3 lock.py {kind} {who} {rounds}", *options)


def together(programs, seconds=150):
    """Runs them; returns the seconds that each lock took each of them, when it got it at once."""
    for p in programs:
        p.stdin.write("go\n")
        p.stdin.flush()
    times = []
    for p in programs:
        out, err = p.communicate(timeout=seconds)
        assert p.returncode == 0, (out, err)
        odd, *micros = map(int, out.split())
        assert odd == 0, "nobody else removes a lock"
        times.append([m / 1e6 for m in micros])
    return times


def count(place):
    return int((place / "count").read_text())


def exclude_each_other(live, place, kind, rounds):
    """Home and a job on each of two nodes; the seconds that each lock took each of the jobs, when it got it at once."""
    a = in_a_job(live, kind, "a", rounds, "-c", "2")
    b = in_a_job(live, kind, "b", rounds, "-c", "2")
    assert len(set(nodes_of(live).values())) == 2
    programs = [a, b, at_home(place, kind, "home", rounds)]
    times = together(programs)
    wait_until("all of it is home", lambda: count(place) == 3 * rounds, 10)
    assert not (place / "the.lock").is_symlink() and not (place / "the.lock").exists()
    return times[:2]


@pytest.mark.parametrize("kind", KINDS)
def test_home_and_jobs_of_two_nodes_exclude_each_other(live, place, kind):
    exclude_each_other(live, place, kind, 70)


@pytest.mark.alone
@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_takes_as_long_as_home_needs_to_answer(live, place, kind):
    for of in exclude_each_other(live, place, kind, 40):
        assert statistics.median(of) < 0.03, sorted(of)
        # None waits for home's next look at its root, a second later.
        assert sorted(of)[int(len(of) * 0.9)] < 0.5, sorted(of)


def test_jobs_of_one_node_exclude_each_other(live, place):
    a = in_a_job(live, "excl", "a", 60, "-c", "1")
    b = in_a_job(live, "excl", "b", 60, "-c", "1")
    together([a, b])
    wait_until("all of it is home", lambda: count(place) == 120, 10)


def test_a_lock_that_a_job_holds_open_is_seen_at_home_and_by_the_other_node(live, place):
    a = started(live, SHELL, "-c", "2")
    b = started(live, SHELL, "-c", "2")
    for p in (a, b):
        assert ask(p, "exec 7> x.$$") == ""
    (place / "touched").touch()
    wait_until("both see it", lambda: ask(a, "ls touched 2>&1") == ask(b, "ls touched 2>&1") == "touched\n")
    assert ask(a, "set -C; exec 8> pid.lock; set +C") == ""
    with pytest.raises(FileExistsError):
        os.open(place / "pid.lock", os.O_CREAT | os.O_EXCL)
    assert "pid.lock" in ask(b, "(set -C; echo b > pid.lock) && echo got it")
    assert ask(a, "exec 8>&-; rm pid.lock") == ""
    wait_until("it is gone at home", lambda: not (place / "pid.lock").exists(), 10)
    os.close(os.open(place / "pid.lock", os.O_CREAT | os.O_EXCL))
    assert "pid.lock" in ask(a, "(set -C; echo a > pid.lock) && echo got it")
    assert ask(b, "mkdir pid.lock 2>&1") != ""
    for p in (a, b):
        p.communicate(timeout=60)
        assert p.returncode == 3


def test_what_is_made_has_the_mode_and_the_target_that_was_asked_for(live, place):
    a = started(live, SHELL)
    (place / "touched").touch()
    wait_until("it sees it", lambda: ask(a, "ls touched 2>&1") == "touched\n")
    script = ("umask 027; mkdir -m 2750 d; ln -s over/there s; mkfifo -m 600 p; (set -C; echo text > f); ln f g; "
              "mkdir -m 0500 closed; stat -c '%n %A' d closed; stat -c '%n %A %h' s p f g; readlink s; cat g")
    seen = ask(a, script)
    attributes = ["d drwxr-s---", "closed dr-x------", "s lrwxrwxrwx 1", "p prw------- 1", "f -rw-r----- 2", "g -rw-r----- 2"]
    assert seen.splitlines() == [*attributes, "over/there", "text"]
    wait_until("it is home", lambda: (place / "g").exists() and (place / "g").read_text() == "text\n", 10)
    at_home = "".join(subprocess.run(["stat", "-c", *of], cwd=place, capture_output=True, text=True).stdout
                      for of in (["%n %A", "d", "closed"], ["%n %A %h", "s", "p", "f", "g"]))
    assert at_home.splitlines() == attributes
    assert os.readlink(place / "s") == "over/there"
    a.communicate(timeout=60)


def test_a_directory_that_was_made_where_others_make_names_stays_a_working_directory(live, place):
    """What the kernel is told late of such a name is not that the job's own directory is gone."""
    a = started(live, SHELL)
    (place / "touched").touch()
    wait_until("it sees it", lambda: ask(a, "ls touched 2>&1") == "touched\n")
    script = ("import os, sys, time\n"
              "lost, end = 0, time.monotonic() + 5\n"
              "while time.monotonic() < end:\n"
              "    try:\n        os.getcwd()\n"
              "    except FileNotFoundError:\n        lost += 1\n"
              "    open(f'work{time.monotonic():.1f}', 'a').close()\n"
              "print(lost)")
    (place / "look.py").write_text(script)
    assert ask(a, "for i in 1 2 3 4 5; do ls d$i 2>/dev/null; mkdir d$i; (cd d$i; python3 ../look.py) & done; wait") == "0\n" * 5
    a.communicate(timeout=60)


@pytest.mark.alone
def test_a_directory_without_activity_of_others_costs_no_round_trip(live, place):
    """Neither do many new names in one in which home was active: an archive is unpacked as fast as anywhere."""
    a = started(live, SHELL)
    ask(a, "mkdir own")
    script = ("import os, time\n"
              "began = time.monotonic()\n"
              "for i in range(400): os.close(os.open(f'f{i}', os.O_CREAT | os.O_EXCL | os.O_WRONLY))\n"
              "print(round((time.monotonic() - began) * 1e6 / 400))")
    (place / "many.py").write_text(script)
    own = int(ask(a, "cd own; python3 ../many.py; cd .."))
    shared = int(ask(a, "mkdir -p new; python3 many.py"))
    assert own < 2000, f"{own} us a file"
    assert shared < own + 5000, f"{shared} us a file, {own} alone"
    a.communicate(timeout=60)


@pytest.mark.parametrize("who", ["fs", "home"])
def test_no_lock_is_got_twice_or_lost_when_a_daemon_is_killed(sturdy, who):
    c = sturdy(view="live")
    c.place = c.root / "root/locks"
    c.place.mkdir()
    (c.place / "lock.py").write_text(LOCKER)
    (c.place / "count").write_text("0\n")
    a = in_a_job(c, "excl", "a", 120)
    home = at_home(c.place, "excl", "home", 120)
    for p in (a, home):
        p.stdin.write("go\n")
        p.stdin.flush()
    for _ in range(3):
        time.sleep(0.7)
        pids = program_pids(c, "fs") if who == "fs" else [c.pid_of("home")]
        if pids and pids[0] and a.poll() is None:
            os.kill(pids[0], signal.SIGKILL)
    # Nobody waits for ever for a lock that nobody has.
    for p in (home, a):
        out, err = p.communicate(timeout=100)
        assert p.returncode == 0, (out, err, c.logs())
        assert out.split()[0] == "0", "nobody else removes a lock"
    wait_until("nobody has it", lambda: not (c.place / "the.lock").exists(), 10)


def while_home_is_stopped(live, a, script, seconds):
    """What a script says that runs in the job while home, through which it is usually heard, is stopped."""
    # The first sleep brings the program to the node.
    assert ask(a, f"sleep 0; (sleep 0.5; {script}) > /tmp/said 2>&1 & script=$!") == ""
    home = live.pid_of("home")
    os.kill(home, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(home, signal.SIGCONT)
    return ask(a, "wait $script; cat /tmp/said")


def test_a_job_goes_on_when_home_is_silent(live, place):
    a = started(live, SHELL)
    (place / "touched").touch()
    wait_until("it sees it", lambda: ask(a, "ls touched 2>&1") == "touched\n")
    assert ask(a, "mkdir first") == ""
    began = time.time()
    made = float(while_home_is_stopped(live, a, "mkdir second && echo $EPOCHREALTIME", 10))
    assert made < began + 8, "home was still silent"
    wait_until("both are home", lambda: (place / "first").is_dir() and (place / "second").is_dir(), 20)
    a.communicate(timeout=60)
    assert a.returncode == 3


def test_a_program_that_is_killed_while_it_waits_leaves_no_lock(live, place):
    a = started(live, SHELL)
    (place / "touched").touch()
    wait_until("it sees it", lambda: ask(a, "ls touched 2>&1") == "touched\n")
    assert ask(a, "mkdir warm; rm -d warm") == ""
    killed = while_home_is_stopped(live, a, "mkdir the.lock & p=$!; sleep 0.5; kill -9 $p; wait $p; echo $?", 2)
    assert killed.endswith("137\n")
    assert ask(a, "mkdir after") == ""
    wait_until("it is home", lambda: (place / "after").is_dir(), 20)
    assert not (place / "the.lock").exists()
    assert ask(a, "mkdir the.lock && echo got it") == "got it\n"
    a.communicate(timeout=60)
