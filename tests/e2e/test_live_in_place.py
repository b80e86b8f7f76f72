# SPDX-License-Identifier: Apache-2.0
"""Live views: a file or directory is the same one for jobs and home, whoever else has it: by another name, at its end, open, or under
the name that home has given it meanwhile."""
import os
import stat
import subprocess
import sys

import pytest

from cluster import wait_until
from test_live import SHELL, ask, finish, inside, said, sh, started

pytestmark = pytest.mark.seconds(120)


def test_a_file_with_other_names_changes_under_all(live):
    place = live.place
    (place / "d").mkdir()
    (place / "a").write_text("both")
    for name in ("b", "d/c"):
        os.link(place / "a", place / name)
    everywhere = lambda: {(place / n).read_text() for n in ("a", "b", "d/c")}
    # By one name, and nobody has looked at the others before.
    for script, content in [("printf changed > a", "changed"), ("printf ' more' >> a", "changed more"),
                            ("printf CH | dd of=a conv=notrunc status=none", "CHanged more"), ("truncate -s 4 a", "CHan"),
                            ("python3 -c 'open(\"a\", \"r+\").write(\"py\")'", "pyan")]:
        assert said(sh(live, script + "; cat b d/c")) == (0, content * 2, ""), script
        assert everywhere() == {content}, script
        assert (place / "b").samefile(place / "a") and (place / "b").samefile(place / "d/c"), script
    # What is put in its place has no other name.
    assert said(sh(live, "echo new > t; mv t a; cat b")) == (0, "pyan", "")
    assert (place / "a").read_text() == "new\n" and (place / "b").read_text() == "pyan"


def test_what_a_job_and_home_append_to_one_file(live):
    log = live.place / "log"
    log.write_text("home 1\n")
    inode = log.stat().st_ino
    p = started(live, SHELL)
    # While it is open: within a second or two.
    ask(p, "exec 7>>log; echo job 1 >&7")
    wait_until("home has the line", lambda: log.read_text() == "home 1\njob 1\n", 10)
    with open(log, "a") as f:
        f.write("home 2\n")
    ask(p, "echo job 2 >&7")
    with open(log, "a") as f:
        f.write("home 3\n")
    ask(p, "echo job 3 >&7; exec 7>&-")
    wait_until("all of it is there", lambda: len(log.read_text().splitlines()) == 6, 10)
    assert sorted(log.read_text().splitlines()) == ["home 1", "home 2", "home 3", "job 1", "job 2", "job 3"]
    assert log.stat().st_ino == inode, "`tail -f` goes on"
    wait_until("the job has all of it, too", lambda: ask(p, "cat log") == log.read_text(), 10)
    # What was appended before home moved it away is where it is by now.
    ask(p, "exec 7>>log; echo job 4 >&7")
    wait_until("home has the line", lambda: "job 4" in log.read_text(), 10)
    os.rename(log, live.place / "log.1")
    log.write_text("new log\n")
    ask(p, "exec 7>&-")
    wait_until("the job sees it", lambda: ask(p, "cat log") == "new log\n", 10)
    ask(p, "echo job 5 >> log")
    wait_until("it goes there", lambda: log.read_text() == "new log\njob 5\n", 10)
    assert "job 4" in (live.place / "log.1").read_text()
    finish(p)


def test_lines_that_a_job_and_home_append_at_the_same_time_are_all_there(live):
    """One every 5 ms on each side, to a file that is opened for each line and to one that is held open."""
    each, held = live.place / "each", live.place / "held"
    for file in (each, held):
        file.write_text("")
    inodes = [f.stat().st_ino for f in (each, held)]
    lines = 300
    writer = """
import sys, time
who, lines = sys.argv[1], int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
with open("held", "a") as held:
    for i in range(lines):
        with open("each", "a") as each: each.write(f"{who} {i}\\n")
        held.write(f"{who} {i}\\n"); held.flush()
        time.sleep(0.005)
"""
    p = live.popen("vrun", "--view=live", "-D", inside(live), "--", "python3", "-c", writer, "job", str(lines),
                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "ready\n"
    home = subprocess.Popen([sys.executable, "-c", writer, "home", str(lines)], cwd=live.place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    home.stdout.readline()
    home.stdin.write("\n")
    home.stdin.flush()
    out, err = p.communicate("\n", timeout=60)
    assert home.wait(60) == 0
    for file in (each, held):
        got = file.read_text().splitlines()
        for who in ("home", "job"):
            assert [line for line in got if line.startswith(who)] == [f"{who} {i}" for i in range(lines)], (file, who, err)
    assert p.returncode == 0 and "vrun:" not in err, err
    assert [f.stat().st_ino for f in (each, held)] == inodes


def test_a_process_at_home_goes_on_with_the_file_that_a_job_writes(live):
    file = live.place / "f"
    file.write_text("as it was\n" * 30_000)
    with open(file) as at_home, open(file, "a") as log:
        for script, content in [("echo new > f", "new\n"), ("printf NEW | dd of=f conv=notrunc status=none", "NEW\n"),
                                ("truncate -s 2 f; echo more >> f", "NEmore\n"),
                                ("seq 100000 > f; printf zero | dd of=f bs=1 seek=50000 conv=notrunc status=none", None)]:
            assert said(sh(live, script)) == (0, "", ""), script
            at_home.seek(0)
            text = at_home.read()
            assert text == content or (content is None and len(text) == 588895 and text[50000:50004] == "zero"), (script, text[:100])
            assert os.fstat(at_home.fileno()).st_ino == file.stat().st_ino, script
        log.write("home\n")
        log.flush()
        assert said(sh(live, "tail -n1 f; echo job >> f")) == (0, "home\n", "")
        log.write("home again\n")
        log.flush()
        assert file.read_text().endswith("home\njob\nhome again\n")
        # What the job puts in its place is another file.
        assert said(sh(live, "echo new > g; mv g f")) == (0, "", "")
        assert os.fstat(at_home.fileno()).st_ino != file.stat().st_ino and file.read_text() == "new\n"


def test_ctime_and_atime_are_those_of_the_job_when_home_has_what_it_did(live):
    """As file system tests look: the time moves with a change that was made, and not with one that was refused, a second later."""
    (live.place / "d").mkdir()
    for name in ("mode", "owner", "times", "d/f"):
        (live.place / name).write_text("x")
    os.symlink("mode", live.place / "link")
    script = """
import os, sys, time
names = ["mode", "owner", "times", "d", "link", "new"]
open("new", "w").close()
look = lambda: {n: (s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns) for n in names for s in [os.lstat(n)]}
before = look()
time.sleep(0.02)
os.chmod("mode", 0o600); os.chown("owner", 1000, 1000); os.chmod("d", 0o700); os.lchown("link", 1000, 1000); os.chown("new", -1, 1000)
for n in ("times", "d", "new"): os.utime(n, ns=(1_000_000_000_001, 2_000_000_000_002))
after = look()
for n in names: assert after[n][2] > before[n][2], (n, before[n], after[n])
for n in ("times", "d", "new"): assert after[n][:2] == (1_000_000_000_001, 2_000_000_000_002), (n, after[n])
os.fsync(os.open("mode", os.O_RDONLY))
time.sleep(1)
assert look() == after, (after, look())
for n in ("mode", "d"): os.stat(n), os.listdir("d"), open("d/f").read()
os.utime("times", ns=(3_000_000_000_003, 2_000_000_000_002))
assert look()["times"][:2] == (3_000_000_000_003, 2_000_000_000_002) and look()["times"][2] > after["times"][2]
"""
    assert said(live.run("vrun", "--view=live", "-D", inside(live), "--", "python3", "-c", script)) == (0, "", "")
    assert (live.place / "times").stat().st_mtime_ns == 2_000_000_000_002 and (live.place / "owner").stat().st_uid == 1000


def test_an_append_to_a_file_that_the_job_has_read_little_of(live):
    """What home had goes with the append: all of it is on the node before, so that it can still be read there."""
    log = live.place / "log"
    content = os.urandom(9 << 20)
    log.write_bytes(content)
    p = started(live, SHELL)
    ask(p, "exec 7>>log; printf end >&7")
    wait_until("home has it", lambda: log.stat().st_size == len(content) + 3, 20)
    # It is home's next version now, and the job is still at it.
    assert ask(p, "printf more >&7; tail -c 7 log; echo; cksum < log").splitlines()[0] == "endmore"
    ask(p, "exec 7>&-")
    wait_until("home has all", lambda: log.stat().st_size == len(content) + 7, 20)
    assert log.read_bytes() == content + b"endmore"
    finish(p)


def test_what_goes_to_a_file_that_home_has_removed_is_said(live):
    (live.place / "log").write_text("home\n")
    p = started(live, SHELL)
    ask(p, "exec 7>>log")
    os.unlink(live.place / "log")
    wait_until("the job sees it", lambda: ask(p, "ls") == "", 10)
    ask(p, "echo nowhere >&7; exec 7>&-")
    out, err = p.communicate(timeout=60)
    assert (p.returncode, out) == (3, "") and "home removed, renamed or replaced it" in err, err
    assert not list(live.place.iterdir())


@pytest.mark.parametrize("home, times", [("removes", 1), ("replaces", 2)])
def test_what_a_job_changes_in_a_file_that_home_removes_or_replaces_ends_it_with_125(live, home, times):
    """Not what it appends, which goes to what has the name. Whatever is lost, it is said once a file, and how often."""
    file = live.place / "file"
    file.write_text("home's\nsecond line\n")
    script = f"""
echo ready
for i in $(seq {times}); do
    read go
    exec 7<>file
    read line <&7
    was=$(cat file)
    echo opened
    while [ "$(cat file 2>&1)" = "$was" ]; do sleep 0.02; done
    echo lost >&7
    exec 7>&-
    echo over
done
"""
    p = started(live, script)
    for i in range(times):
        p.stdin.write("go\n")
        p.stdin.flush()
        assert p.stdout.readline() == "opened\n"
        if home == "removes":
            file.unlink()
        else:
            (live.place / "other").write_text(f"home's {i}\nsecond line\n")
            os.rename(live.place / "other", file)
        assert p.stdout.readline() == "over\n"
    out, err = p.communicate(timeout=60)
    lines = err.splitlines()
    said_of_it = [line.partition("lost")[2] for line in lines if "/file: home removed, renamed or replaced it" in line]
    assert p.returncode == 125 and said_of_it == ["", " (2 times)"][:times], (p.returncode, err)
    assert lines[times:] == [f"vrun: {times} of the writes in its view could not be applied at home, and are lost"], err
    assert [f.read_text() for f in live.place.iterdir()] == ([] if home == "removes" else ["home's 1\nsecond line\n"])


def test_who_stands_in_a_directory_that_home_renames(live):
    place = live.place
    (place / "project/src").mkdir(parents=True)
    (place / "project/src/a.py").write_text("x = 1\n")
    (place / "project/src/unread").write_text("unread\n")
    p = started(live, f"cd project/src; cat a.py >/dev/null; exec 8<unread; {SHELL}")
    assert ask(p, "echo one > made; exec 7>>log; echo first >&7") == ""
    wait_until("home has it", lambda: (place / "project/src/log").exists() and (place / "project/src/log").read_text() == "first\n", 10)
    os.rename(place / "project", place / "project.old")
    wait_until("the job sees it", lambda: "project.old" in ask(p, f"ls {inside(live)}"), 10)
    wait_until("its path is the new one", lambda: ask(p, "/bin/pwd") == f"{inside(live)}/project.old/src\n", 10)
    assert ask(p, "cat a.py; cat <&8; ls") == "x = 1\nunread\na.py\nlog\nmade\nunread\n"
    assert ask(p, "echo two > made.too; echo second >&7; python3 -c 'import os, a; print(a.x, os.getcwd())'") == f"1 {inside(live)}/project.old/src\n"
    wait_until("home has all", lambda: (place / "project.old/src/log").read_text() == "first\nsecond\n", 10)
    wait_until("home has all", lambda: (place / "project.old/src/made.too").exists(), 10)
    # And another directory takes the name.
    (place / "project/src").mkdir(parents=True)
    (place / "project/src/b").write_text("new")
    wait_until("it is seen", lambda: ask(p, f"cat {inside(live)}/project/src/b 2>&1") == "new", 10)
    assert ask(p, "echo third >&7; ls; cd ../..; ls") == "a.py\nlog\nmade\nmade.too\nunread\nproject\nproject.old\n"
    finish(p)
    assert (place / "project.old/src/log").read_text() == "first\nsecond\nthird\n"
    assert sorted(f.name for f in place.iterdir()) == ["project", "project.old"]
    assert os.listdir(place / "project/src") == ["b"]


def test_a_log_that_home_rotates_while_the_job_writes(live):
    log, old = live.place / "log", live.place / "log.1"
    log.write_text("home\n")
    p = started(live, SHELL)
    ask(p, "exec 7>>log; echo one >&7")
    wait_until("home has it", lambda: log.read_text() == "home\none\n", 10)
    os.rename(log, old)
    log.write_text("new\n")
    wait_until("the job sees it", lambda: ask(p, "cat log log.1 2>&1") == "new\nhome\none\n", 10)
    ask(p, "echo two >&7")
    wait_until("it goes on in the same file", lambda: old.read_text() == "home\none\ntwo\n", 10)
    ask(p, "echo three >&7; exec 7>&-; echo job >> log")
    wait_until("both are right", lambda: (log.read_text(), old.read_text()) == ("new\njob\n", "home\none\ntwo\nthree\n"), 10)
    finish(p)


def test_one_file_through_all_that_home_does_with_its_name(live):
    p = started(live, SHELL)
    ask(p, "exec 7>>a; echo 1 >&7")
    names = ["a", "b", "c", "sub/d", "b"]
    (live.place / "sub").mkdir()
    for i, (old, new) in enumerate(zip(names, names[1:]), 2):
        wait_until("home has it", lambda: (live.place / old).exists() and len((live.place / old).read_text().splitlines()) == i - 1, 10)
        os.rename(live.place / old, live.place / new)
        (live.place / new).chmod(0o600 + i)
        if "/" in old + new:  # into another directory; else whether the job has seen it or not
            wait_until("the job sees it", lambda: ask(p, f"test -e {new} && ! test -e {old} && echo yes") == "yes\n", 10)
        ask(p, f"echo {i} >&7")
    wait_until("all of it is there", lambda: (live.place / "b").read_text() == "1\n2\n3\n4\n5\n", 10)
    assert stat.S_IMODE((live.place / "b").stat().st_mode) == 0o605
    wait_until("the job sees it", lambda: ask(p, "find . -type f -printf '%m %P '; cat b") == "605 b 1\n2\n3\n4\n5\n", 10)
    finish(p)
    assert sorted(f.name for f in live.place.iterdir()) == ["b", "sub"] and not list((live.place / "sub").iterdir())


def test_what_a_job_makes_is_moved_away_at_once(live):
    (live.place / "done").mkdir()
    p = started(live, SHELL)
    for i in range(5):
        ask(p, f"exec 7>new{i}; echo one >&7; python3 -c 'import os; os.fsync(7)'")
        os.rename(live.place / f"new{i}", live.place / f"done/{i}")
        wait_until("the job sees it", lambda: str(i) in ask(p, "ls done").splitlines(), 10)
        ask(p, "echo two >&7; exec 7>&-")
        wait_until("it is complete", lambda: (live.place / f"done/{i}").read_text() == "one\ntwo\n", 10)
    wait_until("the job sees it", lambda: ask(p, "ls . done") == ".:\ndone\n\ndone:\n0\n1\n2\n3\n4\n", 10)
    finish(p)
    assert os.listdir(live.place) == ["done"]


@pytest.mark.parametrize("done", ["chmod", "rename", "link"])
@pytest.mark.parametrize("before", ["nothing", "a read", "a write"])
def test_a_file_that_home_changes_nothing_in_is_written_to_all_the_same(live, done, before):
    file, other = live.place / "file", live.place / "other"
    file.write_text("home's\n")
    p = started(live, SHELL)
    ask(p, "exec 7<>file")
    if before == "a read":
        assert ask(p, "read x <&7; echo $x") == "home's\n"
    if before == "a write":
        ask(p, "echo HOME >&7; python3 -c 'import os; os.fsync(7)'")
        assert file.read_text() == "HOME\ns\n"
    if done == "chmod":
        file.chmod(0o600)
        wait_until("the job sees it", lambda: ask(p, "stat -c %a file") == "600\n", 10)
    elif done == "rename":
        os.rename(file, other)
        wait_until("the job sees it", lambda: ask(p, "ls") == "other\n", 10)
    else:
        os.link(file, other)
        wait_until("the job sees it", lambda: ask(p, "stat -c %h file other") == "2\n2\n", 10)
    ask(p, "printf more >&7; exec 7>&-")
    want = {"nothing": "more's\n", "a read": "home's\nmore", "a write": "HOME\nmore"}[before]
    names = {"chmod": [file], "rename": [other], "link": [file, other]}[done]
    wait_until("home has it", lambda: [f.read_text() for f in names] == [want] * len(names), 10)
    assert ask(p, f"cat {names[0].name}") == want
    finish(p)
    assert len(list(live.place.iterdir())) == len(names)
