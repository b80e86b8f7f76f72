# SPDX-License-Identifier: Apache-2.0
"""A cached file of 1 GiB read in a job, in sequence and 4 KiB here and there, against the file system of the cache."""
import os

import fs_sides


def main(arguments):
    o = fs_sides.options("read", __doc__, arguments, runs=9, mb=1024, reads=100000)

    def fill(root):
        with open(root / "root/big", "wb") as f:
            for _ in range(o.mb):
                f.write(os.urandom(1 << 20))
    with fs_sides.Against("the cache's file system", fill, None, o) as sides:
        sides.once("read first, from home", "sequential /root/big", o.mb, "MiB/s")
        sides.compare("read sequential", "sequential /root/big", o.mb, "MiB/s", at_least=0.9)
        sides.compare("read random", f"random /root/big {o.reads}", o.reads, "reads/s", at_least=0.9)
        return sides.exit_code()
