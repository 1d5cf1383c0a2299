"""Numbers that are not finite: the mark of a sick device, or of the script's own numerics.

With `--nan-checks` every rank tells the others, in the last collective of a step, whether its loss, its own gradients
(before they are reduced) and its parameters are finite. Where one rank's are not and others' are, the step does not
commit: that rank is replaced and the step is done again with the same inputs. If it is finite then, the device was
sick; if not, it is the script's numerics, and training goes on. What is not finite everywhere moves nobody.

A probe is the sum of a tensor, which is not finite if an element is not: one pass over memory, 20 times faster than
`isfinite`, which only decides if a sum is not finite, since large finite numbers may overflow it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

LOSS, GRADIENT, PARAMETERS, COPY = 1, 2, 4, 8
"""Findings: not finite are the logged values, the rank's own gradients, its parameters, its copy of a shard."""
_NAMES = {LOSS: "loss", GRADIENT: "gradients", PARAMETERS: "parameters", COPY: "copy of the previous shard"}


def describe(findings: int) -> list[str]:
    """In words, e.g. `["loss", "gradients"]`."""
    return [name for bit, name in _NAMES.items() if findings & bit]


@torch.no_grad()
def all_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether every element is finite."""
    floating = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    if not floating:
        return True
    # One transfer from the device for all sums.
    sums = torch.stack([tensor.sum(dtype=torch.float32) for tensor in floating])
    suspects = (~torch.isfinite(sums)).nonzero().flatten().tolist()
    return all(bool(torch.isfinite(floating[index]).all()) for index in suspects)


def sick_ranks(findings: Sequence[int], parts: Sequence[int], *, copied: bool) -> list[int]:
    """The ranks whose devices are suspect: theirs is not finite where the same elsewhere is.

    `parts` says which part of the state each rank holds, `copied` that the next rank keeps a copy of it. Nobody is
    suspected if the suspects are the majority, or hold all there is of a part of the state.
    """
    size = len(findings)
    suspects = [rank for rank in range(size) if _differs(rank, findings, parts, copied=copied)]
    if not suspects and not any(each & PARAMETERS for each in findings):
        suspects = [rank for rank in range(size) if findings[rank] & (LOSS | GRADIENT)]
    if not suspects or 2 * len(suspects) > size:
        return []
    kept = {parts[rank] for rank in range(size) if rank not in suspects}
    if copied:
        kept |= {parts[rank - 1] for rank in range(size) if rank not in suspects}
    return suspects if kept == set(parts) else []


def _differs(rank: int, findings: Sequence[int], parts: Sequence[int], *, copied: bool) -> bool:
    """Whether the rank's parameters are not finite and another holder's are."""
    if not findings[rank] & PARAMETERS:
        return False
    if copied:
        return not findings[(rank + 1) % len(findings)] & COPY
    return any(parts[other] == parts[rank] and not findings[other] & PARAMETERS for other in range(len(findings)))
