# SPDX-License-Identifier: Apache-2.0
"""The dashboard of a large cluster: what each page asks for, and a real browser until it shows live data: bench/run dashboard.

The database is seeded by copies of rows that a real node and real jobs have left: 10,000 GPUs, 100,000 jobs of which 2,000 wait. The
nodes are not there, so the controller calls them lost; their answers are as large as those of others.
"""
import argparse
import json
import pathlib
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request

import lib
import miniroot
from cluster import TOP, Cluster, discard, wait_until

MOST_MS = 300
PAINT_MS = 1000


def copy_rows(database, table, wanted, changes):
    """So many copies of the last row of the table that `wanted` names; `changes` are SQL expressions of the number n, by column."""
    columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})") if row[1] != "id"]
    values = [changes.get(name, f't."{name}"') for name in columns]
    names = ", ".join(f'"{name}"' for name in columns)
    count, where = wanted
    database.execute(f"WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {count}) "
                     f"INSERT INTO {table} ({names}) SELECT {', '.join(values)} FROM c, (SELECT * FROM {table} WHERE {where} LIMIT 1) t")


def unseal(database, job, key):
    """The row's request in the clear: a copy of it belongs to another job than what is sealed in it. The controller seals plain ones when
    it starts, as those of earlier versions."""
    sealed = database.execute(f"SELECT spec FROM jobs WHERE id={job}").fetchone()[0]
    nonce, body = sealed[4:16], sealed[16:-16]
    # AES-GCM (src/base/secrets/seal.cc): the text begins at the second block of AES-CTR.
    plain = subprocess.run(["openssl", "enc", "-d", "-aes-256-ctr", "-K", key.hex(), "-iv", nonce.hex() + "00000002"], input=body,
                           capture_output=True, check=True).stdout
    database.execute("UPDATE jobs SET spec=? WHERE id=?", (plain, job))


def seed(c, gpus, jobs, waiting):
    done = int(c.run("vbatch", "-D", "/root", "--", "true", check=True).stdout.split()[-1])
    wait_until("a job has ended", lambda: c.json("job", done)["state"] == "COMPLETED")
    held = int(c.run("vbatch", "-D", "/root", "-H", "-G", "1", "--", "true", check=True).stdout.split()[-1])
    c.stop_node("n1")
    c.vctl("down", "--all")
    file = c.directory / "home/state/controller/vrun.db"
    key = file.with_name("vrun.db.key").read_bytes()
    database = sqlite3.connect(file)
    with database:
        for job in (done, held):
            unseal(database, job, key)
        copy_rows(database, "jobs", (jobs - waiting, f"id={done}"), {"request_id": "'copy' || n"})
        copy_rows(database, "jobs", (waiting, f"id={held}"), {"request_id": "'held' || n"})
        copy_rows(database, "nodes", (gpus // 8 - 1, "name='n1'"), {"name": "printf('h100-%04d', n)"})
        database.execute("DELETE FROM journal")
    database.close()
    c.up()
    return done


def ask(c, token, path):
    request = urllib.request.Request(f"http://127.0.0.1:{c.http_port}/api/v1{path}", headers={"Authorization": f"Bearer {token}"})
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=60) as answer:
        size = len(answer.read())
    return (time.monotonic() - began) * 1000, size


def browse(c, report, gpus):
    tools = TOP / "tests/testlib/browser/venv"
    if not (tools / "installed").exists():
        lib.note("no browser: tools/install-deps --test")
        return
    [packages] = (tools / "lib").glob("python3*/site-packages")
    sys.path.append(str(packages))
    from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = chromium.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.goto(json.loads(c.vctl("dashboard", "--print", "-o", "json").stdout)["url"])
        page.wait_for_selector("canvas")
        paints, lives = [], []
        for _ in range(5):
            page.goto("about:blank")
            began = time.monotonic()
            page.goto(f"http://127.0.0.1:{c.http_port}/")
            page.wait_for_selector("canvas")
            page.wait_for_selector(".live.live")
            lives.append((time.monotonic() - began) * 1000)
            paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        assert str(gpus) in page.locator("canvas").get_attribute("aria-label").replace(",", ""), "not all GPUs are shown"
        frame = page.evaluate("""() => new Promise(done => { let last = performance.now(), worst = 0, n = 0; const next = t => {
            worst = Math.max(worst, t - last); last = t; scrollBy(0, n % 2 ? 30 : -30); ++n < 120 ? requestAnimationFrame(next) : done(worst); };
            requestAnimationFrame(next); })""")
        chromium.close()
    report.line("dashboard.first_paint", lib.median(paints), "ms", goal=f"<= {PAINT_MS} ms", met=lib.median(paints) <= PAINT_MS)
    report.line("dashboard.live_data", lib.median(lives), "ms")
    report.line("dashboard.worst_frame", frame, "ms")


def main(arguments):
    parser = argparse.ArgumentParser(prog="bench/run dashboard")
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--waiting", type=int, default=2_000)
    parser.add_argument("--runs", type=int, default=20, help="requests for each answer")
    o = parser.parse_args(arguments)
    report = lib.Report()
    directory = pathlib.Path(tempfile.mkdtemp(prefix="vrun-dashboard-", dir="/var/tmp"))
    c = None
    try:
        c = Cluster(miniroot.make(str(directory / "root")), http=True, node_options=["--gpus", "8", "--gpu-type", "h100"])
        done = seed(c, o.gpus, o.jobs, o.waiting)
        token = json.loads(c.vctl("token", "create", "bench", "-o", "json").stdout)["token"]
        pages = {"cluster": "/cluster", "teams": "/quota", "teams_use": "/teams/use", "jobs": "/jobs?limit=50", "jobs_all": "/jobs?limit=50&all=true",
                 "jobs_of_nobody": "/jobs?limit=50&all=true&user=nobody", "job": f"/jobs/{done}", "why": f"/jobs/{done + o.jobs}/why",
                 "node": "/nodes/h100-0007", "jobs_of_node": "/jobs?limit=200&node=h100-0007", "me": "/me"}
        for name, path in pages.items():
            ask(c, token, path)
            times, size = [], 0
            for _ in range(o.runs):
                ms, size = ask(c, token, path)
                times.append(ms)
            p95 = lib.percentile(times, 0.95)
            report.line(f"dashboard.{name}", p95, "ms", goal=f"<= {MOST_MS} ms", met=p95 <= MOST_MS, median=round(lib.median(times), 2), bytes=size)
        browse(c, report, o.gpus)
    finally:
        if c is not None:
            c.close()
        discard(directory)
    return report.exit_code()
