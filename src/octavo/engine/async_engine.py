"""AsyncEngine: an LLM on a thread of its own, asked from an asyncio event loop.

The thread takes commands and computes steps; what a step brought goes to the loop in one call, for
all requests together. Tokenising, templates and JSON stay on the loop's side.

    async with AsyncEngine(llm) as engine:
        stream = engine.submit({"prompt": "The capital of France is"}, SamplingParams())
        async for deltas in stream:
            print(*(delta.text for delta in deltas))
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import uuid
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING

from octavo.engine import turns
from octavo.engine.stats import RequestStats, StepStats
from octavo.engine.stream import Stream
from octavo.errors import DrainingError, EngineFaultError, OctavoError, QueueFullError, in_one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from octavo.engine.llm import LLM, Prompt
    from octavo.engine.outputs import Delta
    from octavo.engine.stats import Observer
    from octavo.grammar.compile import CompiledGrammar
    from octavo.sampling.params import SamplingParams

_log = logging.getLogger(__name__)


_News = tuple[Stream, "list[Delta]", bool, "OctavoError | None"]
"""What came to a request, whether it has ended, and the error if one ended it."""


class AsyncEngine:
    """Many requests at once on one `LLM`, which is the engine's alone until it is closed.

    ``max_waiting`` is how many requests may be open beyond those that can run. All methods are for
    the thread of the loop in which the engine was started.
    """

    def __init__(
        self, llm: LLM, *, max_waiting: int = 1024, observers: Iterable[Observer] = ()
    ) -> None:
        self.llm = llm
        self.max_waiting = max_waiting
        self.fault: str | None = None
        """What the engine died of; None while it lives."""
        self.is_draining = False
        self._observers = tuple(observers)
        self._open: set[Stream] = set()
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self._switch_interval = 0.0
        # The engine thread's own.
        self._streams: dict[str, Stream] = {}
        self._unscheduled: dict[str, Stream] = {}

    # -- the loop's side --------------------------------------------------------------------------

    async def __aenter__(self) -> AsyncEngine:
        """Start the engine's thread."""
        self._loop = asyncio.get_running_loop()
        self._switch_interval = turns.shorten()
        self._thread = threading.Thread(target=self._work, name="octavo-engine", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Abort what runs and end the thread."""
        self.is_draining = True  # nobody would answer what comes now
        for stream in list(self._open):
            stream.abort()
        self._commands.put(None)
        assert self._thread is not None
        await asyncio.to_thread(self._thread.join)
        sys.setswitchinterval(self._switch_interval)

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        arrived: float | None = None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> Stream:
        """Hand over a request; ``arrived`` is when it came. A prompt of text is tokenised here.

        So is the shape of the answer compiled, where it has one.

        Of what `LLM.check` would refuse, a prompt that is none is refused at once, and the rest by
        the stream. ``request_id`` is for logs.
        Raises `QueueFullError`, `DrainingError` or `EngineFaultError` if it is not taken.
        """
        self._check_alive()
        if self.is_draining:
            raise DrainingError("the server is shutting down and takes no more requests")
        if len(self._open) >= self.most_open:
            raise QueueFullError(
                f"{len(self._open)} requests are open, and {self.most_open} may be; try again later"
            )
        arrived = perf_counter() if arrived is None else arrived
        text, ids, salt, _ = self.llm._read_prompt(prompt)
        grammar = self.llm.grammar_for(params)
        stats = RequestStats(request_id or uuid.uuid4().hex, params, len(ids), arrived)
        stats.queued, stats.trace_headers = perf_counter(), trace_headers
        stream = Stream(self, stats, params.n)
        self._open.add(stream)
        self._idle.clear()
        read = {"prompt": text, "prompt_token_ids": ids, "cache_salt": salt}
        self._commands.put(lambda: self._add(stream, read, priority, grammar))
        return stream

    def abort(self, stream: Stream) -> None:
        """End a request if it has not ended."""
        if not stream.ended:
            self._commands.put(lambda: self._abort(stream))

    async def drain(self, seconds: float) -> None:
        """Take no more requests, wait at most ``seconds`` until none is open, abort the rest."""
        self.is_draining = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)
        for stream in list(self._open):
            stream.abort()

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._open)

    @property
    def most_open(self) -> int:
        """How many there may be."""
        return self.llm.config.max_num_seqs + self.max_waiting

    def _check_alive(self) -> None:
        if self.fault is not None:
            raise EngineFaultError(f"the engine has stopped ({self.fault}); restart the server")

    def _deliver(self, step: StepStats | None, news: list[_News]) -> None:
        """Hand out what a step brought; the only way from the engine's thread to the loop."""
        for stream, deltas, ended, error in news:
            stream.take(deltas, ended=ended, error=error)
            if ended:
                self._open.discard(stream)
        if not self._open:
            self._idle.set()
        if step is not None:
            for observer in self._observers:
                observer.on_step(step)
        for stream, deltas, ended, _ in news:
            self._observe(stream, deltas, step)
            if ended:
                for observer in self._observers:
                    observer.on_finished(stream.stats)

    def _observe(self, stream: Stream, deltas: list[Delta], step: StepStats | None) -> None:
        if step is None or not self._observers:
            return
        stats = stream.stats
        for delta in deltas:
            if not delta.token_ids:
                continue
            before = stream.last_arrival[delta.index]
            stream.last_arrival[delta.index] = step.ended
            for observer in self._observers:
                if before:
                    observer.on_token_gap(step.ended - before, len(delta.token_ids))
                elif stats.first_token == step.ended and delta.index == 0:
                    observer.on_first_token(stats, step.ended - stats.arrived)

    # -- the engine's thread ----------------------------------------------------------------------

    def _work(self) -> None:
        """Take commands, and compute steps when there are none, until None comes."""
        turns.wake_in_time()
        with self.llm._alone():
            while True:
                is_busy = self.llm.core.has_requests and self.fault is None
                action = self._step if is_busy and self._commands.empty() else self._commands.get()
                if action is None:
                    return
                try:
                    action()
                except Exception as error:  # nobody may wait for a thread that is gone
                    self._fail(error)

    def _step(self) -> None:
        llm, stats = self.llm, self.llm.core.cache.stats
        num_prompt, recomputed = llm.core.num_prompt_tokens, stats.recomputed_tokens
        began = perf_counter()
        touched = llm.core.step()
        llm._processor.process(touched)
        ended = perf_counter()
        self._note_scheduled(began)
        news: dict[str, _News] = {}
        num_output = 0
        for request in touched:
            stream = self._streams.get(request.request_id)
            if stream is None:
                continue
            stream.told[request.choice].take_counts(request)
            if request.request_id in news:
                continue
            deltas = stream.untold()
            count = sum(len(delta.token_ids) for delta in deltas)
            num_output += count
            if count:
                stream.stats.last_token = ended
                stream.stats.first_token = stream.stats.first_token or ended
            stream.stats.num_cached_tokens = request.num_cached_tokens or 0
            assert stream.output is not None
            news[request.request_id] = (stream, deltas, stream.output.finished, None)
        for stream, _, has_ended, _ in news.values():
            if has_ended:
                self._forget(stream, ended)
        step = StepStats(
            began,
            ended,
            llm.core.num_prompt_tokens - num_prompt,
            num_output,
            stats.recomputed_tokens - recomputed,
        )
        self._post(step, list(news.values()))

    def _add(
        self, stream: Stream, prompt: Prompt, priority: int, grammar: CompiledGrammar | None
    ) -> None:
        stats = stream.stats
        try:
            self._check_alive()
            stream.output = output = self.llm._add(prompt, stats.params, priority, grammar=grammar)
        except Exception as error:
            if not isinstance(error, OctavoError):
                _log.error("a request could not be added", exc_info=error)
                error = EngineFaultError(f"the request could not be added: {in_one_line(error)}")
            stats.ended = perf_counter()
            stats.error, stats.finish_reasons = str(error), ["error"]
            self._post(None, [(stream, [], True, error)])
            return
        key = output.request_id
        self._streams[key] = self._unscheduled[key] = stream

    def _abort(self, stream: Stream) -> None:
        output = stream.output
        if output is None or output.request_id not in self._streams:
            return
        for request in self.llm.core.scheduler.requests():
            if request.request_id == output.request_id:
                stream.told[request.choice].take_counts(request)
                stream.stats.num_cached_tokens = request.num_cached_tokens or 0
        self.llm.core.abort(output.request_id)
        self.llm._processor.discard(output.request_id)
        for choice in output.outputs:
            choice.finish_reason = choice.finish_reason or "abort"
        deltas = stream.untold()
        self._forget(stream, perf_counter())
        self._post(None, [(stream, deltas, True, None)])

    def _fail(self, error: Exception) -> None:
        """End every request with the error, and go on if the engine can be emptied."""
        _log.error("the engine failed: its requests have ended", exc_info=error)
        text = in_one_line(error)
        now = perf_counter()
        news: list[_News] = []
        for key, stream in list(self._streams.items()):
            stream.stats.error = text
            fault = EngineFaultError(f"the engine failed in a step of this request: {text}")
            assert stream.output is not None
            for choice in stream.output.outputs:
                choice.finish_reason = choice.finish_reason or "error"
            self._forget(stream, now)
            news.append((stream, [], True, fault))
            self.llm._processor.discard(key)
        try:
            for request in list(self.llm.core.scheduler.requests()):
                self.llm.core.finish(request)
            self.llm.core.cache.clear()
            self.llm.core.cache.check_invariants([])
        except Exception as second:
            self.fault = in_one_line(second)
            _log.critical("the engine cannot be emptied: it has stopped", exc_info=second)
        self._post(None, news)

    def _note_scheduled(self, began: float) -> None:
        """Note who was computed for the first time, and what the others wait for."""
        if not self._unscheduled:
            return
        scheduler = self.llm.core.scheduler
        waiting = {request.request_id: request for request in scheduler.waiting}
        for key, stream in list(self._unscheduled.items()):
            request = waiting.get(key)
            if request is None or request.num_cached_tokens is not None:
                stream.stats.scheduled = began
                del self._unscheduled[key]
            elif not stream.stats.waited_for:
                shared = request.blocked_on is not None
                stream.stats.waited_for = "prefix" if shared else scheduler.lacked

    def _forget(self, stream: Stream, now: float) -> None:
        output = stream.output
        assert output is not None
        self._streams.pop(output.request_id, None)
        self._unscheduled.pop(output.request_id, None)
        stats = stream.stats
        stats.ended = now
        stats.num_choice_tokens = [len(choice.token_ids) for choice in output.outputs]
        stats.num_output_tokens = sum(stats.num_choice_tokens)
        stats.finish_reasons = [choice.finish_reason or "abort" for choice in output.outputs]
        stats.num_preemptions = sum(told.num_preemptions for told in stream.told)
        stats.num_recomputed_tokens = sum(told.num_recomputed for told in stream.told)
        stats.error = stats.error or output.error

    def _post(self, step: StepStats | None, news: list[_News]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._deliver, step, news)
