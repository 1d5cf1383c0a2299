"""State that the script forgot to register, found before the first step instead of after the first loss.

Some of it shows by how things are connected: a scheduler that drives a registered optimizer, a registered optimizer
with parameters of no wrapped model. The rest shows because it changes: what has state, is not registered, and differs
before and after a rehearsal of the loop's body, is state that a spare would not have.

Objects are found through the garbage collector and in the variables of the functions that call `Agent.steps`, which
also give them their names. What certainly breaks exactness is refused; what only may is a warning.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import types
from typing import Any

import numpy as np
import torch
import xxhash
from torch.optim.lr_scheduler import LRScheduler

from agent import codec
from agent.numerics import all_finite
from agent.private import Private
from agent.state import Registry, local, optimized
from agent.transport import bytes_of

_OWN = __name__.partition(".")[0]


class Forgotten(RuntimeError):
    """The script holds state that would be lost with a worker; the message says what to add, line by line."""


def check_complete(registry: Registry) -> None:
    """Raises Forgotten for parameters that an optimizer would change and no spare would receive."""
    held = {id(tensor) for _, tensor in registry.parameters()}
    for optimizer in registry.optimizers:
        outside = [parameter for parameter in optimized(optimizer) if id(parameter) not in held]
        if outside:
            names = _Names()
            what = f"{names.of(optimizer)} holds {len(outside)} parameter(s) of {_owner(outside[0], names)}"
            raise _refusal([f"{what}, which is not wrapped; make it a part of the model, or agent.wrap() it too"])


class Inspection:
    """Made between two rehearsals of the body; sees what the second one changes."""

    def __init__(self, registry: Registry, private: Private) -> None:
        self._registry, self._private = registry, private
        self._names = names = _Names()
        self._refused: list[str] = []
        self._warned: list[str] = []
        self._before: list[tuple[Any, str]] = []
        held = {id(tensor) for _, tensor in registry.parameters()}
        known = _known(registry, private)
        living = _living()
        inner = {id(child) for one in living if isinstance(one, torch.nn.Module) for child in one.children()}
        for thing in living:
            kind = type(thing)
            if id(thing) in known or kind.__module__.partition(".")[0] == _OWN:
                continue
            if issubclass(kind, torch.optim.Optimizer) and any(id(each) in held for each in optimized(thing)):
                self._refused.append(
                    f"{names.of(thing)} holds parameters of a wrapped model; write agent.register({names.of(thing)})"
                )
            elif issubclass(kind, LRScheduler) and any(thing.optimizer is each for each in registry.optimizers):
                self._refused.append(
                    f"{names.of(thing)} drives a registered optimizer; "
                    f"write agent.register(…, scheduler={names.of(thing)})"
                )
            elif issubclass(kind, torch.nn.Module):
                if id(thing) not in inner:
                    self._watch(thing)
            else:
                self._watch(thing)
        for generator in names.generators:
            if id(generator) not in known:
                self._watch(generator)
        self._check_data()
        moved = {id(each) for optimizer in registry.optimizers for each in optimized(optimizer)}
        loose = [name for name, tensor in registry.parameters() if tensor.requires_grad and id(tensor) not in moved]
        if loose:
            self._warned.append(f"no registered optimizer updates {_some(loose)}, though its gradients are computed")

    def _watch(self, thing: Any) -> None:
        mark = _fingerprint(thing)
        if mark is not None:
            self._before.append((thing, mark))

    def _check_data(self) -> None:
        """What the batches come from draws when a pass begins, which is too seldom to be seen."""
        data, registered = self._private.feed.data, [id(each) for each in self._private.generators]
        if hasattr(data, "state_dict"):
            if getattr(data, "num_workers", 0) and not hasattr(data.dataset, "state_dict"):
                self._warned.append(
                    f"{self._names.of(data)} has worker processes, and random numbers drawn there are not in its "
                    "state_dict; if the dataset draws any, use num_workers=0 or a plain DataLoader"
                )
            return
        samplers = [getattr(data, "sampler", None), getattr(getattr(data, "batch_sampler", None), "sampler", None)]
        found = [getattr(each, "generator", None) for each in (data, *samplers)]
        for generator in {id(each): each for each in found if each is not None}.values():
            if id(generator) not in registered:
                self._refused.append(
                    f"{self._names.of(generator)} shuffles the data; write "
                    f"agent.register(…, generators=({self._names.of(generator)},))"
                )

    def conclude(self, *, aloud: bool) -> None:
        """The body ran once more. Raises Forgotten; warns if `aloud`."""
        for thing, before in self._before:
            if _fingerprint(thing) != before:
                self._changed(thing)
        self._before.clear()
        if carried := _still_poisoned(self._registry):
            self._refused.append(
                f"the gradients of {_some(carried)} stay from one step to the next, where a spare would not have them; "
                "call zero_grad() of every optimizer in every step"
            )
        if self._refused:
            raise _refusal(self._refused)
        if aloud:
            for text in dict.fromkeys(self._warned):
                print(f"agent: warning: {text}", file=sys.stderr, flush=True)

    def _changed(self, thing: Any) -> None:
        kind, name = type(thing), self._names.of(thing)
        if isinstance(thing, torch.Generator | np.random.Generator | random.Random):
            text = f"{name} is drawn from in the loop; write agent.register(…, generators=({name},))"
        elif _is_loader_iterator(kind):
            text = f"{name} is read in the loop, and its position is not known; give its loader to agent.steps()"
        elif issubclass(kind, torch.amp.GradScaler):
            text = f"{name} scales gradients in the loop; write agent.register(…, scaler={name})"
        elif issubclass(kind, torch.nn.Module):
            text = (
                f"{name} changes in the loop; agent.wrap() it if it is trained, or write agent.register(…, name={name})"
            )
        elif issubclass(kind, torch.optim.Optimizer):
            text = f"{name} steps in the loop; agent.wrap() its model and write agent.register({name})"
        else:
            self._warned.append(
                f"{name} changes in the loop; if training depends on it, write agent.register(…, name={name}), or "
                f"private={{'name': {name}}} where ranks differ"
            )
            return
        self._refused.append(text)


def carried_gradients(registry: Registry) -> None:
    """Between two rehearsals: mark the gradients that the body has left, to see whether the next step clears them."""
    if not all_finite(tensor for _, tensor in registry.local_parameters()):
        return
    for optimizer in registry.optimizers:
        for parameter in optimized(optimizer):
            gradient = parameter.grad
            if gradient is not None and not gradient.is_sparse and bool(local(gradient).any()):
                local(gradient).fill_(float("nan"))


def _still_poisoned(registry: Registry) -> list[str]:
    found = []
    held = {id(each) for optimizer in registry.optimizers for each in optimized(optimizer)}
    for name, parameter in registry.parameters():
        gradient = parameter.grad
        if id(parameter) in held and gradient is not None and not gradient.is_sparse:
            mine = local(gradient)
            if mine.numel() and bool(mine.isnan().all()):
                found.append(name)
    return found


class _Names:
    """What the script calls things, and the random number generators among them: torch's are not known to `gc`."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self.generators: list[torch.Generator] = []
        variables = [(name, value) for scope in _scopes() for name, value in scope.items() if _is_a_thing(name, value)]
        for name, value in variables:
            self._note(name, value)
        for name, value in variables:
            inside = getattr(value, "__dict__", None)
            if isinstance(inside, dict) and not isinstance(value, torch.Tensor | types.FunctionType):
                for inner, part in list(inside.items()):
                    self._note(f"{name}.{inner}", part)

    def _note(self, name: str, value: Any) -> None:
        if type(value) is torch.Generator and id(value) not in self._names:
            self.generators.append(value)
        self._names.setdefault(id(value), name)

    def of(self, thing: Any) -> str:
        """The variable that holds it, or its type."""
        return self._names.get(id(thing), type(thing).__name__)


def _scopes() -> list[dict[str, Any]]:
    """The variables of the functions that have called the agent, innermost first, and their modules'."""
    found = []
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] != _OWN or module.startswith(f"{_OWN}.examples"):
            found += [dict(frame.f_locals), dict(frame.f_globals)]
        frame = frame.f_back
    return found


def _is_a_thing(name: str, value: Any) -> bool:
    return not name.startswith("__") and not isinstance(value, types.ModuleType | type)


def _living() -> list[Any]:
    """All objects that exist and could hold training state."""
    cached: dict[type, bool] = {}
    found = []
    for thing in gc.get_objects():
        kind = type(thing)
        if kind not in cached:
            cached[kind] = issubclass(kind, _HOLDERS) or _is_loader_iterator(kind) or _has_state(kind)
        if cached[kind]:
            found.append(thing)
    return found


_HOLDERS = (torch.optim.Optimizer, LRScheduler, torch.nn.Module, np.random.Generator, random.Random)


def _has_state(kind: type) -> bool:
    return hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict") and not issubclass(kind, type)


def _is_loader_iterator(kind: type) -> bool:
    return any(base.__name__ == "_BaseDataLoaderIter" for base in kind.__mro__)


def _known(registry: Registry, private: Private) -> set[int]:
    """What is registered, with its parts."""
    roots = [*registry.optimizers, *registry.replicated.values(), *private.objects.values(), *private.generators]
    found = {id(random._inst), id(private.feed.data)}
    for root in [*roots, *registry.models]:
        found.add(id(root))
        if isinstance(root, torch.nn.Module):
            found |= {id(module) for module in root.modules()}
        for part in getattr(root, "__dict__", {}).values():
            # A scheduler refers to its optimizer, but does not contain it.
            parts = part if isinstance(part, list | tuple) else part.values() if isinstance(part, dict) else [part]
            found |= {id(each) for each in parts if not isinstance(root, LRScheduler) or isinstance(each, LRScheduler)}
    return found


def _fingerprint(thing: Any) -> str | None:
    """Something that differs when the object's state does; None if it has none that can be seen."""
    kind = type(thing)
    state = xxhash.xxh3_128()
    try:
        if isinstance(thing, torch.Generator):
            return bytes(thing.get_state().numpy()).hex()
        if isinstance(thing, random.Random):
            return None if isinstance(thing, random.SystemRandom) else str(hash(thing.getstate()))
        if isinstance(thing, np.random.Generator):
            return json.dumps(thing.bit_generator.state, default=str)
        if _is_loader_iterator(kind):
            return str(thing._num_yielded)
        if hasattr(kind, "__iter__"):
            return None  # a loader: its iterator is seen, and its state_dict may begin one
        if issubclass(kind, torch.nn.Module | torch.optim.Optimizer):
            tensors = optimized(thing) if issubclass(kind, torch.optim.Optimizer) else thing.state_dict().values()
            for tensor in tensors:
                if isinstance(tensor, torch.Tensor):
                    state.update(bytes_of(local(tensor).cpu().contiguous()))
            return state.hexdigest()
        if issubclass(kind, LRScheduler):
            return f"{thing.last_epoch} {thing._step_count}"
        return xxhash.xxh3_128_hexdigest(codec.encode(thing.state_dict()))
    except Exception:  # somebody else's object: it need not work here
        return None


def _owner(parameter: torch.Tensor, names: _Names) -> str:
    """The module that a parameter belongs to."""
    modules = [one for one in _living() if isinstance(one, torch.nn.Module)]
    owners = [one for one in modules if any(each is parameter for each in one.parameters())]
    outer = [one for one in owners if not any(one in other.children() for other in owners)]
    return names.of(outer[0]) if outer else names.of(parameter)


def _some(items: list[str]) -> str:
    more = f" and {len(items) - 3} more" if len(items) > 3 else ""
    return ", ".join(items[:3]) + more


def _refusal(lines: list[str]) -> Forgotten:
    listed = "".join(f"\n  - {line}" for line in dict.fromkeys(lines))
    return Forgotten(f"after the loss of a worker this script could not go on exactly:{listed}")
