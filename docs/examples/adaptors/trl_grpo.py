"""TRL's GRPOTrainer with our verifiers: `python trl_grpo.py MODEL`.

A text policy, so that it runs on a CPU; for images, add a column `image` (its size replaces
`media`) and a vision-language MODEL.
"""

import sys

from datasets import Dataset  # noqa: TID251  (Hugging Face's, as a user of TRL writes it)
from trl import GRPOConfig, GRPOTrainer

from vlmrl.features.integrations.trl import reward_function


def main(model: str, output: str = "runs/trl_example", steps: int = 1) -> list[dict[str, float]]:
    """Train for some steps and return the trainer's logs."""
    rows = [
        {"prompt": "A box around the dog, in pixels:", "truth": {"boxes": [[10, 20, 60, 90]]}},
        {"prompt": "A box around the cat, in pixels:", "truth": {"boxes": [[5, 5, 40, 40]]}},
    ]
    data = Dataset.from_list([{**row, "media": {"width": 128, "height": 128}} for row in rows])
    config = GRPOConfig(
        output_dir=output,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=16,
        max_steps=steps,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
    )
    trainer = GRPOTrainer(
        model=model,
        args=config,
        train_dataset=data,
        reward_funcs=reward_function(["box_iou", "format"], group_size=4),
    )
    trainer.train()
    logs: list[dict[str, float]] = trainer.state.log_history
    return logs


if __name__ == "__main__":
    print(main(sys.argv[1]))
