"""Where the trials of a sweep run: in this process, in several on this machine, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any, TypeVar
from urllib.parse import urlsplit

import torch

from unfit.attacker.method import Values
from unfit.attacker.sweep.trials import HERE, Job, Outcome, versions
from unfit.base.errors import UnfitError, UsageError, needs

Item = TypeVar("Item")
Result = TypeVar("Result")
Submit = Callable[[int, Values], "Future[Outcome]"]
Place = tuple[Submit, Callable[[], int]]
"""A function that starts a trial, and one that says how many may run at once now."""
ANSWER_WITHIN = 10  # seconds for a server to answer
RETRIES = 20  # of a trial whose node is lost
REASON_LENGTH = 300  # characters of what Ray or MLflow says
SIGNALS = (signal.SIGINT, signal.SIGTERM)

_job: Job  # what this process runs, if it is a worker


@contextmanager
def in_this_process(job: Job) -> Iterator[Place]:
    """One trial after another."""

    def submit(number: int, values: Values) -> Future[Outcome]:
        future: Future[Outcome] = Future()
        future.set_result(job.run(number, values))
        return future

    threads = torch.get_num_threads()
    torch.set_num_threads(job.threads)
    try:
        yield submit, lambda: 1
    finally:
        torch.set_num_threads(threads)


@contextmanager
def in_processes(job: Job, workers: int) -> Iterator[Place]:
    """Several processes, which end at once when this one is done or is killed."""
    spawn = multiprocessing.get_context("spawn")
    theirs, ours = spawn.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, spawn, _become_worker, (_packed(job), theirs))

    def submit(number: int, values: Values) -> Future[Outcome]:
        with _signals_held():
            return pool.submit(_run_here, number, values)

    others = set(multiprocessing.active_children())
    try:
        yield submit, lambda: workers
    except BaseException:
        for worker in set(multiprocessing.active_children()) - others:  # some still load, and hear nothing
            worker.kill()
        raise
    finally:
        ours.close()
        pool.shutdown(cancel_futures=True)
        theirs.close()


def _packed(job: Job) -> bytes:
    """Pickled here: multiprocessing would put the weights into shared memory, and containers have little."""
    try:
        return pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UnfitError(
            f"other processes cannot import this model's code ({error}): set `workers` to 1"
        ) from error


@contextmanager
def _signals_held() -> Iterator[None]:
    """Processes started inside never hear signals: the parent does, afterwards, and they end with it."""
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []  # the mask alone does not hold them: the system may give a signal to another thread
    before = {number: signal.signal(number, lambda number, _: held.append(number)) for number in SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # what a child inherits
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)
        for heard in held[:1]:
            signal.raise_signal(heard)


def _become_worker(job: bytes, lifeline: Connection) -> None:
    global _job
    threading.Thread(target=_live_as_long_as, args=(lifeline,), daemon=True).start()
    _job = pickle.loads(job)
    torch.set_num_threads(_job.threads)


def _live_as_long_as(lifeline: Connection) -> None:
    lifeline.poll(None)  # nothing is ever sent: this returns when the other end is closed
    os._exit(1)


def _run_here(number: int, values: Values) -> Outcome:
    return _job.run(number, values)


@contextmanager
def on_ray(job: Job, address: str, gpus: float, workers: int | None) -> Iterator[Place]:
    """Tasks on a cluster, by default as many as it has room for. Ray runs those of a lost node again elsewhere."""
    ray = _ray()
    own = not ray.is_initialized()
    if own:
        _connect(ray, address)
    try:
        shared = ray.put(job)  # once: the nodes hand it on to each other
        task = ray.remote(num_cpus=job.threads, num_gpus=gpus, max_retries=RETRIES)(_run_on_ray)

        def submit(number: int, values: Values) -> Future[Outcome]:
            outcome: Future[Outcome] = Future()
            done = task.remote([shared], number, values).future()  # not `shared`: Ray would unpack it each time
            done.add_done_callback(lambda future: _hand_on(future, outcome, number))
            return outcome

        def room() -> int:
            there = ray.cluster_resources()
            by_gpu = [there.get("GPU", 0) / gpus] if gpus else []
            return max(1, int(min([there.get("CPU", 0) / job.threads, *by_gpu])))

        yield submit, (lambda: workers) if workers else room
    finally:
        if own:
            ray.shutdown()


def on_cluster(address: str, run: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """The same function on each item, as many at once as a cluster has room for; results as they come."""
    ray = _ray()
    own = not ray.is_initialized()
    if own:
        _connect(ray, address)
    try:
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(lambda shared, item: shared(item))
        shared = ray.put(run)
        waiting = [task.remote(shared, item) for item in items]
        while waiting:
            ready, waiting = ray.wait(waiting)
            try:
                yield from ray.get(ready)
            except ray.exceptions.RayError as error:
                raise UnfitError(
                    f"Ray could not run this: {str(error).splitlines()[-1][:REASON_LENGTH]}"
                ) from error
    finally:
        if own:
            ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise needs("Ray", "cluster", "`ray`") from error
    return ray


def _connect(ray: Any, address: str) -> None:
    if address != "auto":
        check_reachable(address, "Ray cluster")
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise UnfitError(f"no Ray cluster at {address}: {str(error).splitlines()[0][:REASON_LENGTH]}") from error


def check_reachable(address: str, what: str) -> None:
    """Libraries try for minutes, and nobody should wait that long because of a typing error."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        host, port = None, None
    if not host or not port:
        raise UsageError(f"{address!r} is not the address of a {what}; give HOST:PORT")
    try:
        socket.create_connection((host, port), timeout=ANSWER_WITHIN).close()
    except OSError as error:
        raise UnfitError(f"no {what} answers at {address}: {error.strerror or error}") from error


def _hand_on(done: Future[Outcome], outcome: Future[Outcome], number: int) -> None:
    """What Ray says about a trial, in this project's words."""
    error = done.exception()
    if error is None:
        outcome.set_result(done.result())
    elif isinstance(error, UnfitError):
        outcome.set_exception(error)
    else:
        reason = str(error).splitlines()[-1][:REASON_LENGTH]
        outcome.set_exception(UnfitError(f"Ray could not run trial {number}: {reason}"))


def _run_on_ray(shared: list[Any], number: int, values: Values) -> Outcome:
    ray = _ray()
    job = _fetched(shared[0])
    torch.set_num_threads(job.threads)
    node = f"{ray.util.get_node_ip_address()} {ray.get_runtime_context().get_node_id()[:8]}"
    return job.run(number, values, node)


@lru_cache(maxsize=1)
def _fetched(shared: Any) -> Job:
    """Once in each worker of the cluster: reading the spectrum of the weights takes longer than some trials."""
    job: Job = _ray().get(shared)
    if not (here := versions()).items() <= job.plan.versions.items():
        raise UnfitError(f"the versions on {HERE}, {here}, are not those of this sweep, {job.plan.versions}")
    return job
