"""Workers that share a GPU take turns."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

from lowbit.suite.memory import LOCK, turn


def hold(folder: str, name: str) -> None:
    with turn(Path(folder)), (Path(folder) / "seen").open("a", buffering=1) as seen:
        seen.write(f"{name} in\n")
        time.sleep(0.2)
        seen.write(f"{name} out\n")


def test_one_worker_at_a_time(tmp_path: Path) -> None:
    """Whoever comes first, each leaves before the next enters."""
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=hold, args=(str(tmp_path), str(i))) for i in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seen = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    assert [step for _, step in seen] == ["in", "out"] * 3
    assert [name for name, _ in seen[::2]] == [name for name, _ in seen[1::2]]
    assert (tmp_path / LOCK).exists()
