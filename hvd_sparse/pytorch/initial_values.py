"""Initial values that a seed and an index make, in any order and on any device, bit for bit.

Only integers are hashed and added up, and each value is scaled by one product and one sum, so no
bit depends on the vector units of a processor, as it would with logarithms or cosines.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
# The multipliers and shifts of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)

# A normal value is a sum of 12 uniform integers of 16 bits, from three words of 64 bits.
_WORDS, _FIELD_BITS = 3, 16
_MEAN, _DEVIATION = 6 * 65535.0, math.sqrt(65536.0**2 - 1)
_BETWEEN = 2.4  # the kurtosis of uniform values is 1.8, and that of normal ones 3


class Distribution(NamedTuple):
    """A distribution of a parameter's initial values.

    Attributes:
        mean: Its mean.
        deviation: Its standard deviation; 0 if all values are the same.
        is_normal: True if it is normal, up to 6 deviations; otherwise it is uniform.
    """

    mean: float
    deviation: float
    is_normal: bool

    @classmethod
    def of(cls, param: torch.Tensor) -> Distribution:
        """Returns the distribution of a parameter's present values, of which there is one."""
        values = param.detach().double()
        if bool((values == values.flatten()[0]).all()):
            return cls(float(values.flatten()[0]), 0.0, is_normal=False)
        mean, deviation = float(values.mean()), float(values.std(correction=0))
        kurtosis = float(((values - mean) / deviation).pow(4).mean())
        return cls(mean, deviation, is_normal=kurtosis > _BETWEEN)

    def values(self, like: torch.Tensor, *, seed: int, number: int) -> torch.Tensor:
        """Returns the initial values of a parameter.

        Args:
            like: The parameter, whose shape, type and device they have.
            seed: The seed of the model, of 64 bits.
            number: Number of the parameter in the model.
        """
        if self.deviation == 0:
            return torch.full_like(like, self.mean)
        index = torch.arange(like.numel(), device=like.device)
        key = _mixed((_mixed(seed) + number * _GOLDEN) & _WORD)
        if self.is_normal:
            words = [_hashed(index * _WORDS + word, key) for word in range(_WORDS)]
            fields = [
                _shifted(one, bits) & 0xFFFF for one in words for bits in range(0, 64, _FIELD_BITS)
            ]
            units = (sum(fields[1:], fields[0]).double() - _MEAN) / _DEVIATION
        else:
            units = (_shifted(_hashed(index, key), 11).double() * 2.0**-53 - 0.5) * math.sqrt(12)
        return (units * self.deviation + self.mean).view(like.shape).to(like.dtype)


def _mixed(word: int) -> int:
    """Returns a hash of a word of 64 bits: the finalizer of SplitMix64."""
    for shift, factor in zip(_SHIFTS, (*_MULTIPLIERS, 1), strict=True):
        word = ((word ^ (word >> shift)) * factor) & _WORD
    return word


def _hashed(index: torch.Tensor, key: int) -> torch.Tensor:
    """Returns words of 64 bits by index: those of SplitMix64 that begins at a key."""
    words = (index * _signed(_GOLDEN)).add_(_signed(key))
    for shift, factor in zip(_SHIFTS, (*_MULTIPLIERS, 1), strict=True):
        words.bitwise_xor_(_shifted(words, shift)).mul_(_signed(factor))
    return words


def _shifted(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Returns int64 words shifted to the right as if they had no sign."""
    return (words >> bits).bitwise_and_(_WORD >> bits) if bits else words


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
