"""One run: warm up, send each request when it arrives, keep to the limit, gather the answers."""

from __future__ import annotations

import asyncio
import resource
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from octavo.bench.serve.arrivals import arrival_times
from octavo.bench.serve.client import Answer, Client, encode_body, open_client
from octavo.bench.serve.datasets import load_dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from octavo.bench.serve.datasets import BenchRequest
    from octavo.bench.serve.settings import DatasetSettings, Sampling, Target, Traffic
    from octavo.model.text.tokenizer import Tokenizer

_RETRY_SECONDS = 1.0
_WARM_UP = 1 << 32  # a run that no list of limits comes to
_ARRIVALS = 1  # a stream of random numbers of its own, so that prompts do not shift arrivals


@dataclass(slots=True)
class Run:
    """What one run found."""

    max_concurrency: int | None
    begin: float = 0.0
    """Of `time.perf_counter`, as all times."""
    duration: float = 0.0
    """Seconds until the last answer ended."""
    answers: list[Answer] = field(default_factory=list)
    """In the order of their arrival."""
    is_interrupted: bool = False
    num_unfinished: int = 0
    """Requests that an interruption left without an answer, or unsent."""


@dataclass(frozen=True, slots=True)
class LoadTest:
    """Everything that runs have in common."""

    target: Target
    dataset: DatasetSettings
    traffic: Traffic
    sampling: Sampling
    tokenizer: Tokenizer | None = None
    keep_text: bool = False
    done: Callable[[int], None] = lambda _: None
    """Told of answers as they end, the warm-up's too."""

    def requests(self, number: int) -> list[BenchRequest]:
        """Return what a run asks. Later runs ask other things: a cache would know the first's."""
        return load_dataset(
            self.dataset, seed=self.traffic.seed + number, is_chat=self.target.is_chat,
            tokenizer=self.tokenizer,
        )  # fmt: skip

    def arrivals(self, requests: Sequence[BenchRequest], number: int) -> list[float]:
        """Return when they come, in seconds from the run's start."""
        if self.dataset.is_self_timed:
            return [request.arrival for request in requests]
        rng = np.random.default_rng((self.traffic.seed + number, _ARRIVALS))
        return arrival_times(len(requests), self.traffic, rng)

    async def run(self) -> tuple[str, list[Run]]:
        """Do a run for each limit; return the model's name and what was found.

        When the task is cancelled, as Ctrl-C does, the run ends at once and is the last. Raises
        `ConnectionError` where the server is not there.
        """
        raise_file_limit()
        requests = self.requests(0)  # before the server is asked anything: a file may be bad
        count = self.traffic.num_warmups
        needs_probe = count or self.traffic.ready_check_timeout_sec
        # Where prompts are made here it is none of a run's, which would then be in the cache.
        probe = self.requests(_WARM_UP)[0] if needs_probe else requests[0]
        runs: list[Run] = []
        async with open_client(self.target, keep_text=self.keep_text) as client:
            target = self.target
            model = target.served_model_name or target.model or await client.first_model()
            fields = self.sampling.fields(self.dataset.dataset_name, is_chat=target.is_chat)
            encode = partial(encode_body, model=model, fields=fields, is_chat=target.is_chat)
            await self._wait_until_ready(client, encode(probe), probe)
            for number, limit in enumerate(self.traffic.concurrencies()):
                requests = self.requests(number) if number else requests
                warm_up = _Load(client, [probe] * count, [encode(probe)] * count, limit, self.done)
                await warm_up.send_all()
                load = _Load(client, requests, list(map(encode, requests)), limit, self.done)
                runs.append(await load.run(self.arrivals(requests, number)))
                if runs[-1].is_interrupted:
                    break
        return model, runs

    async def _wait_until_ready(self, client: Client, body: bytes, request: BenchRequest) -> None:
        """Send a request until it succeeds, if that was asked for, or raise `ConnectionError`."""
        seconds = self.traffic.ready_check_timeout_sec
        begin = time.perf_counter()
        while seconds:
            answer = await client.send(body, request, time.perf_counter())
            if not answer.error:
                return
            left = begin + seconds - time.perf_counter()
            if left <= 0:
                raise ConnectionError(
                    f"{self.target.url} was not ready within {seconds:g} s: {answer.error}"
                )
            await asyncio.sleep(min(_RETRY_SECONDS, left))


class _Load:
    """The requests of one run."""

    def __init__(
        self, client: Client, requests: Sequence[BenchRequest], bodies: Sequence[bytes],
        max_concurrency: int | None, done: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._client = client
        self._requests = requests
        self._bodies = bodies
        self._max_concurrency = max_concurrency
        self._semaphore = asyncio.Semaphore(max_concurrency) if max_concurrency else None
        self._done = done
        self._answers: dict[int, Answer] = {}

    async def send_all(self) -> None:
        """Send all at once; what comes back is not kept."""
        await asyncio.gather(*(self._send(i) for i in range(len(self._bodies))))

    async def run(self, arrivals: Sequence[float]) -> Run:
        """Send each request when it arrives; cancelled, return what has ended."""
        run = Run(self._max_concurrency, begin=time.perf_counter())
        tasks: list[asyncio.Task[None]] = []
        try:
            for i, arrival in enumerate(arrivals):
                left = run.begin + arrival - time.perf_counter()
                if left > 0:
                    await asyncio.sleep(left)
                tasks.append(asyncio.create_task(self._send(i)))
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            run.is_interrupted = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        run.duration = time.perf_counter() - run.begin
        run.answers = [self._answers[i] for i in sorted(self._answers)]
        run.num_unfinished = len(arrivals) - len(run.answers)
        return run

    async def _send(self, i: int) -> None:
        arrival = time.perf_counter()
        async with AsyncExitStack() as stack:
            if self._semaphore is not None:
                await stack.enter_async_context(self._semaphore)
            self._answers[i] = await self._client.send(self._bodies[i], self._requests[i], arrival)
        self._done(1)


def raise_file_limit() -> None:
    """Allow as many open files as the system lets us: each stream is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
