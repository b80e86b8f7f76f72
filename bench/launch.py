# SPDX-License-Identifier: Apache-2.0
"""Time of a warm `vrun true`, against ssh localhost true, crun run of a tiny bundle and srun -n1 true, interleaved.

The runs follow each other without a pause: what a person does who types the next command at once. --pause S waits S
seconds before each round.
"""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import lib
import miniroot
from cluster import Cluster, free_port, wait_until
from slurm_local import Slurm

GOAL_SRUN = 0.7          # of this issue; the product's goals are printed as lines of their own
PRODUCT_SRUN, PRODUCT_MS = 0.4, 10.0


@contextlib.contextmanager
def daemons():
    """Processes that are stopped at the end, by pid."""
    running = []

    def start(argv, log, **kw):
        p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=open(log, "ab"), stderr=subprocess.STDOUT,
                             start_new_session=True, **kw)
        running.append(p)
        return p
    try:
        yield start
    finally:
        for p in reversed(running):
            p.terminate()
            try:
                p.wait(5)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()


def ssh(start, d):
    """An sshd of our own on loopback with keys of our own; a new connection each time, as a person types it."""
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", d / key], check=True)
    shutil.copy(d / "user.pub", d / "authorized")
    port = free_port()
    os.makedirs("/run/sshd", exist_ok=True)
    (d / "sshd_config").write_text(f"Port {port}\nListenAddress 127.0.0.1\nHostKey {d}/host\nAuthorizedKeysFile {d}/authorized\n"
                                   f"StrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\nSetEnv SHLVL=5\n")
    start(["/usr/sbin/sshd", "-D", "-e", "-f", d / "sshd_config"], d / "sshd.log")
    common = ["-p", str(port), "-i", str(d / "user"), "-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={d}/known",
              "-o", "LogLevel=ERROR", "127.0.0.1", "true"]
    wait_until("sshd answers", lambda: subprocess.run(["ssh", *common]).returncode == 0)
    kept = ["-o", f"ControlPath={d}/master", "-o", "ControlMaster=auto", "-o", "ControlPersist=600"]
    subprocess.run(["ssh", *kept, *common], check=True)
    return ({"ssh": ["/usr/bin/ssh", *common], "ssh_kept": ["/usr/bin/ssh", *kept, *common]},
            lambda: subprocess.run(["ssh", "-O", "exit", *kept, *common[:-1]], stderr=subprocess.DEVNULL))


def without_unified_cgroups():
    """Times commands where the unified hierarchy is not mounted: crun refuses hybrid cgroups."""
    def prepare():
        if os.path.ismount("/sys/fs/cgroup/unified"):
            lib.libc_call("umount2", b"/sys/fs/cgroup/unified", 2)
    return lib.MountNamespace(prepare)


def crun(d):
    """A bundle with one static program."""
    bundle = d / "bundle"
    (bundle / "rootfs/bin").mkdir(parents=True)
    shutil.copy("/bin/busybox", bundle / "rootfs/bin/busybox")
    os.symlink("busybox", bundle / "rootfs/bin/true")
    subprocess.run(["crun", "spec"], cwd=bundle, check=True)
    spec = json.loads((bundle / "config.json").read_text())
    spec["process"].update(args=["true"], terminal=False, rlimits=[])
    spec["root"] = {"path": "rootfs", "readonly": True}
    (bundle / "config.json").write_text(json.dumps(spec))
    return ["/usr/bin/crun", "--root", str(d / "crun"), "--cgroup-manager", "disabled", "run", "-b", str(bundle), "bench"]


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run launch", description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--pause", type=float, default=0.0)
    o = parser.parse_args(arguments)
    report = lib.Report()
    hybrid = without_unified_cgroups()
    with tempfile.TemporaryDirectory(prefix="vrun-bench-", dir="/var/tmp") as name, daemons() as start:
        d = pathlib.Path(name)
        close_ssh = lambda: None  # noqa: E731
        cluster = Cluster(miniroot.make(d / "root", with_python=False))
        try:
            commands = {"vrun": lambda argv=cluster.command("vrun", *lib.VIEW, "-D", "/root", "-q", "--", "true"):
                        lib.timed(argv, cluster.environment)}
            for sub in ("ssh", "crun", "slurm"):
                (d / sub).mkdir()
            sshs, close_ssh = ssh(start, d / "ssh")
            for key, argv in sshs.items():
                commands[key] = lambda argv=argv: lib.timed(argv)
            argv = crun(d / "crun")
            commands["crun"] = lambda argv=argv: hybrid.timed(argv)
            slurm = Slurm(start, d / "slurm")
            commands["srun"] = lambda: lib.timed(["/usr/bin/srun", "-n1", "true"], slurm.env)
            commands["local"] = lambda: lib.timed(["/bin/true"])
            for key, run in list(commands.items()):
                try:
                    run()
                except RuntimeError as e:
                    if key in ("vrun", "srun"):
                        raise
                    lib.note(f"left out: {key}: {e}")
                    del commands[key]
            if o.pause:
                first = next(iter(commands))
                run_first = commands[first]
                def paused():
                    time.sleep(o.pause)
                    return run_first()
                commands[first] = paused
            times = lib.interleaved(commands, o.runs)
        finally:
            close_ssh()
            hybrid.close()
            cluster.close()
    ms = {k: [t * 1000 for t in v] for k, v in times.items()}
    p50 = {k: lib.median(v) for k, v in ms.items()}
    more = {"runs": o.runs, "pause_s": o.pause}
    report.line("launch.p50", p50["vrun"], "ms", "srun -n1 true", p50["srun"], f"ratio <= {GOAL_SRUN}",
                p50["vrun"] <= GOAL_SRUN * p50["srun"], **more)
    report.line("launch.p99", lib.percentile(ms["vrun"], 0.99), "ms", "srun -n1 true", lib.percentile(ms["srun"], 0.99), **more)
    for key, what in (("ssh", "ssh localhost true, new connection"), ("ssh_kept", "ssh, kept connection"), ("crun", "crun run"),
                      ("local", "/bin/true here")):
        if key in p50:
            report.line(f"launch.vs_{key}", p50["vrun"], "ms", what, p50[key], **more)
    # The product's own goals: shown as they stand; they are not this bench's to fail.
    print(json.dumps({"product_goals": {"p50_ms": PRODUCT_MS, "reached": round(p50["vrun"], 2), "of_srun": PRODUCT_SRUN,
                                        "reached_of_srun": round(p50["vrun"] / p50["srun"], 3)}}), file=sys.stderr)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
