"""Pay two completions by verl's own reward loop, set up as its command line would; print the rewards.

Arguments: a folder with a tokenizer, the file of the reward function, its ground truth, the completions.
"""

import asyncio
import json
import sys
from pathlib import Path

import vlmrl.system.torchvision_shim  # noqa: F401  isort: skip  (before transformers)

import numpy as np
import torch
import verl
from hydra import compose, initialize_config_dir
from verl import DataProto
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

tokenizer, function, truth, *texts = sys.argv[1:]
with initialize_config_dir(
    str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None
):
    config = compose(
        "ppo_trainer",
        [
            f"actor_rollout_ref.model.path={tokenizer}",
            f"reward.custom_reward_function.path={function}",
            "reward.custom_reward_function.name=compute",
        ],
    )


async def pay() -> list[dict]:
    worker = RewardLoopWorker(config)
    ids = [worker.input_tokenizer(text)["input_ids"] for text in texts]
    longest = max(map(len, ids))
    responses = torch.tensor([one + [0] * (longest - len(one)) for one in ids])
    mask = torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in ids])
    of_rows = {
        "data_source": ["boxes"] * len(texts),
        "reward_model": [{"ground_truth": truth}] * len(texts),
        "extra_info": [{}] * len(texts),
    }
    data = DataProto.from_dict(
        tensors={"responses": responses, "attention_mask": mask},
        non_tensors={key: np.array(rows, dtype=object) for key, rows in of_rows.items()},
    )
    return await worker.compute_score_batch(data)


print(json.dumps([paid["reward_score"] for paid in asyncio.run(pay())]))
