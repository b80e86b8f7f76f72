# SPDX-License-Identifier: Apache-2.0
"""`import torch` on a warm node, against the same root on ext4; and what the node still asks home for.

The root is that of cold-import. Both sides run the import once before, then in turn; neither crosses a slow link, since
nothing should have to cross any. Native is chroot, env and python, in a root whose mounts are there already. The requests for
directories that home gets during all warm runs are counted.
"""
import argparse

import lib
from cluster import Cluster
from cold_import import home_has_scanned, native, native_name
from import_roots import ENV, ImportRoot, add_options

GOAL = 1.05   # times native


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run warm-import", description=__doc__)
    add_options(parser)
    parser.add_argument("--runs", type=int, default=15)
    o = parser.parse_args(arguments)
    imported = ImportRoot(o)
    root = imported.path
    here = native_name(root)
    report = lib.Report()
    with native(root) as natively:
        cluster = Cluster(root)
        try:
            home_has_scanned(cluster)
            vrun = cluster.command("vrun", *lib.VIEW, "-D", "/", "-q", "--", *imported.command)
            nothing = cluster.command("vrun", *lib.VIEW, "-D", "/", "-q", "--", "/usr/bin/true")
            env = dict(cluster.environment, **ENV)
            first = lib.timed(vrun, env)
            # Large files that came during a run are passed through from the next one on.
            lib.timed(vrun, env)
            before = cluster.json("status")
            times = lib.interleaved({"vrun": lambda: lib.timed(vrun, env),
                                     "native": lambda: natively.timed(imported.chrooted()),
                                     "launch": lambda: lib.timed(nothing, env)}, o.runs, warmup=1)
            after = cluster.json("status")
        finally:
            cluster.close()
    m = {name: lib.median(t) for name, t in times.items()}
    asked = int(after["metadata_requests"]) - int(before["metadata_requests"])
    more = {**imported.more, "runs": o.runs}
    report.line("warm-import", m["vrun"], "s", here, m["native"], f"ratio <= {GOAL}",
                m["vrun"] <= GOAL * m["native"], launch_s=round(m["launch"], 4), **more)
    report.line("warm-import without the launch", m["vrun"] - m["launch"], "s", here, m["native"], **more)
    report.line("warm-import metadata requests to home", asked, "requests", goal="0", met=asked == 0, **more)
    report.line("warm-import bytes from home a run",
                (int(after["served_bytes"]) - int(before["served_bytes"])) / (2 * (o.runs + 1)), "bytes", **more)
    report.line("warm-import first", first, "s", **more)
    return report.exit_code()
