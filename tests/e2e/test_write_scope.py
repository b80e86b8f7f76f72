# SPDX-License-Identifier: Apache-2.0
"""Where at home a job may write and with what privileges, with the default of job_writes. What a hostile node sends:
src/home/scope/write_scope_test.cc."""
import os
import stat

import pytest


@pytest.mark.parametrize("view", ["live", "frozen"])
def test_a_job_leaves_no_setuid_file_at_home(own, view):
    c = own(job_writes="plain")
    place = c.root / "root"
    place.mkdir(exist_ok=True)
    (place / "su").write_text("home's\n")
    (place / "su").chmod(0o4755)
    said = c.run("vrun", f"--view={view}", "-D", "/root", "--", "sh", "-c", "cp su mine && chmod 6755 mine && chmod 4711 su && echo done", check=True)
    assert said.stdout == "done\n"
    assert stat.S_IMODE((place / "mine").stat().st_mode) == 0o755
    assert (place / "mine").read_text() == "home's\n"
    assert stat.S_IMODE((place / "su").stat().st_mode) == 0o4711   # what home has given itself
    assert "was written without the attribute setuid" in said.stderr and "job_writes" in said.stderr, said.stderr
    # Replaced by a job, it is not home's any more.
    c.run("vrun", f"--view={view}", "-D", "/root", "--", "sh", "-c", "echo evil > new && chmod 4755 new && mv new su", check=True)
    assert (place / "su").read_text() == "evil\n" and stat.S_IMODE((place / "su").stat().st_mode) == 0o755
    if os.geteuid() == 0:   # what root may do is root's choice
        c.run("vrun", f"--view={view}", "-D", "/root", "--", "sh", "-c", "echo x > given && chown 1000:1000 given", check=True)
        assert (place / "given").stat().st_uid == 1000
