# SPDX-License-Identifier: Apache-2.0
"""For the suites: one command at home and in a job, in directories that began alike, and all that can be seen of a tree."""
import hashlib
import os
import pathlib
import shutil
import stat
import subprocess
import time

import miniroot
from cluster import BIN

# What the suites run besides the programs of every root.
PACKAGES = """apt binutils binutils-x86-64-linux-gnu cmake cmake-data cpp-12 dpkg fio gcc-12 git libc6-dev libgcc-12-dev linux-libc-dev ninja-build
patch python3-distutils python3-pip python3-pkg-resources python3-setuptools python3-wheel rsync sqlite3 tar""".split()
ENVIRONMENT = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root", "LC_ALL": "C", "TZ": "UTC", "CC": "gcc-12",
               "GIT_CONFIG_COUNT": "3", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*", "GIT_CONFIG_KEY_1": "user.name",
               "GIT_CONFIG_VALUE_1": "x", "GIT_CONFIG_KEY_2": "user.email", "GIT_CONFIG_VALUE_2": "x@example.org",
               "GIT_AUTHOR_DATE": "1000000000 +0000", "GIT_COMMITTER_DATE": "1000000000 +0000", "PYTHONDONTWRITEBYTECODE": "1"}


def add_tools(root, packages=PACKAGES):
    miniroot.place_packages(root, *packages)
    shutil.copy2(BIN / "fs_suites", pathlib.Path(root) / "usr/bin")
    for name in ("diff", "getfacl", "install", "ldconfig", "setfacl", "setfattr", "split"):
        program = shutil.which(name, path=ENVIRONMENT["PATH"])
        for file in [program, *miniroot.libraries(program)]:
            miniroot.place(root, file)
    with open(pathlib.Path(root) / "etc/passwd", "a") as f:
        f.write("_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\n")


def described(top, skip=()):
    """{path: all of it but inode numbers}, without the names in `skip` and what is below. A time counts where it was set: what is newer
    than 2004 is the time of the run."""
    top = os.fsencode(str(top))
    seen, first_name = {}, {}
    for directory, names, files in os.walk(top):
        names[:] = [n for n in names if os.fsdecode(n) not in skip]
        for name in sorted(names + [f for f in files if os.fsdecode(f) not in skip]):
            path = os.path.join(directory, name)
            short = path[len(top) + 1:]
            st = os.lstat(path)
            is_directory = stat.S_ISDIR(st.st_mode)
            content = ""
            if stat.S_ISREG(st.st_mode):
                with open(path, "rb") as f:
                    content = hashlib.file_digest(f, "sha256").hexdigest() if st.st_size else ""
            elif stat.S_ISLNK(st.st_mode):
                content = os.readlink(path)
            mtime = st.st_mtime_ns if st.st_mtime < 1_100_000_000 else None
            xattrs = sorted((a, os.getxattr(path, a, follow_symlinks=False)) for a in os.listxattr(path, follow_symlinks=False))
            seen[short] = [oct(st.st_mode), st.st_uid, st.st_gid, None if is_directory else (st.st_nlink, st.st_size), content, mtime, xattrs]
            if not is_directory and st.st_nlink > 1:
                first_name.setdefault(st.st_ino, []).append(short)
    for names in first_name.values():
        for name in names:
            seen[name].append(min(names))
    return seen


def differences(want, got, most=20):
    """The names that differ and how, as lines; none when both are the same."""
    lines = [f"{name!r}: {want.get(name)} natively, {got.get(name)} of the job" for name in sorted({*want, *got})
             if want.get(name) != got.get(name)]
    return "\n".join(lines[:most] + [f"and {len(lines) - most} more"] * (len(lines) > most))


class Side:
    """One of the sides of a comparison: runs a command in a directory of its own below `place`, and says what is left. That of a job is
    below the cluster's root; the native one better is not, for home may give a file of the root a new ctime (src/home/root/shared_mappings.h)."""

    def __init__(self, cluster, place, view=None):
        self.cluster, self.view = cluster, view
        self.place = place / (view or "native")
        self.place.mkdir(parents=True)
        self.inside = "/" + str(self.place.relative_to(cluster.root)) if view else None
        self.seconds = 0.0

    def command(self, *argv):
        if not self.view:
            return list(map(str, argv))
        return self.cluster.command("vrun", f"--view={self.view}", "-q", "-D", self.inside, "--", *argv)

    def run(self, *argv, timeout=100, code=0, **kw):
        """What it says on its output; nothing else may be said, and it ends with `code`."""
        began = time.monotonic()
        environment = {**(self.cluster.environment if self.view else {}), **ENVIRONMENT}
        r = subprocess.run(self.command(*argv), cwd="/" if self.view else self.place, env=environment, stdin=subprocess.DEVNULL,
                           capture_output=True, text=True, timeout=timeout, **kw)
        self.seconds = time.monotonic() - began
        assert r.returncode == code, (argv, self.view, r.returncode, r.stdout[-2000:], r.stderr[-4000:])
        return r.stdout

    def sh(self, script, **kw):
        return self.run("bash", "-ec", "exec 2>&1\n" + script, **kw)
