# SPDX-License-Identifier: Apache-2.0
"""Random work at home and on two nodes, in turns, while daemons are killed and links fail: all three and a directory that nobody else
uses are the same after each turn. And what readers see beside a writer. VRUN_LIVE_SEED chooses other work."""
import contextlib
import json
import os
import random
import signal
import subprocess
import threading

import pytest

from cluster import FULL, wait_until
from test_fs_restart import program_pids
from test_live import inside, nodes_of, started

pytestmark = pytest.mark.seconds(300)
# "server" too: a file system server is killed (docs/known-issues.md).
TROUBLES = os.environ.get("VRUN_LIVE_TROUBLES", "nothing nothing home link").split()

# Both sides' way of doing an operation, and of looking.
WORK = r"""
import hashlib, json, os, shutil, stat, sys

def do(top, op):
    kind, name, *more = op
    path = top + name
    if kind == "replace":
        with open(path + ".new", "w") as f: f.write(more[0])
        os.rename(path + ".new", path)
    elif kind == "write":
        with open(path, "w") as f: f.write(more[0])
    elif kind == "append":
        with open(path, "a") as f: f.write(more[0])
    elif kind == "patch":
        with open(path, "r+") as f:
            f.seek(more[1])
            f.write(more[0])
    elif kind == "truncate": os.truncate(path, more[0])
    elif kind == "mkdir": os.mkdir(path)
    elif kind == "symlink": os.symlink("somewhere", path)
    elif kind == "chmod": os.chmod(path, more[0])
    elif kind == "rename": os.rename(path, top + more[0])
    elif kind == "remove": shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)

def look(top):
    seen = {}
    try:
        for directory, names, files in os.walk(top):
            for name in names + files:
                path = os.path.join(directory, name)
                st = os.lstat(path)
                what = os.readlink(path) if stat.S_ISLNK(st.st_mode) else ""
                if stat.S_ISREG(st.st_mode):
                    with open(path, "rb") as f: what = hashlib.sha256(f.read()).hexdigest()
                seen[path[len(top):]] = [st.st_mode, what]
    except OSError as e:
        return {"changes while it is looked at": [e.errno, str(e)]}
    return seen
"""
AGENT = WORK + r"""
print("ready", flush=True)
for line in sys.stdin:
    number, op = json.loads(line)
    try: answer = look("w") if op is None else do("w", op)
    except OSError as e: answer = [e.errno, str(e)]
    sys.stdout.write(json.dumps([number, answer]) + "\n")   # in one piece, also where it is long
    sys.stdout.flush()
"""
exec(WORK)


class Agent:
    """A live job that does what it is told."""

    def __init__(self, cluster):
        self.process, self.number = started(cluster, "exec python3 s.py", "-c", "2"), 0

    def ask(self, op=None):
        self.number += 1
        self.process.stdin.write(json.dumps([self.number, op]) + "\n")
        self.process.stdin.flush()
        while line := self.process.stdout.readline():
            with contextlib.suppress(ValueError):   # a home that was killed may say the piece before again (docs/known-issues.md)
                number, answer = json.loads(line)
                if number == self.number:
                    return answer
        raise AssertionError(self.process.stderr.read())

    def end(self):
        out, err = self.process.communicate(timeout=100)
        assert (self.process.returncode, out) == (0, ""), (out, err)


def next_operation(source, seen):
    """Of those that succeed on a tree that looks like this."""
    directories = [""] + [p for p, (mode, _) in seen.items() if mode & 0o170000 == 0o040000]
    files = [p for p, (mode, _) in seen.items() if mode & 0o170000 == 0o100000]
    new = source.choice([d for d in directories if d.count("/") < 4]) + f"/n{source.randrange(30)}"
    text = "".join(source.choices("abc\n", k=source.choice([0, 10, 3000, 100_000])))
    if new in seen or not files or source.random() < 0.15:
        if new not in seen:
            return [source.choice(["mkdir", "symlink"]), new]
        if seen[new][0] & 0o170000 == 0o100000:
            return [source.choice(["write", "replace"]), new, text]
        return ["remove", new]
    old = source.choice(files)
    kind = source.choice(["write", "write", "replace", "append", "patch", "truncate", "chmod", "rename", "rename", "remove"])
    if kind == "rename":
        moved = source.choice([p for p in seen if not (new + "/").startswith(p + "/")] or [old])
        return [kind, moved, new]
    return {"write": [kind, new, text], "replace": [kind, source.choice([old, new]), text], "append": [kind, old, text[:200]],
            "patch": [kind, old, text[:50], source.randrange(2000)], "truncate": [kind, old, source.randrange(5000)],
            "chmod": [kind, old, source.choice([0o600, 0o644, 0o755])], "remove": [kind, old]}[kind]


class Trouble:
    """What happens to a cluster while somebody works."""

    def __init__(self, cluster, source):
        self.cluster, self.source, self.link_comes_back = cluster, source, None

    def strike(self):
        which = self.source.choice(TROUBLES)
        node = self.source.choice(list(self.cluster.nodes))
        if which == "home" and (pid := self.cluster.pid_of("home")):
            os.kill(pid, signal.SIGKILL)
        elif which == "server":
            for pid in program_pids(self.cluster, "fs", node)[:1]:
                os.kill(pid, signal.SIGKILL)
        elif which == "link":
            link = ["ip", "link", "set", f"vh{self.cluster.nodes[node]['index']}"]
            subprocess.run([*link, "down"], check=True)
            # By itself: whoever works may wait for what crosses it.
            self.link_comes_back = threading.Timer(0.7, subprocess.run, [[*link, "up"]])
            self.link_comes_back.start()
        return which, node

    def ends(self):
        if self.link_comes_back:
            self.link_comes_back.join()


@pytest.mark.parametrize("seed", [int(s) for s in os.environ.get("VRUN_LIVE_SEED", "1 2" if FULL else "1").split()])
def test_home_and_two_nodes_agree(live, tmp_path, seed):
    source = random.Random(seed)
    (live.place / "s.py").write_text(AGENT)
    home, model = live.place / "w", tmp_path / "model"
    home.mkdir()
    model.mkdir()
    agents = [Agent(live), Agent(live)]
    assert len(set(nodes_of(live).values())) == 2
    done = []
    for turn in range(20):
        actor = source.randrange(3)
        trouble = Trouble(live, source)
        count, when = source.randrange(1, 8), source.randrange(8)
        for i in range(count):
            if i == when:
                done.append(trouble.strike())
            op = next_operation(source, look(str(model)))
            done.append((turn, actor, op[:2]))
            do(str(model), op)
            if actor == 2:
                do(str(home), op)
            elif (wrong := agents[actor].ask(op)) is not None:
                raise AssertionError((wrong, done[-20:]))
        trouble.ends()
        want, last = look(str(model)), None

        def agree():
            nonlocal last
            last = [look(str(home)), *(agent.ask() for agent in agents)]
            return all(seen == want for seen in last)
        try:
            wait_until("all see the same", agree, 60)
        except AssertionError:
            differ = [sorted(set(map(repr, seen.items())) ^ set(map(repr, want.items())))[:6] for seen in last]
            raise AssertionError((turn, differ, done[-30:])) from None
    for agent in agents:
        agent.end()
    assert look(str(home)) == look(str(model))


READER = r"""
import sys, time
print("ready", flush=True)
last, path = 0, sys.argv[1]
while last < int(sys.argv[2]):
    with open(path) as f: text = f.read()
    number = int(text.split("\n", 1)[0])
    assert text == (str(number) + "\n") * (number % 7 * 700 + 1), "a mixture"
    assert number >= last, (number, last)
    last = number
print("read", last)
"""
WRITER = r"""
import os, sys, time
print("ready", flush=True)
sys.stdin.readline()
for number in range(2, int(sys.argv[2]) + 1):
    new = sys.argv[1] + ".new" if number % 2 else sys.argv[1] + ".other"
    with open(new, "w") as f: f.write((str(number) + "\n") * (number % 7 * 700 + 1))
    os.rename(new, sys.argv[1])
    time.sleep(0.01)
print("wrote")
"""


def test_readers_beside_a_writer_see_versions_whole_and_in_order(live):
    """On the writer's other node and at home, while home is killed and begins again."""
    last = 150
    for name, text in (("reader.py", READER), ("writer.py", WRITER), ("f", "1\n" * 701)):
        (live.place / name).write_text(text)
    writer = started(live, f"exec python3 writer.py f {last}", "-c", "2")
    reader = started(live, f"exec python3 reader.py f {last}", "-c", "2")
    assert len(set(nodes_of(live).values())) == 2
    at_home = subprocess.Popen(["/usr/bin/python3", live.place / "reader.py", live.place / "f", str(last)], stdout=subprocess.PIPE, text=True)
    live.started.append(at_home)
    writer.stdin.write("go\n")
    writer.stdin.flush()
    wait_until("some are written", lambda: int((live.place / "f").read_text().split("\n", 1)[0]) > 20)
    if pid := live.pid_of("home"):
        os.kill(pid, signal.SIGKILL)
    for process, said in ((writer, "wrote\n"), (reader, f"read {last}\n"), (at_home, f"ready\nread {last}\n")):
        out, err = process.communicate(timeout=150)
        assert (process.returncode, out) == (0, said), (process.args, process.returncode, out, err)
