"""LLM: the offline front, for programs. Its shape is vLLM's.

from octavo import LLM, SamplingParams

llm = LLM("smollm2")
for output in llm.generate(["The capital of France is"], SamplingParams(max_tokens=8)):
    print(output.outputs[0].text)
"""

from __future__ import annotations

import operator
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from octavo.config import DEFAULT_MODEL, EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.outputs import OutputProcessor, RequestOutput, fault_lines
from octavo.errors import ConfigError, InvalidRequestError, ThreadError, shown
from octavo.grammar.compile import GrammarCompiler
from octavo.model.text.tokenizer import check_utf8
from octavo.sampling.params import SamplingParams

if TYPE_CHECKING:
    from octavo.engine.core import EngineCore
    from octavo.grammar.compile import CompiledGrammar

Prompt: TypeAlias = "str | Mapping[str, Any]"
Message: TypeAlias = "Mapping[str, Any]"
Tag = TypeVar("Tag")


class LLM:
    """A model with its engine, for one thread at a time.

    A call while another thread is in one raises `ThreadError`, and that one goes on undisturbed. A
    thread is in `generate` and `chat` from beginning to end, but in `stream` and `generate_each`
    only while a step is computed: between two pieces anyone may call, and once begun they wait for
    their turn instead. `core` itself has no such guard.

    Args:
        model: a known model's name or ``hf:org/repo``, pulled on first use, or the path of a
            ``.gguf`` file or a Hugging Face folder.
        config: the settings of `EngineConfig`, by name.

    Raises `ConfigError` for a setting that cannot be honoured and `ModelError` for a model that
    cannot be had.
    """

    def __init__(self, model: str | os.PathLike[str] = DEFAULT_MODEL, **config: Any) -> None:
        if not isinstance(model, str | os.PathLike):
            raise ConfigError(f"model is {shown(model)}; give a name or a path", param="model")
        self.config = EngineConfig.from_kwargs(model=os.fspath(model), **config)
        engine = build_engine(self.config)
        self.model = engine.model
        self.tokenizer = engine.model.tokenizer
        self.core: EngineCore = engine.core
        self.notes = engine.resolved.notes
        """What was chosen automatically, and why, a line each."""
        for warning in engine.resolved.warnings:
            warnings.warn(warning, stacklevel=2)
        self._grammars = GrammarCompiler(self.tokenizer, self.model.spec.vocab_size)
        self._processor = OutputProcessor(self.tokenizer, self.core.finish)
        self._num_requests = 0
        self._lock = threading.RLock()

    @property
    def faults(self) -> tuple[str, ...]:
        """What has gone wrong in the arithmetic so far, a line each; none as a rule.

        The numbers are ``core.num_corrupted`` and ``core.num_clamped``.
        """
        return fault_lines(self.core.num_corrupted, self.core.num_clamped)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
        on_output: Callable[[RequestOutput], None] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts; the outputs come in the order of the prompts.

        A prompt is a string, or a mapping with ``prompt`` or ``prompt_token_ids`` and optionally
        ``cache_salt`` (prefixes are shared only under equal salts). ``sampling_params`` is one for
        all or one for each. A lower ``priority`` value is served first. ``on_output`` is called
        with each output once it is finished.

        Raises `InvalidRequestError` for the first prompt that cannot be served, and then nothing
        is computed; a request that fails later ends by itself, with finish_reason ``error``.
        """
        return self._complete(prompts, sampling_params, priority, on_output)

    def _complete(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        priority: Sequence[int] | None,
        on_output: Callable[[RequestOutput], None] | None,
        field: str | None = None,
    ) -> list[RequestOutput]:
        if isinstance(prompts, bytes) or not isinstance(prompts, Iterable):
            raise InvalidRequestError(
                f"prompts is {shown(prompts)}; give a prompt or a list of prompts", param="prompts"
            )
        listed = [prompts] if isinstance(prompts, str | Mapping) else list(prompts)
        params = self._spread("sampling_params", sampling_params, len(listed), SamplingParams())
        priorities = self._spread("priority", priority, len(listed), 0)
        followed: list[RequestOutput] = []
        with self._alone():
            try:
                for prompt, param, value in zip(listed, params, priorities, strict=True):
                    followed.append(self._add(prompt, param, value, field))
                for output in self._as_finished(followed):
                    if on_output is not None:
                        on_output(output)
            except BaseException:  # whatever it was, the engine must be empty for the next call
                self._drop(followed)
                raise
        return followed

    def generate_each(
        self, requests: Iterable[tuple[Tag, Prompt, SamplingParams, int]]
    ) -> Iterator[tuple[Tag, RequestOutput]]:
        """Complete (tag, prompt, sampling_params, priority) requests, however many there are.

        Yields each one's tag, whatever the caller put there, with its output once that is finished.
        Requests are read as there is room, a few waiting for every one that may run. Leaving the
        loop aborts what runs.
        """
        window = 4 * self.config.max_num_seqs
        queue = iter(requests)
        running: list[tuple[Tag, RequestOutput]] = []
        has_begun = False
        try:
            while True:
                with self._alone(waits=has_begun):
                    has_begun = True
                    while len(running) < window and (entry := next(queue, None)) is not None:
                        tag, prompt, params, priority = entry
                        running.append((tag, self._add(prompt, params, priority)))
                    if not running:
                        return
                    if not any(output.finished for _, output in running):
                        self._step()  # else other calls have ended some meanwhile
                    finished = [pair for pair in running if pair[1].finished]
                    running = [pair for pair in running if not pair[1].finished]
                yield from finished
        finally:
            self._drop([output for _, output in running])

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
        on_output: Callable[[RequestOutput], None] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, rendered by the model's chat template.

        Without ``sampling_params`` an answer may take the rest of the context. Raises
        `ChatTemplateError` where the template refuses the messages, and else as `generate`.
        """
        conversations: Sequence[Any] = [messages] if _is_conversation(messages) else messages
        prompts = [
            self.chat_prompt(
                conversation,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                chat_template_kwargs=chat_template_kwargs,
            )
            for conversation in conversations
        ]
        if sampling_params is None:
            sampling_params = SamplingParams(max_tokens=None)
        return self._complete(prompts, sampling_params, priority, on_output, "messages")

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[tuple[str, RequestOutput]]:
        """Complete one prompt; yield after every step choice 0's new text, which may be empty.

        With every piece comes the output, which grows. Leaving the loop aborts the request.
        Raises `InvalidRequestError` at once for what cannot be served.
        """
        params = SamplingParams() if sampling_params is None else sampling_params
        self.check(prompt, params)
        return self._stream(prompt, params)

    def _stream(
        self, prompt: Prompt, params: SamplingParams
    ) -> Iterator[tuple[str, RequestOutput]]:
        with self._alone():
            output = self._add(prompt, params, 0)
        choice = output.outputs[0]
        num_shown = 0
        try:
            while True:
                with self._alone(waits=True):
                    if not output.finished:
                        self._step()
                    elif num_shown == len(choice.text):
                        return  # else another call's step ended it, with more text
                    text, num_shown = choice.text[num_shown:], len(choice.text)
                yield text, output
        finally:
            self._drop([output])

    def check(
        self, prompt: Prompt, sampling_params: SamplingParams, *, field: str | None = None
    ) -> None:
        """Raise `InvalidRequestError` if `generate` would refuse the prompt; compute nothing.

        ``field`` is what the error is to call the prompt, where the caller made it of another
        field of the user's; None: by what the prompt has.
        """
        self._check_params(sampling_params)
        _, ids, _, own_field = self._read_prompt(prompt)
        self._bad_words(sampling_params)
        with _naming(field or own_field):
            self.core.check(ids, sampling_params)
        self.grammar_for(sampling_params)

    def grammar_for(self, params: SamplingParams) -> CompiledGrammar | None:
        """Return what the shape of the answer compiles to, None where none is asked for.

        Any thread may call it; what was compiled is kept. Raises `InvalidRequestError`.
        """
        return None if params.shape is None else self._grammars.compile(params.shape)

    def chat_prompt(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the prompt that the model's chat template makes of a conversation."""
        template = self.model.chat_template
        if template is None:
            raise InvalidRequestError(
                f"{self.model.path.name} has no chat template; give a plain prompt instead",
                param="messages",
            )
        if not isinstance(chat_template_kwargs, Mapping | None):
            raise InvalidRequestError(
                f"chat_template_kwargs is {shown(chat_template_kwargs)}; give a mapping",
                param="chat_template_kwargs",
            )
        more = dict(chat_template_kwargs or {})
        for name in ("self", "messages", "add_generation_prompt", "continue_final_message"):
            if name in more:
                raise InvalidRequestError(
                    f"chat_template_kwargs holds {name!r}, which is not the template's to take; "
                    "give it as an argument of its own",
                    param="chat_template_kwargs",
                )
        ids = template.render_ids(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **more,
        )
        return {"prompt_token_ids": ids}

    # -- details ----------------------------------------------------------------------------------

    def _add(
        self,
        prompt: Prompt,
        params: SamplingParams,
        priority: int,
        field: str | None = None,
        grammar: CompiledGrammar | None = None,
    ) -> RequestOutput:
        self._check_params(params)
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise InvalidRequestError(
                f"priority holds {shown(priority)}; give whole numbers, the lower the sooner",
                param="priority",
            )
        text, ids, salt, own_field = self._read_prompt(prompt)
        bad_words = self._bad_words(params)
        with _naming(field or own_field):
            request = self.core.add_request(
                str(self._num_requests),
                ids,
                params,
                priority=priority,
                cache_salt=salt,
                bad_words_token_ids=bad_words,
                grammar=grammar or self.grammar_for(params),
            )
        self._num_requests += 1
        return self._processor.add(request, text)

    @contextmanager
    def _alone(self, *, waits: bool = False) -> Iterator[None]:
        """Keep other threads out of the engine, not the caller's own calls further in.

        Where another thread is in it, raise `ThreadError`, or wait: what has requests in the
        engine must not lose them to who came later.
        """
        if not self._lock.acquire(blocking=waits):
            raise ThreadError(
                "another thread is using this LLM, which computes for one at a time; give each "
                "thread an LLM of its own, hand all requests to one thread (a list of prompts "
                "is computed together), or take turns under a lock"
            )
        try:
            yield
        finally:
            self._lock.release()

    def _step(self) -> None:
        """Compute one step for whatever requests there are; their outputs grow."""
        assert self.core.has_requests, "waiting for requests that the engine does not have"
        self._processor.process(self.core.step())

    def _as_finished(self, outputs: Sequence[RequestOutput]) -> Iterator[RequestOutput]:
        """Work until all ``outputs`` are finished; yield each as soon as it is."""
        while outputs:
            finished = [output for output in outputs if output.finished]
            outputs = [output for output in outputs if not output.finished]
            yield from finished  # more may be finished when it goes on: the caller may step too
            if outputs and not finished:
                self._step()

    def _drop(self, outputs: Sequence[RequestOutput]) -> None:
        running = [output for output in outputs if not output.finished]
        if not running:
            return  # and what never began must not wait
        with self._alone(waits=True):
            for output in running:
                self.core.abort(output.request_id)
                self._processor.discard(output.request_id)

    def _read_prompt(self, prompt: Prompt) -> tuple[str | None, list[int], str, str]:
        """Return a prompt's text (None if given as ids), ids, cache salt, and its field's name."""
        if isinstance(prompt, str):
            return prompt, self._encode(prompt), "", "prompt"
        known = {"prompt", "prompt_token_ids", "cache_salt"}
        if not isinstance(prompt, Mapping) or not set(prompt) <= known:
            raise InvalidRequestError(
                f"a prompt is {shown(prompt)}; it must be a string or a mapping with 'prompt' or "
                "'prompt_token_ids', and optionally 'cache_salt'",
                param="prompts",
            )
        salt = prompt.get("cache_salt") or ""
        text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if not isinstance(salt, str):
            raise InvalidRequestError("cache_salt must be a string", param="cache_salt")
        if ids is not None:
            return text, _whole_numbers(ids), salt, "prompt_token_ids"
        if not isinstance(text, str):
            raise InvalidRequestError(
                "a prompt needs a string as 'prompt' or a list of ids as 'prompt_token_ids'",
                param="prompts",
            )
        return text, self._encode(text), salt, "prompt"

    def _encode(self, text: str) -> list[int]:
        check_utf8(text, param="prompt")
        return self.tokenizer.encode_prompt(text)

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """Return the token sequences that spell the bad words, at a word's start and within."""
        found: dict[tuple[int, ...], None] = {}
        for word in params.bad_words or ():
            for form in (word.lstrip(), " " + word.lstrip()):
                found[tuple(self.tokenizer.encode(form, continuing=True))] = None
        return tuple(ids for ids in found if ids)

    @staticmethod
    def _check_params(params: object) -> None:
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(
                f"sampling_params holds {shown(params)}; give SamplingParams",
                param="sampling_params",
            )

    @staticmethod
    def _spread(name: str, value: Any, count: int, default: Any) -> list[Any]:
        """Return ``count`` values: one for all, or as many as given."""
        if value is None:
            value = default
        if not isinstance(value, Sequence):
            return [value] * count
        if len(value) != count:
            raise InvalidRequestError(
                f"{name} has {len(value)} entries for {count} prompts; give one for each",
                param=name,
            )
        return list(value)


def _is_conversation(messages: object) -> bool:
    """Return whether ``messages`` is one conversation, or none at all; not a list of them."""
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        return True  # which is refused where it is rendered
    return not messages or isinstance(messages[0], Mapping)


def _whole_numbers(ids: Any) -> list[int]:
    """Return token ids as Python's ints; NumPy's are as good, alone or as an array."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Sequence):
        ids = getattr(ids, "tolist", lambda: ids)()
    try:
        if isinstance(ids, Sequence) and not any(isinstance(i, bool) for i in ids):
            return [operator.index(i) for i in ids]
    except TypeError:
        pass
    raise InvalidRequestError(
        "prompt_token_ids must be a list of whole numbers", param="prompt_token_ids"
    )


@contextmanager
def _naming(field: str) -> Iterator[None]:
    """Let an error about the prompt's ids name the field that the user gave."""
    try:
        yield
    except InvalidRequestError as error:
        if error.param == "prompt_token_ids":
            error.param = field
        raise
