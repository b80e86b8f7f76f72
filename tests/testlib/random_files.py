# SPDX-License-Identifier: Apache-2.0
"""Random operations on a few names of a directory, and what the directory is then. A module for tests, and a program for a job
of theirs, which takes commands: `run SEED STEPS`, `close`, `describe`, each answered with a line of JSON."""
import contextlib
import hashlib
import json
import os
import random
import stat
import sys
import time

NAMES = ["a", "b", "c", "dir", "d2"]


class Actor:
    """`tag` marks what it writes. Hardly two writes have one size: within a clock tick one would be taken for the other."""

    def __init__(self, top, tag):
        self.top, self.tag, self.held = str(top), tag.encode(), []

    def content(self, rng):
        return self.tag + str(rng.randrange(10**9)).encode() * rng.choice([1, 1, 50, 3000]) + b"x" * rng.randrange(5000)

    def open(self, path, flags):
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)

    def write(self, path, flags, data):
        fd = self.open(path, os.O_WRONLY | os.O_CREAT | flags)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)

    def step(self, rng):
        """What it did; errors that any file system may give are part of it."""
        path, other = (self.top + "".join("/" + rng.choice(NAMES) for _ in range(rng.choice([1, 2, 2, 3]))) for _ in range(2))
        kind = rng.randrange(15)
        did = f"{kind} {path} {other}"
        try:
            if kind < 2:
                os.mkdir(path, 0o755)
            elif kind == 2:
                os.unlink(path)
            elif kind == 3:
                os.rmdir(path)
            elif kind == 4:
                os.link(path, other)
            elif kind == 5:
                os.symlink(f"to{rng.randrange(9)}", path)
            elif kind == 6:
                os.chmod(path, rng.choice([0o600, 0o644, 0o755, 0o700]))  # links point nowhere
            elif kind < 9:
                os.rename(path, other)
            elif kind == 9:
                fd = self.open(path, os.O_WRONLY)
                try:
                    os.ftruncate(fd, rng.randrange(9000))
                finally:
                    os.close(fd)
            elif kind == 10:
                new = path + ".new" + self.tag.decode()
                self.write(new, os.O_TRUNC, self.content(rng))
                try:
                    os.rename(new, path)
                except OSError:
                    os.unlink(new)
                    raise
            elif kind == 11 and len(self.held) < 4:
                self.held.append(self.open(path, os.O_RDWR | os.O_CREAT))
                os.pwrite(self.held[-1], self.tag + str(rng.randrange(10**9)).encode(), rng.randrange(5000))
            elif kind == 12 and self.held:
                self.release(rng.randrange(len(self.held)))
            else:
                self.write(path, os.O_TRUNC if rng.random() < 0.6 else os.O_APPEND, self.content(rng))
        except OSError as e:
            did += f": {e}"
        return did

    def release(self, which=-1):
        fd = self.held.pop(which)
        try:
            os.write(fd, b"bye")
        finally:
            os.close(fd)

    def close(self):
        while self.held:
            with contextlib.suppress(OSError):  # of a file whose content both sides have lost
                self.release()


def describe(top):
    """Path -> type, mode, links, size and content."""
    found = {}
    for directory, directories, files in os.walk(top):
        for name in directories + files:
            path = os.path.join(directory, name)
            try:
                st = os.lstat(path)
                what = [oct(st.st_mode), 0 if stat.S_ISDIR(st.st_mode) else st.st_nlink]
                if stat.S_ISREG(st.st_mode):
                    with open(path, "rb") as f:
                        content = f.read()
                    what += [st.st_size, len(content), hashlib.sha1(content).hexdigest()]
                elif stat.S_ISLNK(st.st_mode):
                    what.append(os.readlink(path))
            except OSError as e:
                what = [str(e.strerror)]
            found[os.path.relpath(path, top)] = what
    return found


def main():
    actor = Actor(sys.argv[1], "job")
    print("ready", flush=True)
    for line in sys.stdin:
        command, *numbers = line.split()
        answer = []
        if command == "run":
            rng = random.Random(int(numbers[0]))
            for _ in range(int(numbers[1])):
                answer.append(actor.step(rng))
                time.sleep(rng.random() * 0.01 if rng.random() < 0.5 else 0)
        elif command == "close":
            actor.close()
        elif command == "describe":
            answer = describe(actor.top)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
