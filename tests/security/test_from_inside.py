# SPDX-License-Identifier: Apache-2.0
"""From inside a job: devices, mounts, system calls, processes, descriptors. The numbers are rows of the list of attacks."""
import os
import pathlib
import shutil
import socket
import subprocess
import threading
import time

import pytest

ROOT = pytest.mark.parametrize("options", [[], ["--uid", "1000"]], ids=["root", "user"])


# --- 1: devices

OPENS = """if True:
    import errno, os, stat, sys
    for name, number in (("mem", (1, 1)), ("kmsg", (1, 11)), ("fuse", (10, 229)), ("loop-control", (10, 237))):
        for directory in ("/tmp", "/dev"):
            path = f"{directory}/{name}-made"
            try:
                os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(*number))
                print(name, "made")
                os.unlink(path)
            except OSError as e:
                print(name, errno.errorcode[e.errno])
    try:
        os.mknod("/tmp/disk", 0o666 | stat.S_IFBLK, os.makedev(7, 0))
        print("disk made")
    except OSError as e:
        print("disk", errno.errorcode[e.errno])
"""


@ROOT
def test_no_device_can_be_made(box, options):
    assert "made" not in box.python(OPENS, options=options)


def test_a_device_that_is_reached_cannot_be_opened(box):
    """However a node came to be inside: here it is bound on purpose, and the control is one that the filter allows."""
    code = "import sys; [print(open(p, 'rb').read(1) is not None) for p in sys.argv[1:]]"
    kmsg = ["--device", "control:1:5"]
    assert box.python(code, "/dev/control", options=kmsg) == "True\n"
    # /dev/kmsg of the node, given as a mount, so that nobody has named it to the filter.
    outside = pathlib.Path("/dev/kmsg")
    if not outside.exists():
        pytest.skip("needs /dev/kmsg")
    os.close(os.open(outside, os.O_RDONLY | os.O_NONBLOCK))
    said = box.python("""if True:
        import errno, os
        try:
            os.open("/run/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            print("opened")
        except OSError as e:
            print(errno.errorcode[e.errno])""", options=["--mount", "/dev/kmsg:/run/kmsg"])
    assert said in ("EPERM\n", "EACCES\n")


def test_devices_that_were_given_work_and_others_of_their_driver_do_not(box):
    code = """if True:
        import errno, os
        print(sorted(os.listdir("/dev/given")), oct(os.stat("/dev/given/zero").st_mode & 0o777), open("/dev/given/zero", "rb").read(2))"""
    assert box.python(code, options=["--uid", "1000", "--device", "given/zero:1:5"]) == "['zero'] 0o666 b'\\x00\\x00'\n"


# --- what is added for devices

def test_mounts_files_and_links_are_added_and_nothing_of_them_can_be_changed(box):
    (box.directory / "bundle").mkdir()
    (box.directory / "bundle/lib").write_text("of the node")
    added = ["--mount", f"{box.directory}/bundle:/run/vrun/gpu", "--file", "/etc/made-for-gpus:text", "--file", "/run/more/file:below",
             "--link", "/run/opengl:/run/vrun/gpu", "--mount", ":/run/empty", "--file", "/run/empty/in:it"]
    said = box.python("""if True:
        for p in ("/run/opengl/lib", "/etc/made-for-gpus", "/run/more/file", "/run/empty/in"):
            print(open(p).read())
        for p in ("/run/vrun/gpu/lib", "/etc/made-for-gpus", "/run/empty/in"):
            try:
                open(p, "w")
                print("wrote", p)
            except OSError:
                pass""", options=added)
    assert said == "of the node\ntext\nbelow\nit\n"


def test_5_links_in_the_root_lead_nowhere_outside(box):
    """The root's own directories are links that would lead out of it, and a mount's target is behind one."""
    root = box.directory / "root"
    for name in ("bin", "etc", "proc", "sys", "run", "tmp"):
        (root / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin/busybox")
    (root / "dev").symlink_to("../../../../.." + str(box.directory / "victim"))
    (root / "usr").symlink_to(str(box.directory / "victim"))
    victim = box.directory / "victim"
    (victim / "lib").mkdir(parents=True)
    (victim / "lib/file").write_text("untouched")
    r = box.run("/bin/busybox", "true", options=["--root", str(root), "--file", "/usr/lib/file:changed", "--link", "/usr/lib/new:x"])
    assert (victim / "lib/file").read_text() == "untouched"
    assert sorted(os.listdir(victim)) == ["lib"] and os.listdir(victim / "lib") == ["file"], r
    assert r.returncode in (0, 125)


def test_5_a_source_with_dots_or_a_relative_target_is_refused(box):
    for option in (["--mount", "/etc/../etc:/run/x"], ["--file", "/etc/../x:y"], ["--device", "../null:1:3"]):
        r = box.run("true", options=option)
        assert r.returncode == 125 and "not a plain absolute path" in r.stderr, r


# --- 9: descriptors

@ROOT
def test_9_a_command_has_three_descriptors(box, options):
    assert box.python("import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')))",
                      options=options) == "[0, 1, 2]\n"


# --- 10: the binary of the one who started us

def test_10_the_program_of_pid_1_cannot_be_opened(box):
    said = box.python("""if True:
        for path in ("/proc/1/exe", "/proc/1/mem", "/proc/1/environ", "/proc/1/root", "/proc/1/cwd", "/proc/1/fd", "/proc/1/map_files"):
            for mode in ("rb", "r+b"):
                try:
                    open(path, mode)
                    print("opened", path)
                except OSError:
                    pass""")
    assert said == ""
    assert box.outside("open('/proc/self/exe', 'rb'); print('opened')") == "opened\n"


# --- mounts (12)

@ROOT
def test_12_what_was_mounted_can_neither_be_unmounted_nor_changed(box, options):
    said = box.python("""if True:
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        MS = {"rw": 32 | 4096, "dev": 32 | 4096 | 2, "exec": 32 | 4096}
        def attempts():
            points = sorted({line.split()[4] for line in open("/proc/self/mountinfo")})
            for point in points:
                for flags in (0, 2, 8):
                    if libc.umount2(point.encode(), flags) == 0:
                        yield f"unmounted {point}"
            for point in ("/sys", "/proc/sys", "/proc/irq", "/etc/resolv.conf"):
                if os.path.exists(point) and libc.mount(None, point.encode(), None, MS["rw"], None) == 0:
                    yield f"writable {point}"
            for point in ("/", "/run", "/dev/shm"):
                if libc.mount(None, point.encode(), None, MS["rw"], None) == 0:
                    yield f"flags of {point}"
        for what in attempts():
            print(what)
        # Not by namespaces of one's own either.
        if libc.unshare(0x10000000 | 0x20000) == 0:
            for what in attempts():
                print("inside:", what)""", options=options)
    assert said == ""


def test_12_nothing_of_the_kernel_can_be_written(box):
    said = box.python("""if True:
        import os
        for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger", "/proc/sys/vm/drop_caches",
                     "/sys/kernel/uevent_helper", "/sys/kernel/mm/ksm/run", "/proc/irq/default_smp_affinity", "/proc/1/oom_score_adj"):
            try:
                with open(path, "w") as f:
                    f.write("0")
                print("wrote", path)
            except OSError:
                pass
        for path in ("/proc/kcore", "/proc/keys", "/proc/timer_list"):
            if os.path.exists(path):
                print(open(path, "rb").read(1))
        for path in ("/sys/fs", "/sys/firmware", "/proc/driver/nvidia"):
            if os.path.exists(path):
                print(os.listdir(path))""")
    assert set(said.splitlines()) <= {"b''", "[]"}
    readable = [p for p in ("/proc/kcore", "/proc/keys", "/proc/timer_list") if os.path.exists(p)]
    assert readable and any(open(p, "rb").read(1) for p in readable)


def test_12_control_groups_are_out_of_reach(box):
    said = box.python("""if True:
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        os.mkdir("/tmp/c")
        for kind in (b"cgroup", b"cgroup2"):
            for options in (None, b"memory", b"devices", b"none,name=x"):
                if libc.mount(b"none", b"/tmp/c", kind, 0, options) == 0:
                    names = os.listdir("/tmp/c")
                    for name in ("release_agent", "devices.allow", "cgroup.procs"):
                        try:
                            open(f"/tmp/c/../c/{name}", "w").write("1")
                            print("wrote", kind, name)
                        except OSError:
                            pass
        print(open("/proc/self/cgroup").read().count("vrun"))""")
    assert said == "0\n"


# --- 11: system calls

CALLS = """if True:
    import ctypes, errno, os, sys
    libc = ctypes.CDLL(None, use_errno=True)
    def call(name, number, *args):
        ctypes.set_errno(0)
        result = libc.syscall(number, *[ctypes.c_long(a) for a in args])
        print(name, "ok" if result >= 0 else errno.errorcode[ctypes.get_errno()])
    page = ctypes.addressof(ctypes.create_string_buffer(4096))
    call("io_uring_setup", 425, 4, page)
    call("bpf", 321, 0, page, 48)
    call("userfaultfd", 323, 0)
    call("keyctl", 250, 0, -3, 0)
    call("add_key", 248, page, page, 0, 0, -3)
    call("open_by_handle_at", 304, -100, page, 0)
    call("kexec_load", 246, 0, 0, 0, 0)
    call("quotactl", 179, 0x80000700, 0, 0, page)
    call("personality", 135, 0x0400000)
    call("syslog", 103, 10, 0, 0)
    call("fanotify_init", 300, 0, 0)
    call("swapon", 167, page, 0)
    call("new", 470, 0)
    call("x32", 0x40000000 + 39)
    for family in (40, 17, 38, 44, 30):
        call(f"socket-{family}", 41, family, 2, 0)
    call("mptcp", 41, 2, 1, 262)
    call("netfilter", 41, 16, 3, 12)
    call("perf-all", 298, page, -1, 0, -1, 0)
    for name, number in (("TIOCSTI", 0x5412), ("TIOCLINUX", 0x541C)):
        call(name, 16, 0, number, page)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86-64")
@ROOT
def test_11_system_calls(box, options):
    said = dict(line.split() for line in box.python(CALLS, options=options).splitlines())
    assert said.pop("io_uring_setup") == said.pop("new") == said.pop("x32") == "ENOSYS"
    assert {said.pop(f"socket-{n}") for n in (40, 17, 38, 44, 30)} == {"EAFNOSUPPORT"}
    assert said.pop("mptcp") == said.pop("netfilter") == "EPROTONOSUPPORT"
    assert said.pop("perf-all") == "EACCES"
    assert set(said.values()) == {"EPERM"}, said
    # Outside root may at least one of each.
    outside = dict(line.split() for line in box.outside(CALLS.replace("call(\"kexec_load\"", "0 and call(\"kexec_load\"")).splitlines())
    assert outside["bpf"] != "EPERM" and outside["personality"] == "ok" and outside["syslog"] == "ok"


@pytest.mark.skipif(os.uname().machine != "x86_64" or not shutil.which("gcc"), reason="needs gcc for x86-64")
def test_11_the_calls_of_32_bit_programs_are_closed(box):
    source, program = box.directory / "old.c", box.directory / "old"
    source.write_text("int main(void) { int r; __asm__ volatile(\"int $0x80\" : \"=a\"(r) : \"a\"(20)); return r > 0 ? 0 : 3; }")
    subprocess.run(["gcc", "-O0", "-o", program, source], check=True)
    assert box.run(str(program)).returncode == 128 + 31  # SIGSYS


def test_11_namespaces_and_mounts_are_refused_where_they_are_not_allowed(box):
    attempt = ["sh", "-c", "unshare -Ur true && echo user; unshare -m true && echo mount; mount -t tmpfs none /mnt && echo mounted; true"]
    assert box.run(*attempt).stdout == "user\nmount\nmounted\n"
    assert box.run(*attempt, options=["--no-namespaces"]).stdout == ""
    # Threads and processes still work.
    assert box.python("import threading, subprocess; t = threading.Thread(target=print, args=('x',)); t.start(); t.join(); "
                      "subprocess.run(['true'], check=True)", options=["--no-namespaces"]) == "x\n"


def test_setns_into_the_nodes_namespaces_is_impossible(box):
    said = box.python("""if True:
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        for pid in os.listdir("/proc"):
            if pid.isdigit() and int(pid) != os.getpid():
                for name in ("mnt", "user", "net", "pid"):
                    try:
                        fd = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
                        if libc.setns(fd, 0) == 0:
                            print("entered", pid, name)
                    except OSError:
                        pass""")
    assert said == ""


# --- 13, 14: other jobs

def test_13_other_jobs_and_daemons_are_invisible(box):
    neighbour = box.popen("sleep", "53123")
    try:
        time.sleep(0.5)
        look = "import glob; print([p for p in glob.glob('/proc/[0-9]*/cmdline') if b'53123' in open(p, 'rb').read().replace(b'import', b'')])"
        assert "53123" in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        code = """if True:
            import os
            pids = [int(p) for p in os.listdir("/proc") if p.isdigit()]
            print(max(pids) < 100, len(pids))
            killed = 0
            for pid in range(2, 40000):
                if pid != os.getpid():
                    try:
                        os.kill(pid, 0)
                        killed += 1
                    except OSError:
                        pass
            print(killed)"""
        assert box.python(code) == "True 2\n0\n"
        assert neighbour.poll() is None and look
    finally:
        neighbour.terminate()
        neighbour.wait()


def test_13_pid_1_cannot_be_traced_or_ended(box):
    said = box.python("""if True:
        import ctypes, os, signal
        libc = ctypes.CDLL(None, use_errno=True)
        print(libc.ptrace(16, 1, 0, 0))
        os.kill(1, signal.SIGKILL)
        os.kill(1, signal.SIGTERM)
        print("here")""")
    assert said == "-1\nhere\n"


def test_14_shared_memory_queues_and_tmp_are_the_jobs_own(box):
    leave = "import os; open('/dev/shm/mine', 'w'); open('/tmp/mine', 'w'); open('/run/mine', 'w'); os.mkfifo('/tmp/fifo')"
    box.python(leave)
    assert box.python("import os; print(os.listdir('/dev/shm'), os.listdir('/tmp'), os.path.exists('/run/mine'), "
                      "open('/proc/sysvipc/shm').read().count(chr(10)), os.listdir('/dev/mqueue'))") == "[] [] False 1 []\n"
    assert not os.path.exists("/dev/shm/mine") and not os.path.exists("/tmp/fifo")


# --- 15: network

CONNECTS = """if True:
    import errno, socket, sys
    def attempt(family, kind, address):
        s = socket.socket(family, kind)
        s.settimeout(2)
        try:
            s.connect(address) if kind == socket.SOCK_STREAM else s.sendto(b"x", address)
            return "ok"
        except OSError as e:
            return errno.errorcode.get(e.errno, str(e))
    TCP, UDP = socket.SOCK_STREAM, socket.SOCK_DGRAM
    port = int(sys.argv[1])
    print("metadata", *[attempt(f, k, (a, 80)) for f, a in ((socket.AF_INET, "169.254.169.254"), (socket.AF_INET6, "fd00:ec2::254"),
          (socket.AF_INET6, "::ffff:169.254.169.254"), (socket.AF_INET6, "fe80::1%lo")) for k in (TCP, UDP)])
    print("local", attempt(socket.AF_INET, TCP, ("127.0.0.1", port)), attempt(socket.AF_INET, TCP, ("0.0.0.0", port)),
          attempt(socket.AF_INET6, TCP, ("::ffff:127.0.0.1", port)))
"""


def listening():
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=lambda: [server.accept() for _ in range(100)], daemon=True).start()
    return server.getsockname()[1]


def test_15_metadata_services_are_out_of_reach(box):
    said = box.python(CONNECTS, 1).splitlines()[0].split()[1:]
    assert set(said) == {"EPERM"}, said


def test_15_the_nodes_own_ports_are_refused_by_number(box):
    port = listening()
    assert box.python(CONNECTS, port).splitlines()[1] == "local ok ok ok"
    assert box.python(CONNECTS, port, options=["--refuse-port", str(port)]).splitlines()[1] == "local EPERM EPERM EPERM"


def test_15_a_port_of_another_job_is_refused_and_one_of_the_same_job_is_not(box):
    server = """if True:
        import socket, time
        s = socket.create_server(("127.0.0.1", 0))
        print(s.getsockname()[1], flush=True)
        while True:
            s.accept()"""
    job = box.popen("python3", "-c", server, options=["--owner", "71"])
    try:
        port = int(job.stdout.readline())
        assert box.outside(CONNECTS.replace("print(\"metadata\"", "0 and print(\"metadata\""), port) == "local ok ok ok\n"
        assert box.python(CONNECTS, port, options=["--owner", "72"]).splitlines()[1] == "local EPERM EPERM EPERM"
        assert box.python(CONNECTS, port, options=["--owner", "71"]).splitlines()[1] == "local ok ok ok"
    finally:
        job.terminate()
        job.wait()


def test_15_a_private_network_has_nothing_of_the_nodes(box):
    code = """if True:
        import os, socket
        print(sorted(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class/net") else [], [n for _, n in socket.if_nameindex()])
        s = socket.create_server(("127.0.0.1", 0))
        socket.create_connection(s.getsockname()).close()
        a = socket.socket(socket.AF_UNIX)
        a.bind(b"\\0vrun-abstract")
        print(open("/proc/net/unix").read().count("vrun-abstract"), open("/proc/net/unix").read().count("\\n"))"""
    held = socket.socket(socket.AF_UNIX)
    held.bind(b"\0vrun-abstract")
    said = box.python(code, options=["--private-network"])
    assert "['lo']" in said.splitlines()[0] and said.splitlines()[1] == "1 2"


# --- 22: setuid

def test_22_a_setuid_root_program_gives_nothing(box):
    program = box.directory / "id"
    shutil.copy("/usr/bin/id", program)
    program.chmod(0o4755)
    assert box.run(str(program), "-u", options=["--uid", "1000"]).stdout == "1000\n"
    # Outside it does.
    outside = subprocess.run(["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", program, "-u"], capture_output=True, text=True)
    assert outside.stdout == "0\n"


def test_22_a_user_has_no_capability_and_gets_none(box):
    said = box.python("""if True:
        import re
        status = open("/proc/self/status").read()
        print(re.findall("Cap(?:Prm|Eff|Bnd|Amb):.*?([0-9a-f]+)\\\\n", status), re.findall("NoNewPrivs:.(.)", status),
              re.findall("Seccomp:.(.)", status))""", options=["--uid", "1000"])
    assert said == f"{['0' * 16] * 4} ['1'] ['2']\n"


# --- 29: exhaustion

def test_29_a_fork_bomb_hurts_only_itself(box):
    r = box.run("python3", "-c", """if True:
        import os, time
        n = 0
        try:
            while True:
                if os.fork() == 0:
                    time.sleep(20)
                    os._exit(0)
                n += 1
        except OSError:
            print(n, flush=True)""", options=["--pids", "100"])
    assert 50 <= int(r.stdout) <= 100
    assert subprocess.run(["true"]).returncode == 0


def test_29_memory_and_tmpfs_are_bounded_by_the_jobs_limit(box):
    fill = "open('/dev/shm/x', 'wb').write(bytes(200 << 20)); print('filled')"
    r = box.run("python3", "-c", fill, options=["--memory", str(64 << 20)])
    assert "filled" not in r.stdout and r.returncode != 0
    assert box.python(fill, options=["--memory", str(600 << 20)]) == "filled\n"


def test_29_the_jobs_are_killed_for_memory_before_the_daemons(box):
    code = """if True:
        with open("/proc/self/oom_score_adj") as f:
            print(f.read().strip())
        try:
            with open("/proc/self/oom_score_adj", "w") as f:
                f.write("-900")
            print("protected")
        except OSError:
            print("refused")"""
    lower = "import os, sys; open('/proc/self/oom_score_adj', 'w').write('-900'); os.execv(sys.argv[1], sys.argv[1:])"
    r = subprocess.run(["python3", "-c", lower, str(box.program), "--", "python3", "-c", code], capture_output=True, text=True, timeout=60)
    if "Permission denied" in r.stderr:
        pytest.skip("needs CAP_SYS_RESOURCE")
    assert r.stdout == "0\nrefused\n", r


# --- races of starts

def test_many_starts_leave_nothing_and_each_is_confined(box):
    """A second of starts; VRUN_SECURITY_SECONDS for more."""
    end = time.monotonic() + float(os.environ.get("VRUN_SECURITY_SECONDS", "5"))
    starts = 0
    while time.monotonic() < end:
        r = box.run("grep", "-c", "Seccomp:.2", "/proc/self/status")
        assert r.stdout == "1\n", r
        starts += 1
    assert starts >= 3
    assert not list(pathlib.Path("/sys/fs/cgroup").rglob(f"vrun/box.{os.getpid()}*"))
