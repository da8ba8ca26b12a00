"""Ways to divide GPUs between training and generation, as configs write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmrl import plugins
from vlmrl.config import Config
from vlmrl.engines.vllm_parts.options import VllmOptions
from vlmrl.errors import UserError

SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8)
"""Shares of the GPUs that train, where others generate."""
PARALLEL = (1, 2, 4, 8)
"""GPUs that may work on one thing together: ranks on the tokens of a row, GPUs of a server."""


@dataclass(frozen=True, slots=True)
class GpuLayout:
    """How the GPUs are divided."""

    trainers: int
    """GPUs that train, one process each."""
    servers: int
    """Servers on other GPUs; 0: the GPUs that train generate, too."""
    tensor_parallel: int = 1
    """GPUs of a server."""
    strategy: str = "fsdp2"
    replicas: int = 1
    """Copies of the weights that `fsdp2` shards, each over as many ranks."""
    sequence_parallel: int = 1
    staleness: int = 0
    checkpointing: bool = False
    engine: str = "vllm"
    """Where the GPUs that train generate: `vllm` or `hf`."""
    micro_batch_tokens: int = 16384
    utilization: float = 0.4
    """Share of a GPU's memory that vLLM takes: of one that only generates, or while it does."""

    @property
    def gpus(self) -> int:
        """Return the number of GPUs."""
        return self.trainers + self.servers * self.tensor_parallel

    @property
    def shards(self) -> int:
        """Return the number of ranks over which the weights are sharded."""
        return self.trainers // self.replicas if self.strategy == "fsdp2" else 1

    @property
    def teams(self) -> int:
        """Return the number of teams of ranks that share the tokens of a micro-batch."""
        return self.trainers // self.sequence_parallel

    def __str__(self) -> str:
        """Return the layout in one phrase."""
        how = self.strategy + (f", {self.replicas} replicas" if self.replicas > 1 else "")
        train = (
            f"{self.trainers} train" if self.servers else f"all {self.trainers} train and generate"
        )
        phrases = [
            f"{train} ({how})",
            f"{self.servers} servers x {self.tensor_parallel}" if self.servers else "",
            f"sequences over {self.sequence_parallel}" if self.sequence_parallel > 1 else "",
            f"staleness {self.staleness}" if self.staleness else "",
            "checkpointing" if self.checkpointing else "",
        ]
        return ", ".join(filter(None, phrases))

    def keys(self) -> dict[str, Any]:
        """Return the keys of the config that say so, with their values."""
        keys: dict[str, Any] = {
            "distributed.strategy": self.strategy,
            "distributed.replicas": self.replicas,
            "distributed.sequence_parallel": self.sequence_parallel,
            "rollout.max_staleness": self.staleness,
            "model.gradient_checkpointing": self.checkpointing,
            "optimizer.micro_batch_tokens": self.micro_batch_tokens,
            "engine.name": "vllm_server" if self.servers else self.engine,
        }
        if keys["engine.name"] != "hf":
            keys["engine.options.gpu_memory_utilization"] = self.utilization
        if keys["engine.name"] == "vllm":
            keys["engine.options.enable_sleep_mode"] = True
        return keys

    def changes(self, config: Config) -> dict[str, Any]:
        """Return those of `keys` that the config does not have already, and those of other servers.

        The latter are servers that `vlmrl launch` keeps.
        """
        tree, keys = config.model_dump(mode="json"), self.keys()
        if self.servers and (self.servers, self.tensor_parallel) != _servers_of(config):
            keys["cluster.serve.replicas"] = self.servers
            keys["cluster.serve.gpus"] = self.tensor_parallel
            keys["engine.options.transfer"] = config.engine.options.get("transfer", "tcp")
        return {key: value for key, value in keys.items() if _at(tree, key) != value}


def as_overrides(changes: Mapping[str, object]) -> str:
    """Return keys with their values as a command line takes them."""
    plain = ((k, str(v).lower() if isinstance(v, bool) else v) for k, v in changes.items())
    return " ".join(f"{key}={value}" for key, value in plain)


def layout_of(config: Config, gpus: int) -> GpuLayout:
    """Return the layout of a config as it is on `gpus` GPUs.

    The GPUs of its servers do not train: those of `cluster.serve` or `devices`, or one for each of `urls`
    or `num_servers`.

    Raises:
        UserError: `distributed.replicas` does not divide the GPUs that train into at least 2 each.
    """
    options, name = config.engine.options, config.engine.name
    servers, parallel = _servers_of(config)
    trainers, replicas = max(1, gpus - servers * parallel), config.distributed.replicas
    if replicas > 1 and (trainers % replicas or trainers == replicas):
        raise UserError(
            f"distributed.replicas: expected a divisor of the {trainers} GPUs that train, with at least 2 "
            f"for each replica, got {replicas}"
        )
    return GpuLayout(
        trainers=trainers,
        servers=servers,
        tensor_parallel=parallel,
        strategy=config.distributed.strategy,
        replicas=replicas,
        sequence_parallel=config.distributed.sequence_parallel,
        staleness=config.rollout.max_staleness,
        checkpointing=config.model.gradient_checkpointing,
        engine="vllm" if servers else name,
        micro_batch_tokens=config.optimizer.micro_batch_tokens,
        utilization=options.get("gpu_memory_utilization", VllmOptions.gpu_memory_utilization),
    )


def _servers_of(config: Config) -> tuple[int, int]:
    """Return the number of a config's servers on GPUs of their own, and the GPUs of each."""
    if config.engine.name != "vllm_server":
        return 0, 1
    if (serve := config.cluster.serve).replicas:
        return serve.replicas, serve.gpus
    engine = plugins.build("engine", config.engine.name, config.engine.options)
    servers = len(engine.urls) or len(engine.devices) or engine.num_servers
    return servers, max((len(each.split(",")) for each in engine.devices), default=1)


def enumerate_layouts(
    config: Config, gpus: int, gpus_per_node: int, sequence_parts: Sequence[int]
) -> Iterator[GpuLayout]:
    """Yield the layouts that vlmrl can run on `gpus` GPUs, for this config's batch."""
    tokens = config.optimizer.micro_batch_tokens
    train = [number for share in SHARES if 0 < (number := round(gpus * share)) < gpus]
    ways: list[Mapping[str, Any]] = [{"trainers": gpus, "servers": 0}]
    for trainers in dict.fromkeys(train):
        for parallel in PARALLEL:
            servers, rest = divmod(gpus - trainers, parallel)
            if servers and not rest:
                at = {"trainers": trainers, "servers": servers, "tensor_parallel": parallel}
                ways += [{**at, "staleness": staleness} for staleness in (0, 1)]
    for way in (way for way in ways if way["trainers"] <= config.rollout.prompts):
        for strategy, replicas in _shardings(way["trainers"], gpus_per_node):
            for parts in sequence_parts:
                if way["trainers"] % parts or gpus_per_node % parts:
                    continue
                for checkpointing in (False, True):
                    yield GpuLayout(
                        **way,
                        strategy=strategy,
                        replicas=replicas,
                        sequence_parallel=parts,
                        checkpointing=checkpointing,
                        micro_batch_tokens=tokens,
                    )


def _shardings(trainers: int, gpus_per_node: int) -> Iterator[tuple[str, int]]:
    """Yield strategies with numbers of replicas: one, or as many as have one or eight machines each."""
    yield "ddp", 1
    if trainers > 1:
        yield "fsdp2", 1
    for shards in (gpus_per_node, 8 * gpus_per_node):
        if shards < trainers and not trainers % shards:
            yield "fsdp2", trainers // shards


def _at(tree: object, key: str) -> Any:
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree
