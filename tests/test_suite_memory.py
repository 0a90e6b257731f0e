"""Workers that share a GPU take turns."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from lowbit.suite.memory import LOCK, turn


def test_one_worker_at_a_time(tmp_path: Path) -> None:
    """Each leaves before the next enters. Threads stand for workers: each opens the lock itself."""
    seen: list[tuple[str, str]] = []

    def hold(name: str) -> None:
        with turn(tmp_path):
            seen.append((name, "in"))
            time.sleep(0.05)
            seen.append((name, "out"))

    workers = [threading.Thread(target=hold, args=(str(i),)) for i in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [step for _, step in seen] == ["in", "out"] * 3
    assert [name for name, _ in seen[::2]] == [name for name, _ in seen[1::2]]
    assert (tmp_path / LOCK).exists()
