"""An OpenAI-compatible endpoint on the loopback, answered by a function."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, str], str]


def chat(text: str, read: int = 100, wrote: int = 10) -> Answer:
    """A chat completion."""
    body = {
        "choices": [{"message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": read, "completion_tokens": wrote},
    }
    return 200, {}, json.dumps(body)


class Served:
    """The endpoint while it runs: what it was asked, and how many requests it had at once."""

    def __init__(self, answer: Callable[[int, dict[str, Any]], Answer], delay: float = 0.0) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.most = 0
        running = 0
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                nonlocal running
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with lock:
                    running += 1
                    outer.most = max(outer.most, running)
                    outer.bodies.append(body)
                    outer.headers.append({k.lower(): v for k, v in self.headers.items()})
                    outer.times.append(time.monotonic())
                    number = len(outer.bodies)
                time.sleep(delay)
                status, headers, text = answer(number, body)
                with lock:
                    running -= 1
                data = text.encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        self._thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self._thread.join()
