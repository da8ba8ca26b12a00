"""Prompts that papers use for several benchmarks, in their words."""

from __future__ import annotations

_LETTER = (
    " Please provide only the single option letter (e.g., A, B, C, D, etc.) within the <answer> "
    "</answer> tags."
)
_PONDER = (
    "\nPlease think about this question as if you were a human pondering deeply. Engage in an "
    "internal dialogue using expressions such as 'let me think', 'wait', 'Hmm', 'oh, I see', 'let's "
    "break it down', etc, or other natural language thought expressions It's encouraged to include "
    "self-reflection or verification in the reasoning process. Provide your detailed reasoning "
    "between the <think> and </think> tags, and then give your final answer between the <answer> and "
    "</answer> tags."
)
VIDEO_R1_LETTER = "{question}Options:\n{options}\n" + _PONDER + _LETTER
"""Video-R1's multiple choice (src/eval_bench.py at 59d65c3); the options as `A. text`."""
VIDEO_R1_NUMBER = (
    "{question}"
    + _PONDER
    + " Please provide the numerical value (e.g., 42 or 3.14) within the <answer> </answer> tags."
)
"""Video-R1's numbers."""

_THOUGHT = (
    "Output your thought process within the <think> </think> tags, including analysis with either "
    "specific timestamps (xx.xx) or time ranges (xx.xx to xx.xx) in <timestep> </timestep> tags.\n\nThen, "
)
VIDEOCHAT_QA = (
    "{question}\n\n" + _THOUGHT + "provide your final answer within the <answer> </answer> tags.\n"
)
"""VideoChat-R1's classification (src_eval/eval_prompts.py at 73b2ea9)."""
VIDEOCHAT_GROUND = (
    'To accurately pinpoint the event "{sentence}" in the video, determine the precise time period of '
    "the event.\n\n"
    + _THOUGHT
    + "provide the start and end times (in seconds, precise to two decimal places) in the format "
    '"start time to end time" within the <answer> </answer> tags. For example: "12.54 to 17.83".'
)
"""VideoChat-R1's temporal grounding."""
TIME_R1_GROUND = (
    'To accurately pinpoint the event "{sentence}" in the video, determine the precise time period of '
    "the event.\n\nOutput your thought process within the <think> </think> tags, including analysis with "
    "either specific time ranges (xx.xx to xx.xx) in <timestep> </timestep> tags.\n\nThen, provide the "
    'start and end times (in seconds, precise to two decimal places) in the format "start time to end '
    'time" within the <answer> </answer> tags. For example: "12.54 to 17.83".'
)
"""Time-R1's temporal grounding (src/vllm_inference/data/config.py at 7f2b594)."""
VIDEOCHAT_GQA = (
    'Answer the question: "{question}" according to the content of the video. Select the answer from '
    ":{listed}.\n\n"
    + _THOUGHT
    + "provide your answer within the <answer> </answer> tags, output the corresponding letter of the "
    "option. At the same time, in the <glue> </glue> tags, present the precise time period in seconds "
    "of the video clips on which you base your answer to this question in the format of [(s1, e1), "
    "(s2, e2), ...]. For example: <answer>A</answer><glue>[(5.2, 10.4)]</glue>.\n"
)
"""VideoChat-R1's grounded questions; the options as Python prints a list."""

HUMAN_OMNI_SYSTEM = (
    "You are a helpful assistant. Your primary goal is to deeply analyze and interpret information "
    "from available various modalities (image, video, audio, text context) to answer questions with "
    "human-like depth and a clear, traceable thought process.\n\nBegin by thoroughly understanding the "
    "image, video, audio or other available context information, and then proceed with an in-depth "
    "analysis related to the question. \n\nIn reasoning, It is encouraged to incorporate "
    "self-reflection and verification into your reasoning process. You are encouraged to review the "
    "image, video, audio, or other context information to ensure the answer accuracy.\n\nProvide your "
    "understanding of the image, video, and audio between the <context> </context> tags, detail the "
    "reasoning between the <think> </think> tags, and then give your final answer between the <answer> "
    "</answer> tags.\n"
)
"""HumanOmniV2's system turn (eval/eval_humanomniv2.py at 9bf0e6f)."""
HUMAN_OMNI_LETTER = (
    "Here is a video, with the audio from the video.\n{question} Options:\n{listed}\n" + _LETTER
)
"""HumanOmniV2's multiple choice about a video with sound."""

Q_INSIGHT_SYSTEM = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. "
    "The assistant first thinks about the reasoning process in the mind and then provides the user with "
    "the answer. The reasoning process and answer are enclosed within <think> </think> and <answer> "
    "</answer> tags, respectively, i.e., <think> reasoning process here </think><answer> answer here "
    "</answer>"
)
"""Q-Insight's system turn (src/eval/demo_score.py at 08308fd)."""
Q_INSIGHT_RATING = (
    "What is your overall rating on the quality of this picture? The rating should be a float between 1 "
    "and 5, rounded to two decimal places, with 1 representing very poor quality and 5 representing "
    'excellent quality. Return the final answer in JSON format with the following keys: "rating": The '
    "score."
)
"""Q-Insight's question for a score."""

LMMS_REASONING_SYSTEM = (
    "You are a helpful assistant. When the user asks a question, your response must include two parts: "
    "first, the reasoning process enclosed in <think>...</think> tags, then the final answer enclosed in "
    "<answer>...</answer> tags.Please provide a clear, concise response within <answer> </answer> tags "
    "that directly addresses the question."
)
"""System turn of lmms-eval's tasks for reasoning: WeMath, LogicVista, DynaMath."""

SPOKEN = "Please listen to the audio and provide your response."
"""lmms-eval's prompt of VoiceBench: the question itself is spoken."""

COAT_SYSTEM = (
    "You are a smart and helpful visual assistant that is well trained to manipulate mobile "
    "phones.\n"
    "Your task is to navigate on the current screen to complete the user request.\n"
    "- You are provided with a screenshot of the current mobile phone.\n"
    "- You are provided with a textual description of elements on the screen. Each element is "
    'assigned a category represented in uppercase letters. For "TEXT" element, the corresponding '
    "text on the screen is also included. Each element also has a bounding box, composed of four "
    "coordinates [xmin, ymin, xmax, ymax] ranging from 0 to 999, representing the proportion in "
    "width or height.\n"
    "- You are provided with history actions trying to accompolish the user request.\n"
    "- You are required to decide on the next single-step valid action to conduct on the current "
    "screen. \n"
    "\n"
    "## Valid Actions on the screen\n"
    "CLICK_ELEMENT:\n"
    "  summary: click on the visible element on the screen\n"
    "  usage:\n"
    "    [1] API call: click_element(bbox=)\n"
    "    [2] Args:\n"
    "      - bbox: 'The bounding box of the element to be clicked, formed as [x1, y1, x2, y2].'\n"
    "    [3] Example: click_element(bbox=[10, 20, 30, 40])\n"
    "    [4] Return: None\n"
    "\n"
    "SCROLL:\n"
    "  summary: move the scrollable content, or open the app drawer\n"
    "  explanation: \n"
    "    - Scrolling down typically means moving scrollable content to see what's further down. "
    "If content is moving up, you are scrolling down. \n"
    "    - Scrolling up could either open the app drawer, or move back to view the previous "
    "content on the same screen.\n"
    "  usage:\n"
    "    [1] API call: scroll(direction=)\n"
    "    [2] Args:\n"
    "      - direction: 'Scroll direction. One of ''up'', ''down'', ''left'', ''right''.'\n"
    '    [3] Example: scroll(direction="up")\n'
    "    [4] Return: None\n"
    "\n"
    "INPUT:\n"
    "  summary: input text to an editable input area\n"
    "  usage:\n"
    '    [1] API call: input(text="")\n'
    "    [2] Args:\n"
    "      - text: 'The text input to the editable input area.'\n"
    '    [3] Example: input(text="Hello World")\n'
    "    [4] Return: None\n"
    "\n"
    "PRESS_ENTER:\n"
    "  summary: confirm the input, or submit the input, or start a new line of text\n"
    "  usage:\n"
    "    [1] API call: press_enter()\n"
    "    [2] Args: None\n"
    "    [3] Example: press_enter()\n"
    "    [4] Return: None\n"
    "\n"
    "PRESS_HOME:\n"
    "  summary: directly move back to the home screen\n"
    "  usage:\n"
    "    [1] API call: press_home()\n"
    "    [2] Args: None\n"
    "    [3] Example: press_home()\n"
    "    [4] Return: None\n"
    "\n"
    "PRESS_BACK:\n"
    "  summary: return to the most recently visited screen or interface\n"
    "  usage:\n"
    "    [1] API call: press_back()\n"
    "    [2] Args: None\n"
    "    [3] Example: press_back()\n"
    "    [4] Return: None\n"
    "\n"
    "STOP:\n"
    "  summary: stop and set the state of the task\n"
    "  usage:\n"
    "    [1] API call: stop(task_status=)\n"
    "    [2] Args:\n"
    "      - task_status: 'Decide on whether the task is a success or failure. Choose one of "
    "''success'', ''failure''.'\n"
    '    [3] Example: stop(task_status="success")\n'
    "    [4] Return: None\n"
    "\n"
    "## Output Format\n"
    "- You must choose one of the valid apis provided above and response in the corresponding "
    "API call format.\n"
    "- Your response should be strictly structured in JSON format, consisting of the following "
    "keys and corresponding content:\n"
    "  {\n"
    '    "ACTION": <Specify the precise API function name without arguments to be called to '
    'complete the user request, e.g., click_element. Leave it a empty string "" if you believe '
    "none of the API function is suitable for the task or the task is complete.>,\n"
    '    "ARGS": <Specify the precise arguments in a dictionary format of the selected API '
    'function to be called to complete the user request, e.g., {"bbox": [0, 1, 2, 3]}. Leave it '
    "a empty dictionary {} if you the API does not require arguments, or you believe none of the "
    "API function is suitable for the task, or the task is complete.>\n"
    "  }\n"
    "\n"
    "## Output Example 1: \n"
    "{\n"
    '  "ACTION": "click_element", \n'
    '  "ARGS": {"bbox": [100, 345, 219, 826]}\n'
    "}\n"
    "\n"
    "## Output Example 2: \n"
    "{\n"
    '  "ACTION": "scroll", \n'
    '  "ARGS": {"direction": "down"}\n'
    "}\n"
    "\n"
    "## Output Example 3: \n"
    "{\n"
    '  "ACTION": "press_home", \n'
    '  "ARGS": {}\n'
    "}"
)
"""CoAT's system turn for actions from screen elements in words (coat/config.yaml at 9ab1a9f)."""
