"""Pay completions by EasyR1's own reward manager, set up as its command line would; print the rewards.

Arguments: a folder with a tokenizer, the file of the reward function, its ground truth, the completions.
"""

import json
import sys

import vlmrl.system.torchvision_shim  # noqa: F401  isort: skip  (before transformers)

import numpy as np
import torch
from omegaconf import OmegaConf
from transformers import PreTrainedTokenizerFast
from verl.protocol import DataProto
from verl.workers.reward.config import RewardConfig
from verl.workers.reward.function import AutoRewardManager

folder, function, truth, *texts = sys.argv[1:]
stated = OmegaConf.create({"reward_function": f"{function}:compute_batch"})
config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(RewardConfig), stated))
config.post_init()
tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json")
ids = [tokenizer(text)["input_ids"] for text in texts]
longest = max(map(len, ids))
data = DataProto.from_dict(
    tensors={
        "responses": torch.tensor([one + [0] * (longest - len(one)) for one in ids]),
        "response_mask": torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in ids]),
    },
    non_tensors={"ground_truth": np.array([truth] * len(texts), dtype=object)},
)
rewards, metrics = AutoRewardManager(config, tokenizer).compute_reward(data)
print(json.dumps({"rewards": rewards.sum(-1).tolist(), **metrics}))
