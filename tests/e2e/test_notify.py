# SPDX-License-Identifier: Apache-2.0
"""Mail and webhooks, against a real SMTP server and a real HTTP receiver; and what is removed after a time."""
import base64
import email
import email.header
import hashlib
import hmac
import http.server
import json
import os
import signal
import threading
import time

import pytest
from cluster import SLOW, wait_until

controller = pytest.importorskip("aiosmtpd.controller", reason="python3-aiosmtpd is not installed: tools/install-deps --test")
KEY = bytes(range(32))


class Mails:
    """A mail server that keeps what it gets."""

    def __init__(self, port=0):
        self.got = []
        self.server = controller.Controller(self, hostname="127.0.0.1", port=port or free_port())
        self.server.start()
        self.port = self.server.port

    async def handle_DATA(self, server, session, envelope):
        self.got.append((envelope.rcpt_tos, email.message_from_bytes(envelope.content)))
        return "250 OK"

    def subjects(self):
        return [str(email.header.make_header(email.header.decode_header(mail["Subject"]))) for _, mail in self.got]

    def stop(self):
        self.server.stop()


class Hooks:
    """A receiver of webhooks that checks each signature."""

    def __init__(self, port=0):
        hooks = self
        self.got = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                signed = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + body
                expected = "v1," + base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
                fine = hmac.compare_digest(expected, self.headers.get("webhook-signature", ""))
                hooks.got.append((fine, self.headers["webhook-id"], json.loads(body)))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def types(self):
        return [body["type"] for _, _, body in self.got]

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


def free_port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture
def mails():
    server = Mails()
    yield server
    server.stop()


@pytest.fixture
def hooks():
    server = Hooks()
    yield server
    server.stop()


def configure(c, text):
    home = c.directory / "home"
    (home / "hook.secret").write_text("whsec_" + base64.b64encode(KEY).decode() + "\n")
    (home / "scheduler.toml").write_text(text)
    os.kill(c.pid_of("controller"), signal.SIGHUP)


def settings(mails, hooks, more=""):
    return f"""
[notify]
smtp = "smtp://127.0.0.1:{mails.port}"
from = "vrun@example.org"
domain = "example.org"
job_webhooks = ["http://127.0.0.1:{hooks.port}/jobs/"]
job_secret_file = "hook.secret"
{more}
[team.lab]
users = ["*"]
mail = ["leads@example.org"]
"""


def batch(c, *words, script="true"):
    return c.run("vbatch", "--parsable", "-D", "/root", *words, "--", "sh", "-c", script)


@pytest.mark.seconds(120)
def test_mails_and_webhooks_arrive(own, mails, hooks):
    c = own(node_options=("--gpus", "2"))
    configure(c, settings(mails, hooks))
    wait_until("the configuration is read", lambda: c.json("whoami")["teams"] == ["lab"])
    one = batch(c, "-J", "caf\u00e9", "--mail-type=BEGIN,END", "--mail-user=anna@example.org",
                f"--notify-url=http://127.0.0.1:{hooks.port}/jobs/x", script="exit 3")
    assert one.returncode == 0, one.stderr
    number = int(one.stdout)
    shown = c.vctl("job", str(number)).stdout
    assert "anna@example.org" in shown and "/jobs/x" in shown, shown
    assert c.json("job", str(number))["notify"]["events"] == ["begin", "end"]
    wait_until("both mails came", lambda: len(mails.got) == 2)
    assert any("caf\u00e9" in s and "has begun" in s for s in mails.subjects()), mails.subjects()
    assert any("has ended: failed, exit 3" in s for s in mails.subjects()), mails.subjects()
    assert all(to == ["anna@example.org"] for to, _ in mails.got)
    wait_until("both calls came", lambda: len(hooks.got) == 2)
    assert sorted(hooks.types()) == ["job.begin", "job.end"] and all(fine for fine, _, _ in hooks.got), hooks.got
    end = next(body["data"] for _, _, body in hooks.got if body["type"] == "job.end")
    assert end["job"] == number and end["failed"] is True and end["exit"] == 3 and end["team"] == "lab", end

    batch(c, "--mail-type=FAIL", "--mail-user=anna@example.org")
    for wrong, said in ((("--notify-url=http://127.0.0.1:1/x",), "--notify-url"), (("--mail-type=SOON",), "TIME_LIMIT_50"),
                        (("--mail-type=END", "--mail-user=a@@b"), "--mail-user"), (("--notify-url=ftp://x/",), "--notify-url")):
        refused = batch(c, *wrong)
        assert refused.returncode != 0 and said in refused.stderr and refused.stderr.count("\n") == 1, refused
    time.sleep(2 * SLOW)
    assert len(mails.got) == 2, "a job that succeeds tells nothing at FAIL"


@pytest.mark.seconds(120)
def test_a_receiver_that_was_down_gets_its_call_after_a_restart_of_the_controller(own, mails, hooks):
    c = own()
    port = hooks.port
    configure(c, settings(mails, hooks))
    wait_until("the configuration is read", lambda: c.json("whoami")["teams"] == ["lab"])
    hooks.stop()
    number = int(batch(c, f"--notify-url=http://127.0.0.1:{port}/jobs/", "--mail-type=END").stdout)
    c.run("vctl", "wait", str(number))
    c.kill_daemon("controller")
    c.up()
    again = Hooks(port)
    try:
        wait_until("the call came", lambda: again.got, seconds=30)
        time.sleep(3 * SLOW)
        assert again.types() == ["job.end"] and again.got[0][0], again.got
        starts = [a for a in c.json("admin", "audit")["audit"] if a["what"] == "start"]
        assert [(a["who"], a["from"], a["result"]) for a in starts] == [("controller", "here", "ok")], starts
    finally:
        again.stop()
    hooks.stop = lambda: None


@pytest.mark.seconds(120)
def test_a_budget_that_is_nearly_used_up_is_told_to_its_leads(own, mails, hooks):
    c = own(node_options=("--gpus", "2"))
    more = '[money]\ncurrency = "EUR"\n[[money.price]]\ngpu_hour = { "" = 3600 }\n'
    configure(c, settings(mails, hooks, more) + "month = { money = 2 }\n")
    wait_until("the configuration is read", lambda: c.json("whoami")["teams"] == ["lab"])
    batch(c, "-G1", script="sleep 3")
    wait_until("the mail came", lambda: any("team lab has used" in s for s in mails.subjects()), seconds=40)
    assert mails.got[0][0] == ["leads@example.org"], mails.got


@pytest.mark.seconds(180)
def test_old_jobs_are_removed_and_their_usage_stays(own):
    c = own(node_options=("--gpus", "2"))
    number = int(batch(c, "-G1", script="sleep 2").stdout)
    c.run("vctl", "wait", str(number))
    before = c.json("usage", "--from", "-1h")["total"]
    configure(c, '[retention]\njobs = "1m"\naudit = "365d"\n')
    wait_until("the job is removed", lambda: c.run("vctl", "job", str(number)).returncode != 0, seconds=150)
    after = c.json("usage")["total"]
    assert abs(after["gpu_s"] - before["gpu_s"]) < 0.01 and after["jobs"] == 1, (before, after)
    told = [(a["what"], a["result"]) for a in c.json("admin", "audit")["audit"]]
    assert told == [("submit", "ok"), ("configure", "ok")], told
