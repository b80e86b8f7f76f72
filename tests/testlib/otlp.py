# SPDX-License-Identifier: Apache-2.0
"""A collector of traces for a test: what programs send over OTLP/HTTP, read with the official classes of PyPI's opentelemetry-proto.

Run by the Python of apitools/venv it is the collector itself, which appends each span, and each request, as a line of JSON to a file."""
import http.server
import json
import pathlib
import subprocess
import sys
import tempfile

PYTHON = pathlib.Path(__file__).resolve().parent / "apitools/venv/bin/python"


def installed():
    return PYTHON.exists() and subprocess.run([PYTHON, "-c", "import opentelemetry.proto.collector.trace.v1.trace_service_pb2"],
                                              capture_output=True).returncode == 0


class Collector:
    """Listens at all addresses. What it got stays over a stop."""
    def __init__(self, port):
        self.port = port
        self.directory = tempfile.TemporaryDirectory(prefix="vrun-otlp-", dir="/var/tmp")
        self.file = pathlib.Path(self.directory.name) / "spans"
        self.file.touch()
        self.process = None
        self.start()

    def start(self, status=200):
        """With another `status` it takes nothing, and answers with that."""
        self.process = subprocess.Popen([PYTHON, __file__, str(self.port), self.file, str(status)], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "listens\n"

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
        self.process = None

    def close(self):
        self.stop()
        self.directory.cleanup()

    def lines(self, kind):
        return [line for line in map(json.loads, self.file.read_text().splitlines()) if line["kind"] == kind]

    def requests(self):
        return self.lines("request")

    def spans(self, job=None, trace=None):
        """By when they began."""
        found = [s for s in self.lines("span") if (job is None or s["attributes"].get("vrun.job.id") == str(job)) and trace in (None, s["trace"])]
        return sorted(found, key=lambda s: s["start"])


def plain(value):
    which = value.WhichOneof("value")
    return [plain(v) for v in value.array_value.values] if which == "array_value" else getattr(value, which) if which else None


def attributes(pairs):
    return {pair.key: plain(pair.value) for pair in pairs}


def serve(port, file, status):
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if status != 200:
                self.send_error(status)
                return
            # As a real collector: other forms are refused, and so is text that is not UTF-8.
            if self.path != "/v1/traces" or self.headers["Content-Type"] != "application/x-protobuf":
                self.send_error(404)
                return
            request = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
            lines = [{"kind": "request", "headers": dict(self.headers), "bytes": len(body)}]
            for resource in request.resource_spans:
                who = attributes(resource.resource.attributes)
                for scope in resource.scope_spans:
                    for s in scope.spans:
                        assert len(s.trace_id) == 16 and len(s.span_id) == 8 and len(s.parent_span_id) in (0, 8)
                        lines.append({
                            "kind": "span", "who": who, "scope": scope.scope.name, "name": s.name, "trace": s.trace_id.hex(), "id": s.span_id.hex(),
                            "parent": s.parent_span_id.hex(), "start": s.start_time_unix_nano / 1e9, "end": s.end_time_unix_nano / 1e9,
                            "attributes": attributes(s.attributes), "failed": s.status.code == 2, "message": s.status.message,
                            "events": [{"name": e.name, "at": e.time_unix_nano / 1e9, "attributes": attributes(e.attributes)} for e in s.events]})
            with open(file, "a") as to:
                to.write("".join(json.dumps(line) + "\n" for line in lines))
            answer = trace_service_pb2.ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("0.0.0.0", port), Handler)
    print("listens", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
