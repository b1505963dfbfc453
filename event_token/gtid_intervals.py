"""Sets of positive integers as sorted, disjoint, non-adjacent closed intervals.

An interval is `(first, last)`, both inclusive. All functions take and return that canonical
form and, apart from sorting, are linear in the number of intervals.
"""

from collections.abc import Iterable

Interval = tuple[int, int]
Intervals = tuple[Interval, ...]


def normalise(intervals: Iterable[Interval]) -> Intervals:
    """Return the canonical form of intervals in any order, touching or overlapping or not."""
    merged: list[Interval] = []
    for first, last in sorted(intervals):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def intersect(mine: Intervals, other: Intervals) -> Intervals:
    """Return the numbers in both."""
    common: list[Interval] = []
    i = j = 0
    while i < len(mine) and j < len(other):
        first = max(mine[i][0], other[j][0])
        last = min(mine[i][1], other[j][1])
        if first <= last:
            common.append((first, last))
        if mine[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return tuple(common)


def subtract(mine: Intervals, other: Intervals) -> Intervals:
    """Return the numbers in `mine` that are not in `other`."""
    left: list[Interval] = []
    j = 0
    for first, last in mine:
        start = first
        while j < len(other) and other[j][1] < start:
            j += 1
        k = j
        while k < len(other) and other[k][0] <= last:
            if start < other[k][0]:
                left.append((start, other[k][0] - 1))
            start = other[k][1] + 1
            k += 1
        if start <= last:
            left.append((start, last))
    return tuple(left)


def includes(mine: Intervals, other: Intervals) -> bool:
    """Tell whether `mine` contains all of `other`."""
    i = 0
    for first, last in other:
        while i < len(mine) and mine[i][1] < first:
            i += 1
        if i == len(mine) or mine[i][0] > first or mine[i][1] < last:
            return False
    return True
