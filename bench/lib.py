# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: timing whole commands, lines of results, a shaped link."""
import contextlib
import ctypes
import fcntl
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

TOP = pathlib.Path(__file__).resolve().parent.parent
NULL = os.open("/dev/null", os.O_RDWR)
VIEW = []    # the option of `vrun` that chooses the view, where bench/run was given one
LINES = []   # of all reports of this process, as they were printed


class Report:
    """Collects and prints lines; exit_code() is 0 when every goal is met."""

    def __init__(self):
        self.all_met = True

    def line(self, name, value, unit, baseline=None, baseline_value=None, goal=None, met=None, **more):
        ratio = round(value / baseline_value, 4) if baseline_value else None
        if met is False:
            self.all_met = False
        LINES.append({"name": name, "value": round(value, 4), "unit": unit, "baseline": baseline,
                      "baseline_value": None if baseline_value is None else round(baseline_value, 4), "ratio": ratio, "goal": goal,
                      "met": met, **more})
        print(json.dumps(LINES[-1]), flush=True)

    def exit_code(self):
        return 0 if self.all_met else 1


def drop_caches(what=3):
    """Of the whole machine. 1: pages, 2: names and inodes, 3: both."""
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text(str(what))


def libc_call(name, *args):
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*args) != 0:
        e = ctypes.get_errno()
        raise OSError(e, f"{name}: {os.strerror(e)}")


def note(text):
    print(text, file=sys.stderr, flush=True)


def timed(argv, env=None, expect=0):
    """Seconds from posix_spawn to the end of the command; streams to /dev/null."""
    actions = [(os.POSIX_SPAWN_DUP2, NULL, fd) for fd in (0, 1, 2)]
    began = time.perf_counter()
    pid = os.posix_spawn(argv[0], argv, env or os.environ, file_actions=actions)
    _, status = os.waitpid(pid, 0)
    elapsed = time.perf_counter() - began
    code = os.waitstatus_to_exitcode(status)
    if code != expect:
        raise RuntimeError(f"{argv} exited {code}")
    return elapsed


class MountNamespace:
    """A process with mounts of its own, made or taken away once by prepare(), that times commands. They go when it is closed."""

    def __init__(self, prepare):
        ask, told = os.pipe()
        answer, self._tell = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            try:
                os.close(ask)
                os.close(self._tell)
                libc_call("unshare", 0x20000)
                libc_call("mount", b"none", b"/", None, 16384 | (1 << 19), None)   # what is unmounted outside goes here too
                prepare()
                with os.fdopen(answer) as requests:
                    for line in requests:
                        os.write(told, (self._answer(json.loads(line)) + "\n").encode())
            except BaseException:  # pylint: disable=broad-except
                traceback.print_exc()
            finally:
                os._exit(0)   # whatever it was: nothing of what the parent does at its end
        os.close(told)
        os.close(answer)
        self._answers = os.fdopen(ask)

    @staticmethod
    def _answer(argv):
        try:
            return json.dumps([timed(argv), None])
        except (OSError, RuntimeError) as e:
            return json.dumps([None, str(e)])

    def timed(self, argv):
        """As timed() above."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._tell, (json.dumps(argv) + "\n").encode())
        seconds, error = json.loads(self._answers.readline() or '[null, "the process that times commands has ended"]')
        if error:
            raise RuntimeError(error)
        return seconds

    def close(self):
        os.close(self._tell)
        os.waitpid(self._child, 0)
        self._answers.close()


@contextlib.contextmanager
def two_cores():
    """What is started meanwhile shares two cores, however many there are: two real ones, not one and its hyper-thread."""
    def core(cpu):
        topology = pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        return [(topology / f).read_text() for f in ("physical_package_id", "core_id") if (topology / f).exists()]
    all_of_them = sorted(os.sched_getaffinity(0))
    first, others = all_of_them[0], all_of_them[1:]
    second = next((c for c in others if core(c) != core(first)), others[0] if others else first)
    os.sched_setaffinity(0, {first, second})
    try:
        yield sorted({first, second})
    finally:
        os.sched_setaffinity(0, all_of_them)


def interleaved(commands, runs, warmup=3):
    """{name: [seconds]} of {name: callable}, one of each in turn."""
    for _ in range(warmup):
        for run in commands.values():
            run()
    times = {name: [] for name in commands}
    for _ in range(runs):
        for name, run in commands.items():
            times[name].append(run())
    return times


def percentile(values, p):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * p))]


median = statistics.median


def touch_memory(mb):
    """Has so much memory touched and given back. A virtual machine that returns what is free to its host pays for it when it
    is next used, 2 s a GB here, whoever uses it."""
    code = "import ctypes, mmap, sys; m = mmap.mmap(-1, n := int(sys.argv[1]) << 20); ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(m)), 1, n)"
    with open("/proc/meminfo") as f:
        available = next(int(line.split()[1]) for line in f if line.startswith("MemAvailable"))
    subprocess.run([sys.executable, "-c", code, str(min(mb, available * 3 // 4 // 1024))], check=True)


class Directory:
    """A temporary directory, and others in it that ext4 puts far from each other and from what was there before. In a group of
    inodes where many were deleted in the last minutes, by the benchmark before or by a home that shares the disk with its nodes
    here alone, it looks at each of those again for every file that is made: 0.3 ms a file."""

    def __init__(self, name):
        self._top, self._made = pathlib.Path(name), 0
        get_flags, set_flags, top_of_a_hierarchy = 0x80086601, 0x40086602, 0x00020000
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):   # not ext4
            flags = bytearray(8)
            fcntl.ioctl(fd, get_flags, flags)
            fcntl.ioctl(fd, set_flags, (int.from_bytes(flags[:4], "little") | top_of_a_hierarchy).to_bytes(8, "little"))
        os.close(fd)
        self.path = self._top / "d"
        self.make(self.path)

    def make(self, path):
        """Makes it, in a group that the hash of a name says that it never had before."""
        self._made += 1
        apart = self._top / f"{self._top.name}-{self._made}"
        apart.mkdir()
        apart.rename(path)
        return path


@contextlib.contextmanager
def directory():
    with tempfile.TemporaryDirectory(prefix="vrun-bench-", dir="/var/tmp") as name:
        yield Directory(name)


def build_tunlink():
    binary = TOP / "build/bench/tunlink"
    source = TOP / "bench/tunlink.cc"
    if not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime:
        binary.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["g++", "-O2", "-std=c++20", "-D_GNU_SOURCE", "-o", binary, source, "-lpthread"], check=True)
    return binary
