# SPDX-License-Identifier: Apache-2.0
"""Open, read and close 20,000 cached small files in a job, against the same files on ext4."""
import fs_sides


def main(arguments):
    o = fs_sides.options("small-files", __doc__, arguments, runs=15, files=20000, bytes=4096)
    megabytes = 1024 + o.files * (o.bytes + 4096) // 500_000
    with fs_sides.Against("ext4", lambda root: fs_sides.fill(root / "root/small", o.files, 500, o.bytes), megabytes, o) as sides:
        sides.once("small-files first, from home", "small /root/small", o.files, "files/s")
        sides.compare("small-files", "small /root/small", o.files, "files/s", at_least=0.5)
        return sides.exit_code()
