# SPDX-License-Identifier: Apache-2.0
"""find / -xdev over 50,000 entries in a job, warm, against the same root on ext4."""
import fs_sides


def main(arguments):
    o = fs_sides.options("metadata", __doc__, arguments, runs=15, entries=50000)
    find, attributes = "find / -xdev", "find / -xdev -newer /bin/sh"
    with fs_sides.Against("ext4", lambda root: fs_sides.fill(root / "usr/share/tree", o.entries * 99 // 100, 99), 1024, o) as sides:
        sides.once("metadata first", f"run {find}", 1000, "ms")
        sides.compare("metadata", f"run {find}", 1000, "ms", at_most=1.2, command=find)
        sides.compare("metadata with attributes", f"run {attributes}", 1000, "ms", command=attributes)
        return sides.exit_code()
