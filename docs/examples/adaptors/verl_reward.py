"""verl and EasyR1 with our verifiers.

verl: `reward.custom_reward_function.path=verl_reward.py reward.custom_reward_function.name=compute`
EasyR1: `worker.reward.reward_function=verl_reward.py:compute_batch` (older ones also need
`worker.reward.reward_type=batch`)

`ground_truth` is JSON: `{"truth": {"boxes": [[10, 20, 60, 90]]}, "media": {"width": 640, "height":
480}}`.
"""

from vlmrl.features.integrations.verl import compute_score, easy_r1_compute_score

compute = compute_score(["box_iou", "format"])
compute_batch = easy_r1_compute_score(["box_iou", "format"])

REWARD_NAME, REWARD_TYPE = "vlmrl", "batch"  # what EasyR1 reads
