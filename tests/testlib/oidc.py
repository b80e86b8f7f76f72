# SPDX-License-Identifier: Apache-2.0
"""A real identity provider for a test (oidcserver/), and a person before its pages."""
import html.parser
import http.cookiejar
import json
import pathlib
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request

from cluster import free_port

HERE = pathlib.Path(__file__).resolve().parent / "oidcserver"
MISSING = None
if not shutil.which("node"):
    MISSING = "no node: tools/install-deps --test installs it"
elif not (HERE / "node_modules/oidc-provider").is_dir():
    MISSING = "no identity provider: tools/install-deps --test gets it from the npm registry"


class Provider:
    """`people`: claims by login."""
    def __init__(self, people, *options):
        self.port = free_port("127.0.0.1")
        self.issuer = f"http://127.0.0.1:{self.port}"
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="vrun-oidc-", dir="/var/tmp"))
        (self.directory / "people").write_text(json.dumps(people))
        with open(self.directory / "log", "w") as log:
            self.process = subprocess.Popen(["node", HERE / "server.js", "--port", str(self.port), "--people", self.directory / "people",
                                             *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        for line in self.process.stdout:
            if line == "ready\n":
                return
        raise AssertionError((self.directory / "log").read_text())

    def close(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


class Form(html.parser.HTMLParser):
    """The first form of a page: where it goes and what is in it."""
    def __init__(self, page):
        super().__init__()
        self.action, self.fields, self.buttons = None, {}, []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        a = dict(attributes)
        if tag == "form" and self.action is None:
            self.action = a.get("action", "")
        if tag == "input" and a.get("name"):
            self.fields[a["name"]] = a.get("value") or ""
        if tag == "button" and a.get("name"):
            self.buttons.append((a["name"], a.get("value") or ""))


class Browser:
    def __init__(self):
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))

    def open(self, url, data=None):
        try:
            with self.opener.open(url, data and urllib.parse.urlencode(data).encode(), timeout=30) as answer:
                self.url, self.page = answer.url, answer.read().decode()
        except urllib.error.HTTPError as answer:
            self.url, self.page = answer.url, answer.read().decode()
        return self.page

    def submit(self, **fields):
        form = Form(self.page)
        assert form.action is not None, self.page
        return self.open(urllib.parse.urljoin(self.url, form.action), {**form.fields, **fields})

    def approve(self, url, login, code):
        """What a person does: opens the page, sees that the code is that of his terminal, logs in, agrees."""
        self.open(url)
        self.submit()   # the page of a URL with a code in it submits itself
        assert code in self.page, self.page
        self.submit(confirm="yes")
        for _ in range(4):
            form = Form(self.page)
            if form.action is None:
                break
            self.submit(**({"login": login, "password": "x"} if "login" in form.fields else {}))
        assert "Success" in self.page, self.page

    def refuse(self, url, code):
        self.open(url)
        self.submit()
        assert code in self.page, self.page
        self.submit(abort="yes")
