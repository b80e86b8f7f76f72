# SPDX-License-Identifier: Apache-2.0
"""Debian's own Slurm on this machine, for benchmarks: munge, one controller and some nodes on loopback."""
import os
import pathlib
import socket
import subprocess

from cluster import free_port, wait_until

CONFIG = """ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={d}/munge/socket
CredType=cred/munge
SlurmctldPort={port}
SlurmctldPidFile={d}/ctld.pid
SlurmdPidFile={d}/d.%n.pid
StateSaveLocation={d}/state
SlurmdSpoolDir={d}/spool/%n
SlurmctldLogFile={d}/log/ctld
SlurmdLogFile={d}/log/d.%n
CommunicationParameters=NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
MaxArraySize=100001
MaxJobCount=1000000
MinJobAge=10
ReturnToService=2
{more}
"""
# What a site sets that wants many short jobs.
ONE_PARTITION = """SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,default_queue_depth=10000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP"""


class Slurm:
    """`start` is of launch.daemons(), which stops all of it; `d` is an empty directory; `more` are lines of its configuration."""

    def __init__(self, start, d, nodes=1, cpus=64, more=ONE_PARTITION):
        for sub in ("state", "spool", "log", "munge", "work"):
            (d / sub).mkdir()
        os.chmod(d / "munge", 0o755)
        (d / "munge/key").write_bytes(os.urandom(1024))
        os.chmod(d / "munge/key", 0o400)
        start(["/usr/sbin/munged", "--foreground", "--force", f"--key-file={d}/munge/key", f"--socket={d}/munge/socket",
               f"--pid-file={d}/munge/pid", f"--seed-file={d}/munge/seed", f"--log-file={d}/munge/log"], d / "munged.log")
        wait_until("munged answers", lambda: (d / "munge/socket").exists())
        host = socket.gethostname()
        lines = [f"NodeName=s{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs={cpus} RealMemory=1000 State=UNKNOWN"
                 for i in range(nodes)]
        (d / "slurm.conf").write_text(CONFIG.format(d=d, host=host, port=free_port(), more="\n".join([*lines, more])))
        self.work = pathlib.Path(d) / "work"
        self.env = dict(os.environ, SLURM_CONF=str(d / "slurm.conf"))
        for name in list(self.env):
            if name.startswith(("SLURM_", "SBATCH_", "SRUN_")) and name != "SLURM_CONF":
                del self.env[name]
        start(["/usr/sbin/slurmctld", "-D"], d / "log/ctld.out", env=self.env)
        for i in range(nodes):
            start(["/usr/sbin/slurmd", "-D", "-N", f"s{i}"], d / f"log/d{i}.out", env=self.env)
        self.nodes = nodes
        wait_until("all nodes of Slurm are there", self.idle_nodes, 120)
        self.run("/usr/bin/srun", "-N", str(nodes), "true")

    def idle_nodes(self):
        r = subprocess.run(["/usr/bin/sinfo", "-h", "-N", "-t", "idle", "-o", "%N"], env=self.env, capture_output=True, text=True)
        return r.returncode == 0 and len(set(r.stdout.split())) == self.nodes

    def run(self, *argv):
        return subprocess.run(argv, env=self.env, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120).stdout

    def batch(self, *args):
        """The command that submits such a job."""
        return ["/usr/bin/sbatch", "--parsable", "--chdir", str(self.work), *args]

    def empty(self):
        return not self.run("/usr/bin/squeue", "-h", "-o", "%i").strip()
