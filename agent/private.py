"""What belongs to this rank alone: random numbers, data position, the script's own objects, samples consumed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent import codec, journal
from agent.feed import DataSource, Feed
from agent.journal import Entry, Generator


class Private:
    """Gathers the rank's journal entry, and puts one back."""

    def __init__(self) -> None:
        self.generators: list[Generator] = []
        self.objects: dict[str, Any] = {}
        self.samples = 0
        """Samples that this rank consumed in committed steps."""
        self.feed: Feed

    def open_feed(self, data: DataSource) -> None:
        """Batches come from `data`."""
        self.feed = Feed(data, self.generators)

    def capture(self) -> dict[str, Any]:
        """As it is now."""
        return {
            "rng": journal.capture_rng(self.generators),
            "position": self.feed.position(),
            "user": {name: thing.state_dict() for name, thing in self.objects.items()},
        }

    def entry(self, logged: Sequence[float], findings: int) -> Entry:
        """What the other ranks must know to begin the next step in this rank's place."""
        samples = self.samples + self.feed.samples()
        return Entry(samples, tuple(logged), codec.encode(self.capture(), "private"), findings)

    def encode_objects(self) -> dict[str, bytes]:
        """The script's own objects, to be compared."""
        return {name: codec.encode(thing.state_dict(), name) for name, thing in self.objects.items()}

    def committed(self, entry: Entry) -> None:
        """The step that `entry` ends is applied."""
        self.samples = entry.samples
        self.feed.commit(codec.decode(entry.private)["rng"])

    def restore_objects(self, entry: Entry) -> None:
        """Undo what a broken step did to the script's objects."""
        if self.objects:
            self._load(codec.decode(entry.private))

    def take_initial(self, initial: dict[str, Any], rank: int, world_size: int) -> None:
        """Back to how things were before a rehearsal. A spare's data is closed until it has a rank."""
        self._load(initial)
        self.feed.close()
        if rank >= 0:
            self.feed.open(rank, world_size)
            self.feed.seek(initial["position"])
        self.feed.step_rng = initial["rng"]

    def take(self, entry: Entry, rank: int, world_size: int) -> None:
        """Become a rank that another process was."""
        private = codec.decode(entry.private)
        self.samples = entry.samples
        self.feed.open(rank, world_size)
        self.feed.seek(private["position"])
        self.feed.step_rng = private["rng"]
        self._load(private)

    def _load(self, private: dict[str, Any]) -> None:
        for name, thing in self.objects.items():
            thing.load_state_dict(private["user"][name])
