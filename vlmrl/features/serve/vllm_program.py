"""vLLM's own OpenAI server as a program: `python -m vlmrl.features.serve.vllm_program --model FOLDER`.

Its spawned processes import this module again, and with it what vLLM needs here (`import_vllm`).
"""

from __future__ import annotations

from vlmrl.engines.vllm_parts.adapted_vllm import import_vllm

if __name__ in ("__main__", "__mp_main__"):
    import_vllm()

if __name__ == "__main__":
    from vllm.entrypoints.launchers.api_server import entry

    entry.main()
