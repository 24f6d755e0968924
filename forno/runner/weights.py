"""The weights of a model in memory: read from a packed image where one pays and is right, else packed, and the image written.

Knows where images lie, when they pay, and what proves that one is of this model; not what is in them. No image and no
failure to write one ever keeps a model from being served.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from forno import env
from forno.errors import ModelError
from forno.kernels.cpu.image import Image, ImageError, image_parts, table_of
from forno.kernels.cpu.pack import PackedWeights, matrix_keys, pack_weights
from forno.loader.checkpoint import Checkpoint
from forno.loader.files import SourceFile, source_file
from forno.loader.whole import write_whole
from forno.phases import PhaseClock
from forno.program.program import Program

log = logging.getLogger(__name__)

WRITER = "forno-image"
"""Name of the thread that writes an image while the model is served."""
GRACE = 5.0
"""Seconds that the end of a process waits for its image: long enough for short runs to leave one, too short to annoy."""
_READ_BYTES = 8 << 20
_NICE = 10


def load_weights(program: Program, checkpoint: Checkpoint, wanted: str, threads: int, clock: PhaseClock) -> PackedWeights:
    """The weights of ``program``, the phases "image" and "pack" timed by ``clock``. ``wanted`` is ``--packed-image``.

    An image that is missing, wrong or of the model's files before they were moved is written in the background.
    Raises ``CheckpointError`` for a checkpoint that does not fit.
    """
    if not checkpoint.files or not _pays(program, checkpoint, wanted):
        with clock.phase("pack"):
            return pack_weights(program, checkpoint.tensors, threads)
    places = image_places(program, checkpoint.files)
    weights, current = _from_image(program, checkpoint, places, threads, clock)
    if weights is None:
        with clock.phase("pack"):
            weights = pack_weights(program, checkpoint.tensors, threads)
    if not current:
        try:
            threading.Thread(target=_save_nicely, args=(program, weights, checkpoint.files, places), name=WRITER).start()
        except RuntimeError as error:  # no thread to be had
            log.warning("no packed image is written: %s", error)
    return weights


def _pays(program: Program, checkpoint: Checkpoint, wanted: str) -> bool:
    """Whether an image is wanted; unless told, where matrices are held in another format than the file's."""
    if wanted != "auto":
        return wanted == "on"
    return any(checkpoint.tensors[n].format != program.weights[n].format for key in matrix_keys(program) for n in key)


def image_places(program: Program, files: tuple[SourceFile, ...]) -> tuple[Path, Path]:
    """Where the image of this model in this program's formats lies: in the cache directory, or beside the model."""
    key = hashlib.sha256(json.dumps(table_of(program)).encode()).hexdigest()[:12]
    model = Path(files[0].path).absolute()
    folder = hashlib.sha256(os.fsencode(model.parent)).hexdigest()[:12]
    cached = env.cache_dir() / "packed" / f"{model.name}.forno-{key}-{folder}.packed"
    return cached, model.with_name(f"{model.name}.forno-{key}.packed")


def _from_image(
    program: Program, checkpoint: Checkpoint, places: Iterable[Path], threads: int, clock: PhaseClock
) -> tuple[PackedWeights | None, bool]:
    """The weights, and whether their image need not be written again; none of the images being right, None and False."""
    for path in places:
        try:
            with Image.open(path) as image, clock.phase("image"):
                current = _check_source(image.made_of, checkpoint.files)
                return image.read(program, checkpoint.tensors, threads), current
        except FileNotFoundError:
            continue
        except (ImageError, OSError) as error:
            log.warning("the packed image %s is ignored: %s", path, error)
    return None, False


def _check_source(made_of: Any, files: tuple[SourceFile, ...]) -> bool:
    """Whether an image made of ``made_of`` is of ``files`` as they stand; False if only their content says so.

    Raises ``ImageError`` if it is of other files.
    """
    states = [_state(file) for file in files]
    if not isinstance(made_of, list) or not all(isinstance(m, dict) for m in made_of) or len(made_of) != len(files):
        raise ImageError("it is of another model")
    same = [{**state, "sha256": made.get("sha256")} == made for state, made in zip(states, made_of, strict=True)]
    for file, made, equal in zip(files, made_of, same, strict=True):
        if not equal and (made.get("size") != file.size or made.get("sha256") != _sha256(file.path)):
            raise ImageError(f"{file.path} has changed since it was written")
    return all(same)


def _state(file: SourceFile) -> dict[str, Any]:
    return {"size": file.size, "mtime_ns": file.mtime_ns, "ctime_ns": file.ctime_ns, "inode": file.inode}


def save_image(program: Program, weights: PackedWeights, files: tuple[SourceFile, ...], places: tuple[Path, Path]) -> None:
    """Write the image beside the model, or in the cache directory where that folder cannot be written.

    Whatever goes wrong is one warning. Gives up silently where the end of the process would wait too long.
    """
    cached, beside = places
    path = beside if os.access(beside.parent, os.W_OK) else cached
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made_of = [{**_state(file), "sha256": _sha256(file.path)} for file in files]
        if any(source_file(file.path) != file for file in files):
            log.warning("no packed image is written: the model's files have changed since they were loaded")
            return
        parts = _while_running(image_parts(program, weights, made_of, threads=1))
        mode = stat.S_IMODE(os.stat(files[0].path).st_mode) & 0o666  # for whoever may read the model, and nobody else
        if write_whole(path, parts, weights.bytes, mode):
            log.info("wrote the packed image %s, %d MiB, for the next start (--packed-image)", path, weights.bytes >> 20)
    except InterruptedError:
        return
    except (OSError, ModelError, RuntimeError) as error:
        log.warning("the packed image %s cannot be written, and the next start has to pack again: %s", path, error)


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        for chunk in _while_running(iter(lambda: file.read(_READ_BYTES), b"")):
            digest.update(chunk)
    return digest.hexdigest()


def _while_running(parts: Iterator[Any]) -> Iterator[Any]:
    """``parts``; raises ``InterruptedError`` some seconds after the rest of the process has ended."""
    ended = math.inf
    for part in parts:
        if not threading.main_thread().is_alive():
            ended = min(ended, time.monotonic())
            if time.monotonic() - ended >= GRACE:
                raise InterruptedError("the process ends")
        yield part


def _save_nicely(*args: Any) -> None:
    """``save_image`` on a thread that leaves its core to whoever wants it."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)  # on Linux a thread has a priority of its own
    save_image(*args)
