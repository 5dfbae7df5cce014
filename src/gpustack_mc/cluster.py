"""The chunks of a sweep on an existing Dask cluster, with the numbers that one machine gives.

A task is one chunk. Everything that it needs is in its description, which the scheduler keeps: a worker that dies takes
nothing with it, its chunks are run again elsewhere. Workers must have the versions and priors of this process.
"""

import json
import logging
import pickle
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpustack_mc import catalog, result
from gpustack_mc.errors import GpustackError, InputError, Place
from gpustack_mc.sweep_engine import Chunk, Engine

CONNECT_SECONDS = 10
WORKERS_SECONDS = 15
QUIET_SECONDS = 20
# Chunks that are on their way for every thread of the cluster: one runs, one waits.
AHEAD = 2

_ADDRESS = re.compile(r"^([a-z]+://)?[\w.\[\]:-]+:\d{1,5}$")

_engines: dict[str, Engine] = {}
_reading = threading.Lock()


# ---- on a worker --------------------------------------------------------------------------------------------------


def about() -> dict[str, str]:
    """Return what the numbers of a worker depend on."""
    return result.versions() | {"priors": catalog.priors_digest()[:12]}


def carry(blob: bytes) -> bytes:
    """Return what chunks need, as a task: when a worker that holds it dies, it is made again."""
    return blob


def run_chunk(blob: bytes, digest: str, number: int) -> Chunk:
    """Run one chunk on a worker, which keeps what chunks of a sweep share."""
    with _reading:
        if digest not in _engines:
            _engines.clear()
            sweep, settings, layout = pickle.loads(blob)
            _engines[digest] = Engine(sweep, settings, layout)
        engine = _engines[digest]
    return engine.run_chunk(number)


# ---- here ---------------------------------------------------------------------------------------------------------


def on_cluster(address: str, engine: Engine, digest: str) -> Callable[[Sequence[int]], Iterator[tuple[int, Chunk]]]:
    """Return what runs chunks on the workers of a scheduler.

    Raises
    ------
    GpustackError
        Dask is not installed, the scheduler is not there or has no workers, or a worker has other versions.
    """
    try:
        import distributed
    except ImportError:
        raise InputError("no-dask", "--scheduler needs Dask, which is not installed.",
                         "Install it: pip install 'gpustack-mc[dask]'.") from None  # fmt: skip
    for name in ("distributed", "distributed.core", "distributed.comm", "distributed.client"):
        # Its own words about lost connections would break the one line of an error.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    place = Place(f"--scheduler {address[:80]}")
    if not _ADDRESS.match(address):
        raise InputError("bad-scheduler", "this is no address of a scheduler.", "Write tcp://host:8786.", place)
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        reason = "no scheduler answers there" if isinstance(error, OSError) else str(error).splitlines()[0]
        raise GpustackError("no-scheduler", f"{reason}.", "Start one with `dask scheduler`, or leave --scheduler out.",
                            place) from None  # fmt: skip
    try:
        _require_workers(client, place)
    except BaseException:
        client.close(timeout=2)
        raise
    return lambda wanted: _run(client, engine, digest, wanted, place)


def _require_workers(client: Any, place: Place) -> None:
    try:
        client.wait_for_workers(1, timeout=WORKERS_SECONDS)
    except (TimeoutError, OSError):
        raise GpustackError("no-workers", "the scheduler has no workers.", "Start some with `dask worker`.",
                            place) from None  # fmt: skip
    own = about()
    try:
        found = client.run(about)
    except Exception as error:  # whatever the import of this package on a worker ends with
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise GpustackError("other-worker", f"a worker cannot run this version of gpustack-mc: {reason}.",
                            "Install the same version on all workers.", place) from None  # fmt: skip
    for worker, versions in found.items():
        other = [f"{name} {versions.get(name, 'missing')}, here {own[name]}"
                 for name in own if versions.get(name) != own[name]]  # fmt: skip
        if other:
            raise GpustackError("other-versions", f"worker {worker} has {'; '.join(other)}.",
                                "Give all workers the same versions: numbers would differ.", place)  # fmt: skip


def _run(client: Any, engine: Engine, digest: str, wanted: Sequence[int], place: Place) -> Iterator[tuple[int, Chunk]]:
    import distributed

    blob = pickle.dumps((engine.sweep, engine.settings, engine.layout))
    waiting = list(reversed(wanted))
    running: dict[Any, int] = {}
    try:
        shared = client.submit(carry, blob, key=f"gpustack-mc-{digest[:16]}", pure=True)
        threads = max(sum(client.nthreads().values()), 1)
        while waiting or running:
            while waiting and len(running) < AHEAD * threads:
                number = waiting.pop()
                # A key of its own: a chunk that another process asked for and forgot must not be waited for.
                task = client.submit(run_chunk, shared, digest, number, pure=False, retries=3)
                running[task] = number
            for task in _finished(client, running, place):
                number = running.pop(task)
                yield number, _result(task, number, place)
                task.release()
    except (distributed.comm.CommClosedError, ConnectionError) as error:
        raise _gone(place) from error
    finally:
        for task in running:
            task.cancel(force=True)
        client.close(timeout=5)


def _finished(client: Any, running: dict[Any, int], place: Place) -> list[Any]:
    """Wait for some tasks; give up when no worker is left for long."""
    import distributed

    quiet = 0
    while True:
        try:
            with client.as_current():
                found = distributed.wait(list(running), timeout=QUIET_SECONDS, return_when="FIRST_COMPLETED")
            return list(found.done)
        except TimeoutError:
            if client.status != "running":
                raise _gone(place) from None
            # Slow workers are waited for, and so are workers that are restarted.
            quiet = 0 if client.nthreads() else quiet + 1
            if quiet >= 3:
                raise GpustackError("no-workers", "all workers have gone.", "What is finished is kept: start workers "
                                    "and run the same command again.", place) from None  # fmt: skip


def _result(task: Any, number: int, place: Place) -> Chunk:
    if task.status == "finished":
        chunk: Chunk = task.result()
        return chunk
    if task.status in ("cancelled", "lost"):
        raise _gone(place)
    error = task.exception()
    said = json.dumps(str(error).splitlines()[0][:160] if str(error) else type(error).__name__)
    raise GpustackError("worker-failed", f"chunk {number} failed on the workers: {said}.",
                        "What is finished is kept; run the same command again.", place)  # fmt: skip


def _gone(place: Place) -> GpustackError:
    return GpustackError("no-scheduler", "the scheduler has gone.",
                         "What is finished is kept: run the same command again.", place)  # fmt: skip
