"""What a run on many GPUs would take: memory, time, bytes and failures, from a config and published rates."""
