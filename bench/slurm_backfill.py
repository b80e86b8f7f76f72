# SPDX-License-Identifier: Apache-2.0
"""Our model of Slurm's backfill, and our scheduler, against the real Slurm: bench/run slurm-backfill DIRECTORY.

DIRECTORY holds itp2021/cluster04.csv. Its jobs are folded: as many consecutive windows as load the cluster enough are laid over
each other, and durations are cut, so that everything is over in a few hours. The real Slurm (one controller, one slurmd a node, 8
invented GPUs each) runs that with time accelerated by libfaketime in namespaces of its own: nothing of it is left, however this
ends. The simulator then replays Slurm's own records, as one would an accounting: a busy machine submits late, and jobs take some
accelerated seconds longer than they would. All are told exact wall times, but for vrun, which is told none. A preemption costs vrun
300 s. 7 minutes for 64 nodes, 10 for 512.
"""
import argparse
import concurrent.futures
import csv
import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import lib

GPUS_PER_NODE = 8
# nodes: where the windows begin in the trace, their length, the longest duration, all in seconds; offered load; the fewest GPUs of
# a job (each costs the emulation a tenth of a second of CPU, however small it is); acceleration.
SIZES = {64: {"begin": 44 * 86400, "window": 5 * 3600, "longest": 3 * 3600, "load": 1.6, "least": 1, "speed": 100},
         512: {"begin": 0, "window": 3 * 3600, "longest": 5400, "load": 1.4, "least": 2, "speed": 36}}
SHORTEST = 60    # a job cannot be started faster than in some 10 ms, and these are accelerated, too
# What a site that wants backfill for long jobs sets; bf_max_time keeps the emulation's slowness from ending a pass early.
PARAMETERS = "bf_interval=30,bf_resolution=60,bf_window=1440,bf_max_job_test=2000,default_queue_depth=2000"
EMULATION = "bf_continue,bf_max_time=3600,bf_yield_interval=600000000,batch_sched_delay=0,defer_batch"
LIBRARY = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
WITHIN = 0.10
COMPARED = {"avg_wait_s": "s", "avg_completion_s": "s", "utilization": "", "makespan_s": "s"}
CONFIG = """ClusterName=emulated
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPort=17017
SlurmctldPidFile={d}/slurmctld.pid
SlurmdPidFile={d}/slurmd.%n.pid
StateSaveLocation={d}/state
SlurmdSpoolDir={d}/spool/%n
SlurmctldLogFile={d}/log/slurmctld
SlurmdLogFile={d}/log/slurmd.%n
CommunicationParameters=NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={d}/log/jobcomp
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters={parameters}
PriorityType=priority/basic
SlurmdTimeout=65000
MessageTimeout=600
OverTimeLimit=UNLIMITED
KillWait=2
MinJobAge=10
ReturnToService=2
TreeWidth=65533
MaxJobCount=200000
NodeName=n[0-{last}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[18000-{last_port}] CPUs=96 RealMemory=1000 Gres=gpu:8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def fold(path, nodes, begin, window, longest, load, least):
    """[(submission, duration, GPUs)] as described above, by submission."""
    with open(path, newline="") as f:
        jobs = sorted((float(r["submission_time"]), float(r["duration"]), int(r["num_gpu"])) for r in csv.DictReader(f))
    begin, asked, out = jobs[0][0] + begin, 0, []
    for submitted, duration, gpus in jobs:
        if submitted < begin or gpus < least:
            continue
        if (submitted - begin) // window > 0 and asked >= load * nodes * GPUS_PER_NODE * window:
            break
        seconds = int(min(max(duration, SHORTEST), longest))
        asked += seconds * gpus
        out.append((int((submitted - begin) % window), seconds, gpus))
    return sorted(out)


def minutes(seconds):
    """The limit that a job is submitted with."""
    return (seconds + 59) // 60 + 1


# ---- inside the namespaces ----

def idle_nodes(env):
    out = subprocess.run(["/usr/bin/sinfo", "-h", "-o", "%D", "-t", "idle"], env=env, capture_output=True, text=True).stdout
    return sum(int(n) for n in out.split())


def until(what, condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"{what}: not within {seconds} s")
        time.sleep(0.5)


def submit(jobs, speed, env):
    """Each at its time; returns by how many real seconds the latest was late."""
    began = time.monotonic()
    late = 0

    def sbatch(job):
        submission, seconds, gpus = job
        per_node = min(gpus, GPUS_PER_NODE)
        subprocess.run(["/usr/bin/sbatch", "-Q", "-J", f"{submission}_{seconds}_{gpus}", "-o", "/dev/null", f"-N{gpus // per_node}",
                        "--ntasks-per-node=1", f"--gres=gpu:{per_node}", "-t", str(minutes(seconds)), "--wrap", f"sleep {seconds}"],
                       env=env, check=True, stdout=subprocess.DEVNULL)
        return time.monotonic() - began - submission / speed
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        pending = []
        for job in jobs:
            time.sleep(max(0, began + job[0] / speed - time.monotonic()))
            pending.append(pool.submit(sbatch, job))
        for result in pending:
            late = max(late, result.result())
    return late


def emulate(d, nodes, speed, jobs):
    """Runs the jobs through a Slurm of our own; its jobs' records lie in d/log/jobcomp at the end."""
    # Names are looked up only on a machine that has an address beside 127.0.0.1.
    for words in ("link set lo up", "link add d0 type veth peer name d1", "address add 192.0.2.1/24 dev d0", "link set d0 up"):
        subprocess.run(["/usr/sbin/ip", *words.split()], check=True)
    subprocess.run(["/usr/bin/mount", "-t", "tmpfs", "none", "/dev/shm"], check=True)
    for sub in ("state", "spool", "log", "dev"):
        (d / sub).mkdir()
    for gpu in range(GPUS_PER_NODE):
        (d / f"dev/g{gpu}").touch()
    (d / "slurm.conf").write_text(CONFIG.format(d=d, host=socket.gethostname(), last=nodes - 1, last_port=18000 + nodes - 1,
                                                parameters=f"{PARAMETERS},{EMULATION}"))
    (d / "gres.conf").write_text(f"NodeName=n[0-{nodes - 1}] Name=gpu File={d}/dev/g[0-7]\n")
    env = dict(os.environ, SLURM_CONF=f"{d}/slurm.conf", LD_PRELOAD=LIBRARY, FAKETIME=f"@2026-01-01 00:00:00 x{speed:g}")
    quiet = {"env": env, "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.Popen(["/usr/sbin/slurmctld", "-D"], **quiet)
    until("slurmctld answers", lambda: subprocess.run(["/usr/bin/sinfo"], **quiet).returncode == 0, 60)
    for i in range(nodes):
        subprocess.Popen(["/usr/sbin/slurmd", "-D", "-N", f"n{i}"], **quiet)
    until("all nodes are there", lambda: idle_nodes(env) == nodes, 180)
    late = submit(jobs, speed, env)
    lib.note(f"all submitted, {late * speed:.0f} s late at most (accelerated)")
    records = d / "log/jobcomp"
    until("all jobs are over", lambda: records.exists() and records.read_text().count("\n") >= len(jobs), 1200)
    lib.note(subprocess.run(["/usr/bin/sdiag"], env=env, capture_output=True, text=True).stdout)


# ---- outside ----

def run_slurm(d, nodes, speed, jobs):
    (d / "jobs.json").write_text(json.dumps(jobs))
    subprocess.run(["unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", sys.executable,
                    pathlib.Path(__file__), d, str(nodes), str(speed)], check=True, stdout=sys.stderr, timeout=1500)


def stamp(text):
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))


def records(path):
    """(submission, start, end, duration, GPUs) of Slurm's own records, by submission."""
    jobs = []
    for line in path.read_text().splitlines():
        fields = dict(re.findall(r"(\w+)=(\S+)", line))
        _, seconds, gpus = map(int, fields["Name"].split("_"))
        if fields["JobState"] != "COMPLETED":
            raise RuntimeError(f"a job did not end well: {line}")
        times = [stamp(fields[name]) for name in ("SubmitTime", "StartTime", "EndTime")]
        jobs.append((times[0], int(fields["JobId"]), *times[1:], seconds, gpus))
    return [(submitted, *rest) for submitted, _, *rest in sorted(jobs)]


def measure(jobs, nodes):
    """The same figures as the simulator's."""
    first, last = min(j[0] for j in jobs), max(j[2] for j in jobs)
    waits = sorted(start - submitted for submitted, start, *_ in jobs)
    large = [start - submitted for submitted, start, _, _, gpus in jobs if gpus > 8]
    return {"avg_wait_s": statistics.mean(waits), "p95_wait_s": waits[int(0.95 * len(waits))],
            "wait_large_gangs_s": statistics.mean(large) if large else 0,
            "avg_completion_s": statistics.mean(end - submitted for submitted, _, end, *_ in jobs),
            "makespan_s": last - first,
            "utilization": sum((end - start) * g for _, start, end, _, g in jobs) / ((last - first) * nodes * GPUS_PER_NODE),
            "overhead_s": statistics.mean(end - start - seconds for _, start, end, seconds, _ in jobs)}


def simulate(trace, jobs, nodes):
    trace.write_text("job_id,submission_time,duration,num_gpu\n" +
                     "".join(f"{i},{job[0] - jobs[0][0]:.0f},{job[2] - job[1]:.0f},{job[4]}\n" for i, job in enumerate(jobs)))
    out = subprocess.run([lib.TOP / "build/bin/vctl", "sim", trace, "--nodes", f"{nodes}x{GPUS_PER_NODE}", "--preempt-cost", "300",
                          "--slurm", PARAMETERS, "--policy", "slurm,vrun,easy,fifo,greedy", "-o", "json"],
                         check=True, stdout=subprocess.PIPE)
    return {p["policy"]: p for p in json.loads(out.stdout)["policies"]}


def main(argv):
    parser = argparse.ArgumentParser(prog="bench/run slurm-backfill")
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--nodes", type=int, choices=SIZES, default=64)
    parser.add_argument("--speed", type=float, help="acceleration of time")
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="where Slurm's records of the jobs go")
    parser.add_argument("--records", type=pathlib.Path, metavar="FILE", help="replay these, which --keep kept; no Slurm is run")
    args = parser.parse_args(argv)
    size = dict(SIZES[args.nodes])
    speed = size.pop("speed")
    speed = args.speed or speed
    report = lib.Report()
    with tempfile.TemporaryDirectory(prefix="vrun-bench-", dir="/var/tmp") as name:
        d = pathlib.Path(name)
        if not args.records:
            run_slurm(d, args.nodes, speed, fold(args.directory / "itp2021/cluster04.csv", args.nodes, **size))
        jobs = records(args.records or d / "log/jobcomp")
        if args.keep:
            shutil.copy(d / "log/jobcomp", args.keep)
        ours = simulate(d / "trace.csv", jobs, args.nodes)
    real = measure(jobs, args.nodes)
    others = {metric: {p: ours[p][metric] for p in ("easy", "fifo", "greedy")} for metric in COMPARED}
    for metric, unit in COMPARED.items():
        model = ours["slurm"][metric]
        report.line(f"slurm-backfill {args.nodes} model {metric}", model, unit, "Slurm 22.05", real[metric], "within 10 %",
                    abs(model / real[metric] - 1) <= WITHIN, jobs=len(jobs), others=others[metric])
    for metric in (*COMPARED, "p95_wait_s", "wait_large_gangs_s"):
        report.line(f"slurm-backfill {args.nodes} vrun {metric}", ours["vrun"][metric], COMPARED.get(metric, "s"), "Slurm 22.05",
                    real[metric], model=ours["slurm"][metric])
    lib.note(f"a job of Slurm's took {real['overhead_s']:.1f} s (accelerated) longer than its duration")
    return report.exit_code()


if __name__ == "__main__":
    directory = pathlib.Path(sys.argv[1])
    emulate(directory, int(sys.argv[2]), float(sys.argv[3]), json.loads((directory / "jobs.json").read_text()))
