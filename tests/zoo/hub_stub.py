"""A Hugging Face Hub on this machine: the part of its HTTP protocol that push, pull and load use.

It keeps commits in memory, counts what is asked for, and can be told to fail.
"""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import yaml

TOKEN = "hf_stub"


class Hub:
    """Repositories by name, each a list of (commit, files), and branches and tags by name."""

    def __init__(self):
        self.repos = {}
        self.refs = {}
        self.private = set()
        self.asked = []
        self.fails = None  # the status of every answer from now on
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def put(self, repo, files, branch="main"):
        """A commit with these files → its name."""
        commit = hashlib.sha1(repr([repo, branch, sorted(files.items())]).encode()).hexdigest()
        self.repos.setdefault(repo, {})[commit] = dict(files)
        self.refs[repo, branch] = commit
        return commit

    def files(self, repo, revision="main"):
        commit = self.refs.get((repo, revision), revision)
        return commit, self.repos[repo].get(commit)

    # --- the protocol

    def answer(self, method, path, body, token):
        """(status, headers, body) of a request."""
        self.asked.append((method, path))
        if self.fails:
            return self.fails, {"X-Error-Message": "told to fail"}, b""
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]
        if method == "POST":
            return self._post(parts, body, token)
        api = parts[:2] == ["api", "models"]
        name = "/".join(parts[2:4] if api else parts[:2])
        if name not in self.repos or (name in self.private and token != TOKEN):
            return 401, {"X-Error-Code": "RepoNotFound"}, b""
        revision = (parts[5:6] if api else parts[3:4]) or ["main"]
        commit, files = self.files(name, revision[0])
        if files is None:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        if api:
            siblings = [{"rfilename": file, "size": len(data)} for file, data in files.items()]
            return _json({"id": name, "sha": commit, "siblings": siblings})
        file = "/".join(parts[4:])
        if file not in files:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b""
        etag = hashlib.sha1(files[file]).hexdigest()
        return 200, {"X-Repo-Commit": commit, "ETag": f'"{etag}"'}, files[file]

    def _post(self, parts, body, token):
        if parts == ["api", "validate-yaml"]:
            _, front, _ = json.loads(body)["content"].split("---\n", 2)
            return _json({} if isinstance(yaml.safe_load(front), dict) else {"errors": []})
        if token != TOKEN:
            return 401, {"X-Error-Message": "Invalid username or password."}, b""
        if parts == ["api", "repos", "create"]:
            told = json.loads(body)
            name = f"{told['organization']}/{told['name']}"
            if told.get("visibility") == "private":
                self.private.add(name)
            status = 409 if name in self.repos else 200
            self.repos.setdefault(name, {})
            return status, *_json({"url": f"{self.address}/{name}"})[1:]
        name, verb, revision = "/".join(parts[2:4]), parts[4], parts[5]
        if verb == "preupload":
            each = {"uploadMode": "regular", "shouldIgnore": False}
            return _json({"files": [{**f, **each} for f in json.loads(body)["files"]]})
        assert verb == "commit"
        lines = [json.loads(line) for line in body.splitlines()]
        assert lines[0]["key"] == "header"
        files = {
            line["value"]["path"]: base64.b64decode(line["value"]["content"]) for line in lines[1:]
        }
        commit = self.put(name, files, revision)
        url = f"{self.address}/{name}/commit/{commit}"
        return _json({"success": True, "commitOid": commit, "commitUrl": url})

    def _handler(self):
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_any(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
                status, headers, data = hub.answer(self.command, self.path, body, token)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            do_GET = do_HEAD = do_POST = do_any

            def log_message(self, format, *args):
                pass

        return Handler


def _json(value):
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()
