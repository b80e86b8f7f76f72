# SPDX-License-Identifier: Apache-2.0
"""Secrets: vctl secret, vrun --secret. The value must be in the job and nowhere else."""
import os
import pathlib
import pty
import stat
import subprocess

import pytest
from cluster import wait_until

VALUE = "s3cret-Zq8#kLm2x"


@pytest.fixture
def token(cluster):
    cluster.vctl("secret", "set", "token", input=VALUE + "\n")
    yield VALUE
    for line in cluster.vctl("secret", "list", "-o", "name").stdout.split():
        cluster.vctl("secret", "delete", line)


def store(cluster):
    return cluster.directory / "home/state/secrets"


def test_set_list_and_delete(cluster, token, tmp_path):
    assert stat.S_IMODE(store(cluster).stat().st_mode) == 0o700
    assert stat.S_IMODE((store(cluster) / "token").stat().st_mode) == 0o600
    assert (store(cluster) / "token").read_text() == VALUE   # the newline of echo is not part of it
    file = tmp_path / "key"
    file.write_bytes(b"\x00\xffkey\n")
    cluster.vctl("secret", "set", "key", "--from-file", str(file))
    assert (store(cluster) / "key").read_bytes() == b"\x00\xffkey\n"
    cluster.vctl("secret", "set", "piped", "--from-file", "-", input="two\nlines\n")
    assert (store(cluster) / "piped").read_text() == "two\nlines\n"
    listed = cluster.json("secret", "list")["secrets"]
    assert [(s["name"], s["bytes"]) for s in listed] == [("key", 6), ("piped", 10), ("token", len(VALUE))]
    shown = cluster.vctl("secret", "list").stdout + cluster.vctl("secret", "list", "-o", "name").stdout
    assert "token" in shown and VALUE not in shown
    cluster.vctl("secret", "delete", "key")
    r = cluster.vctl("secret", "delete", "key", check=False)
    assert r.returncode == 1 and r.stderr == "vctl: secret key: not stored here: `vctl secret set key`\n"


def test_a_value_that_is_typed_is_not_shown(cluster):
    main, other = pty.openpty()
    p = subprocess.Popen(cluster.command("vctl", "secret", "set", "typed"), stdin=other, stdout=other, stderr=other, env=cluster.environment,
                         start_new_session=True)
    os.close(other)
    seen = b""
    while b"value of typed: " not in seen:
        seen += os.read(main, 1000)
    os.write(main, b"hidden-value\n")
    assert p.wait(timeout=30) == 0
    try:
        while piece := os.read(main, 1000):
            seen += piece
    except OSError:
        pass
    os.close(main)
    assert b"hidden" not in seen
    assert (store(cluster) / "typed").read_text() == "hidden-value"
    cluster.vctl("secret", "delete", "typed")


@pytest.mark.parametrize("view", ["live", "frozen"])
def test_a_job_gets_it_as_a_file_of_its_own_and_as_a_variable(cluster, token, view):
    r = cluster.vrun(f"--view={view}", "--secret", "token", "--secret", "token=HF_TOKEN", "--secret", "token=/run/keys/netrc", "--", "python3", "-c", """if True:
        import os, stat
        for path in ("/run/secrets/token", "/run/keys/netrc"):
            st = os.stat(path)
            print(open(path).read(), oct(stat.S_IMODE(st.st_mode)), st.st_uid == os.getuid(), os.stat(path).st_dev == os.stat("/run").st_dev)
        print(os.environ["HF_TOKEN"])
        print([line.split()[2] for line in open("/proc/mounts") if line.split()[1] == "/run"])""", check=True)
    line = f"{VALUE} 0o400 True True\n"
    assert r.stdout == line * 2 + f"{VALUE}\n['tmpfs']\n"
    # Nothing of it is at home.
    assert not (cluster.root / "run/secrets").exists() and not (cluster.root / "run/keys").exists()


def test_another_user_of_the_job_cannot_read_the_file(cluster, token):
    r = cluster.vrun("--secret", "token", "--", "python3", "-c", """if True:
        import os
        os.setgid(1000)
        os.setuid(1000)
        try:
            print(open("/run/secrets/token").read())
        except PermissionError:
            print("refused")""", check=True)
    assert r.stdout == "refused\n"
    # A job that did not ask for it has nothing.
    assert cluster.vrun("--", "sh", "-c", "ls /run/secrets 2>&1; env").stdout.count(VALUE) == 0


def test_the_value_is_nowhere_else(cluster):
    """Not in the controller's database, a log, a listing, the node's disk or a process's arguments."""
    value = "of-this-test-alone-7Kd93"
    cluster.vctl("secret", "set", "alone", input=value)
    started = cluster.root / "root/secret-runs"
    job = cluster.popen("vrun", "-D", "/root", "--view=live", "--secret", "alone", "--secret", "alone=HF_TOKEN", "--", "sh", "-c",
                        "touch /root/secret-runs; cat", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    wait_until("it runs", started.exists)
    try:
        [one] = cluster.json("jobs")["jobs"]
        shown = cluster.vctl("job", str(one["job"])).stdout + cluster.vctl("job", str(one["job"]), "-o", "json").stdout + cluster.vctl("jobs", "-o", "json").stdout
        assert "alone (HF_TOKEN)" in shown and value not in shown
        needle = value.encode()
        for p in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                assert needle not in p.read_bytes()
            except OSError:
                pass
    finally:
        job.communicate(timeout=30)
        started.unlink(missing_ok=True)
    looked = 0
    for file in cluster.directory.rglob("*"):   # home's state, the controller's, and the nodes' disks
        try:
            if file.is_file() and not file.is_symlink() and store(cluster) not in file.parents and file.stat().st_size < 64 << 20:
                assert needle not in file.read_bytes(), file
                looked += 1
        except OSError:
            pass
    assert looked > 10
    cluster.vctl("secret", "delete", "alone")


def test_secrets_that_are_missing_or_misplaced_are_one_line_at_submission(cluster, token):
    def says(*options, program="vrun"):
        r = cluster.run(program, "-D", "/root", *options, "--", "true")
        assert r.returncode in (1, 2, 125) and r.stderr.count("\n") == 1, r
        return r.stderr
    assert "secret nope: not stored here: `vctl secret set nope`" in says("--secret", "nope")
    assert "secret nope: not stored here" in says("--secret", "nope", program="vbatch")
    assert "no name of a secret" in says("--secret", "../token")
    assert "a secret's file is below /run" in says("--secret", "token=/etc/passwd")
    assert "neither a variable nor a path" in says("--secret", "token=1x")
    assert "two secrets cannot be in one place" in says("--secret", "token=A", "--secret", "other=A")
    assert "comes from this machine when the job starts" in says("--away", "--secret", "token", program="vbatch")
    cluster.vctl("secret", "set", "binary", "--from-file", "-", input="a\0b")
    assert "NUL byte" in says("--secret", "binary=X")
    r = cluster.vctl("secret", "set", "token", VALUE, check=False)
    assert r.returncode == 2 and VALUE not in r.stderr and "stdin" in r.stderr
    assert cluster.vctl("secret", "set", "empty", input="", check=False).returncode == 1


def test_a_batch_job_gets_the_value_that_it_has_when_the_job_starts(cluster, token):
    out = cluster.root / "root/secret-out"
    job = cluster.run("vbatch", "-D", "/root", "--parsable", "--hold", "--secret", "token=T", "-o", "/root/secret-out", "--wrap", "printf %s \"$T\"",
                      check=True).stdout.strip()
    cluster.vctl("secret", "set", "token", input="newer")
    cluster.vctl("release", job)
    cluster.vctl("wait", job)
    wait_until("the output is home", lambda: out.exists() and out.read_text() == "newer")
    out.unlink()
    # One that is gone by then is the reason of the failure.
    job = cluster.run("vbatch", "-D", "/root", "--parsable", "--hold", "--secret", "token", "-o", "/root/secret-out", "--wrap", "true",
                      check=True).stdout.strip()
    cluster.vctl("secret", "delete", "token")
    cluster.vctl("release", job)
    assert cluster.run("vctl", "wait", job).returncode != 0
    assert "secret token is no longer stored at home" in cluster.vctl("job", job).stdout
    out.unlink(missing_ok=True)


def test_no_job_sees_the_store(cluster, token):
    place = store(cluster)
    r = cluster.vrun("--expose", str(place), "--", "cat", str(place / "token"))
    assert r.returncode != 0 and VALUE not in r.stdout


def test_help_and_completion_know_it(cluster):
    assert "--from-file" in cluster.vctl("help", "secret").stdout
    for shell in ("bash", "zsh", "fish"):
        text = cluster.vctl("completion", shell).stdout
        assert "set list delete" in text and "vctl secret list -o name" in text
    for program in ("vrun", "vbatch"):
        text = cluster.run(program, "--help").stdout
        assert "--secret" in text and "--tmp" in text
