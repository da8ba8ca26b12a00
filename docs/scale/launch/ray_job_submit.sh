#!/usr/bin/env bash
# A Ray cluster that is there already: hand it the run, and follow its output.
#   bash ray_job_submit.sh http://10.0.0.1:8265 /shared/work mine.yaml 4 8 [KEY=VALUE ...]
# for the config /shared/work/mine.yaml on 4 nodes with 8 GPUs each. Ctrl-C only stops following; `ray job stop` saves.
# Where the cluster asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN before.
set -euo pipefail
dashboard=${1:?"where the dashboard of the head listens: http://HOST:8265"}
folder=${2:?"the folder in which the run is launched, the same on all nodes"}
config=${3:?"the config, seen from that folder"}
nodes=${4:?"how many nodes train"}
gpus=${5:?"how many GPUs of each"}
shift 5

# No --working-dir: Ray would copy that folder to a path of its own. Without the variable `ray job stop` kills after 3 s.
ray job submit --address "$dashboard" \
    --runtime-env-json '{"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "600"}}' -- \
    env --chdir="$folder" \
    vlmrl launch "$config" --nodes "$nodes" --gpus-per-node "$gpus" cluster.address=auto resume=auto "$@"
