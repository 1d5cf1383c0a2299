"""The thread that empties the spool: reports first, then last heartbeats, then heartbeats.

A report counts as delivered only when the service has answered for it by id. Whatever else happens (no
connection, a refused key, an error, an answer that cannot be read) keeps everything for later.
"""

from __future__ import annotations

import json
import logging
import random
import time
from pathlib import Path
from threading import Condition, Thread
from typing import Any

from agent.reporting.boot import ACKNOWLEDGING, Boot
from agent.reporting.client import Refusal, ServiceClient
from agent.reporting.spool import LiveBoot, dead_boots_adopt

log = logging.getLogger("agent.reporting")
_jitter = random.Random()  # noqa: S311  own state: the job's seeds neither set it nor are disturbed by it

BATCH_REPORTS = 500
BATCH_BYTES = 1024 * 1024
BACKOFF_FIRST_S = 0.5
BACKOFF_LONGEST_S = 60.0
FLUSH_RETRY_S = 0.2
ADOPT_EVERY_S = 30.0
KEPT_BYTES = 16 * 1024 * 1024
"""Answered reports of this boot that stay on disk, in case the service asks for them again."""
DEAD_BOOTS_KEPT = 16
REFUSED_ALONE_LIMIT = 5
"""After so many requests of one report are refused in a row of tries, the fault is not the reports'."""


class Sender:
    """Sends what `live` and the boots of dead processes hold, in the background.

    `heartbeat_interval_s` is the shortest time between two heartbeats of a run; in between only the newest is
    kept.
    """

    def __init__(
        self,
        *,
        root: Path,
        live: LiveBoot | None,
        client: ServiceClient,
        heartbeat_interval_s: float = 5.0,
    ) -> None:
        self.complaint: str | None = None
        self._root = root
        self._live = live
        self._client = client
        self._heartbeat_interval_s = heartbeat_interval_s
        self._dead: list[Boot] = []
        self._heartbeats: dict[str, dict[str, Any]] = {}
        self._heartbeat_due: dict[str, float] = {}
        self._introduced: set[str] = set()
        self._changed = Condition()
        self._stopping = False
        self._flushing = 0
        self._key_refused = False
        self._woken = True
        self._adopt_at = 0.0
        self._failures = 0
        self._backoff_until = 0.0
        self._last_attempt = 0.0
        self._told_to_wait_until = 0.0
        self._batch_reports = BATCH_REPORTS
        self._refused: set[tuple[str, int]] = set()
        self._told_gone: list[tuple[int, int]] = []
        self._thread = Thread(target=self._run, name="report-sender", daemon=True)

    # Called by the agent's threads; none of these waits for the network, except flush and close.

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """There is something new to send."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def heartbeat(self, heartbeat: dict[str, Any], workload: dict[str, Any]) -> None:
        """Send this heartbeat unless a newer one of its run comes first.

        The run's first carries `workload`.
        """
        with self._changed:
            self._heartbeats[heartbeat["run_id"]] = dict(heartbeat, workload=workload)
            self._changed.notify_all()

    def heartbeat_forget(self, run_id: str) -> None:
        """Drop the run's unsent heartbeat: its last one is on its way, and nothing may follow that."""
        with self._changed:
            self._heartbeats.pop(run_id, None)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is answered; False after `timeout_s`, or at once when the key is refused."""
        with self._changed:
            self._flushing += 1
            self._woken, self._key_refused, self._adopt_at = True, False, 0.0
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self._key_refused or self._stopping or self._empty(), timeout=timeout_s)
                return self._empty()
            finally:
                self._flushing -= 1

    def stop(self, timeout_s: float) -> None:
        """Stop the thread and release the boots it adopted."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # The thread.

    def _run(self) -> None:
        try:
            while self._wait():
                try:
                    self._cycle()
                except Exception:
                    log.exception("Sending reports failed; they are kept and sent later.")
                    self._fail(Refusal("an error in the agent"))
                with self._changed:
                    self._changed.notify_all()
        finally:
            for boot in self._dead:
                boot.close()
            self._client.close()

    def _wait(self) -> bool:
        """Wait until there is work and it may be done; False when it is time to stop."""
        with self._changed:
            while not self._stopping:
                now = time.monotonic()
                backoff_until = self._backoff_until
                if self._flushing:
                    backoff_until = min(backoff_until, self._last_attempt + FLUSH_RETRY_S)
                allowed_at = max(backoff_until, self._told_to_wait_until)
                wanted_at = now if self._woken or not self._sent() else self._next_at()
                if now >= max(allowed_at, wanted_at):
                    self._woken = False
                    return True
                self._changed.wait(max(allowed_at, wanted_at) - now)
            return False

    def _next_at(self) -> float:
        beats = [self._heartbeat_due.get(run_id, 0.0) for run_id in self._heartbeats]
        return min([self._adopt_at, *beats])

    def _boots(self) -> list[Boot]:
        return [*self._dead, *([self._live] if self._live is not None else [])]

    def _sent(self) -> bool:
        return all(boot.done() for boot in self._boots())

    def _empty(self) -> bool:
        return self._adopt_at > 0.0 and self._sent()

    def _cycle(self) -> None:
        self._last_attempt = time.monotonic()
        if self._live is not None:
            self._live.memory_settle()
        if self._last_attempt >= self._adopt_at:
            held = frozenset(boot.boot_id for boot in self._boots())
            self._dead += dead_boots_adopt(self._root, held=held)
            self._adopt_at = self._last_attempt + ADOPT_EVERY_S
        refusal: Refusal | None = None
        try:
            lesser = [self._reports_send(), self._runs_ended_send(), self._heartbeats_send()]
            refusal = next((found for found in lesser if found is not None), None)
        except Refusal as error:
            refusal = error
        if refusal is None:
            self._succeed()
        else:
            self._fail(refusal)
        self._tidy()

    def _reports_send(self) -> Refusal | None:
        """Send every pending report once.

        Raises the refusal that makes going on pointless, returns a lesser one.
        """
        tried: set[tuple[str, int]] = set()
        lesser: Refusal | None = None
        refused_alone = 0
        while not self._stopping:
            batch = self._batch_next(tried)
            if not batch:
                break
            try:
                results = self._client.reports_post([body for _, _, body in batch])
            except Refusal as refusal:
                if not refusal.content_refused:
                    raise
                if len(batch) > 1:
                    self._batch_reports = max(1, len(batch) // 2)
                    continue
                lesser, results = refusal, {}
                self._refused.add((batch[0][0].boot_id, batch[0][1]))
                refused_alone += 1
                if refused_alone == REFUSED_ALONE_LIMIT:
                    return lesser
            else:
                self._batch_reports = min(BATCH_REPORTS, self._batch_reports * 2)
            for boot, seq, body in batch:
                tried.add((boot.boot_id, seq))
                result = results.get(json.loads(body)["id"])
                if result is None or result.status not in ACKNOWLEDGING:
                    said = "nothing" if result is None else f"`{result.status}`"
                    lesser = lesser or Refusal(f"The service answered {said} for report {seq}; it is kept.")
                    continue
                boot.report_answered(seq, result.status, result.reason)
                if result.status in ("invalid", "conflict"):
                    log.error(
                        "The service calls report %d of boot %s %s: %s",
                        seq,
                        boot.boot_id,
                        result.status,
                        result.reason or "no reason given",
                    )
        return lesser

    def _batch_next(self, tried: set[tuple[str, int]]) -> list[tuple[Boot, int, bytes]]:
        batch: list[tuple[Boot, int, bytes]] = []
        size = 2
        for boot in self._boots():
            with boot.guard:
                # Those the service would not even judge come last, so that they never stand in the way.
                order = sorted(boot.pending, key=lambda seq: ((boot.boot_id, seq) in self._refused, seq))
                waiting = [(seq, boot.reports[seq]) for seq in order]
            for seq, place in waiting:
                if (boot.boot_id, seq) in tried:
                    continue
                try:
                    body = place.read()
                except OSError as error:
                    log.error("Report %d of boot %s cannot be read: %s", seq, boot.boot_id, error)
                    tried.add((boot.boot_id, seq))
                    continue
                if batch and (len(batch) >= self._batch_reports or size + len(body) + 1 > BATCH_BYTES):
                    return batch
                batch.append((boot, seq, body))
                size += len(body) + 1
        return batch

    def _runs_ended_send(self) -> Refusal | None:
        """Send every last heartbeat; one that the service will not have now is kept. Raises as `_reports_send`."""
        lesser: Refusal | None = None
        for boot in self._boots():
            with boot.guard:
                waiting = [(number, boot.runs_ended[number]) for number in sorted(boot.runs_ended_pending)]
            for number, place in waiting:
                try:
                    self._heartbeat_send(boot, json.loads(place.read()))
                except Refusal as refusal:
                    if not refusal.content_refused:
                        raise
                    lesser = refusal
                else:
                    boot.run_ended_answered(number)
        return lesser

    def _heartbeats_send(self) -> Refusal | None:
        """Send the newest heartbeat of each run that is due; one that is refused gives way to the next."""
        lesser: Refusal | None = None
        now = time.monotonic()
        with self._changed:
            due = [beat for run, beat in self._heartbeats.items() if self._heartbeat_due.get(run, 0.0) <= now]
        for beat in due:
            run_id = beat["run_id"]
            bare = {name: value for name, value in beat.items() if name != "workload"}
            try:
                self._heartbeat_send(self._live, bare if run_id in self._introduced else beat)
                self._introduced.add(run_id)
            except Refusal as refusal:
                if not refusal.content_refused:
                    raise
                lesser = refusal
            with self._changed:
                self._heartbeat_due[run_id] = time.monotonic() + self._heartbeat_interval_s
                if self._heartbeats.get(run_id) is beat:
                    del self._heartbeats[run_id]
        return lesser

    def _heartbeat_send(self, boot: Boot | None, beat: dict[str, Any]) -> None:
        missing = self._client.heartbeat_post(beat)
        if boot is None or not missing:
            return
        again, gone = boot.reports_wanted(missing)
        if gone and missing != self._told_gone:
            self._told_gone = missing
            log.error(
                "The service asks for %d report(s) of boot %s that this spool no longer holds: %s.",
                gone,
                boot.boot_id,
                missing,
            )
        if again:
            self.wake()

    def _succeed(self) -> None:
        if self.complaint is not None:
            log.warning("The service takes reports again.")
        self.complaint, self._failures, self._backoff_until = None, 0, 0.0

    def _fail(self, refusal: Refusal) -> None:
        sentence = str(refusal)
        if sentence != self.complaint:
            log.warning("%s", sentence)
        ceiling = min(BACKOFF_LONGEST_S, BACKOFF_FIRST_S * 2 ** min(self._failures, 16))
        now = time.monotonic()
        with self._changed:
            self.complaint = sentence
            self._key_refused = refusal.key_refused
            self._failures += 1
            # Half of the wait is random: agents that lost the service together do not come back together.
            self._backoff_until = now + ceiling * _jitter.uniform(0.5, 1.0)
            if refusal.retry_after_s is not None:
                self._told_to_wait_until = now + refusal.retry_after_s * _jitter.uniform(1.0, 1.1)

    def _tidy(self) -> None:
        if self._live is not None:
            self._live.segments_drop(keep_bytes=KEPT_BYTES)
        answered = [boot for boot in self._dead if boot.done()]
        for boot in answered[:-DEAD_BOOTS_KEPT]:
            boot.remove()
            self._dead.remove(boot)
