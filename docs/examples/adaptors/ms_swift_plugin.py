"""ms-swift with our verifiers.

swift rlhf --rlhf_type grpo --external_plugins ms_swift_plugin.py --reward_funcs vlmrl_box ...

The data set's rows hold `truth` and `media` next to `messages` and `images`, for example
`"truth": {"boxes": [[10, 20, 60, 90]]}, "media": {"width": 640, "height": 480}`.
"""

from swift.rewards import orms

from vlmrl.features.integrations.ms_swift import orm

orms["vlmrl_box"] = orm(["box_iou", "format"])
