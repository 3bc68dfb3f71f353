"""Requests and replies, one line of JSON each, between a benchmark and the processes that do its work.

    request   {"do": "train", "steps": 10}
    reply     {"result": ...}   or   {"error": "..."}

Only the standard library is imported here: a process of another environment must be able to import this file.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


class WorkerError(ValueError):
    """A process that could not do what it was asked for; the message is its own, and says where its log lies."""


class Worker:
    """A process that is asked one thing after the other: `Worker(command, log).ask("train", steps=10)`."""

    def __init__(self, command: Sequence[str], log: Path):
        self.log = log
        with open(log, "w", encoding="utf-8") as file:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=file, text=True, encoding="utf-8")
        self._requests: Any = self._process.stdin
        self._replies: Any = self._process.stdout

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process; one that does not end by itself when its requests end is killed."""
        try:
            self._requests.close()
            self._process.wait(timeout=20)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()
        self._replies.close()

    def ask(self, do: str, **arguments: Any) -> Any:
        """The result of one request.

        Raises:
            WorkerError: the process failed, or is no more.
        """
        try:
            self._requests.write(json.dumps({"do": do, **arguments}) + "\n")
            self._requests.flush()
        except BrokenPipeError:
            raise WorkerError(f"{do}: the process has ended (log: {self.log})") from None
        line = self._replies.readline()
        if not line:
            raise WorkerError(f"{do}: the process has ended (log: {self.log})")
        reply = json.loads(line)
        if "error" in reply:
            raise WorkerError(f"{do}: {reply['error']} (log: {self.log})")
        return reply["result"]


def serve(handlers: Mapping[str, Callable[..., Any]]) -> None:
    """Answer the requests on standard input until they end."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not come between two replies
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = {"result": handlers[request.pop("do")](**request)}
        except Exception as error:  # told to the one who asked
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_bytes() -> int:
    """The most memory that this process has held at once."""
    # On Linux ru_maxrss of a new process begins with that of the process that started it.
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    for line in lines:
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
