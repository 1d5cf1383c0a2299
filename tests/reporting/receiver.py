"""A report receiver in a process of its own, with the service's manners: commit, then answer.

    python receiver.py PORT DATABASE CONTROL

CONTROL is a file with one word, read at each request:
    ok            take everything
    503, 401 ...  refuse with that status; `503|VALUE` sets Retry-After
    partial       take every second report, say `later` or nothing of the others
    hang          never answer
    garbage       answer 200 with a web page
    die           SIGKILL itself after the commit, before the answer
    deny:7-9      tell heartbeats that these are missing
"""

import gzip
import json
import os
import signal
import sqlite3
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PORT, DATABASE, CONTROL = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
SCHEMA = """
CREATE TABLE IF NOT EXISTS reports (id TEXT PRIMARY KEY, boot_id TEXT, seq INTEGER, body TEXT);
CREATE TABLE IF NOT EXISTS posts (at REAL, path TEXT, mode TEXT, count INTEGER, bytes INTEGER, inflated INTEGER);
CREATE TABLE IF NOT EXISTS heartbeats (body TEXT);
"""


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def do_POST(self):
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        inflated = gzip.decompress(raw) if self.headers.get("Content-Encoding") == "gzip" else raw
        content = json.loads(inflated)
        mode, _, retry_after = CONTROL.read_text().strip().partition("|")
        with sqlite3.connect(DATABASE, timeout=20) as database:
            database.execute(
                "INSERT INTO posts VALUES (?, ?, ?, ?, ?, ?)",
                (time.time(), self.path, mode, len(content), len(raw), len(inflated)),
            )
        if mode in ("401", "422", "500", "503", "429") or (
            mode == "413" and isinstance(content, list) and len(content) > 3
        ):
            retry = {"Retry-After": retry_after or "1"} if mode in ("503", "429") else {}
            return self.answer(int(mode), {"title": "refused", "detail": f"mode {mode}"}, retry)
        if mode == "hang":
            time.sleep(60)
            return None
        if mode == "garbage":
            return self.answer(200, None, {})
        if self.headers.get("Authorization") != "Bearer yoco_test":
            return self.answer(401, {"title": "no key"}, {})
        answer = self.heartbeat(content) if self.path.endswith("heartbeats") else self.reports(content)
        if mode == "die":
            CONTROL.write_text("ok")
            os.kill(os.getpid(), signal.SIGKILL)
        return self.answer(200, answer, {})

    def reports(self, reports):
        results, mode = [], CONTROL.read_text().strip()
        with sqlite3.connect(DATABASE, timeout=20) as database:
            for number, report in enumerate(reports):
                if mode == "partial" and number % 2:
                    results += [{"id": report["id"], "status": "later"}] if number % 4 == 1 else []
                    continue
                body = json.dumps(report, sort_keys=True)
                if report["trigger"]["detail"].get("unreadable"):
                    results.append({"id": report["id"], "status": "invalid", "reason": "$.trigger.detail"})
                    continue
                row = (report["id"], report["boot_id"], report["seq"], body)
                fresh = database.execute("INSERT OR IGNORE INTO reports VALUES (?, ?, ?, ?)", row).rowcount
                (stored,) = database.execute("SELECT body FROM reports WHERE id = ?", row[:1]).fetchone()
                status = "created" if fresh else "duplicate" if stored == body else "conflict"
                results.append({"id": report["id"], "status": status, "reason": None})
        return {"results": results}

    def heartbeat(self, heartbeat):
        mode = CONTROL.read_text().strip()
        with sqlite3.connect(DATABASE, timeout=20) as database:
            database.execute("INSERT INTO heartbeats VALUES (?)", (json.dumps(heartbeat),))
            rows = database.execute("SELECT seq FROM reports WHERE boot_id = ?", (heartbeat["boot_id"],))
            known = {seq for (seq,) in rows}
        missing = [[seq, seq] for seq in range(1, heartbeat["seq"] + 1) if seq not in known]
        if mode.startswith("deny:"):
            missing.append([int(part) for part in mode[5:].split("-")])
        return {"missing": missing}

    def answer(self, code, content, headers):
        body = b"<html>hello</html>" if content is None else json.dumps(content).encode()
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


with sqlite3.connect(DATABASE) as connection:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.executescript(SCHEMA)
ThreadingHTTPServer.allow_reuse_address = True
server = ThreadingHTTPServer(("127.0.0.1", PORT), Receiver)
print(server.server_address[1], flush=True)
server.serve_forever()
