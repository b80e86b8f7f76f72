# SPDX-License-Identifier: Apache-2.0
"""A C project of 150 files, built by cmake and ninja: in a live job against natively and against sshfs, each in a fresh directory.

The job's root is the developer's, with his compiler, on another host behind 500 Mbit/s and 1 ms; every round builds from nothing in a
directory of its own, and the job's time is that of its command until home has all that it made. sshfs, as Debian ships it, has the
sources and the build directory; its compiler is the node's own, which is to its advantage. Natively on this machine.
"""
import argparse
import pathlib
import shutil
import subprocess
import tempfile
import time

import lib
import miniroot
import suites
from cluster import Cluster, wait_until
from cold_import import Sshfs, lib_quote
from launch import daemons

PACKAGES = "binutils binutils-x86-64-linux-gnu cmake cmake-data cpp-12 gcc-12 libc6-dev libgcc-12-dev linux-libc-dev ninja-build".split()
BUILD = "date +%s.%N; cmake -G Ninja -S . -B build -DCMAKE_BUILD_TYPE=Release >/dev/null; ninja -C build -j2 >/dev/null; ./build/program >/dev/null"


def write_project(top, files):
    """Small sources, each with 50 of the project's 300 headers and the usual ones of libc: what takes time is mostly finding and reading."""
    (top / "include").mkdir(parents=True)
    (top / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.20)\nproject(measured C)\ninclude_directories(include)\n"
                                        "add_executable(program main.c " + " ".join(f"f{i}.c" for i in range(files)) + ")\n")
    for h in range(300):
        (top / f"include/part{h}.h").write_text(f"#pragma once\n#define PART{h} {h}\n" + "".join(f"int part{h}_{k}(int x, const char* y);\n" for k in range(30)))
    libc = "".join(f"#include <{h}.h>\n" for h in "stdio stdlib string errno unistd fcntl sys/stat sys/types sys/socket time".split())
    for i in range(files):
        own = sorted({(i * 7 + k * 11) % 300 for k in range(50)})
        work = "".join(f"static int g{k}(int x) {{ for (int i = 0; i < x; i++) x ^= (i * {k + i + 3}) % {k + 7}; return x; }}\n" for k in range(5))
        (top / f"f{i}.c").write_text(libc + "".join(f'#include "part{h}.h"\n' for h in own) + work +
                                     f"int f{i}(int x) {{ return PART{own[0]} + g0(x) + g1(x) + g2(x) + g3(x) + g4(x); }}\n")
    (top / "main.c").write_text("".join(f"int f{i}(int);\n" for i in range(files)) + "int main(void) { return (" +
                                " + ".join(f"f{i}(1)" for i in range(files)) + ") == -1; }\n")


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run build", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--files", type=int, default=150)
    parser.add_argument("--rate-mbit", type=float, default=500)
    parser.add_argument("--rtt-ms", type=float, default=1)
    o = parser.parse_args(arguments)
    report = lib.Report()
    link = ["--rate-mbit", str(o.rate_mbit), "--rtt-ms", str(o.rtt_ms), "--tunlink", str(lib.build_tunlink())]
    with tempfile.TemporaryDirectory(prefix="vrun-bench-", dir="/var/tmp") as name, daemons() as start:
        root = miniroot.make(pathlib.Path(name) / "root")
        miniroot.place_packages(root, *PACKAGES)
        cluster = Cluster(root, link=link)
        environment = {**cluster.environment, **suites.ENVIRONMENT}
        try:
            wait_until("home has scanned the root", lambda: cluster.json("status")["scanned"], 120)
            index = cluster.nodes["n1"]["index"]
            directory = pathlib.Path(name) / "sshfs"
            directory.mkdir()
            sshfs = Sshfs(start, directory, root, f"10.213.{index}.1", f"vrun-n1-{index}")
            mount = " ".join(lib_quote(a) for a in sshfs.mount()[4:]).replace("ro,", "", 1)

            def live(place):
                out = subprocess.run(cluster.command("vrun", "--view=live", "-q", "-c", "2", "-D", f"/root/{place}", "--", "bash", "-ec", BUILD),
                                     env=environment, check=True, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL).stdout
                return time.time() - float(out)

            def native(place):
                out = subprocess.run(["bash", "-ec", BUILD], cwd=root / "root" / place, env=suites.ENVIRONMENT, check=True, capture_output=True,
                                     text=True, timeout=600).stdout
                return time.time() - float(out)

            def over_sshfs(place):
                script = (f"{mount}; trap 'cd /; fusermount3 -u {sshfs.point} || umount -l {sshfs.point}' EXIT\n"
                          f"cd {sshfs.point}/root/{place}; {BUILD}; date +%s.%N")
                out = subprocess.run(["ip", "netns", "exec", sshfs.netns, "bash", "-ec", script], env=suites.ENVIRONMENT, check=True,
                                     capture_output=True, text=True, timeout=900).stdout.split()
                return float(out[-1]) - float(out[0])
            kinds = {"native": native, "live": live, "sshfs": over_sshfs}
            times = {kind: [] for kind in kinds}
            for k in range(o.runs + 1):   # the first one makes caches warm, and does not count
                for kind, build in kinds.items():
                    place = f"{kind}{k}"
                    write_project(root / "root" / place, o.files if k else 5)
                    seconds = build(place)
                    assert len(list((root / "root" / place / "build").rglob("*.o"))) == (o.files if k else 5) + 1
                    assert subprocess.run([root / "root" / place / "build/program"]).returncode == 0
                    shutil.rmtree(root / "root" / place)
                    if k:
                        times[kind].append(seconds)
                if k:
                    lib.note(f"round {k}: " + ", ".join(f"{n} {v[-1]:.2f}" for n, v in times.items()))
        finally:
            cluster.close()
    m = {kind: lib.median(v) for kind, v in times.items()}
    more = {"files": o.files, "rate_mbit": o.rate_mbit, "rtt_ms": o.rtt_ms, "runs": o.runs}
    report.line("build", m["live"], "s", "native", m["native"], "ratio <= 1.3", m["live"] <= 1.3 * m["native"], **more)
    report.line("build.vs_sshfs", m["live"], "s", "sshfs", m["sshfs"], "ratio <= 0.2", m["live"] <= 0.2 * m["sshfs"], **more)
    return report.exit_code()
