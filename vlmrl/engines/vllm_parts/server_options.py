"""Options of engine `vllm_server`, and what must hold between them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlmrl.engines.base import ServedPolicy
from vlmrl.engines.vllm_parts.options import VllmOptions
from vlmrl.engines.vllm_parts.server import Server
from vlmrl.engines.vllm_parts.transfer import Name
from vlmrl.errors import UserError

__all__ = ["ServerOptions", "command_line"]


@dataclass
class ServerOptions(VllmOptions):
    """Base of the engine; the fields are options. More options: see `VllmOptions`."""

    num_servers: int = 1
    """Number of servers to start."""
    devices: list[str] = field(default_factory=list)
    """CUDA_VISIBLE_DEVICES of each server, one entry per server, e.g. ["1", "2,3"]. A server with
    several devices uses tensor parallelism."""
    urls: list[str] = field(default_factory=list)
    """Servers that are already running (`python -m vlmrl.engines.serve`), instead of starting any. Their
    token is read from VLMRL_SERVER_TOKEN."""
    transfer: Name = "file"
    """How weights are sent. file: the servers are on this machine."""
    transfer_address: str = "127.0.0.1"
    """Address at which servers reach this machine (tcp, nccl)."""
    media_folder: str | None = None
    """Folder on storage that the `urls` read too (start them with `--allowed-local-media-path`): media are
    written there once and requests name them. Absent: each request holds its media. Servers that the run
    starts have such a folder by themselves."""
    api_processes: int = 1
    """Processes of each server that is started which read requests and prepare media."""
    start_timeout_s: float = 600.0
    """Seconds within which a server must be ready."""
    sync_timeout_s: float = 300.0
    """Seconds for each part of a weight update."""

    def __post_init__(self) -> None:
        if self.urls and (self.devices or self.num_servers != 1):
            raise ValueError("give either urls, or servers or devices to start")
        if self.devices and self.num_servers not in (1, len(self.devices)):
            raise ValueError(
                f"num_servers is {self.num_servers}, but devices has {len(self.devices)}"
            )
        if self.num_servers < 1:
            raise ValueError(f"expected num_servers of at least 1, got {self.num_servers}")
        if self.api_processes < 1:
            raise ValueError(f"expected api_processes of at least 1, got {self.api_processes}")
        if self.media_folder is not None and not self.urls:
            raise ValueError("media_folder is for servers of `urls`")
        if self.lora == "adapter" and (self.urls or self.transfer != "file"):
            raise ValueError(
                "lora 'adapter' needs servers that the run starts, and transfer 'file'"
            )
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"urls: {url!r} must start with http:// or https://")

    def check(self, policy: ServedPolicy) -> None:
        """See `VllmOptions`; a server on a CPU does not tell which experts it chose."""
        super().check(policy)
        if policy.config.router_replay and policy.device.type == "cpu":
            raise UserError(
                "model.router_replay: vLLM's servers tell which experts they chose on GPUs only; use "
                "engine vllm or hf"
            )

    def require_fleet(self) -> None:
        """Raise UserError if an option excludes servers that `vlmrl launch` keeps (`cluster.serve`)."""
        if self.urls or self.devices or self.num_servers != 1:
            raise UserError(
                "cluster.serve.replicas says how many servers there are: leave out the engine's options "
                "urls, devices and num_servers"
            )
        if self.transfer not in ("tcp", "nccl"):
            raise UserError(
                "cluster.serve: the servers may be on other machines: expected engine option transfer: "
                f"tcp or nccl, got {self.transfer!r}"
            )

    def server_arguments(self, policy: ServedPolicy, folder: str, backend: str) -> dict[str, Any]:
        """Return the arguments of a server that takes weights by this back-end, see `arguments`."""
        given = self.arguments(policy, folder)
        given["weight_transfer_config"] = {"backend": backend}
        if self.api_processes > 1:
            given["api_server_count"] = self.api_processes
        return given


def place(transfer: str, devices: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arguments and the environment of one server that depend on its devices.

    `devices`: its CUDA_VISIBLE_DEVICES; None: those of the trainer.
    """
    environment = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"} if transfer == "ipc" else {}
    if devices is None:
        return {}, environment
    environment["CUDA_VISIBLE_DEVICES"] = devices
    return {"tensor_parallel_size": len(devices.split(","))}, environment


def launch(
    server: Server, given: Mapping[str, Any], transfer: str, devices: str | None, folder: Path
) -> None:
    """Start a child with these arguments of `vllm.LLM` on its devices, see `place`."""
    own, environment = place(transfer, devices)
    server.launch(command_line({**given, **own}), environment, folder)


def command_line(arguments: Mapping[str, Any]) -> list[str]:
    """Return keyword arguments of `vllm.LLM` as command-line arguments of the server."""
    out: list[str] = []
    for name, value in arguments.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            out.append(flag if value else "--no-" + flag[2:])
        else:
            out += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return out
