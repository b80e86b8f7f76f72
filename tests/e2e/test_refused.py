# SPDX-License-Identifier: Apache-2.0
"""What jobs may not have or write, and what a refusal leaves behind."""
import contextlib
import pathlib
import shutil
import signal
import subprocess

import pytest

from cluster import wait_until


def as_other_user(statement):
    """Python that runs the statement as uid 1000, without root's rights."""
    return f"import os; os.setgroups([]); os.setgid(1000); os.setuid(1000)\n{statement}"


@pytest.mark.parametrize("view", [pytest.param(v, marks=pytest.mark.view(v)) for v in ("live", "frozen")])
def test_a_key_that_was_made_after_the_view_is_kept_from_jobs_too(sturdy, view):
    cluster = sturdy()
    ssh = cluster.root / "root/.ssh"
    ssh.mkdir(mode=0o700, exist_ok=True)   # other tests leave things in the root that this one is a copy of
    (ssh / "known_hosts").write_text("hosts")
    key = ssh / "id_made_later"
    cluster.vrun("--", "true", check=True)
    credentials = cluster.root / "home/latecomer/.aws/credentials"
    key.write_text("the key")
    credentials.parent.mkdir(parents=True)
    credentials.write_text("the credentials")
    r = cluster.sh("ls -A .ssh; echo evil > .ssh/id_made_later")
    assert "known_hosts" in r.stdout and key.name not in r.stdout and r.returncode == 125 and "the deny-list of this machine hides it" in r.stderr
    for script in ("mv .ssh moved && sleep 0.3; cat moved/id_made_later", "mv /home/latecomer /mnt/l && sleep 0.3; cat /mnt/l/.aws/credentials"):
        r = cluster.sh(script)
        assert r.returncode != 0 and "the " not in r.stdout, (script, r)
    assert key.read_text() == "the key" and credentials.read_text() == "the credentials"


@pytest.mark.parametrize("view", [pytest.param(v, marks=pytest.mark.view(v)) for v in ("live", "frozen")])
def test_where_nothing_is_kept_from_jobs_they_do_what_they_like(sturdy, view):
    """Directories that could have keys and have none, and files beside home directories."""
    cluster = sturdy()
    shutil.rmtree(cluster.root / "root/.config", ignore_errors=True)  # of a test before
    for name in ("root/.config/editor/settings", "root/.local/share/app/data", "home/notes.txt", "home/project/file"):
        (cluster.root / name).parent.mkdir(parents=True, exist_ok=True)
        (cluster.root / name).write_text(name)
    r = cluster.sh("mv ~/.config ~/.config.old && rm -r ~/.local && rm /home/notes.txt && mv /home/project/file /home/file && rm -r /home/project")
    assert (r.returncode, r.stderr) == (0, ""), r
    assert (cluster.root / "root/.config.old/editor/settings").read_text() == "root/.config/editor/settings"
    assert (cluster.root / "home/file").read_text() == "home/project/file"
    assert not any((cluster.root / name).exists() for name in ("root/.config", "root/.local", "home/notes.txt", "home/project"))


def test_a_key_that_is_made_while_a_batch_job_runs_is_not_written_over(sturdy):
    cluster = sturdy()
    key = cluster.root / "root/.ssh/id_made_later"
    key.parent.mkdir(mode=0o700, exist_ok=True)
    p = cluster.popen("vrun", "--view=frozen", "--", "sh", "-c", "echo ready; read go; echo evil > /root/.ssh/id_made_later", stdin=subprocess.PIPE,
                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "ready\n"
    key.write_text("the key")
    out, err = p.communicate("go\n", timeout=30)
    assert p.returncode == 125 and "the deny-list of this machine hides it" in err
    assert key.read_text() == "the key"


@contextlib.contextmanager
def a_file_that_cannot_be_removed(cluster):
    held = cluster.root / "root/held"
    held.write_text("held")
    if subprocess.run(["chattr", "+i", held], capture_output=True).returncode != 0:
        pytest.skip("no immutable files here")
    try:
        yield held.name
    finally:
        subprocess.run(["chattr", "-i", held], check=True)


def test_what_was_refused_is_there_for_the_next_run(sturdy):
    cluster = sturdy()
    with a_file_that_cannot_be_removed(cluster) as held:
        for _ in range(5):
            assert cluster.sh(f"rm {held}").returncode == 125
            assert cluster.sh(f"cat {held}").stdout == "held"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_after_a_refused_write_and_another_home_jobs_end(sturdy, how):
    cluster = sturdy()
    with a_file_that_cannot_be_removed(cluster) as held:
        assert cluster.sh(f"rm {held}").returncode == 125
        cluster.kill_daemon("home", how)
        assert cluster.sh(f"cat {held}", timeout=20).stdout == "held"


@pytest.mark.parametrize("view", ["live", "frozen"])
def test_acls_of_home_count_in_jobs(sturdy, view):
    cluster = sturdy()
    there = pathlib.Path(cluster.root) / "root/acls"
    (there / "project").mkdir(parents=True)
    (cluster.root / "root").chmod(0o755)
    for name, mode in (("granted", 0o600), ("denied", 0o644), ("project/inside", 0o644), ("large", 0o600)):
        (there / name).write_bytes(name.encode() * (1 if name != "large" else 1 << 19))
        (there / name).chmod(mode)
    (there / "project").chmod(0o700)
    for entry, name in (("u:1000:r", "granted"), ("u:1000:-", "denied"), ("u:1000:rx", "project"), ("u:1000:r", "large")):
        subprocess.run(["setfacl", "-m", entry, there / name], check=True)
    script = as_other_user("""
for name in ("granted", "denied", "project/inside", "large"):
    try:
        print(open("/root/acls/" + name).read(8))
    except OSError as e:
        print(e.strerror)
""")
    r = cluster.vrun(f"--view={view}", "--", "python3", "-c", script, check=True)
    assert r.stdout.split("\n") == ["granted", "Permission denied", "project/", "largelar", ""]
