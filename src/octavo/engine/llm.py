"""LLM: the offline front, for programs. Its shape is vLLM's.

from octavo import LLM, SamplingParams

llm = LLM("smollm2")
for output in llm.generate(["The capital of France is"], SamplingParams(max_tokens=8)):
    print(output.outputs[0].text)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from octavo.config import DEFAULT_MODEL, EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.outputs import OutputProcessor, RequestOutput
from octavo.errors import InvalidRequestError
from octavo.sampling.params import SamplingParams

if TYPE_CHECKING:
    from octavo.engine.core import EngineCore

Prompt: TypeAlias = "str | Mapping[str, Any]"
Message: TypeAlias = "Mapping[str, Any]"


class LLM:
    """A model with its engine, for use from one thread.

    Args:
        model: a known model's name, pulled on first use, or the path of a ``.gguf`` file.
        config: the settings of `EngineConfig`, by name.

    Raises `ConfigError` for a setting that cannot be honoured and `ModelError` for a model that
    cannot be had.
    """

    def __init__(self, model: str = DEFAULT_MODEL, **config: Any) -> None:
        self.config = EngineConfig.from_kwargs(model=model, **config)
        engine = build_engine(self.config)
        self.model = engine.model
        self.tokenizer = engine.model.tokenizer
        self.core: EngineCore = engine.core
        self.notes = engine.resolved.notes
        """What was chosen automatically, and why, a line each."""
        for warning in engine.resolved.warnings:
            warnings.warn(warning, stacklevel=2)
        self._processor = OutputProcessor(self.tokenizer, self.core.finish)
        self._num_requests = 0

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
        listed = [prompts] if isinstance(prompts, str | Mapping) else list(prompts)
        params = self._spread("sampling_params", sampling_params, len(listed), SamplingParams())
        priorities = self._spread("priority", priority, len(listed), 0)
        followed: list[RequestOutput] = []
        try:
            for prompt, param, value in zip(listed, params, priorities, strict=True):
                followed.append(self._add(prompt, param, value))
            for output, _, _ in self._steps():
                if output.finished and on_output is not None:
                    on_output(output)
        except BaseException:  # whatever it was, the engine must be empty for the next call
            self._drop(followed)
            raise
        return followed

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
        conversations = [messages] if _is_conversation(messages) else messages
        prompts = [
            self.chat_prompt(
                conversation,  # type: ignore[arg-type]
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                chat_template_kwargs=chat_template_kwargs,
            )
            for conversation in conversations
        ]
        if sampling_params is None:
            sampling_params = SamplingParams(max_tokens=None)
        return self.generate(prompts, sampling_params, priority=priority, on_output=on_output)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[tuple[str, RequestOutput]]:
        """Complete one prompt; yield each piece of choice 0's text as it comes.

        With every piece comes the output, which grows. Leaving the loop aborts the request.
        """
        output = self._add(prompt, sampling_params or SamplingParams(), 0)
        try:
            for _, index, text in self._steps():
                if index == 0:
                    yield text, output
        finally:
            self._drop([output])

    def check(self, prompt: Prompt, sampling_params: SamplingParams) -> None:
        """Raise `InvalidRequestError` if `generate` would refuse the prompt; compute nothing."""
        _, ids, _ = self._read_prompt(prompt)
        self.core.check(ids, sampling_params)

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
        ids = template.render_ids(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **(chat_template_kwargs or {}),
        )
        return {"prompt_token_ids": ids}

    # -- details ----------------------------------------------------------------------------------

    def _add(self, prompt: Prompt, params: SamplingParams, priority: int) -> RequestOutput:
        text, ids, salt = self._read_prompt(prompt)
        request = self.core.add_request(
            str(self._num_requests),
            ids,
            params,
            priority=priority,
            cache_salt=salt,
            bad_words_token_ids=self._bad_words(params),
        )
        self._num_requests += 1
        return self._processor.add(request, text)

    def _steps(self) -> Iterator[tuple[RequestOutput, int, str]]:
        while self.core.has_requests:
            yield from self._processor.process(self.core.step())

    def _drop(self, outputs: Sequence[RequestOutput]) -> None:
        for output in outputs:
            if not output.finished:
                self.core.abort(output.request_id)
                self._processor.discard(output.request_id)

    def _read_prompt(self, prompt: Prompt) -> tuple[str | None, list[int], str]:
        """Return a prompt's text (None if given as ids), ids and cache salt."""
        if isinstance(prompt, str):
            return prompt, self.tokenizer.encode_prompt(prompt), ""
        known = {"prompt", "prompt_token_ids", "cache_salt"}
        if not isinstance(prompt, Mapping) or not set(prompt) <= known:
            raise InvalidRequestError(
                f"a prompt is {prompt!r:.80}; it must be a string or a mapping with 'prompt' or "
                "'prompt_token_ids', and optionally 'cache_salt'",
                param="prompts",
            )
        salt = prompt.get("cache_salt") or ""
        text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if not isinstance(salt, str):
            raise InvalidRequestError("cache_salt must be a string", param="cache_salt")
        if ids is not None:
            if isinstance(ids, str | bytes) or not isinstance(ids, Sequence):
                ids = getattr(ids, "tolist", lambda: ids)()
            if not isinstance(ids, Sequence) or not all(type(i) is int for i in ids):
                raise InvalidRequestError(
                    "prompt_token_ids must be a list of whole numbers", param="prompt_token_ids"
                )
            return text, list(ids), salt
        if not isinstance(text, str):
            raise InvalidRequestError(
                "a prompt needs a string as 'prompt' or a list of ids as 'prompt_token_ids'",
                param="prompts",
            )
        return text, self.tokenizer.encode_prompt(text), salt

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """Return the token sequences that spell the bad words, at a word's start and within."""
        found: dict[tuple[int, ...], None] = {}
        for word in params.bad_words or ():
            for form in (word.lstrip(), " " + word.lstrip()):
                found[tuple(self.tokenizer.encode(form))] = None
        return tuple(ids for ids in found if ids)

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


def _is_conversation(messages: Sequence[Any]) -> bool:
    """Return whether ``messages`` is one conversation, not a list of them."""
    return not messages or isinstance(messages[0], Mapping)
