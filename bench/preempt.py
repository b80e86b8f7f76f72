# SPDX-License-Identifier: Apache-2.0
"""How soon an urgent job runs that takes the room of another one, which saves first: bench/run preempt.

Each round, an urgent job is submitted while a requeueable one has all of the node. That one is told to leave, writes the time and ends;
the urgent one writes the time and ends. `gap`: between these two. `all`: from the submission to the urgent job's command. Slurm preempts
by the priority of partitions (REQUEUE).
"""
import argparse
import time

import jobs_lib
import lib
from cluster import wait_until

GOAL_MS = 100   # from the end of the one to the command of the other
SLURM = """PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=30
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_min_interval=0
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
"""
# It ends when it is told to, and says when. $1 is where it says that, $2 the signal.
VICTIM = """#!/bin/bash
trap 'echo left $EPOCHREALTIME >> PLACE/victim; exit 0' SIGNAL
echo begun >> PLACE/victim
sleep 100000 & wait
"""
URGENT = "#!/bin/bash\necho $EPOCHREALTIME >> PLACE/urgent\nexit 1\n"   # who fails teaches nobody how long such jobs take


def rounds(count, place, victim, urgent, cancel):
    """(gaps, alls) in ms, each with a victim that victim() submits."""
    def said(name, word):
        path = place / name
        return [line.split()[-1] for line in path.read_text().splitlines() if line.startswith(word)] if path.exists() else []
    gaps, alls = [], []
    for i in range(count):
        begun = len(said("victim", "begun"))
        job = victim()   # a new one each time: Slurm starts a requeued one two minutes later
        wait_until("the victim runs", lambda: len(said("victim", "begun")) > begun, jobs_lib.LONG)
        time.sleep(0.2)   # so that nothing of its start is measured
        began = time.time()
        urgent()
        wait_until("the urgent job has run", lambda: len(said("urgent", "")) == i + 1, jobs_lib.LONG)
        at = float(said("urgent", "")[-1])
        gaps.append((at - float(said("victim", "left")[-1])) * 1000)
        alls.append((at - began) * 1000)
        cancel(job)
    return gaps, alls


def script(place, name, text, seen, signal="USR1"):
    path = place / name
    path.write_text(text.replace("PLACE", seen).replace("SIGNAL", signal))
    path.chmod(0o755)
    return path


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run preempt")
    parser.add_argument("--rounds", type=int, default=20)
    o = parser.parse_args(arguments)
    report = lib.Report()
    gpus = ["--gpus", "2", "--gpu-type", "fake", "--milli-cpus", "8000"]
    with jobs_lib.both({"node_options": gpus}, {"cpus": 8, "more": SLURM}) as (c, s):
        place = c.root / "root"
        script(place, "victim.sh", VICTIM, "/root")
        script(place, "urgent.sh", URGENT, "/root")

        def submitted(*args):
            return c.run("vbatch", "-D", "/root", "--view=live", "--parsable", "-G", "2", *args, check=True).stdout.strip()
        ours = rounds(o.rounds, place,
                      lambda: submitted("--class", "scavenger", "--checkpoint", "signal:USR1,grace:60s,save:0.1s,restore:0.1s", "--",
                                        "/root/victim.sh"),
                      lambda: submitted("--class", "production", "--no-requeue", "--", "/root/urgent.sh"), lambda job: c.vctl("cancel", job))
        jobs_lib.ours_are_over(c)
        its_victim = script(s.work, "victim.sh", VICTIM, str(s.work), "TERM")
        its_urgent = script(s.work, "urgent.sh", URGENT, str(s.work))
        slurms = rounds(o.rounds, s.work,
                        lambda: s.run(*s.batch("-p", "low", "--requeue", "--exclusive", str(its_victim))).strip(),
                        lambda: s.run(*s.batch("-p", "high", "--no-requeue", "--exclusive", str(its_urgent))),
                        lambda job: s.run("/usr/bin/scancel", job))
    for name, mine, its, goal in (("gap", ours[0], slurms[0], GOAL_MS), ("all", ours[1], slurms[1], None)):
        value = lib.median(mine)
        report.line(f"preempt.{name}", value, "ms", "Slurm 22.05", lib.median(its), f"<= {goal} ms" if goal else None,
                    value <= goal if goal else None, most=round(max(mine), 1), baseline_most=round(max(its), 1), rounds=o.rounds)
    return report.exit_code()
