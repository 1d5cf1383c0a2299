"""How the command line finds and asks the coordinator of a run: `control.json` in the run's state directory.

The file holds the address and the job's secret, so only its owner may read it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from agent import tls
from agent.wire import Address, Link, Message, dial, format_address, parse_address

FILE = "control.json"
ANSWER_SECONDS = 10.0


class NoSuchRun(ValueError):
    """There is no run to be asked; the message says what to do."""


def write(folder: Path, address: Address, secret: str) -> None:
    """Leave word of a run in its state directory. Raises OSError."""
    descriptor = os.open(folder / FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        files = {name: os.environ[name] for name in tls.VARIABLES.values() if name in os.environ}
        json.dump({"coordinator": format_address(address), "secret": secret, "tls": files}, file)


def read(folder: Path) -> tuple[Address, bytes]:
    """The coordinator's address and the secret. Raises NoSuchRun."""
    try:
        found = json.loads((folder / FILE).read_text())
        for name, path in found["tls"].items():
            os.environ.setdefault(name, path)
        return parse_address(found["coordinator"]), str(found["secret"]).encode()
    except FileNotFoundError:
        raise NoSuchRun(f"{folder} holds no {FILE}; on the launcher's machine, give its --state-dir") from None
    except PermissionError:
        raise NoSuchRun(f"{folder / FILE} may be read only by the user who started the run") from None
    except (ValueError, KeyError, TypeError):
        raise NoSuchRun(f"{folder / FILE} is damaged") from None


def ask(folder: Path, message: Message) -> Message:
    """Ask the coordinator. Raises NoSuchRun without a run, OSError when the coordinator does not answer."""
    return ask_at(*read(folder), message)


def ask_at(address: Address, secret: bytes, message: Message) -> Message:
    """Ask the coordinator at this address. Raises OSError when it does not answer."""
    link = Link(dial(address, secret))
    try:
        link.sock.settimeout(ANSWER_SECONDS)
        link.send(message)
        return link.receive()
    finally:
        link.close()
