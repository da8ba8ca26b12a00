"""The sections `distributed` and `cluster` of a config."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from vlmrl.config.section import Section


class DistributedConfig(Section):
    """How several processes (`torchrun`) train one model. A single process ignores it."""

    strategy: Literal["ddp", "fsdp2"] = "ddp"
    """ddp: every process holds the whole model. fsdp2: weights, gradients and optimizer state are
    sharded; while engine `hf` generates, every process holds all weights."""
    replicas: int = Field(1, ge=1)
    """Copies of the weights with fsdp2: each is sharded over equally many consecutive processes, which
    alone gather it; gradients are summed over all. It divides the number of processes."""
    sequence_parallel: int = Field(1, ge=1)
    """Processes that share the tokens of each micro-batch, so that a prompt too long for one GPU's
    activations can be trained on. It divides the number of processes of a machine, and the model's
    key-value heads."""
    timeout_s: float = Field(1800, gt=0)
    """Seconds that a process waits for the others before it ends the run."""

    @model_validator(mode="after")
    def _require_sharding(self) -> DistributedConfig:
        if self.replicas > 1 and self.strategy == "ddp":
            raise ValueError(
                f"replicas: expected 1 with strategy ddp, where every process holds a replica, got "
                f"{self.replicas}; use strategy fsdp2"
            )
        return self


class TrainPlacesConfig(Section):
    """How many processes `vlmrl launch` trains with, and on how many nodes."""

    nodes: int = Field(1, ge=1)
    """Nodes, each with as many processes; `--nodes` is the same."""
    gpus_per_node: int = Field(1, ge=1)
    """GPUs of each node, one a process; where no node has a GPU, CPUs. `--gpus-per-node` is the same."""


class ServePlacesConfig(Section):
    """Servers of rollouts that `vlmrl launch` keeps for engine `vllm_server`."""

    replicas: int = Field(0, ge=0)
    """Servers at most. 0: the engine has its own."""
    gpus: int = Field(1, ge=0)
    """GPUs of each, on one node; more than one is tensor parallelism."""


class ClusterConfig(Section):
    """Where `vlmrl launch` runs the config with Ray. `vlmrl train` ignores it."""

    address: str | None = None
    """Address of a running Ray cluster, `HOST:PORT`. Absent: Ray is started on this machine, for one node."""
    train: TrainPlacesConfig = TrainPlacesConfig()
    """The processes that train."""
    serve: ServePlacesConfig = ServePlacesConfig()
    """The servers of rollouts."""
    graders: int = Field(0, ge=0)
    """Graders at most, which run the verifiers that have a time limit, `scoring.workers` processes each, on
    nodes that have as much of Ray's resource `vlmrl_cpu`. 0: the ranks run them."""
    retries: int = Field(3, ge=0)
    """Failed attempts in a row, none of which came to a new checkpoint, after which the run is not
    begun again. A mistake in the config or the data ends it at once."""
    detect_s: float = Field(20, ge=5)
    """Seconds without an answer after which a node is given up, and the run goes on without it."""
