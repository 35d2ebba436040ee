"""Sorting of large arrays of integers. `numpy.unique` hashes since numpy 2.3, at many times the price of a sort."""

import numpy as np

from unisono.audit.columnar.log import Flags, Ints

FLAGS_PER_KEY = 16
"""Up to here a byte for every number that there may be is cheaper than a sort of eight."""
_DIGIT_BITS = 16
"""numpy sorts numbers of 16 bits by counting: a pass takes a tenth of a sort of whole numbers."""


def distinct(keys: Ints) -> Ints:
    """The different values, ascending."""
    ordered = np.sort(keys)
    return ordered[_fresh(ordered)]


def has_repeats(keys: Ints) -> bool:
    """Of numbers from 0 on."""
    most = int(keys.max(initial=0))
    if most < FLAGS_PER_KEY * len(keys):
        seen = np.zeros(most + 1, bool)
        seen[keys] = True
        return int(np.count_nonzero(seen)) < len(keys)
    ordered = np.sort(keys)
    return bool((ordered[1:] == ordered[:-1]).any())


def _fresh(ordered: Ints) -> Flags:
    return np.concatenate([np.ones(min(1, len(ordered)), bool), ordered[1:] != ordered[:-1]])


def order_by(keys: Ints) -> Ints:
    """The order that sorts the keys; equal ones stay as they stand."""
    if not len(keys):
        return np.empty(0, np.int64)
    low, high = int(keys.min()), int(keys.max())
    bits = (high - low).bit_length()
    if bits > 3 * _DIGIT_BITS:
        return np.argsort(keys, kind="stable")
    away = keys - low
    order = np.argsort(away.astype(np.uint16), kind="stable")
    for shift in range(_DIGIT_BITS, bits, _DIGIT_BITS):
        order = order[np.argsort((away >> shift).astype(np.uint16)[order], kind="stable")]
    return order


def ranks(values: Ints) -> Ints:
    """Numbers from 0 on that compare as the values do."""
    if not len(values):
        return values
    low, high = int(values.min()), int(values.max())
    if high - low < 2**31:
        return values - low
    order = order_by(values)
    found = np.empty(len(values), np.int64)
    found[order] = np.cumsum(_fresh(values[order])) - 1
    return found


def order_by_both(major: Ints, minor: Ints) -> Ints:
    """The order by (major, minor), equal ones as they stand; majors are small numbers from 0 on."""
    if not len(major):
        return np.empty(0, np.int64)
    low, high = int(minor.min()), int(minor.max())
    if (int(major.max()) + 1) * (high - low + 1) < 2**63:
        return order_by(major * (high - low + 1) + (minor - low))
    order = order_by(minor)
    return order[order_by(major[order])]


def falls(groups: Ints, values: Ints) -> tuple[Ints, Ints]:
    """Elements below an earlier one of their group, and for each the place of the greatest before it.

    Elements of a group stand in their order.
    """
    empty = np.empty(0, np.int64)
    if len(values) < 2:
        return empty, empty
    order = order_by(groups)
    ranked = ranks(values)[order]
    started = np.cumsum(_fresh(groups[order])) - 1
    keys = started * (int(ranked.max()) + 1) + ranked  # later groups are above earlier ones
    top = np.maximum.accumulate(keys)
    low = np.flatnonzero(keys < top)
    if not len(low):
        return empty, empty
    # The greatest stands where the running maximum last rose.
    rose = np.maximum.accumulate(np.where(np.concatenate([[True], keys[1:] > top[:-1]]), np.arange(len(keys)), 0))
    return order[low], order[rose[low]]
