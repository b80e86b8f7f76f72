# SPDX-License-Identifier: Apache-2.0
"""Time of a warm `vrun -N 16 true`, against `vrun true` and srun -N 16 true on as many emulated nodes: bench/run gang-start.

Our nodes are hosts of their own (namespaces), with a file system and a sandbox each. Slurm's are 16 slurmds, which have none.
"""
import argparse

import jobs_lib
import lib
from cluster import Bridge

GOAL_ONE = 1.5   # times `vrun true`


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run gang-start")
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--runs", type=int, default=50)
    o = parser.parse_args(arguments)
    report = lib.Report()
    ours = {"nodes": o.nodes, "bridge": Bridge(), "node_options": ["--milli-cpus", "4000"]}
    with jobs_lib.both(ours, {"nodes": o.nodes, "cpus": 4}) as (c, s):
        gang = c.command("vrun", *lib.VIEW, "-D", "/root", "-q", "-N", o.nodes, "--", "true")
        one = c.command("vrun", *lib.VIEW, "-D", "/root", "-q", "--", "true")
        srun = ["/usr/bin/srun", "-N", str(o.nodes), "--chdir", str(s.work), "true"]
        times = lib.interleaved({"gang": lambda: lib.timed(gang, c.environment), "one": lambda: lib.timed(one, c.environment),
                                 "srun": lambda: lib.timed(srun, s.env)}, o.runs)
    ms = {name: [t * 1000 for t in of] for name, of in times.items()}
    p50 = {name: lib.median(of) for name, of in ms.items()}
    more = {"nodes": o.nodes, "runs": o.runs}
    report.line("gang-start.vs_one", p50["gang"], "ms", "vrun true", p50["one"], f"ratio <= {GOAL_ONE}", p50["gang"] <= GOAL_ONE * p50["one"], **more)
    report.line("gang-start.vs_srun", p50["gang"], "ms", f"srun -N {o.nodes} true", p50["srun"], "ratio <= 1", p50["gang"] <= p50["srun"], **more)
    report.line("gang-start.p99", lib.percentile(ms["gang"], 0.99), "ms", f"srun -N {o.nodes} true", lib.percentile(ms["srun"], 0.99), **more)
    return report.exit_code()
