# SPDX-License-Identifier: Apache-2.0
"""Large roots that are made once of Debian's and PyPI's packages and kept between runs: for benchmarks and the developer's day.

A root that is made is complete only with its last step: `kept` makes it beside its place and moves it there. Whoever makes one holds a
lock, so that two runs do not make it at once. Roots are made on this machine's network. Jobs have none that reaches a registry."""
import contextlib
import fcntl
import os
import pathlib
import re
import shlex
import shutil
import subprocess

RELEASE = "bookworm"
# What of this machine's environment says how registries are reached.
NETWORK = re.compile(r"(?i)_proxy$|goproxy|cert|cainfo|ca_bundle|pip_index_url|npm_config_registry")
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root", "LANG": "C.UTF-8"}


class Unreachable(SystemExit):
    """A root cannot be made here. The text is one line and says why; a program that does not catch it ends with the text."""


def mirrors():
    """{release: URI} of the Debian archives that this machine's apt uses."""
    said = subprocess.run(["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages"], capture_output=True,
                          text=True, check=True).stdout
    return dict(line.split() for line in said.splitlines() if line.count(" ") == 1)


def mounts(root):
    """Lines of shell that give a root its /proc, /dev and /tmp; for a mount namespace of its own, which takes them with it."""
    return f"mount -t proc proc {root}/proc\nmount --rbind /dev {root}/dev\nmount -t tmpfs tmpfs {root}/tmp\n"


def inside(root, script, registries=False, what="", **kw):
    """Runs a script of bash in the root, with this machine's network. `registries`: with the certificates of this machine, too. `what`:
    what is said if it fails; without it the caller looks."""
    root = pathlib.Path(root)
    environment = {**ENVIRONMENT, "DEBIAN_FRONTEND": "noninteractive", "TMPDIR": "/var/tmp"}
    prepare = mounts(root)
    if registries:
        environment |= {k: v for k, v in os.environ.items() if NETWORK.search(k)}
        (root / "etc/ssl/certs").mkdir(parents=True, exist_ok=True)
        # pip keeps what it has downloaded: a second root costs no second download.
        cache = pathlib.Path.home() / ".cache/pip"
        cache.mkdir(parents=True, exist_ok=True)
        prepare += f"mount --bind -o ro /etc/ssl/certs {root}/etc/ssl/certs\nmkdir {root}/tmp/pip\nmount --bind {cache} {root}/tmp/pip\n"
        environment["PIP_CACHE_DIR"] = "/tmp/pip"
    words = " ".join(shlex.quote(f"{k}={v}") for k, v in environment.items())
    command = f"set -e\n{prepare}exec chroot {root} /usr/bin/env -i {words} /bin/bash -ec {shlex.quote(script)}"
    r = subprocess.run(["unshare", "-m", "--propagation", "private", "sh", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True, **kw)
    if what and r.returncode != 0:
        lines = [line for line in r.stdout.splitlines() if line.strip()]
        telling = [line for line in lines if re.search(r"(?i)error|failed|could not|unable", line)]
        raise Unreachable(f"{what}: {(telling or lines or ['no output'])[-1].strip()[:300]}")
    return r


def debootstrap(root, packages):
    """A Debian of the packages, with its security updates where this machine knows them."""
    known = mirrors()
    if RELEASE not in known:
        raise Unreachable(f"the apt of this machine knows no mirror of Debian {RELEASE}")
    if subprocess.run(["debootstrap", "--variant=minbase", RELEASE, root, known[RELEASE]], stdout=subprocess.DEVNULL).returncode != 0:
        raise Unreachable(f"debootstrap failed: is {known[RELEASE]} reached?")
    root = pathlib.Path(root)
    (root / "etc/apt/sources.list").write_text("".join(
        f"deb [check-valid-until=no] {uri} {release} main\n" for release, uri in known.items() if release.startswith(RELEASE)))
    for f in pathlib.Path("/etc/apt/apt.conf.d").glob("*"):
        if "roxy" in f.read_text():
            shutil.copy(f, root / "etc/apt/apt.conf.d")
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    inside(root, f"""apt-get update -qq
        apt-get install -y -qq --no-install-recommends {' '.join(packages)}
        apt-get clean""", what="Debian's packages cannot be installed")


def virtual_environment(root, place, packages):
    """A Python environment at `place` (as the root names it) with packages of PyPI; the root has python3-venv."""
    inside(root, f"test -x {place}/bin/pip || python3 -m venv {place}; {place}/bin/pip install -q --only-binary=:all: {' '.join(packages)}",
           registries=True, what="PyPI cannot be reached, or does not have a package")


@contextlib.contextmanager
def locked(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def kept(root, version, make, free_gb=8):
    """The root, made by make(directory) unless it is there in this version. An older one is removed first."""
    root = pathlib.Path(root)
    with locked(root.parent / f".{root.name}.lock"):
        done = root / ".complete"
        if done.exists() and done.read_text() == version:
            return root
        if shutil.disk_usage(root.parent).free < free_gb << 30:
            raise Unreachable(f"{root} needs {free_gb} GB, and less is free")
        new = root.parent / f".{root.name}.new"
        for old in (new, root):
            shutil.rmtree(old, ignore_errors=True)
        try:
            make(new)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        (new / ".complete").write_text(version)
        new.rename(root)
    return root
