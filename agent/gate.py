"""The gate between gradients and optimizers: decided once for each step, by its first optimizer."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from agent import faults, numerics, scaling
from agent.journal import LOGGED_VALUES
from agent.parallel import average_gradients, broadcast_buffers
from agent.private import Private
from agent.worker import Worker


class ScriptError(RuntimeError):
    """The training script uses the agent in a way that cannot be exact; the message says what to change."""


class Gate:
    """Lets the optimizers of a step run if the step commits."""

    def __init__(self, worker: Worker, private: Private, *, nan_checks: bool) -> None:
        self._worker, self._private = worker, private
        self._group, self._registry = worker.group, worker.registry
        self.decision: bool | None = None
        """Whether the step commits, once it is known."""
        self.rehearsing = True
        self.buckets: list[list[int]] = []
        """Number and size of the gradient buckets seen in a rehearsal."""
        self.objects_at_gate: dict[str, bytes] = {}
        """The script's private objects as a rehearsal left them at the gate."""
        self.nan_checks = nan_checks
        self.parts: list[int] = []
        """Which part of the state each rank holds."""
        self._logged: dict[str, float] = {}
        self._findings = self._standing_findings = 0
        self._scaler: Any = None
        self._scaled: list[torch.optim.Optimizer] = []

    def begin(self) -> None:
        """A step begins, or begins again."""
        self.decision, self._logged, self._findings = None, {}, self._standing_findings

    # Optimizers and scaler -----------------------------------------------------------------------------

    def install(self, optimizer: torch.optim.Optimizer) -> None:
        """`optimizer.step` passes the gate from now on."""
        original = optimizer.step

        @functools.wraps(original)
        def gated(_: Any, *args: Any, **kwargs: Any) -> Any:
            copy = self._worker.held.copy
            if copy is None or self.rehearsing:
                return self._pass(optimizer, lambda: original(*args, **kwargs))
            return self._pass(optimizer, lambda: copy.apply(optimizer, lambda: original(*args, **kwargs), original))

        # A bound method, because a scheduler made later wraps `step.__func__`.
        setattr(optimizer, "step", types.MethodType(gated, optimizer))  # noqa: B010 (mypy forbids the assignment)

    def install_scaler(self, scaler: Any) -> None:
        """`scaler.step` passes the gate from now on, with what it finds settled before."""
        original, scale = scaler.step, scaler.scale

        @functools.wraps(original)
        def gated(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            if optimizer not in self._scaled:
                self._scaled.append(optimizer)
            if self.decision is None or self.rehearsing:
                sharded = len(set(self.parts)) > 1
                scaling.settle(scaler, [optimizer] if self.rehearsing else self._scaled, self._group, sharded=sharded)
            return self._pass(scaler, lambda: original(optimizer, *args, **kwargs))

        @functools.wraps(scale)
        def scaled(outputs: Any) -> Any:
            if self.nan_checks and isinstance(outputs, torch.Tensor) and not numerics.all_finite([outputs.detach()]):
                self._findings |= numerics.LOSS
            return scale(outputs)

        self._scaler = scaler
        scaler.step, scaler.scale = gated, scaled

    # What the step computes ------------------------------------------------------------------------------

    def log(self, values: dict[str, float]) -> None:
        """Values of the step being computed. Raises ScriptError."""
        if self.rehearsing:
            return
        if self.decision is not None:
            raise ScriptError("call agent.log() before optimizer.step(): values belong to the step that commits")
        self._logged |= values
        if len(self._logged) > LOGGED_VALUES:
            raise ScriptError(f"agent.log() carries at most {LOGGED_VALUES} values per step")
        if not self._registry.history.names:
            self._registry.history.names = list(self._logged)

    def reduce(self, bucket: torch.Tensor, index: int) -> torch.futures.Future[torch.Tensor]:
        """Average one bucket of gradients."""
        if self.rehearsing:
            self.buckets.append([index, bucket.numel()])
        elif self.decision is not None:
            raise ScriptError(
                "a backward pass ran after optimizer.step() in the same step; the agent commits a step at its "
                "first optimizer.step(), so run all backward passes before it"
            )
        faults.at("backward", bucket=index)
        self.probe_gradient(bucket)
        future = average_gradients(self._group, bucket)
        faults.at("reduce", bucket=index)
        return future

    def probe_gradient(self, gradient: torch.Tensor) -> None:
        """Look at this rank's own contribution to a gradient. A scaler's may overflow: that is its way to work."""
        if not self.rehearsing and faults.at("sick_gradient"):
            gradient.view(-1)[0] = float("nan")
        if self.nan_checks and self._scaler is None and not numerics.all_finite([gradient]):
            self._findings |= numerics.GRADIENT

    @torch.no_grad()
    def probe_parameters(self) -> None:
        """The step is applied: look at the result, of which the next step will tell the others."""
        if faults.at("sick_parameters"):
            next(tensor for _, tensor in self._registry.local_parameters()).view(-1)[0] = float("nan")
        if not self.nan_checks:
            return
        copy, found = self._worker.held.copy, 0
        if not numerics.all_finite(tensor for _, tensor in self._registry.local_parameters()):
            found |= numerics.PARAMETERS
        if copy is not None and not numerics.all_finite(tensor for _, tensor in copy.local_parameters()):
            found |= numerics.COPY
        self._standing_findings = found

    # The decision ----------------------------------------------------------------------------------------

    def _pass(self, owner: Any, apply: Callable[[], Any]) -> Any:
        """Apply the optimizer if the step commits."""
        if self.decision is None:
            if self.rehearsing:
                self.decision, self.objects_at_gate = True, self._private.encode_objects()
            else:
                self.decision = self._decide()
            if self.decision and not self.rehearsing:
                self._worker.tap.hold()
                faults.at("apply")
                faults.at("inside")
        if not self.decision:
            return None
        if not self.rehearsing:
            self._worker.tap.capture(owner, self._worker.commit.version)
        calls, result = self._group.calls, apply()
        if self.rehearsing and self._group.calls > calls:
            raise ScriptError(
                "the optimizer communicates in step(), where a lost worker could not be replaced exactly; use one "
                "that works on each rank's own part, and reduce before optimizer.step()"
            )
        return result

    def _decide(self) -> bool:
        worker, group, copy = self._worker, self._group, self._worker.held.copy
        faults.at("gate")
        group.settle()
        if group.failed:
            return False
        broadcast_buffers(group, self._registry)
        if copy is not None and not group.failed:
            faults.at("copy")
            copy.exchange(group)
        if group.failed or not worker.commit.prepare():
            return False
        faults.at("exchange")
        exchanged = worker.journal.exchange(group, self._private.entry(self._logged_values(), self._found()))
        faults.at("doubt")
        if exchanged and self.nan_checks and self._is_refused():
            return False
        limits = worker.settings.limits
        return worker.commit.decide(exchanged, limits.quiesce + limits.spare + limits.form + limits.coordinator)

    def _logged_values(self) -> list[float]:
        return [self._logged.get(name, float("nan")) for name in self._registry.history.names]

    def _found(self) -> int:
        if self.nan_checks and not numerics.all_finite([torch.tensor(list(self._logged.values()))]):
            self._findings |= numerics.LOSS
        return self._findings

    def _is_refused(self) -> bool:
        """Whether the step must not commit, because one rank's numbers are not finite and others' are."""
        worker = self._worker
        step = worker.commit.version + 1
        findings = [entry.findings for entry in worker.journal.gathered]
        if not any(findings):
            return False
        suspects = numerics.sick_ranks(findings, self.parts, copied=worker.held.copy is not None)
        worker.not_finite(step, {rank: numerics.describe(each) for rank, each in enumerate(findings) if each}, suspects)
        return bool(suspects) and worker.tested != step and worker.commit.refuse()
