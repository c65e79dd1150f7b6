"""Counter-based randomness: a number is a function of seed, step, name, row and position."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sage_rlvr.errors import ConfigError

_U64 = (1 << 64) - 1
_GAMMA, _MUL_A, _MUL_B = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _signed(value: int) -> int:
    """Return the int64 with the same 64 bits as `value`."""
    value &= _U64
    return value - (1 << 64) if value >> 63 else value


def _mix_int(x: int) -> int:
    """The finalizer of splitmix64 (Steele, Lea & Flood 2014) on a Python integer."""
    x &= _U64
    x = ((x ^ (x >> 30)) * _MUL_A) & _U64
    x = ((x ^ (x >> 27)) * _MUL_B) & _U64
    return x ^ (x >> 31)


def _mix(x: Tensor) -> Tensor:
    """The same finalizer on an int64 tensor; shifts are made logical by a mask, products wrap."""
    x = (x ^ _shift(x, 30)) * _signed(_MUL_A)
    x = (x ^ _shift(x, 27)) * _signed(_MUL_B)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _absorb_int(state: int, value: int) -> int:
    return _mix_int(state + _GAMMA * (value + 1))


def _absorb(state: Tensor | int, value: Tensor) -> Tensor:
    base = _signed(state) if isinstance(state, int) else state
    return _mix(base + (value.long() + 1) * _signed(_GAMMA))


def _number_of(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def widest_float(device: torch.device) -> torch.dtype:
    """Return float64 if the device has it (Apple's MPS does not), else float32; rounding float64 to float32 hides the layout."""
    return torch.float32 if device.type == "mps" else torch.float64


def pair_ids(problems: Int[Tensor, "*S"], answers: Int[Tensor, "*S"]) -> Int[Tensor, "*S"]:
    """Return one int64 for each (problem, answer), the same on every machine; collisions are as unlikely as for 64 random bits."""
    return problems * _signed(_GAMMA) + answers


@dataclass(frozen=True)
class Key:
    """A seed whose draws are addressed, not consumed.

    Two calls with equal arguments give equal numbers on every device, whatever happened in between; a row keeps its
    numbers when the batch is shuffled, padded, split into micro-batches or spread over ranks. Every method takes the
    optimizer `step`, the `name` of the use, and the addresses of the numbers.
    """

    seed: int

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ConfigError(f"Key(seed={self.seed!r}): the seed must be a whole number, for example Key(seed=3407).")

    def fold(self, name: str) -> Key:
        """Return an independent key for the part of the program called `name`."""
        return Key(_absorb_int(_mix_int(self.seed), _number_of(name)))

    def bits(self, step: int, name: str, row_ids: Int[Tensor, " B"], positions: int | Tensor) -> Int[Tensor, "B T"]:
        """Return uniform int64 words, (B, T). `positions` is one position (T = 1), a vector (T,), or a matrix (B, T)."""
        state = _absorb_int(_absorb_int(_mix_int(self.seed), _number_of(name)), step)
        if not isinstance(positions, Tensor):
            positions = torch.tensor([positions], device=row_ids.device)
        columns = positions.to(row_ids.device)
        return _absorb(_absorb(state, row_ids)[:, None], columns if columns.dim() == 2 else columns[None, :])

    def uniform(
        self, step: int, name: str, row_ids: Int[Tensor, " B"], positions: int | Tensor
    ) -> Float[Tensor, "B T"]:
        """Return uniform float32 in the open interval (0, 1), (B, T), in steps of 2**-23; arguments as in `bits`."""
        return (_shift(self.bits(step, name, row_ids, positions), 41).float() + 0.5) * 2.0**-23

    def uniform64(
        self, step: int, name: str, row_ids: Int[Tensor, " B"], positions: int | Tensor
    ) -> Float[Tensor, "B T"]:
        """Return `uniform` in float64 and steps of 2**-52: the same numbers with a finer resolution.

        For events rarer than 2**-23 = 1.2e-7, such as the tail of a large vocabulary. Raises ConfigError if the
        device has no float64 (Apple's MPS): draw from row ids on the CPU there.
        """
        if widest_float(row_ids.device) != torch.float64:
            raise ConfigError(
                f"Key.uniform64: {row_ids.device} has no float64; pass row ids on the CPU: row_ids.cpu()."
            )
        return (_shift(self.bits(step, name, row_ids, positions), 12).double() + 0.5) * 2.0**-52

    def normal(self, step: int, name: str, row_ids: Int[Tensor, " B"], positions: int | Tensor) -> Float[Tensor, "B T"]:
        """Return standard normal float32, (B, T), by Box and Muller's transform (|value| < 5.8); arguments as in `bits`."""
        wide = widest_float(row_ids.device)
        radius = self.uniform(step, name + "/radius", row_ids, positions).to(wide)
        angle = self.uniform(step, name + "/angle", row_ids, positions).to(wide)
        return (torch.sqrt(-2.0 * torch.log(radius)) * torch.cos(2.0 * math.pi * angle)).float()

    def permutation(self, step: int, name: str, n: int) -> Int[Tensor, " n"]:
        """Return a permutation of 0..n-1 as a LongTensor (n,) on the CPU."""
        words = self.bits(step, name, torch.arange(n), 0)[:, 0]
        return torch.argsort(words, stable=True)


def chosen_first(chosen: Bool[Tensor, "N M"], by: Int[Tensor, "N M"]) -> Int[Tensor, "N M"]:
    """Return the places of the entries of each row, the chosen ones before the rest, each in the order of `by`."""
    order = by.argsort(dim=1, stable=True)
    return order.gather(1, (~chosen).gather(1, order).long().argsort(dim=1, stable=True))
