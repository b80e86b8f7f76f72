# SPDX-License-Identifier: Apache-2.0
"""vbatch: scripts, output files, and what they say of an end."""
import concurrent.futures
import os
import signal
import subprocess

from cluster import BIN, wait_until


def submit(cluster, *args, **kw):
    return int(cluster.run("vbatch", "--parsable", "-D", "/root", *args, check=True, **kw).stdout)


def test_a_batch_job_that_cannot_start_or_is_ended_says_why_in_its_log(cluster):
    before = submit(cluster, "--", "true")
    late = ["-d", f"afterany:{before}"]   # so vbatch cannot know yet what will be there
    (cluster.root / "root/no-program").write_text("text\n")
    cases = {
        127: (late, ["no-such-command"]),
        126: (late, ["/root/no-program"]),
        125: (["-D", "/no/such/directory"], ["true"]),
        124: (["-t", "0:01"], ["sh", "-c", "echo begun; exec sleep 60"]),
        137: (["--mem", "64M"], ["python3", "-c", "x = bytearray(400 << 20)"]),
    }
    jobs = {status: submit(cluster, *options, "-o", "/root/end-%j", "--", *command)
            for status, (options, command) in cases.items()}
    said = {}
    for status, job in jobs.items():
        assert cluster.run("vctl", "wait", job).returncode == status
        said[status] = cluster.json("job", job)["reason"]
        lines = (cluster.root / f"root/end-{job}").read_text().splitlines()
        assert lines[-1] == f"vrun: {said[status]}" and len(lines) == (2 if status == 124 else 1), (status, lines)
        assert cluster.vctl("logs", job).stderr == f"vrun: {said[status]}\n"
    # The same words as of a run in the foreground.
    for status in (127, 124):
        r = cluster.vrun(*cases[status][0] * (status == 124), "--", *cases[status][1])
        assert (r.returncode, r.stderr) == (status, f"vrun: {said[status]}\n")


def test_who_follows_a_batch_job_gets_its_output_alone_and_hears_of_its_end(cluster):
    r = cluster.run("vbatch", "-f", "-q", "-D", "/root", "-t", "0:01", "--", "sh", "-c", "echo out; echo err >&2; exec sleep 60")
    assert (r.returncode, r.stdout, r.stderr) == (124, "out\n", "err\nvrun: time limit of 1 s reached\n")
    r = cluster.run("vbatch", "-f", "-D", "/root", "--", "echo", "out")
    assert r.returncode == 0 and r.stdout == "out\n" and r.stderr.startswith("Submitted batch job ")


def test_a_batch_job_that_was_cancelled_before_it_started_says_so_in_its_log(cluster):
    job = submit(cluster, "--begin", "now+1hour", "--", "true")
    cluster.vctl("cancel", job)
    assert cluster.run("vctl", "wait", job).returncode == 125
    assert (cluster.root / f"root/vrun-{job}.out").read_text() == f"vrun: {cluster.json('job', job)['reason']}\n"


def test_a_worker_that_was_killed_for_memory_is_told_of_though_its_parent_exits_0(cluster):
    program = "import os\nif os.fork() == 0: x = bytearray(400 << 20)\nos.wait()\nprint('fine')"
    told = "a process of the command was killed: out of memory: the job's limit is 64 MiB: ask for more with --mem"
    r = cluster.vrun("--mem", "64M", "--status-json", "fd:1", "--", "python3", "-c", program)
    assert r.returncode == 0 and r.stderr == f"vrun: {told}\n" and '"oom_kills": 1' in r.stdout
    job = submit(cluster, "--mem", "64M", "-o", "/root/memory-%j", "--", "python3", "-c", program)
    assert cluster.run("vctl", "wait", job).returncode == 0
    assert (cluster.root / f"root/memory-{job}").read_text() == f"fine\nvrun: {told}\n"
    info = cluster.json("job", job)
    assert (info["state"], info["exit"], info["oom_kills"], info["reason"]) == ("COMPLETED", 0, 1, told)


def test_a_script_may_come_on_stdin_or_as_a_text(cluster):
    script = "#!/bin/sh\n#SBATCH -J here --comment ignored\n\necho $VRUN_JOB_ID $# $1; test -x $0 && cat /root/data\n"
    (cluster.root / "root/data").write_text("data\n")
    follow = [BIN / "vbatch", "-f", "-q", "-D", "/root"]
    for arguments, count in (([], "0"), (["/dev/stdin", "a b"], "1 a b"), (["-", "a b"], "1 a b")):
        r = subprocess.run([*follow, *arguments], input=script, env=cluster.environment, capture_output=True, text=True)
        job = int(r.stdout.split()[0])
        assert (r.returncode, r.stdout, r.stderr) == (0, f"{job} {count}\ndata\n", "")
        assert cluster.json("job", job)["name"] == "here"
    r = subprocess.run(["bash", "-c", '"$@" <(echo "#!/usr/bin/env python3"; echo "print(6 * 7)")', "-", *map(str, follow)],
                       env=cluster.environment, capture_output=True, text=True)
    assert (r.returncode, r.stdout, r.stderr) == (0, "42\n", "")
    r = cluster.run("vbatch", "-f", "-q", "-D", "/root", "--wrap", "echo one; exit 3")
    assert (r.returncode, r.stdout, r.stderr) == (3, "one\n", "")


def test_output_files_are_named_by_slurms_patterns(cluster):
    job = submit(cluster, "-J", "a/b", "-o", "/root/%6j-%A-%a-%u-%N-%x-100%%", "--", "echo", "here")
    cluster.vctl("wait", job)
    assert (cluster.root / f"root/{job:06}-{job}-0-root-n1-a_b-100%").read_text() == "here\n"
    log = cluster.root / "root/log"
    log.write_text("before\n")
    for mode, expected in (("append", "before\nx\n"), ("truncate", "x\n")):
        cluster.vctl("wait", submit(cluster, "--open-mode", mode, "-o", "log", "--", "echo", "x"))
        assert log.read_text() == expected


def test_the_rows_of_many_jobs_that_append_to_one_file_are_all_there(cluster):
    rows = cluster.root / "root/rows.csv"
    rows.write_text("")
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        jobs = list(pool.map(lambda i: submit(cluster, "--wrap", f"echo row {i} >> rows.csv"), range(18)))
    assert [cluster.run("vctl", "wait", job).returncode for job in jobs] == [0] * 18
    assert sorted(rows.read_text().split("\n")) == sorted([f"row {i}" for i in range(18)] + [""])


def test_a_command_that_is_not_there_is_refused_at_once(cluster):
    jobs = len(cluster.json("jobs", "--all")["jobs"])
    (cluster.root / "root/notes").write_text("text\n")
    for command, status, said in (("typo.sh", 127, "typo.sh: command not found in PATH: install it or give its path"),
                                  ("./typo.sh", 127, "./typo.sh: not in the mirrored root: check the path"),
                                  ("/root/notes", 126, "/root/notes: Permission denied: chmod +x or name another file")):
        r = cluster.run("vbatch", "-D", "/root", command)
        assert (r.returncode, r.stdout, r.stderr) == (status, "", f"vbatch: {said}\n")
    assert len(cluster.json("jobs", "--all")["jobs"]) == jobs


def test_jobs_submitted_together_survive_a_kill_of_home_and_controller_and_see_what_was_there(sturdy):
    c = sturdy()
    clients = 12
    for i in range(clients):
        (c.root / f"root/in-{i}").write_text(f"before {i}\n")

    def later(i):
        job = submit(c, "--begin", "now+5", "--", "sh", "-c", f"cat in-{i}; echo *-late")
        c.await_root(job)
        return job
    with concurrent.futures.ThreadPoolExecutor(clients) as threads:
        jobs = list(threads.map(later, range(clients)))
    pids = [c.pid_of(name) for name in ("home", "controller")]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    (c.root / "root/too-late").touch()
    wait_until("both have ended", lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    c.up()
    for i, job in enumerate(jobs):
        assert c.run("vctl", "wait", job).returncode == 0, c.vctl("job", job).stdout
        assert (c.root / f"root/vrun-{job}.out").read_text() == f"before {i}\n*-late\n"
