# SPDX-License-Identifier: Apache-2.0
"""A small developer's root, made of this machine's own programs: enough for a shell, coreutils and Python."""
import os
import pathlib
import re
import shutil
import subprocess

PROGRAMS = """bash sh echo cat ls true false sleep env id stat dd head tail wc sha256sum mkdir rm mv cp ln chmod chown touch find
tee tty stty seq printf readlink sort cmp mkfifo mktemp uname hostname kill nice ps grep sed test [ pwd dirname basename
date cut tr xargs setsid mount timeout yes truncate du df expr umask nproc getent python3.11""".split()


def libraries(program):
    out = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return re.findall(r"(/\S+) \(0x", out)


def place(root, file):
    """Copies a file to its own path below root, through merged /usr."""
    target = pathlib.Path(str(root) + os.path.realpath(os.path.dirname(file)) + "/" + os.path.basename(file))
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(os.path.realpath(file), target)


def place_packages(root, *names):
    """What Debian's packages have installed here, without documentation, and the libraries that it needs."""
    listed = subprocess.run(["dpkg-query", "-L", *names], capture_output=True, text=True, check=True).stdout.splitlines()
    programs = []
    for name in listed:
        if name.startswith(("/usr/share/doc", "/usr/share/man", "/usr/share/locale", "/usr/share/lintian")):
            continue
        directory, base = os.path.split(name)
        target = pathlib.Path(str(root) + os.path.realpath(directory)) / base
        if os.path.isdir(name) and not os.path.islink(name):
            target.mkdir(parents=True, exist_ok=True)
        elif os.path.lexists(name) and not os.path.lexists(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(name, target, follow_symlinks=False)
            if os.path.isfile(name) and not os.path.islink(name):
                with open(name, "rb") as f:
                    programs += [name] if f.read(4) == b"\x7fELF" else []
    for library in sorted(set(re.findall(r"(/\S+) \(0x", subprocess.run(["ldd", *programs], capture_output=True, text=True).stdout))):
        place(root, library)


def make(root, with_python=True):
    root = pathlib.Path(root)
    for d in ["usr/bin", "usr/lib", "usr/lib64", "usr/sbin", "etc", "root", "home", "var/tmp", "proc", "sys", "dev", "run",
              "tmp", "mnt"]:
        (root / d).mkdir(parents=True, exist_ok=True)
    for link in ["bin", "sbin", "lib", "lib64"]:
        os.symlink(f"usr/{link}", root / link)
    os.chmod(root / "tmp", 0o1777)
    os.chmod(root / "root", 0o700)
    for name in PROGRAMS:
        path = shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin")
        if path is None or (name.startswith("python") and not with_python):
            continue
        place(root, path)
        for library in libraries(path):
            place(root, library)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n"
                                     "nobody:x:65534:65534::/:/bin/false\n")
    (root / "etc/group").write_text("root:x:0:\nuser:x:1000:\ntty:x:5:\nextra:x:4242:user\nnogroup:x:65534:\n")
    (root / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n192.0.2.7 homes-own-name\n")
    (root / "home/user").mkdir()
    os.chown(root / "home/user", 1000, 1000)
    if with_python:
        os.symlink("python3.11", root / "usr/bin/python3")
        stdlib = "/usr/lib/python3.11"
        shutil.copytree(stdlib, str(root) + stdlib, symlinks=True,
                        ignore=shutil.ignore_patterns("test", "tests", "idlelib", "ensurepip", "config-3*", "lib2to3", "turtle*"))
        for extension in pathlib.Path(stdlib, "lib-dynload").glob("*.so"):
            for library in libraries(str(extension)):
                place(root, library)
    return root
