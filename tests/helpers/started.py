"""A config of a few tiny steps, as a person writes it in the page that starts runs."""

TINY_CONFIG = """extends: quickstart

run:
  name: mine
  steps: 5
  threads: 1
  save_every: 2
  report: false

sft:
  max_steps: 4
  batch_size: 4
  stop_at: null
  decay_steps: 1

rollout:
  prompts: 4
  group_size: 3
  max_tokens: 6

optimizer:
  lr: 1.0e-4

evaluation:
  every: 2
  limit: 6
"""
