"""What the cases bring along where nothing can be installed: Slurm, ftrun's libraries, py-spy: python -m tests.accelerators.kit. (I/O)

`make gpu-kit` writes one archive below .cache, which git ignores: slurm.tar.gz is a bundle of `ftrun cluster bundle`, site/ has the
libraries of uv.lock for some Pythons. Whoever runs the cases elsewhere carries it beside the sources.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / ".ci" / "typing"
PYTHONS = "3.11,3.12,3.13"
LEFT_OUT = ("paramiko", "cryptography", "pynacl", "bcrypt", "invoke", "cffi", "pycparser", "pyyaml")
"""Libraries of what no case does: commands over SSH."""
SLURM_NEEDS = ("slurmctld", "slurmd", "munged", "srun")
PLUGINS = "FTRUN_KIT_PLUGINS"
"""The variable that names the folder of Slurm's plugins where Slurm comes from the kit."""


def use(archive: Path, draft: Path) -> None:
    """Make ftrun, its libraries and Slurm available to this process and its children: those of the machine, else those of the kit."""
    os.environ.pop(PLUGINS, None)
    if importlib.util.find_spec("ftrun") is None:
        _add_sources(SOURCES)
    lacks_libraries = any(
        importlib.util.find_spec(name) is None for name in ("msgspec", "typer", "structlog")
    )
    lacks_slurm = any(shutil.which(name) is None for name in SLURM_NEEDS)
    forced = os.environ.get("FTRUN_GPU_KIT") == "always"
    if not archive.exists() or not (lacks_libraries or lacks_slurm or forced):
        if lacks_libraries:
            sys.exit(
                f"ftrun: its libraries are not installed here, and there is no {archive}: bring what `make gpu-kit` makes"
            )
        return
    with tarfile.open(archive) as stream:
        stream.extractall(draft / "kit", filter="data")
    if lacks_libraries or forced:
        _add_sources(draft / "kit" / "site")
    bins = [str(draft / "kit" / "site" / "bin")]
    if lacks_slurm or forced:
        bins.insert(0, str(_unpacked_slurm(draft)))
    os.environ["PATH"] = os.pathsep.join([*bins, os.environ["PATH"]])


def _unpacked_slurm(draft: Path) -> Path:
    from ftrun.hooks.cluster.unpack import contents, write_bundle

    folder = draft / "slurm"
    write_bundle(contents((draft / "kit" / "slurm.tar.gz").read_bytes()), str(folder), str(folder))
    draft.chmod(0o755)  # a job of another user reads the plugins
    os.environ[PLUGINS] = str(folder / "plugins")
    return folder / "bin"


def _add_sources(folder: Path) -> None:
    sys.path.insert(1, str(folder))
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{folder}:{before}" if before else str(folder)
    importlib.invalidate_caches()


def make(path: Path, pythons: str) -> None:
    """Write the archive."""
    from ftrun.supervisor.cluster import packages

    bundle = packages.made_bundle(platform.machine(), "", lambda line: print(f"kit: {line}", flush=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        draft = Path(name)
        (draft / "slurm.tar.gz").write_bytes(bundle)
        _install(draft, pythons.split(","))
        part = path.with_suffix(".part")
        with tarfile.open(part, "w:xz", preset=9) as stream:
            # By the last part of the name: what several libraries have alike lies side by side.
            for file in sorted(
                (one for one in draft.glob("s*/**/*") if one.is_file()),
                key=lambda one: (one.suffix, one.name),
            ):
                stream.add(file, file.relative_to(draft))
            stream.add(draft / "slurm.tar.gz", "slurm.tar.gz")
        part.replace(path)
    print(f"kit: {path}, {path.stat().st_size >> 20} MiB, for Python {pythons}")


def _install(draft: Path, pythons: list[str]) -> None:
    """ftrun's libraries and py-spy for each Python, laid over each other: what is compiled bears its Python in its name."""
    uv = shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
    words = [uv, "export", "--frozen", "--no-dev", "--no-emit-project", "--no-hashes", "-q"]
    words += [f"--no-emit-package={name}" for name in LEFT_OUT]
    wanted = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    (draft / "wanted.txt").write_text(f"{wanted}\npy-spy\n")
    for python in pythons:
        target = draft / f"python{python}"
        way = [
            f"--python-version={python}",
            f"--python-platform={platform.machine()}-manylinux_2_28",
            "--only-binary=:all:",
        ]
        subprocess.run(
            [
                uv,
                "pip",
                "install",
                "-q",
                "--no-deps",
                f"--target={target}",
                *way,
                "-r",
                str(draft / "wanted.txt"),
            ],
            check=True,
        )
        shutil.copytree(target, draft / "site", dirs_exist_ok=True)
        shutil.rmtree(target)


def main() -> int:
    """Make the kit."""
    parser = argparse.ArgumentParser(prog="python -m tests.accelerators.kit", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / ".cache" / "gpu-kit.tar.xz")
    parser.add_argument("--pythons", default=PYTHONS, help=f"for which Pythons (default: {PYTHONS})")
    words = parser.parse_args()
    make(words.out, words.pythons)
    return 0


if __name__ == "__main__":
    sys.exit(main())
