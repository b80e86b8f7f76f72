# SPDX-License-Identifier: Apache-2.0
"""The dashboard in a real browser, on a real cluster with jobs: what it shows is what `vctl` says, and who may do what."""
import contextlib
import gzip
import json
import os
import pathlib
import re
import shutil
import signal
import time
import urllib.error
import urllib.request

import fake_gpus
import pytest
from cluster import SLOW, TOP, wait_until
from fake_gpus import FakeGpus

TOOLS = TOP / "tests/testlib/browser"
AXE = TOOLS / "node_modules/axe-core/axe.min.js"
CHROMIUM = shutil.which("chromium")
needs_browser = pytest.mark.skipif(not (CHROMIUM and AXE.exists() and (TOOLS / "venv/installed").exists()),
                                   reason="needs tools/install-deps --test: chromium, Playwright, axe-core")
pytestmark = [pytest.mark.seconds(180)]
PICTURES = os.environ.get("VRUN_PICTURES")   # a directory: pictures of the pages are put there


def submit(c, *command, options=()):
    return int(re.search(r"\d+", c.run("vbatch", "-D", "/root", *options, "--", *command, check=True).stdout)[0])


def sign_in_url(c, *options):
    return json.loads(c.vctl("dashboard", "--print", *options, "-o", "json").stdout)["url"]


@pytest.fixture(scope="module")
def serving(template_root):
    """One node with four GPUs, if the fake driver is built."""
    from cluster import Cluster
    from conftest import Copy
    copy = Copy(template_root)
    c = Cluster(copy.root, http=True, nodes=0)
    gpus = fake_gpus.built()
    c.next_nodes(("--milli-cpus", "16000", *(("--gpu-interval-ms", "300", *FakeGpus.NODE_OPTIONS) if gpus else ())))
    c.reserve("n1")
    c.make_host("n1")
    if gpus:
        c.gpus = FakeGpus.for_node(c, "n1", count=4)
        for i in range(4):
            c.gpus.set(i, utilization=60)
    c.launch_node("n1")
    c.await_node("n1")
    c.has_gpus = gpus
    yield c
    c.close()
    copy.remove()


@pytest.fixture
def c(serving):
    yield serving
    serving.settle()


@pytest.fixture(scope="module")
def playwright_of_venv():
    import sys
    [packages] = (TOOLS / "venv/lib").glob("python3*/site-packages")
    sys.path.append(str(packages))
    from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="module")
def browser(playwright_of_venv):
    chromium = playwright_of_venv.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    yield chromium
    chromium.close()


@contextlib.contextmanager
def page_of(browser, c, *options, scheme="light", width=1440, height=900, sign_in=True):
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce")
    context.set_default_timeout(20_000 * SLOW)
    page = context.new_page()
    page.problems = []
    page.on("pageerror", lambda e: page.problems.append(str(e)))
    page.on("console", lambda m: page.problems.append(m.text) if m.type == "error" and "status of 4" not in m.text else None)
    if sign_in:
        page.goto(sign_in_url(c, *options))
        page.wait_for_selector("nav[aria-label=Pages]")
    yield page
    assert not page.problems, page.problems
    context.close()


def show(page, c, where):
    page.goto(f"http://127.0.0.1:{c.http_port}/#/{where}")
    page.wait_for_selector("main h1")


def row(page, text):
    return page.locator("main tbody tr").filter(has=page.get_by_role("link", name=re.compile(rf"^{re.escape(str(text))}\b")))


def test_the_files_are_small_and_strict(serving):
    total = 0
    for path, kind in (("/", "text/html"), ("/app.js", "text/javascript"), ("/app.css", "text/css"), ("/icon.svg", "image/svg+xml")):
        url = f"http://127.0.0.1:{serving.http_port}{path}"
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept-Encoding": "gzip"})) as answer:
            body, headers = answer.read(), answer.headers
        assert headers["Content-Type"].startswith(kind) and headers["Content-Encoding"] == "gzip"
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src 'self'" in policy
        total += len(body)
        assert not re.search(rb"https?://(?!www\.w3\.org/)", gzip.decompress(body)), "something from elsewhere"
        with pytest.raises(urllib.error.HTTPError) as same:
            urllib.request.urlopen(urllib.request.Request(url, headers={"If-None-Match": headers["ETag"]}))
        assert same.value.code == 304
    assert total <= 100_000


def ask(c, method, path, body=None, **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{c.http_port}{path}", method=method, data=None if body is None else json.dumps(body).encode(),
                                     headers={"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}})
    try:
        with urllib.request.urlopen(request, timeout=20 * SLOW) as answer:
            return answer.status, json.loads(answer.read()), answer.headers
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read()), e.headers


def test_a_session_is_two_halves(c):
    code = sign_in_url(c).split("#code=")[1]
    status, session, headers = ask(c, "POST", "/session", {"code": code})
    assert status == 200 and session["write"], session
    assert "HttpOnly; SameSite=Strict" in headers["Set-Cookie"]
    cookie = headers["Set-Cookie"].split(";")[0]
    assert ask(c, "POST", "/session", {"code": code})[0] == 401, "a code works once"
    both = {"Cookie": cookie, "X_Vrun_Session": session["proof"]}
    assert ask(c, "GET", "/api/v1/me", **both)[1]["name"] == session["user"]
    assert ask(c, "GET", "/api/v1/me", Cookie=cookie)[0] == 401, "the cookie alone, as a page of another site would send it"
    assert ask(c, "GET", "/api/v1/me", X_Vrun_Session=session["proof"])[0] == 401
    assert ask(c, "POST", "/session", {"token": "vrun_" + "0" * 40})[0] == 401
    assert session["token"] in [t["name"] for t in c.json("token", "list")["tokens"]]
    status, new, _ = ask(c, "POST", "/api/v1/me/tokens", {"name": "made-here", "seconds": 60}, **both)
    assert status == 200 and ask(c, "GET", "/api/v1/me", Authorization="Bearer " + new["token"])[0] == 200
    assert ask(c, "POST", "/api/v1/me/tokens/made-here/revoke", {}, **both)[0] == 200
    assert ask(c, "GET", "/api/v1/me", Authorization="Bearer " + new["token"])[0] == 401
    assert ask(c, "POST", "/session/end", {}, **both)[0] == 200
    assert ask(c, "GET", "/api/v1/me", **both)[0] == 401
    reader = ask(c, "POST", "/session", {"code": sign_in_url(c, "--scope", "read").split("#code=")[1]})
    both = {"Cookie": reader[2]["Set-Cookie"].split(";")[0], "X_Vrun_Session": reader[1]["proof"]}
    assert ask(c, "GET", "/api/v1/jobs", **both)[0] == 200
    assert ask(c, "POST", "/api/v1/nodes/n1/drain", {}, **both)[0] == 403


def test_pages_go_over_all_jobs(c):
    jobs = [submit(c, "sleep", "300", options=["-H", "-J", "odd" if i % 2 else "even"]) for i in range(5)]
    token = json.loads(c.vctl("token", "create", "pages", "-o", "json").stdout)["token"]
    for query in ("name=odd&limit=1", "name=odd&limit=1&all=true"):
        seen, before = [], ""
        for _ in range(200):
            page = ask(c, "GET", f"/api/v1/jobs?{query}{before}", Authorization="Bearer " + token)[1]
            seen += [j["job"] for j in page["jobs"]]
            if "next" not in page:
                break
            before = f"&before={page['next']}"
        assert seen == [jobs[3], jobs[1]], query


@needs_browser
def test_sign_in_and_out(c, browser):
    with page_of(browser, c, sign_in=False) as page:
        show(page, c, "jobs")
        assert page.get_by_text("vctl dashboard").is_visible()
        page.get_by_label("paste a token").fill("vrun_wrong")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("alert").get_by_text("unknown").wait_for()
        token = json.loads(c.vctl("token", "create", "pasted", "-o", "json").stdout)["token"]
        page.get_by_label("paste a token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("heading", name="Jobs").wait_for()   # where it was to go
        assert "code" not in page.url and page.get_by_text(", reading").count() == 1
        show(page, c, "me")
        page.get_by_role("button", name="Sign out").click()
        page.get_by_text("You have signed out").wait_for()
        url = sign_in_url(c)
        page.goto(url)
        page.get_by_role("heading", name="Cluster").wait_for()
        assert "code" not in page.url
        c.vctl("token", "revoke", "pasted")


@needs_browser
@pytest.mark.parametrize("hours", [72, -72])
def test_a_browser_whose_clock_is_wrong(c, browser, hours):
    """It stays signed in, and times are those of the controller."""
    submit(c, "sleep", "300")
    wait_until("the job runs", lambda: [j["state"] for j in c.json("jobs")["jobs"]] == ["RUNNING"])
    with page_of(browser, c, sign_in=False) as page:
        page.clock.install(time=time.time() + hours * 3600)
        page.clock.resume()
        page.goto(sign_in_url(c))
        page.wait_for_selector("nav[aria-label=Pages]")
        show(page, c, "jobs")
        page.reload()
        assert re.fullmatch(r"\d+ s|1 min.*", page.locator("main tbody tr td").nth(8).inner_text()), page.locator("main tbody tr").inner_text()


@needs_browser
def test_pages_show_what_vctl_says(c, browser):
    options = ["-G", "2"] if c.has_gpus else []
    runs = submit(c, "sh", "-c", "for i in 1 2 3; do echo line $i; done; echo careful >&2; sleep 300", options=[*options, "-J", "shown"])
    held = submit(c, "sleep", "300", options=["-H", "-J", "later"])
    wait_until("the job runs", lambda: c.json("job", runs)["state"] == "RUNNING")
    with page_of(browser, c) as page:
        show(page, c, "cluster")
        stats = page.locator("dl.stats")
        stats.get_by_text("Jobs running").wait_for()
        wait_until("numbers of the cluster", lambda: re.sub(r"\s+", " ", stats.inner_text()).find("Jobs running 1") >= 0)
        if c.has_gpus:
            assert re.search(r"GPUs in use\s+2 / 4", stats.inner_text()), stats.inner_text()
            assert "2 used" in page.locator("canvas").get_attribute("aria-label")
        show(page, c, "jobs")
        for job in c.json("jobs")["jobs"]:
            row(page, job["job"]).wait_for()
            assert job["name"] in row(page, job["job"]).inner_text()
        assert "running" in row(page, runs).inner_text() and "held" in row(page, held).inner_text()
        # A job that begins appears without reloading, and its state follows.
        new = submit(c, "sleep", "300", options=["-J", "fresh"])
        row(page, new).wait_for()
        row(page, new).get_by_text("running").wait_for()

        row(page, runs).get_by_role("link", name=str(runs), exact=True).click()
        page.get_by_role("heading", name="shown").wait_for()
        log = page.get_by_role("log")
        log.get_by_text("line 3").wait_for()
        log.get_by_text("careful").wait_for()
        page.reload()
        page.get_by_role("heading", name="shown").wait_for()
        assert page.url.endswith(f"#/jobs/{runs}")
        if c.has_gpus:
            page.get_by_role("img", name=re.compile("GPU utilization: now utilization 60 %")).wait_for()

        show(page, c, f"jobs/{held}")
        page.get_by_text("held", exact=False).first.wait_for()
        page.get_by_role("button", name="Release").click()
        page.get_by_role("dialog").get_by_role("button", name="Release").click()
        wait_until("it is released", lambda: c.json("job", held)["state"] != "PENDING")

        show(page, c, "nodes")
        row(page, "n1").wait_for()
        assert c.json("nodes")["nodes"][0]["state"] in row(page, "n1").inner_text()
        show(page, c, "nodes/n1")
        page.get_by_role("button", name="Drain").click()
        page.get_by_label("Why, for others").fill("new fan")
        page.get_by_role("dialog").get_by_role("button", name="Drain").click()
        page.get_by_text("new fan").first.wait_for()
        assert c.node_state("n1").startswith("drain")
        page.get_by_role("button", name="Resume").click()
        page.get_by_role("dialog").get_by_role("button", name="Resume").click()
        wait_until("it is ready", lambda: c.node_state("n1") == "ready")

        show(page, c, "teams")
        me = c.json("whoami")
        page.get_by_role("group", name="Who uses what").get_by_role("link", name=me["name"].split("@")[0]).wait_for()
        show(page, c, "me")
        page.get_by_text(me["name"], exact=True).wait_for()
        assert me["role"] in page.locator("main").inner_text()


@needs_browser
def test_cancel_is_for_those_who_may(c, browser):
    job = submit(c, "sleep", "300", options=["-J", "mine"])
    wait_until("the job runs", lambda: c.json("job", job)["state"] == "RUNNING")
    with page_of(browser, c, "--user", "eve@elsewhere") as page:
        show(page, c, f"jobs/{job}")
        page.locator("main h1 .state").get_by_text("running").wait_for()
        assert page.get_by_role("button", name="Cancel").count() == 0
        # Even if the page asked for it.
        status = page.evaluate("""async job => (await fetch(`/api/v1/jobs/${job}/cancel`, {method: 'POST', body: '{}',
            headers: {'Content-Type': 'application/json', 'X-Vrun-Session': JSON.parse(localStorage['vrun.session']).proof}})).status""", job)
        assert status == 403 and c.json("job", job)["state"] == "RUNNING"
    with page_of(browser, c) as page:
        show(page, c, f"jobs/{job}")
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Cancel the job").click()
        page.locator("main h1 .state").get_by_text("cancelled").wait_for()
        assert c.json("job", job)["state"] == "CANCELLED"
        page.keyboard.press("g")
        page.keyboard.press("n")
        page.get_by_role("heading", name="Nodes").wait_for()


def replayed(c):
    """A replay that has ended; the same for all tests."""
    if not hasattr(c, "replay"):
        done = submit(c, "sleep", "1", options=["-G", "1"])
        wait_until("a job with a GPU has ended", lambda: c.json("job", done)["state"] == "COMPLETED")
        token = json.loads(c.vctl("token", "create", "replays", "--scope", "write", "-o", "json").stdout)["token"]
        status, run, _ = ask(c, "POST", "/api/v1/what-if", {"days": 1, "nodes": "local=+1"}, Authorization="Bearer " + token)
        assert status == 200, run
        wait_until("the replay has ended", lambda: ask(c, "GET", f"/api/v1/what-if/{run['id']}", Authorization="Bearer " + token)[1]["state"] == "done")
        c.replay = run["id"]
    return c.replay


@needs_browser
def test_what_if_is_asked_in_the_page(c, browser):
    if not c.has_gpus:
        pytest.skip("needs the fake driver of GPUs")
    done = submit(c, "sleep", "1", options=["-G", "2"])
    wait_until("a job with GPUs has ended", lambda: c.json("job", done)["state"] == "COMPLETED")
    with page_of(browser, c) as page:
        show(page, c, "cluster")
        page.get_by_role("link", name="What if").click()
        page.get_by_role("heading", name="What if").wait_for()
        page.get_by_label("Nodes more in").first.fill("2")
        page.get_by_role("button", name="Replay", exact=True).click()
        page.get_by_role("heading", name=re.compile("^Replay [0-9]+")).wait_for()
        page.get_by_role("group", name="Side by side").wait_for()
        assert "4 → 12" in page.locator("main").inner_text()
        for title in ("Happened", "As it is", "What if"):
            assert page.get_by_role("columnheader", name=title, exact=True).count() == 1, title
        where = page.url
        page.goto("about:blank")
        page.goto(where)   # a deep link
        page.get_by_role("group", name="Side by side").wait_for()
        page.get_by_role("button", name="Forget it").click()
        page.get_by_role("heading", name="What if").wait_for()
        page.wait_for_url(re.compile("what-if$"))


@needs_browser
def test_what_if_is_not_for_everybody(c, browser):
    roles = c.directory / "home/scheduler.toml"   # without it all are operators
    roles.write_text('operators = ["root"]\n')
    os.kill(c.pid_of("controller"), signal.SIGHUP)
    try:
        sees_no_replays(c, browser)
    finally:
        roles.unlink()
        os.kill(c.pid_of("controller"), signal.SIGHUP)


def sees_no_replays(c, browser):
    with page_of(browser, c, "--user", "eve@elsewhere") as page:
        show(page, c, "jobs")
        page.get_by_text("eve", exact=True).wait_for()
        assert page.get_by_role("link", name="What if").count() == 0
        for where in ("what-if", "what-if/1"):
            show(page, c, where)
            page.get_by_text(re.compile("^replays are for leads of teams, operators and admins", re.IGNORECASE)).wait_for()
            assert page.get_by_role("button", name=re.compile("Replay|Forget")).count() == 0


@needs_browser
@pytest.mark.parametrize("scheme, width", [("light", 1440), ("dark", 1440), ("light", 360), ("dark", 3840)])
def test_pages_are_for_everybody(c, browser, scheme, width):
    job = submit(c, "sh", "-c", "echo hello; sleep 300", options=["-G", "1"] if c.has_gpus else [])
    submit(c, "sleep", "300", options=["-H"])
    wait_until("the job runs", lambda: c.json("job", job)["state"] == "RUNNING")
    with page_of(browser, c, scheme=scheme, width=width, height=900 if width < 3000 else 2160) as page:
        session = page.context.new_cdp_session(page)
        for where in ("cluster", "jobs", f"jobs/{job}", "nodes", "nodes/n1", "teams", "usage", "what-if", *([f"what-if/{replayed(c)}"] if c.has_gpus else []), "me"):
            show(page, c, where)
            wait_until("the page is complete", lambda: page.evaluate("!document.querySelector('[aria-busy=true]')"))
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{where} at {width} is too wide"
            session.send("Runtime.evaluate", {"expression": AXE.read_text()})   # not a script of the page: its policy forbids it
            found = page.evaluate("async () => (await axe.run()).violations.map(v => [v.impact, v.id, v.nodes[0].html])")
            assert not [v for v in found if v[0] in ("serious", "critical")], (where, found)
            if PICTURES:
                page.screenshot(path=pathlib.Path(PICTURES) / f"{where.split('/')[0]}{'-one' if '/' in where else ''}-{scheme}-{width}.png")
