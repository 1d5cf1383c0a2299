"""Raw TCP between two processes of this machine, with as many streams as a transfer of state: nothing but bytes."""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PIECE = 4 * 1024 * 1024
REPETITIONS = 5


def send_all(port: int, size: int, streams: int) -> None:
    """The sender's process: from warm memory, once for each byte that asks for it."""
    memory = memoryview(bytearray(b"\1") * size)

    def send(index: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(bytes([index]))
            while sock.recv(1):
                for start in range(index * PIECE, size, streams * PIECE):
                    sock.sendall(memory[start : start + PIECE])

    with ThreadPoolExecutor(streams) as pool:
        list(pool.map(send, range(streams)))


def raw_bytes_a_second(size: int, streams: int) -> float:
    """The median of some repetitions, into warm memory."""
    memory = memoryview(bytearray(b"\1") * size)

    def receive(sock: socket.socket, index: int) -> None:
        sock.sendall(b"g")
        for start in range(index * PIECE, size, streams * PIECE):
            left = memory[start : start + PIECE]
            while left:
                count = sock.recv_into(left)
                if count == 0:
                    raise ConnectionError("the sender ended too early")
                left = left[count:]

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        command = [sys.executable, "-m", "tools.bench.agent_tcp", str(port), str(size), str(streams)]
        with subprocess.Popen(command, cwd=ROOT) as sender:
            socks = [listener.accept()[0] for _ in range(streams)]
            numbers = [sock.recv(1)[0] for sock in socks]
            seconds = []
            with ThreadPoolExecutor(streams) as pool:
                for _ in range(REPETITIONS):
                    began = time.perf_counter()
                    list(pool.map(receive, socks, numbers))
                    seconds.append(time.perf_counter() - began)
            for sock in socks:
                sock.close()
            sender.wait()
    return size / statistics.median(seconds)


if __name__ == "__main__":
    send_all(*(int(argument) for argument in sys.argv[1:]))
