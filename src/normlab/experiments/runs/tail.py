"""The log of a run as it grows: only what is new is read, and only so many points are kept.

A line that is half written waits for its other half. A log that was cut back, since a killed run went on from its last
checkpoint, is read anew from where the steps repeat. Nothing here raises for what a file holds: it is watched, not used.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

from normlab.errors import InputError
from normlab.experiments.runs.records import LayerRecord, TrainRecord, ValidationRecord
from normlab.results import pick

MOST = 600  # points of a curve
LOOKS = 60  # looks into the layers
BLOCK = 64 << 20  # bytes that are read at a time
LONG = 256 << 10  # bytes: a log that is skimmed before it is read
WINDOW = 512  # bytes that are looked at in one place of it


class Stepped(Protocol):
    @property
    def step(self) -> int: ...


Record = TypeVar("Record", bound=Stepped)


@dataclass
class LogTail:
    """`read()` brings the lists up to date; they are thinned evenly, and their last entry is always the newest."""

    path: Path
    most: int = MOST
    training: list[TrainRecord] = field(default_factory=list)
    validation: list[ValidationRecord] = field(default_factory=list)
    layers: list[LayerRecord] = field(default_factory=list)
    offset: int = 0
    _inode: int = 0
    _stride: int = 1  # every so many lines of training are kept

    def read(self, *, skim: bool = False) -> bool:
        """Is anything new? To `skim` is to look into a long log that was never read in places only, and once."""
        try:
            found = self.path.stat()
            if (found.st_ino, found.st_size) == (self._inode, self.offset):
                return False
            if skim and self.offset == 0 and found.st_size > LONG:
                if self.training:
                    return False
                if self._skim(found.st_size):
                    return True
            with open(self.path, "rb", buffering=0) as file:
                if found.st_ino != self._inode or found.st_size < self.offset or not self._at_a_line(file.fileno()):
                    self._forget(found.st_ino)
                file.seek(self.offset)
                block = file.read(BLOCK)
        except OSError:
            return False
        whole = block.rfind(b"\n") + 1
        self.offset += whole
        if whole:
            self._take(block[: whole - 1])
        return whole > 0

    def _skim(self, size: int) -> bool:
        """Some lines of training: a thirtieth of the time that reading all of it takes."""
        lines = []
        with open(self.path, "rb", buffering=0) as file:
            for part in range(1, self.most + 1):
                block = os.pread(file.fileno(), WINDOW, max(0, (size - WINDOW) * part // self.most))
                lines += block.split(b"\n")[1:-1][-1:]
        self.training = []
        _extend(self.training, _records([line for line in lines if b'"train"' in line[:24]], TrainRecord))
        return bool(self.training)

    def _at_a_line(self, handle: int) -> bool:
        return self.offset == 0 or os.pread(handle, 1, self.offset - 1) == b"\n"

    def _forget(self, inode: int) -> None:
        self.training, self.validation, self.layers = [], [], []
        self.offset, self._inode, self._stride = 0, inode, 1

    def _take(self, block: bytes) -> None:
        count = _lines(block)
        many = count > 4 * self.most  # a long log that is seen for the first time
        lines = _sample(block, self.most) if many else block.split(b"\n")
        trained = [line for line in lines if b'"train"' in line[:24]]
        kept = trained if many else [*trained[:: self._stride], *([trained[-1]] if trained else [])]
        self._stride = max(self._stride, -(-count // self.most))
        _extend(self.training, _records(kept, TrainRecord))
        rest = [line for line in lines if b'"train"' not in line[:24]]
        _extend(self.validation, _records([line for line in rest if b'"validation"' in line[:24]], ValidationRecord))
        _extend(self.layers, _records([line for line in rest if b'"layers"' in line[:24]], LayerRecord))
        _thin(self.training, self.most)
        _thin(self.validation, self.most)
        _thin(self.layers, LOOKS)


def _lines(block: bytes) -> int:
    """About how many: its beginning says how long they are."""
    head = block[: 16 << 10]
    return head.count(b"\n") * len(block) // max(1, len(head))


def _sample(block: bytes, most: int) -> list[bytes]:
    """So many lines, evenly by their place, and every one of the rare kinds: splitting a long log takes longest."""

    def line(at: int) -> bytes:
        end = block.find(b"\n", at)
        return block[block.rfind(b"\n", 0, at) + 1 : end if end >= 0 else None]

    found = [line(len(block) * part // most) for part in range(most)]
    found = [each for each in found if b'"train"' in each[:24]]
    for kind in (b'"validation"', b'"layers"'):
        at = block.find(kind)
        while at >= 0:
            found.append(line(at))
            at = block.find(kind, at + 1)
    newest = block.rfind(b'"train"')  # behind it may stand a validation
    return [*found, *([line(newest)] if newest >= 0 else [])]


def _records(lines: list[bytes], kind: type[Record]) -> list[Record]:
    found = []
    for values in _parsed(lines):
        try:
            record = pick(kind, values, source="a log")
        except InputError:
            continue
        if isinstance(record.step, int):
            found.append(record)
    return found


def _parsed(lines: list[bytes]) -> list[object]:
    """All of them at once, which is four times as fast; one by one where one is damaged."""
    try:
        whole: list[object] = json.loads(b"[%s]" % b",".join(lines))
        if len(whole) == len(lines):  # a damaged line may hold two values, or none
            return whole
    except (ValueError, RecursionError):
        pass
    found = []
    for line in lines:
        with suppress(ValueError, RecursionError):
            found.append(json.loads(line))
    return found


def _extend(known: list[Record], new: list[Record]) -> None:
    """Steps that are made again replace what was there."""
    for record in new:
        while known and known[-1].step >= record.step:
            known.pop()
        known.append(record)


def _thin(known: list[Record], most: int) -> None:
    """Every second one, the first and the last always, once there are twice as many as wanted."""
    if len(known) > 2 * most:
        known[:] = [*known[:-1:2], known[-1]]


def whole_curve(path: Path, *, most: int = MOST) -> list[TrainRecord]:
    """The training records of a log with no spike left out: of each stretch, the lowest and the highest loss."""
    tail = LogTail(path, most=1 << 40)
    while tail.read():
        pass
    return extremes(tail.training, most=most)


def extremes(records: list[TrainRecord], *, most: int) -> list[TrainRecord]:
    """At most so many records: the lowest and the highest loss of each stretch, and the first and last of all."""
    if len(records) <= most:
        return records
    size = -(-2 * len(records) // most)
    kept = {0: records[0], len(records) - 1: records[-1]}
    for start in range(0, len(records), size):
        known = [i for i in range(start, min(start + size, len(records))) if records[i].loss is not None]
        for pick_ in (min, max):
            if known:
                at = pick_(known, key=lambda i: records[i].loss or 0.0)
                kept[at] = records[at]
    return [replace(kept[i]) for i in sorted(kept)]


__all__ = ["LogTail", "extremes", "whole_curve"]
