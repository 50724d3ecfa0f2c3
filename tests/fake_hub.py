"""A small Hugging Face Hub on the loopback interface: what huggingface_hub asks of it to download.

GET  /api/models/{repo}[/revision/{rev}]     what there is: commit, names, sizes, hashes
HEAD /{repo}/resolve/{rev}/{file}            hash, size and place of one file
GET  /{repo}/resolve/{rev}/{file}            a small file
GET  /large/{sha256}                         a large one, on another host, in ranges if asked
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass
class Repo:
    """One repository, with a commit for each of its revisions."""

    files: Mapping[str, bytes]
    revisions: tuple[str, ...] = ("main",)
    refusal: tuple[int, str] | None = None
    """The status and X-Error-Code for whoever brings no token."""

    @property
    def commit(self) -> str:
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()


@dataclass
class FakeHub:
    """What the hub holds, and what it was asked."""

    repos: dict[str, Repo] = field(default_factory=dict)
    token: str = "hf_secret"
    requests: list[tuple[str, str, str | None, str | None]] = field(default_factory=list)
    """(method, path, Authorization, Range)"""
    break_once_after: int | None = None
    """The next large file's connection ends after so many bytes."""
    serves_instead: bytes | None = None
    """What comes in place of any large file."""
    status: int | None = None
    """What answers everything."""

    def __post_init__(self) -> None:
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def downloads(self) -> list[str]:
        """The bytes of which files were asked for."""
        return [
            path for method, path, _, _ in self.requests if method == "GET" and "/api/" not in path
        ]


def is_large(path: str) -> bool:
    return path.endswith((".gguf", ".safetensors", ".bin"))


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.respond()

    def do_GET(self) -> None:
        self.respond()

    def log_message(self, *args: object) -> None:
        pass

    def respond(self) -> None:
        path = urlsplit(self.path).path  # quoted: a revision may contain a slash
        authorization, wanted = self.headers.get("Authorization"), self.headers.get("Range")
        self.hub.requests.append((self.command, unquote(path), authorization, wanted))
        if self.hub.status is not None:
            self.answer(self.hub.status, b"out of order")
        elif path.startswith("/large/"):
            self.large(path.removeprefix("/large/"), wanted)
        elif path.startswith("/api/models/"):
            repo, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            found = self.admitted(repo, unquote(revision) or "main", authorization)
            if found is not None:
                self.listing(repo, found)
        else:
            repo, _, rest = path[1:].partition("/resolve/")
            revision, _, file = rest.partition("/")
            found = self.admitted(repo, unquote(revision), authorization)
            if found is not None:
                self.file(found, unquote(file))

    def admitted(self, name: str, revision: str, authorization: str | None) -> Repo | None:
        """The repository, or None once a refusal was sent."""
        repo = self.hub.repos.get(name)
        if repo is None:
            self.refuse(404, "RepoNotFound")
        elif repo.refusal is not None and authorization != f"Bearer {self.hub.token}":
            self.refuse(*repo.refusal)
        elif revision not in (*repo.revisions, repo.commit):
            self.refuse(404, "RevisionNotFound")
        else:
            return repo
        return None

    def listing(self, name: str, repo: Repo) -> None:
        siblings = []
        for path, content in repo.files.items():
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entry: dict[str, object] = {"rfilename": path, "size": len(content), "blobId": blob}
            if is_large(path):
                sha256 = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 134}
            siblings.append(entry)
        body = {"id": name, "modelId": name, "sha": repo.commit, "siblings": siblings}
        self.answer(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def file(self, repo: Repo, path: str) -> None:
        content = repo.files.get(path)
        commit = {"X-Repo-Commit": repo.commit}
        if content is None:
            self.refuse(404, "EntryNotFound", commit)
        elif is_large(path):
            sha256 = hashlib.sha256(content).hexdigest()
            headers = {
                "Location": f"http://localhost:{self.hub.port}/large/{sha256}",
                "X-Linked-Etag": f'"{sha256}"',
                "X-Linked-Size": str(len(content)),
            }
            self.answer(302, b"", commit | headers)
        else:
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            self.answer(200, content, commit | {"ETag": f'"{blob}"'})

    def large(self, sha256: str, wanted: str | None) -> None:
        contents = [content for repo in self.hub.repos.values() for content in repo.files.values()]
        found = [item for item in contents if hashlib.sha256(item).hexdigest() == sha256]
        content = found[0] if self.hub.serves_instead is None else self.hub.serves_instead
        start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
        headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        stop = self.hub.break_once_after
        self.hub.break_once_after = None
        self.answer(206 if wanted else 200, content[start:], headers if wanted else {}, stop)

    def refuse(self, status: int, code: str, headers: Mapping[str, str] | None = None) -> None:
        self.answer(status, b"{}", {"X-Error-Code": code, **(headers or {})})

    def answer(
        self,
        status: int,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        stop: int | None = None,
    ) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:stop])
        if stop is not None:
            self.close_connection = True
