"""A tap on the wire: passes bytes on between a client and a server and says what it saw of each answer.

One line of JSON on standard output for every answer, in the figures of ``tests.bench.raw_client``, from packets stamped
here, on their way.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from urllib.parse import urlsplit

from tests.bench.raw_client import read

END = b"data: [DONE]"


class Wire:
    """One connection of a client, and ours to the server."""

    def __init__(self, client: socket.socket, target: tuple[str, int]) -> None:
        self.opened = time.perf_counter_ns()
        self.client = client
        self.server = socket.create_connection(target)
        for end in (client, self.server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent = 0
        self.packets: list[tuple[int, bytes]] = []

    def there(self) -> None:
        while data := self.client.recv(65536):
            if data.startswith(b"POST /v1/"):
                # a client counts its connecting; what this tap needs to take the connection up is no client's time
                self.sent, self.packets = self.opened or time.perf_counter_ns(), []
            self.opened = 0
            self.server.sendall(data)
        self.server.shutdown(socket.SHUT_RDWR)

    def back(self) -> None:
        while data := self.server.recv(65536):
            at = time.perf_counter_ns()
            self.client.sendall(data)
            if self.sent:
                self.packets.append((at, data))
                if END in data:
                    try:
                        print(json.dumps(asdict(read(self.sent, self.packets))), flush=True)
                    except RuntimeError as error:  # an answer without token ids, say: the next one may have them
                        print(f"tap: {error}", file=sys.stderr)
                    self.sent = 0
        self.client.shutdown(socket.SHUT_RDWR)


def quietly(way: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):  # either end may go when it likes
        way()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--server", required=True)
    options = parser.parse_args()
    where = urlsplit(options.server)
    with socket.create_server(("127.0.0.1", options.port)) as door:
        while True:
            client, _ = door.accept()
            wire = Wire(client, (where.hostname or "", where.port or 80))
            for way in (wire.there, wire.back):
                threading.Thread(target=quietly, args=(way,), daemon=True).start()


if __name__ == "__main__":
    main()
